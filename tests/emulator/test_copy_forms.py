"""Every form of the asynchronous copies and reductions, with every operation, type and rank, against torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as every

import pytest
import torch
from engine_kernels import DATA, dump, entry, expect, init_barriers, launch, tensor_map, wait

LANES = 32
POLICY = "createpolicy.fractional.L2::evict_first.b64 %d20, 1.0;"
TX = "mbarrier::complete_tx::bytes"
# Types by their name in PTX: what torch computes with, and how results are compared bit by bit.
DTYPES = {
    "u32": torch.int64,
    "s32": torch.int32,
    "b32": torch.int32,
    "u64": torch.int64,
    "s64": torch.int64,
    "b64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
RULES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda old, new: old + new,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "inc": lambda old, new: torch.where(old >= new, 0, old + 1),
    "dec": lambda old, new: torch.where((old == 0) | (old > new), new, old - 1),
}


def operands(kind: str, count: int, seed: int) -> torch.Tensor:
    """Values as they lie in memory; u32 as int32, u64 as int64 bits."""
    make = torch.Generator().manual_seed(seed)
    if kind[0] in "fb" and kind not in ("b32", "b64"):
        return (torch.randn(count, generator=make) * 4).to(DTYPES[kind])
    dtype = torch.int64 if "64" in kind else torch.int32
    values = torch.randint(-(1 << 30), 1 << 30, (count,), generator=make).to(dtype)
    values[::3] = torch.randint(0, 6, values[::3].shape, generator=make).to(dtype)
    return values << 33 | values if "64" in kind else values


def reduced(op: str, kind: str, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """What memory holds afterwards."""
    if kind == "u32":
        mask = 0xFFFFFFFF
        wide = RULES[op](old.long() & mask, new.long() & mask) & mask
        return torch.where(wide >> 31 == 1, wide - (1 << 32), wide).int()
    if kind == "u64" and op in ("min", "max"):
        flip = torch.iinfo(torch.int64).min  # unsigned order is signed order with the top bit flipped
        return RULES[op](old ^ flip, new ^ flip) ^ flip
    return RULES[op](old, new)


def tile_to_shared(size: int, pointer: int) -> str:
    """Thread 0 brings `size` bytes of a pointer parameter to the tile by a bulk copy; all wait."""
    return "\n".join(
        [
            init_barriers(1),
            expect(0, size),
            f"add.u32 %r5, %r1, {DATA};",
            f"@%p0 cp.async.bulk.shared::cta.global.{TX} [%r5], [%d{pointer}], {size}, [%r1];",
            wait(0),
        ]
    )


GLOBAL_REDUCTIONS = [
    *every(("add",), ("u32", "s32", "u64", "f32", "f64", "f16", "bf16")),
    *every(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
    *every(("and", "or", "xor"), ("b32", "b64")),
    *every(("inc", "dec"), ("u32",)),
]


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize(("op", "kind"), GLOBAL_REDUCTIONS)
def test_bulk_reductions(op: str, kind: str, hint: bool) -> None:
    old, new = operands(kind, 64, 1), operands(kind, 64, 2)
    want = reduced(op, kind, old, new)
    noftz = ".noftz" if op == "add" and kind in ("f16", "bf16") else ""
    policy, last = (".L2::cache_hint", ", %d20") if hint else ("", "")
    body = [
        POLICY,
        tile_to_shared(new.nbytes, 1),
        (
            f"@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group{policy}.{op}{noftz}.{kind} "
            f"[%d0], [%r5], {new.nbytes}{last};"
        ),
        "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;",
    ]
    launch(entry("\n".join(body), pointers=2), [old, new], block=LANES)
    assert torch.equal(old, want)


PUSHED = [
    *every(("add",), ("u32", "s32", "u64")),
    *every(("min", "max"), ("u32", "s32")),
    *every(("and", "or", "xor"), ("b32",)),
    *every(("inc", "dec"), ("u32",)),
]
CLUSTER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"


@pytest.mark.parametrize(("op", "kind"), PUSHED)
def test_reductions_in_another_cta(op: str, kind: str) -> None:
    """Both CTAs hold the tile `old`; rank 0 reduces `new` into that of rank 1."""
    old, new = operands(kind, 32, 3), operands(kind, 32, 4)
    size, out = old.nbytes, torch.zeros_like(old)
    body = [
        init_barriers(1, 1),
        "setp.eq.s32 %p5, %r3, 1;\nand.pred %p6, %p0, %p5;",
        expect(0, 2 * size),
        f"@%p6 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+8], {size};",
        f"add.u32 %r5, %r1, {DATA};\nadd.u32 %r6, %r1, {DATA + size};",
        f"@%p0 cp.async.bulk.shared::cta.global.{TX} [%r5], [%d1], {size}, [%r1];",
        f"@%p0 cp.async.bulk.shared::cta.global.{TX} [%r6], [%d2], {size}, [%r1];",
        wait(0),
        CLUSTER,
        "@%p5 bra READER;",
        "add.u32 %r9, %r1, 8;\nmapa.shared::cluster.u32 %r7, %r5, 1;\nmapa.shared::cluster.u32 %r8, %r9, 1;",
        f"@%p0 cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.{op}.{kind} [%r7], [%r6], {size}, [%r8];",
        "bra END;\nREADER:",
        wait(1),
        dump(size, 0, LANES),
        f"END:\n{CLUSTER}",
    ]
    launch(entry("\n".join(body), pointers=3), [out, old, new], block=LANES, cluster=2)
    assert torch.equal(out, reduced(op, kind, old, new))


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize("space", ["shared::cta", "shared::cluster"])
def test_bulk_loads_and_stores(space: str, multicast: bool, hint: bool) -> None:
    """Rank 0 loads (for all ranks with multicast, each for itself without), every rank stores its tile."""
    if multicast and space == "shared::cta":
        return
    source = torch.arange(64, dtype=torch.int32)
    size, out = source.nbytes, torch.zeros(2, 64, dtype=torch.int32)
    policy, last = (".L2::cache_hint", ", %d20") if hint else ("", "")
    mask = ", %h0" if multicast else ""
    load = f"cp.async.bulk.{space}.global.{TX}{'.multicast::cluster' * multicast}{policy}"
    body = [
        POLICY,
        init_barriers(1),
        expect(0, size),
        CLUSTER,
        f"add.u32 %r5, %r1, {DATA};\nmov.b16 %h0, 3;",
        f"@{'%p1' if multicast else '%p0'} {load} [%r5], [%d1], {size}, [%r1]{mask}{last};",
        wait(0),
        f"mul.wide.u32 %d21, %r3, {size};\nadd.s64 %d22, %d0, %d21;",
        f"@%p0 cp.async.bulk.global.shared::cta.bulk_group{policy} [%d22], [%r5], {size}{last};",
        f"@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group.read 0;\n{CLUSTER}",
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], block=LANES, cluster=2)
    assert torch.equal(out, torch.stack([source, source]))


# tensor copies

SHAPES = {  # of the tensor (outermost dimension first) and of the box (innermost first)
    1: ((40,), (32,)),
    2: ((9, 40), (16, 4)),
    3: ((5, 9, 40), (16, 4, 2)),
    4: ((3, 4, 5, 24), (8, 2, 3, 2)),
    5: ((2, 3, 4, 5, 16), (8, 3, 2, 2, 2)),
}
START = {1: (16,), 2: (32, 6), 3: (32, 6, 1), 4: (8, 4, 2, 1), 5: (8, 1, 3, 1, 0)}  # the boxes overhang


def window(tensor: torch.Tensor, rank: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of the tensor under the box, and of the box over the tensor (outermost dimension first)."""
    starts, sizes = START[rank][::-1], SHAPES[rank][1][::-1]
    ends = [min(s + n, extent) for s, n, extent in zip(starts, sizes, tensor.shape, strict=True)]
    return (
        tuple(slice(s, e) for s, e in zip(starts, ends, strict=True)),
        tuple(slice(0, e - s) for s, e in zip(starts, ends, strict=True)),
    )


def coordinates(rank: int) -> tuple[str, str]:
    names = ", ".join(f"%r{10 + i}" for i in range(rank))
    return "\n".join(f"mov.b32 %r{10 + i}, {c};" for i, c in enumerate(START[rank])), names


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("tile", ["", ".tile"])
@pytest.mark.parametrize("rank", SHAPES)
def test_tensor_stores(rank: int, tile: str, hint: bool) -> None:
    shape, box = SHAPES[rank]
    tensor, image = torch.zeros(shape, dtype=torch.int32), operands("s32", torch.Size(box).numel(), 5)
    policy, last = (".L2::cache_hint", ", %d20") if hint else ("", "")
    setup, names = coordinates(rank)
    body = [
        POLICY,
        tile_to_shared(image.nbytes, 1),
        setup,
        (
            f"@%p0 cp.async.bulk.tensor.{rank}d.global.shared::cta{tile}.bulk_group{policy} "
            f"[%d16, {{{names}}}], [%r5]{last};"
        ),
        "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;",
    ]
    launch(entry("\n".join(body), pointers=2, maps=1), [tensor, image, tensor_map(tensor, box)], block=LANES)
    want = torch.zeros(shape, dtype=torch.int32)
    inside, used = window(tensor, rank)
    want[inside] = image.reshape(box[::-1])[used]
    assert torch.equal(tensor, want)


TENSOR_REDUCTIONS = [
    *every(("add",), ("s32", "u64", "f16", "bf16", "f32", "f64")),
    *every(("min", "max"), ("s32", "s64", "f16", "bf16")),
    *every(("and", "or", "xor"), ("s32", "s64")),
    *every(("inc", "dec"), ("u32",)),
]


@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("tile", ["", ".tile"])
@pytest.mark.parametrize(("op", "kind"), TENSOR_REDUCTIONS)
def test_tensor_reductions(op: str, kind: str, tile: str, hint: bool) -> None:
    """The type is that of the tensor map."""
    check_tensor_reduction(op, kind, 2, tile, hint)


@pytest.mark.parametrize("rank", SHAPES)
def test_tensor_reductions_of_every_rank(rank: int) -> None:
    check_tensor_reduction("add", "s32", rank, "", hint=False)


def check_tensor_reduction(op: str, kind: str, rank: int, tile: str, hint: bool) -> None:
    shape, box = SHAPES[rank]
    tensor = operands(kind, torch.Size(shape).numel(), 6).reshape(shape)
    image = operands(kind, torch.Size(box).numel(), 7)
    policy, last = (".L2::cache_hint", ", %d20") if hint else ("", "")
    setup, names = coordinates(rank)
    want = tensor.clone()
    inside, used = window(tensor, rank)
    want[inside] = reduced(op, kind, tensor[inside], image.reshape(box[::-1])[used])
    code = {"u32": 2, "u64": 4}.get(kind)
    body = [
        POLICY,
        tile_to_shared(image.nbytes, 1),
        setup,
        f"@%p0 cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}{tile}.bulk_group{policy} "
        f"[%d16, {{{names}}}],"
        f" [%r5]{last};",
        "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;",
    ]
    launch(
        entry("\n".join(body), pointers=2, maps=1),
        [tensor, image, tensor_map(tensor, box, type_code=code)],
        block=LANES,
    )
    assert torch.equal(tensor, want)


LOADS = [
    (multicast, group, hint, tile)
    for multicast, group, hint, tile in every(
        (False, True), ("", "::1 before", "::2 before", "::1 behind", "::2 behind"), (False, True), ("", ".tile")
    )
    if not (group.endswith("behind") and not hint)
]


@pytest.mark.parametrize(("multicast", "group", "hint", "tile"), LOADS)
@pytest.mark.parametrize("rank", [1, 2])
def test_tensor_loads_in_a_pair(multicast: bool, group: str, hint: bool, tile: str, rank: int) -> None:
    """Both CTAs of a pair get the box. The cache hint comes before or behind .cta_group; with cta_group::2 the signal
    goes to the even CTA's mbarrier, whose address has the rank bit cleared."""
    shape, box = SHAPES[rank]
    tensor = operands("s32", torch.Size(shape).numel(), 8).reshape(shape)
    size = 4 * torch.Size(box).numel()
    out = torch.zeros(2, size // 4, dtype=torch.int32)
    pair = group.startswith("::2")
    written = f".cta_group{group.partition(' ')[0]}" if group else ""
    front, back = ("", written) if group.endswith("behind") else (written, "")
    policy, last = (".L2::cache_hint", ", %d20") if hint else ("", "")
    opcode = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{tile}.{TX}"
    opcode += f"{'.multicast::cluster' * multicast}{front}{policy}{back}"
    setup, names = coordinates(rank)
    body = [
        POLICY,
        init_barriers(1),
        f"@{'%p1' if pair else '%p0'} mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {size * (1 + pair)};",
        CLUSTER,
        f"add.u32 %r5, %r1, {DATA};\nmov.b16 %h0, 3;\nmov.b32 %r6, %r1;",
        "and.b32 %r6, %r6, 0xFEFFFFFF;" if pair else "",
        setup,
        f"@{'%p1' if multicast else '%p0'} {opcode} [%r5], [%d16, {{{names}}}], [%r6]{', %h0' * multicast}{last};",
        "setp.eq.s32 %p7, %r3, 1;\n@%p7 bra SEEN;" if pair else "",  # the odd CTA learns of it by the cluster barrier
        wait(0),
        "SEEN:",
        CLUSTER,
        f"mul.wide.u32 %d21, %r3, {size};\nadd.s64 %d0, %d0, %d21;",
        dump(size, 0, LANES),
    ]
    launch(entry("\n".join(body), pointers=2, maps=1), [out, tensor, tensor_map(tensor, box)], block=LANES, cluster=2)
    want = torch.zeros(box[::-1], dtype=torch.int32)
    inside, used = window(tensor, rank)
    want[used] = tensor[inside]
    assert torch.equal(out, want.reshape(1, -1).expand(2, -1))


# cp.async

FORMS = [
    ("cp.async.ca.shared.global", "4", ""),
    ("cp.async.ca.shared::cta.global.L2::64B", "8", ""),
    ("cp.async.cg.shared.global.L2::128B", "16", ""),
    ("cp.async.cg.shared::cta.global.L2::cache_hint", "16", ", %d20"),
    ("cp.async.ca.shared.global.L2::cache_hint", "4", ", %r52, %d20"),
    ("cp.async.cg.shared.global", "16", ", %r52"),
    ("cp.async.ca.shared.global", "8", ", %p4"),
    ("cp.async.cg.shared::cta.global.L2::256B", "16", ", %p4"),
    ("cp.async.cg.shared.global.L2::cache_hint", "16", ", %p4, %d20"),
]


@pytest.mark.parametrize("end", ["wait_group", "wait_all", "mbarrier"])
@pytest.mark.parametrize(("opcode", "bytes_", "rest"), FORMS)
@pytest.mark.parametrize("late", [0, 1])
def test_small_asynchronous_copies(opcode: str, bytes_: str, rest: str, end: str, late: int) -> None:
    """Odd threads have source size 0, or the predicate that ignores the source: zeros."""
    size = int(bytes_)
    source = torch.randint(1, 255, (LANES, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(9))
    out = torch.zeros(LANES, 16, dtype=torch.uint8)
    arrive = {
        "wait_group": "cp.async.commit_group;\ncp.async.wait_group 0;",
        "wait_all": "cp.async.wait_all;",
        "mbarrier": f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];\n{wait(0)}",
    }[end]
    body = [
        POLICY,
        init_barriers(LANES),
        f"shl.b32 %r51, %r0, 4;\ncvt.u64.u32 %d45, %r51;\nadd.u32 %r51, %r51, %r1;\nadd.u32 %r51, %r51, {DATA};",
        "st.shared.v4.b32 [%r51], {0, 0, 0, 0};\nadd.s64 %d46, %d1, %d45;",
        f"and.b32 %r50, %r0, 1;\nsetp.eq.u32 %p4, %r50, 1;\nselp.b32 %r52, 0, {size}, %p4;",
        f"{opcode} [%r51], [%d46], {size}{rest};",
        arrive,
        dump(out.nbytes, 0, LANES),
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], block=LANES, late=late)
    want = torch.zeros(LANES, 16, dtype=torch.uint8)
    want[:, :size] = source[:, :size]
    if "%r52" in rest or "%p4" in rest:
        want[1::2] = 0
    assert torch.equal(out, want)


@pytest.mark.parametrize("space", ["", ".shared", ".shared::cta"])
@pytest.mark.parametrize("noinc", ["", ".noinc"])
def test_arrivals_of_small_copies(space: str, noinc: str) -> None:
    source, out = torch.arange(LANES, dtype=torch.int32), torch.zeros(LANES, dtype=torch.int32)
    at = "%r1" if space else "%d31"
    body = [
        init_barriers(LANES),
        f"shl.b32 %r51, %r0, 2;\ncvt.u64.u32 %d45, %r51;\nadd.u32 %r51, %r51, %r1;\nadd.u32 %r51, %r51, {DATA};",
        "add.s64 %d46, %d1, %d45;\ncvt.u64.u32 %d30, %r1;\ncvta.shared.u64 %d31, %d30;",
        f"cp.async.ca.shared.global [%r51], [%d46], 4;\ncp.async.mbarrier.arrive{noinc}{space}.b64 [{at}];",
        "" if noinc else "mbarrier.arrive.shared.b64 _, [%r1];",
        wait(0),
        dump(out.nbytes, 0, LANES),
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], block=LANES)
    assert torch.equal(out, source)


@pytest.mark.parametrize(
    ("vector", "kind"),
    [*every(("", ".v2", ".v4"), ("b32", "u32", "s32", "f32")), *every(("", ".v2"), ("b64", "u64", "s64", "f64"))],
)
@pytest.mark.parametrize(("weak", "space"), [("", ".shared::cluster"), (".weak", ".shared::cluster"), (".weak", "")])
def test_asynchronous_stores(vector: str, kind: str, weak: str, space: str) -> None:
    """Lane i of rank 0 stores to rank 1 and signals there."""
    count, words = int(vector[2:] or 1), int(kind[1:]) // 32
    size = 4 * count * words
    source, out = torch.arange(LANES * size // 4, dtype=torch.int32), torch.zeros(LANES * size // 4, dtype=torch.int32)
    prefix, load = ("%d5", "b64") if words == 2 else ("%r6", "b32")
    names = [f"{prefix}{i}" for i in range(count)]
    group = names[0] if count == 1 else f"{{{', '.join(names)}}}"
    body = [
        init_barriers(1),
        "setp.eq.s32 %p5, %r3, 1;\nand.pred %p6, %p0, %p5;",
        f"@%p6 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {LANES * size};",
        CLUSTER,
        "@%p5 bra READER;",
        (
            f"mul.lo.u32 %r51, %r0, {size};\ncvt.u64.u32 "
            f"%d45, %r51;\nadd.u32 %r51, "
            f"%r51, %r1;\nadd.u32 %r51, %r51, {DATA};"
        ),
        "add.s64 %d46, %d1, %d45;\nmapa.shared::cluster.u32 %r7, %r51, 1;\nmapa.shared::cluster.u32 %r8, %r1, 1;",
        *(f"ld.global.{load} {name}, [%d46+{4 * words * i}];" for i, name in enumerate(names)),
        f"st.async{weak}{space}.{TX}{vector}.{kind} [%r7], {group}, [%r8];",
        "bra END;\nREADER:",
        wait(0),
        dump(LANES * size, 0, LANES),
        f"END:\n{CLUSTER}",
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], block=LANES, cluster=2)
    assert torch.equal(out, source)


@pytest.mark.parametrize("space", ["", ".shared", ".shared::cta"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_matrix_addresses(space: str, num: int) -> None:
    """stmatrix and ldmatrix are inverse to each other whatever names the state space."""
    source = operands("s32", LANES * num, 10)
    out = torch.zeros_like(source)
    at = "%r51" if space else "%d31"
    regs, again = (", ".join(f"%r{base + i}" for i in range(num)) for base in (60, 70))
    body = [
        f"shl.b32 %r51, %r0, 4;\nadd.u32 %r51, %r51, %r1;\nadd.u32 %r51, %r51, {DATA};\ncvt.u64.u32 %d30, %r51;",
        (
            f"cvta.shared.u64 %d31, %d30;\nmul.wide.u32 %d45, "
            f"%r0, {4 * num};\nadd.s64 "
            f"%d46, %d1, %d45;\nadd.s64 %d47, %d0, %d45;"
        ),
        *(f"ld.global.b32 %r{60 + i}, [%d46+{4 * i}];" for i in range(num)),
        f"stmatrix.sync.aligned.m8n8.x{num}{space}.b16 [{at}], {{{regs}}};",
        f"ldmatrix.sync.aligned.m8n8.x{num}{space}.b16 {{{again}}}, [{at}];",
        *(f"st.global.b32 [%d47+{4 * i}], %r{70 + i};" for i in range(num)),
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], block=LANES)
    assert torch.equal(out, source)


@pytest.mark.parametrize("space", ["", ".shared::cta"])
def test_cluster_launch_control_in_three_dimensions(space: str) -> None:
    """(( ) )"""
    from attn_dsl.emulator import ptx

    done = torch.zeros(12, dtype=torch.int32)
    where = "[%d34], [%d33]" if not space else "[%r5], [%r1]"
    body = [
        init_barriers(1),
        "mov.u32 %r40, %ctaid.x;\nmov.u32 %r41, %ctaid.y;\nmov.u32 %r42, %ctaid.z;\nmov.b32 %r45, 0;",
        f"add.u32 %r5, %r1, {DATA};\ncvt.u64.u32 %d30, %r1;\ncvta.shared.u64 %d33, %d30;\ncvt.u64.u32 %d31, %r5;",
        "cvta.shared.u64 %d34, %d31;",
        "NEXT:",
        "shl.b32 %r46, %r42, 1;\nadd.u32 %r46, %r46, %r41;\nshl.b32 %r46, %r46, 1;\nadd.u32 %r46, %r46, %r40;",
        "mul.wide.u32 %d40, %r46, 4;\nadd.s64 %d41, %d0, %d40;\n@%p0 red.global.add.s32 [%d41], 1;",
        "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;",
        CLUSTER,
        f"@%p1 clusterlaunchcontrol.try_cancel.async{space}.{TX}.multicast::cluster::all.b128 {where};",
        "SPIN:\nmbarrier.try_wait.parity.shared.b64 %p8, [%r1], %r45;\n@!%p8 bra SPIN;",
        "xor.b32 %r45, %r45, 1;\nld.shared.v2.b64 {%d50, %d51}, [%r5];",
        "{ .reg .b128 %q0;\nmov.b128 %q0, {%d50, %d51};",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q0;\n@!%p4 bra LAST;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r40, %q0;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r41, %q0;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r42, %q0;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r50, %r51, %r52, _}, %q0;",
        (
            "setp.ne.u32 %p5, %r40, %r50;\nsetp.ne.or.u32 %p5, %r41, "
            "%r51, %p5;\nsetp.ne.or.u32 "
            "%p5, %r42, %r52, %p5;\n@%p5 trap; }"
        ),
        "add.u32 %r40, %r40, %r3;",
        f"fence.proxy.async.shared::cta;\n{CLUSTER}\nbra NEXT;\nLAST:\n{CLUSTER}",
    ]
    text = entry("\n".join(body), pointers=1)
    ptx.load(text).launch((2, 2, 3), (LANES, 1, 1), [done], cluster=(2, 1, 1), smem=4096, threads=2)
    assert (done == 1).all()
