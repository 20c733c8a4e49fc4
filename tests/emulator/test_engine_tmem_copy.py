"""tcgen05.cp: which lanes and columns each shape fills from shared memory (PTX ISA, "tcgen05.cp")."""

from __future__ import annotations

import pytest
import torch
from engine_kernels import BASE, DATA, alloc, dealloc, entry, expect, init_barriers, launch, tmem_dump, tmem_fill, wait

from attn_dsl.emulator.errors import KernelFinding, PtxError

# Rows and 16-byte units of the source, and the lanes of the destination that row r goes to.
SHAPES = {
    "128x256b": (128, 2, lambda r: [r]),
    "128x128b": (128, 1, lambda r: [r]),
    "64x128b.warpx2::02_13": (64, 1, lambda r: [r, r + 64]),  # rows 0-31 to quarters 0 and 2, the others to 1 and 3
    "64x128b.warpx2::01_23": (64, 1, lambda r: [r, r + 32] if r < 32 else [r + 32, r + 64]),  # to 0 and 1; to 2 and 3
    "32x128b.warpx4": (32, 1, lambda r: [r, r + 32, r + 64, r + 96]),
    "4x256b": (4, 2, lambda r: [32 * r]),  # one row for each quarter
}
KEPT = 9  # what the other cells hold


def kernel(
    shape: str, desc: int, size: int, *, group: int = 1, columns: int = 16, at: str = "%r60+4", commit: str = ""
) -> str:
    sync = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" if group == 2 else "bar.sync 0;"
    chosen = "%p1" if group == 2 else "%p0"
    done = ".multicast::cluster.b64 [%r71], %h0;" if group == 2 else ".b64 [%r71];"
    body = [
        init_barriers(1, 1),
        alloc(32, group),
        tmem_fill(columns, KEPT),
        expect(0, size),
        f"add.u32 %r5, %r1, {DATA};\nmul.wide.u32 %d20, %r3, {size};\nadd.s64 %d21, %d1, %d20;",
        f"@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [%d21], {size}, [%r1];",
        wait(0),
        f"tcgen05.fence::before_thread_sync;\n{sync}\ntcgen05.fence::after_thread_sync;",
        f"mov.b64 %d10, {desc};\nadd.u32 %r71, %r1, 8;\nmov.b16 %h0, 3;",
        f"@{chosen} tcgen05.cp.cta_group::{group}.{shape} [{at}], %d10;",
        commit or f"@{chosen} tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{done}",
        wait(1),
        f"mul.wide.u32 %d22, %r3, {4 * 128 * columns};\nadd.s64 %d0, %d0, %d22;",
        tmem_dump(columns, 0),
        dealloc(32, group),
    ]
    return entry("\n".join(body), pointers=2)


def source(rows: int, units: int, ctas: int, span: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Rows of words; how they lie in shared memory; their descriptor. `span` 0: core matrices of 8 rows x 16 bytes, one
    column of them after the other; else a swizzle of that many bytes, which is a whole row."""
    words = torch.randint(
        -(2**31), 2**31 - 1, (ctas, rows, 4 * units), generator=torch.Generator().manual_seed(rows + units)
    )
    words = words.int()
    start = (BASE + DATA) >> 4 | 1 << 46
    groups = -(-rows // 8)
    if not span:
        padded = torch.zeros(ctas, 8 * groups, 4 * units, dtype=torch.int32)
        padded[:, :rows] = words
        image = padded.reshape(ctas, groups, 8, units, 4).permute(0, 3, 1, 2, 4).contiguous()
        return words, image, start | (128 * groups >> 4) << 16 | (128 >> 4) << 32
    assert span == 16 * units == 32
    image = torch.zeros(ctas, 8 * groups, units, 4, dtype=torch.int32)
    for r in range(rows):
        for u in range(units):
            image[:, r, u ^ (r // 4 % 2)] = words[:, r, 4 * u : 4 * u + 4]
    return words, image, start | (256 >> 4) << 32 | 6 << 61


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("shape", "span"), [*((shape, 0) for shape in SHAPES), ("128x256b", 32), ("4x256b", 32)])
def test_shapes(shape: str, span: int, group: int, late: int):
    """With cta_group::2 each CTA of the pair copies from its own shared memory to its own TMEM."""
    rows, units, lanes = SHAPES[shape]
    words, image, desc = source(rows, units, group, span)
    out = torch.zeros(group, 128, 16, dtype=torch.int32)
    text = kernel(shape, desc, image[0].numel() * 4, group=group)
    launch(text, [out, image], cluster=group, late=late)
    want = torch.full((group, 128, 16), KEPT, dtype=torch.int32)
    for r in range(rows):
        for lane in lanes(r):
            want[:, lane, 4 : 4 + 4 * units] = words[:, r]
    assert torch.equal(out, want)


def test_a_small_copy_may_start_at_any_lane_of_a_quarter():
    rows, units, _ = SHAPES["4x256b"]
    words, image, desc = source(rows, units, 1, 0)
    out = torch.zeros(128, 16, dtype=torch.int32)
    launch(kernel("4x256b", desc, image.numel() * 4, at=f"%r60+{(5 << 16) + 4}"), [out, image])
    want = torch.full((128, 16), KEPT, dtype=torch.int32)
    want[5::32, 4:12] = words[0]
    assert torch.equal(out, want)


def test_the_state_space_of_a_commit_may_be_left_out():
    words, image, desc = source(128, 1, 1, 0)
    out = torch.zeros(128, 16, dtype=torch.int32)
    generic = "cvt.u64.u32 %d30, %r71;\ncvta.shared.u64 %d31, %d30;\n"
    commit = f"{generic}@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d31];"
    text = kernel("128x128b", desc, image.numel() * 4, commit=commit)
    space = ".sync.aligned.shared::cta.b32 [%r64]"
    assert space in text
    text = text.replace(f"{space}, 32;", ".sync.aligned.b32 [%d33], 32;").replace(
        "add.u32 %r64, %r1, 512;", "add.u32 %r64, %r1, 512;\ncvt.u64.u32 %d32, %r64;\ncvta.shared.u64 %d33, %d32;"
    )
    launch(text, [out, image])
    assert torch.equal(out[:, 4:8], words[0])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda t: t.replace("[%r60+4], %d10", f"[%r60+{1 << 16}], %d10"), "misaligned"),  # lane 1
        (lambda t: t.replace("[%r60+4], %d10", "[%r60+28], %d10"), "tmem-alloc"),  # columns 28 to 35 of 32
        (lambda t: t.replace(wait(1), "bar.sync 0;"), "tcgen05-order"),
        (lambda t: t.replace(wait(0), ""), "race-shared"),
        (
            lambda t: t.replace("@%p0 tcgen05.cp", "@%p9 tcgen05.cp").replace(
                "mov.b16 %h0", "setp.lt.u32 %p9, %r0, 32;\nmov.b16 %h0"
            ),
            "unelected",
        ),
    ],
)
def test_findings(change, kind: str):
    rows, units, _ = SHAPES["128x256b"]
    _, image, desc = source(rows, units, 1, 0)
    text = kernel("128x256b", desc, image.numel() * 4)
    changed = change(text)
    assert changed != text
    with pytest.raises(KernelFinding) as caught:
        launch(changed, [torch.zeros(128, 16, dtype=torch.int32), image])
    assert caught.value.findings[0].kind == kind


@pytest.mark.parametrize(("bit", "words"), [(46, "bits 46-48"), (49, "base offset"), (61, "swizzle code")])
def test_bad_descriptors(bit: int, words: str):
    rows, units, _ = SHAPES["128x256b"]
    _, image, desc = source(rows, units, 1, 32)
    with pytest.raises(KernelFinding, match=words) as caught:
        launch(kernel("128x256b", desc ^ 1 << bit, image.numel() * 4), [torch.zeros(128, 16, dtype=torch.int32), image])
    assert caught.value.findings[0].kind == "descriptor"


@pytest.mark.parametrize(
    "shape", ["128x256b.b8x16.b4x16_p64", "128x256b.b8x16.b6x16_p32", "64x128b", "32x128b", "64x256b"]
)
def test_forms_that_are_not_modelled(shape: str):
    """Decompression, and shapes without the multicast that belongs to them."""
    _, image, desc = source(128, 2, 1, 0)
    with pytest.raises(PtxError, match="is not modelled") as caught:
        launch(kernel(shape, desc, image.numel() * 4), [torch.zeros(128, 16, dtype=torch.int32), image])
    assert caught.value.code == "E301"
