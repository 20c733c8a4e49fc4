"""TMA tile copies against index arithmetic in torch: every rank, swizzle, coordinates outside, stores, reductions."""

from __future__ import annotations

import itertools

import pytest
import torch
from engine_kernels import DATA, dump, entry, expect, init_barriers, launch, tensor_map, tma_load, wait

from attn_dsl.emulator.errors import KernelFinding

SPANS = [0, 32, 64, 128]


def box_of(tensor: torch.Tensor, coords: tuple[int, ...], box: tuple[int, ...], fill: float = 0) -> torch.Tensor:
    """The box at `coords` (both innermost first), outermost dimension first, `fill` outside the tensor."""
    start, sizes = coords[::-1], box[::-1]
    out = torch.full(sizes, fill, dtype=tensor.dtype)
    for index in itertools.product(*(range(s) for s in sizes)):
        at = [c + i for c, i in zip(start, index, strict=True)]
        if all(0 <= i < n for i, n in zip(at, tensor.shape, strict=True)):
            out[index] = tensor[tuple(at)]
    return out


def place(box: torch.Tensor, span: int, atom: int = 0) -> torch.Tensor:
    """Bytes of shared memory that hold a box under a swizzle of `span` bytes, from a multiple of 1024 on.

    Shared memory is a sequence of 128-byte lines; a span of 2^k units moves unit u of line r to u xor (r mod 2^k).
    """
    raw = box.contiguous().view(torch.uint8).reshape(-1)
    if not span:
        return raw
    unit = 16 << atom
    lines = raw.reshape(-1, 128 // unit, unit)  # 128-byte lines of units
    count = span // unit  # units that are exchanged
    out = torch.empty_like(lines)
    for line in range(lines.shape[0]):
        for u in range(lines.shape[1]):
            out[line, u ^ (line % count)] = lines[line, u]
    return out.reshape(-1)


def load_text(dims: int, coords: tuple[int, ...], size: int) -> str:
    body = [init_barriers(1), expect(0, size), tma_load(dims, DATA, 0, coords, 0), wait(0), dump(size, 0, 128)]
    return entry("\n".join(body), pointers=2, maps=1)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("coords", [(0, 0), (32, 5), (-8, -3), (40, 30), (64, 0), (0, -8), (1000, 1000)])
def test_load_2d(span: int, coords: tuple[int, int]):
    tensor = values((35, 72), torch.bfloat16)
    box = ((span or 64) // 2, 8)
    out = torch.zeros(box[0] * box[1], dtype=torch.bfloat16)
    launch(load_text(2, coords, out.nbytes), [out, tensor, tensor_map(tensor, box, swizzle=span)])
    want = place(box_of(tensor, coords, box), span)
    assert torch.equal(out.view(torch.uint8), want)


@pytest.mark.parametrize(
    ("shape", "box", "coords"),
    [
        ((40,), (32,), (16,)),
        ((5, 9, 40), (16, 4, 2), (32, 6, -1)),
        ((3, 4, 5, 24), (8, 2, 3, 2), (8, 4, 2, 1)),
        ((2, 3, 4, 5, 16), (8, 3, 2, 2, 2), (8, -1, 3, 1, 0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16], ids=str)
def test_load_ranks(shape: tuple[int, ...], box: tuple[int, ...], coords: tuple[int, ...], dtype: torch.dtype):
    tensor = values(shape, dtype)
    want = box_of(tensor, coords, box)
    out = torch.zeros(want.numel(), dtype=dtype)
    launch(load_text(len(shape), coords, out.nbytes), [out, tensor, tensor_map(tensor, box)])
    assert torch.equal(out, want.reshape(-1))


def test_strided_tensor_and_traversal_stride():
    base = values((20, 3, 64), torch.int16)
    tensor = base[:, 1, :32]
    out = torch.zeros(8 * 32, dtype=torch.int16)
    launch(load_text(2, (0, 1), out.nbytes), [out, base, tensor_map(tensor, (32, 8), steps=(1, 2))])
    assert torch.equal(out.reshape(8, 32), base[1:17:2, 1, :32])


def test_out_of_bounds_nan():
    tensor = values((4, 16), torch.float32)
    out = torch.zeros(8 * 16, dtype=torch.float32)
    launch(load_text(2, (8, 0), out.nbytes), [out, tensor, tensor_map(tensor, (16, 8), nan=True)])
    got = out.reshape(8, 16)
    assert torch.equal(got[:4, :8], tensor[:, 8:])
    assert got[4:].isnan().all()
    assert got[:, 8:].isnan().all()


@pytest.mark.parametrize(("atom", "unit"), [(1, 32), (3, 64)])
def test_swizzle_atoms(atom: int, unit: int):
    tensor = values((16, 64), torch.int16)
    out = torch.zeros(16 * 64, dtype=torch.int16)
    launch(load_text(2, (0, 0), out.nbytes), [out, tensor, tensor_map(tensor, (64, 16), swizzle=128, atom=atom)])
    assert torch.equal(out.view(torch.uint8), place(tensor, 128, atom={32: 1, 64: 2}[unit]))


def fill_shared(size: int, pointer: int) -> str:
    """Thread 0 copies `size` bytes of pointer parameter `pointer` to the tile, by a bulk copy."""
    return (
        f"add.u32 %r5, %r1, {DATA};\n"
        f"@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d{pointer}], {size}, [%r1];"
    )


def store_text(dims: int, coords: tuple[int, ...], size: int, operation: str = "") -> str:
    head = "cp.reduce.async.bulk" if operation else "cp.async.bulk"
    body = [
        init_barriers(1),
        expect(0, size),
        fill_shared(size, 1),
        wait(0),
        *(f"mov.b32 %r{10 + i}, {c};" for i, c in enumerate(coords)),
        f"@%p0 {head}.tensor.{dims}d.global.shared::cta{operation}.tile.bulk_group "
        f"[%d16, {{{', '.join(f'%r{10 + i}' for i in range(dims))}}}], [%r5];",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.wait_group 0;",
    ]
    return entry("\n".join(body), pointers=2, maps=1)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("coords", [(0, 0), (48, 29), (-16, -2)])
@pytest.mark.parametrize("late", [0, 1])
def test_store_clips(span: int, coords: tuple[int, int], late: int):
    tensor = torch.full((35, 72), -1, dtype=torch.int16)
    box = ((span or 64) // 2, 8)
    tile = values((box[1], box[0]), torch.int16)
    image = place(tile, span)
    launch(store_text(2, coords, image.nbytes), [tensor, image, tensor_map(tensor, box, swizzle=span)], late=late)
    want = torch.full((35, 72), -1, dtype=torch.int16)
    for r, c in itertools.product(range(box[1]), range(box[0])):
        if 0 <= coords[1] + r < 35 and 0 <= coords[0] + c < 72:
            want[coords[1] + r, coords[0] + c] = tile[r, c]
    assert torch.equal(tensor, want)


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        ("add", torch.float32),
        ("add", torch.bfloat16),
        ("add", torch.float16),
        ("add", torch.int32),
        ("min", torch.int32),
        ("max", torch.bfloat16),
        ("and", torch.int32),
        ("xor", torch.int64),
    ],
)
def test_reduce(operation: str, dtype: torch.dtype):
    tensor, tile = values((20, 32), dtype, 1), values((8, 16), dtype, 2)
    before = tensor.clone()
    launch(
        store_text(2, (24, 15), tile.nbytes, f".{operation}"),
        [tensor, tile, tensor_map(tensor, (16, 8), type_code=5 if dtype == torch.int64 else None)],
    )
    old, new = before[15:20, 24:], tile[:5, :8]
    want = before.clone()
    want[15:20, 24:] = {
        "add": lambda: old + new,
        "min": lambda: torch.minimum(old, new),
        "max": lambda: torch.maximum(old, new),
        "and": lambda: old & new,
        "xor": lambda: old ^ new,
    }[operation]()
    assert torch.equal(tensor, want)


def test_multicast_reaches_every_named_cta():
    tensor = values((16, 32), torch.int16)
    out = torch.zeros(4, 16 * 32, dtype=torch.int16)
    size = 16 * 32 * 2
    body = [
        init_barriers(1),
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        "setp.ne.s32 %p4, %r3, 2;\nand.pred %p5, %p0, %p4;",
        f"@%p5 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size};",
        f"add.u32 %r5, %r1, {DATA};\nmov.b32 %r10, 0;\nmov.b16 %h0, 11;",  # ranks 0, 1, 3
        "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%r5], [%d16, {%r10, %r10}], [%r1], %h0;",
        "@!%p4 bra END;",
        wait(0),
        f"mul.lo.s32 %r40, %r3, {size};\ncvt.u64.u32 %d44, %r40;\nadd.s64 %d0, %d0, %d44;",
        dump(size, 0, 32),
        "END:\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
    ]
    text = entry("\n".join(body), pointers=2, maps=1)
    launch(text, [out, tensor, tensor_map(tensor, (32, 16))], block=32, cluster=4)
    for rank in (0, 1, 3):
        assert torch.equal(out[rank], tensor.reshape(-1))
    assert (out[2] == 0).all()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"bytes": 2048}, "deadlock"),  # fewer bytes come than expected
        ({"align": 16}, "misaligned"),
        ({"map": {"type_code": 11}}, "tensormap"),
        ({"short": True}, "oob"),
        ({"elect": False}, "unelected"),
    ],
)
def test_findings(change: dict, kind: str):
    tensor = values((16, 32), torch.int16)
    out = torch.zeros(16 * 32, dtype=torch.int16)
    tmap = tensor_map(tensor, (32, 16), **change.get("map", {}))
    if change.get("short"):  # the tensor map promises more than is there
        tensor = tensor[:8].clone()
        tmap = tensor.data_ptr().to_bytes(8, "little") + tmap[8:]
    text = load_text(2, (0, 0), out.nbytes)
    if "bytes" in change:
        text = text.replace("], 1024;", f"], {change['bytes']};")
    if "align" in change:
        text = text.replace(f"add.u32 %r5, %r1, {DATA};", f"add.u32 %r5, %r1, {DATA + change['align']};")
    if "elect" in change:
        text = text.replace("@%p0 cp.async", "cp.async")
    with pytest.raises(KernelFinding) as caught:
        launch(text, [out, tensor, tmap])
    assert kind in {f.kind for f in caught.value.findings}
