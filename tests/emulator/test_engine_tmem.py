"""tcgen05.ld, st and the allocator: which register of which thread is which cell of TMEM, and what is refused."""

from __future__ import annotations

import pytest
import torch
from engine_kernels import alloc, dealloc, entry, launch, tmem_dump, tmem_fill

from attn_dsl.emulator.errors import KernelFinding

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # of one thread, for x1
SECOND = 200  # 16x32bx2: where the columns of the upper 16 threads begin


def cells(shape: str, count: int, packed: bool = False) -> torch.Tensor:
    """(lane, column) of value v of thread t, [32, values, 2] (PTX ISA, figures of "Data movement shape")."""
    table = []
    values = count * REGISTERS[shape] * (2 if packed else 1)
    for t in range(32):
        row = []
        for v in range(values):
            if shape == "32x32b":
                row.append((t, v))
            elif shape == "16x32bx2":  # 16 lanes each for the lower and the upper threads
                row.append((t % 16, v + (SECOND if t >= 16 else 0)))
            elif shape == "16x64b":  # 2 columns of 16 lanes: thread 4 i + 2 j + h has lane i + 8 h, column j
                row.append((t // 4 + 8 * (t % 2), 2 * v + t // 2 % 2))
            elif shape == "16x128b":  # 4 columns: thread 4 i + j has lanes i and i + 8 of column j
                row.append((t // 4 + 8 * (v % 2), 4 * (v // 2) + t % 4))
            else:  # 8 columns: thread 4 i + j has columns 2 j and 2 j + 1, of lane i, then of lane i + 8
                row.append((t // 4 + 8 * (v // 2 % 2), 8 * (v // 4) + 2 * (t % 4) + v % 2))
        table.append(row)
    return torch.tensor(table)


def tmem_kernel(body: str, columns: int, *, load: bool = False, allocated: int = 512) -> str:
    """Zeroes TMEM, runs `body` in warp 1 (lanes 32 to 63), and dumps TMEM unless `load`."""
    lines = [
        "mov.b32 %r98, 0;",
        alloc(allocated),
        tmem_fill(allocated),
        "setp.eq.s32 %p4, %r2, 1;\nand.b32 %r50, %r0, 31;",
        "@!%p4 bra AFTER;",
        body,
        "AFTER:\nbar.sync 0;",
        "" if load else tmem_dump(columns, 0),
        dealloc(allocated),
    ]
    return entry("\n".join(lines), pointers=1)


ACCESSES = [
    (shape, count, packed, late)
    for shape, per in REGISTERS.items()
    for count in (1, 2, 4, 8, 16, 32, 64, 128)
    if per * count <= 128
    for packed in (False, True)
    if int(cells(shape, count, packed)[..., 1].max()) + 9 <= (2 * SECOND if shape == "16x32bx2" else 512)
    for late in ((0, 1) if count in (1, 4) else (0,))
]


@pytest.mark.parametrize(("shape", "count", "packed", "late"), ACCESSES)
def test_store_then_load(shape: str, count: int, packed: bool, late: int):
    where = cells(shape, count, packed)
    regs = where.shape[1] // (2 if packed else 1)
    names = [f"%r{200 + i}" for i in range(regs)]
    # Value of register i in thread t: 1000 + 64 t + i, or two 16-bit halves of it when packed.
    fill = "\n".join(
        f"mul.lo.s32 {r}, %r50, 64;\nadd.s32 {r}, {r}, {0x30000 * packed + 1000 + i};" for i, r in enumerate(names)
    )
    group = f"{{{', '.join(names)}}}"
    second = f", {SECOND}" if shape == "16x32bx2" else ""
    pack, unpack = (".pack::16b", ".unpack::16b") if packed else ("", "")
    store = (
        f"{fill}\nadd.u32 %r51, %r60, {32 << 16};\nadd.u32 %r51, %r51, 4;\n"
        f"tcgen05.st.sync.aligned.{shape}.x{count}{unpack}.b32 [%r51+4]{second}, {group};\n"
        "tcgen05.wait::st.sync.aligned;"
    )
    columns = int(where[..., 1].max()) + 9
    columns = (columns + 7) // 8 * 8
    out = torch.zeros(128, columns, dtype=torch.int32)
    launch(tmem_kernel(store, columns), [out], late=late)
    want = torch.zeros(128, columns, dtype=torch.int32)
    for t in range(32):
        for v in range(where.shape[1]):
            word = 1000 + 64 * t + (v // 2 if packed else v) + 0x30000 * packed
            half = (word >> 16 * (v % 2)) & 0xFFFF
            want[32 + where[t, v, 0], 8 + where[t, v, 1]] = half if packed else word
    assert torch.equal(out, want)

    # And back: fresh registers, read in the same shape.
    again = [f"%r{350 + i}" for i in range(regs)]
    load = (
        f"{store}\ntcgen05.ld.sync.aligned.{shape}.x{count}{pack}.b32 {{{', '.join(again)}}}, [%r51+4]{second};\n"
        f"mul.lo.s32 %r52, %r50, {4 * regs};\ncvt.u64.u32 %d40, %r52;\nadd.s64 %d41, %d0, %d40;\n"
        + "\n".join(f"st.global.b32 [%d41+{4 * i}], {r};" for i, r in enumerate(again))
    )
    back = torch.zeros(32, regs, dtype=torch.int32)
    launch(tmem_kernel(load, columns, load=True), [back], late=late)
    want = 1000 + 64 * torch.arange(32)[:, None] + torch.arange(regs)[None] + 0x30000 * packed
    assert torch.equal(back, want.int())


def test_columns_are_given_first_fit_and_can_be_had_again():
    lines = [
        "setp.eq.u32 %p10, %r2, 0;",
        *(f"add.u32 %r{64 + i}, %r1, {512 + 4 * i};" for i in range(4)),
        "@!%p10 bra END;",
        *(
            f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r{64 + i}], {n};"
            for i, n in enumerate((64, 128, 32))
        ),
        *(f"ld.shared.b32 %r{70 + i}, [%r{64 + i}];" for i in range(3)),
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r70, 64;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r67], 32;",
        "ld.shared.b32 %r73, [%r67];",
        *(f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r{70 + i}, {n};" for i, n in ((1, 128), (2, 32), (3, 32))),
        *(f"st.global.b32 [%d0+{4 * i}], %r{70 + i};" for i in range(4)),
        "END:",
    ]
    out = torch.zeros(4, dtype=torch.int32)
    report = launch(entry("\n".join(lines), pointers=1), [out])
    assert out.tolist() == [0, 64, 192, 0]
    assert report.tmem_columns == 224


READ = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r200}, [%r51];"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (f"mov.b32 %r51, %r60;\n{READ}", "oob"),  # lanes 0 to 31 by warp 1
        (f"add.u32 %r51, %r60, {(32 << 16) + 300};\n{READ}", "tmem-alloc"),
        (f"add.u32 %r51, %r60, {(32 << 16) + 600};\n{READ}", "oob"),
        # A store nobody waited for, read by the MMA's neighbour: here by another store's column of the same warp.
        (
            f"add.u32 %r51, %r60, {32 << 16};\nmov.b32 %r200, 1;\n"
            f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r51], {{%r200}};\n{READ}",
            "tcgen05-order",
        ),
        (f"add.u32 %r51, %r60, {32 << 16};\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r51], {{%r99}};", None),
        (
            f"add.u32 %r51, %r60, {32 << 16};\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r51], {{%r201}};",
            "uninit-register",
        ),
    ],
)
def test_findings(body: str, kind: str | None):
    out = torch.zeros(128, 8, dtype=torch.int32)
    text = tmem_kernel(body + "\ntcgen05.wait::st.sync.aligned;", 8, allocated=256)
    if kind is None:
        launch(text, [out])
        return
    with pytest.raises(KernelFinding) as caught:
        launch(text, [out])
    assert caught.value.findings[0].kind == kind


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("@%p10 tcgen05.dealloc", "@!%p10 tcgen05.dealloc", None),  # by warps 1 to 3: freed three times
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r60, 512", "mov.b32 %r60, %r60", "dealloc is missing"),
        ("%r60, 512;", "%r60, 128;", "not the columns of one"),
        ("[%r64], 512;", "[%r64], 48;", "power of two"),
    ],
)
def test_allocation_findings(old: str, new: str, word: str | None):
    text = tmem_kernel("", 8)
    assert old in text
    with pytest.raises(KernelFinding) as caught:
        launch(text.replace(old, new), [torch.zeros(128, 8, dtype=torch.int32)])
    finding = caught.value.findings[0]
    assert finding.kind in ("tmem-alloc", "divergence")
    assert word is None or word in finding.text
