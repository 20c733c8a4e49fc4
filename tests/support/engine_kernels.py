"""Small PTX kernels that move tiles with TMA and multiply them, and the tensor maps they need.

Nothing here knows how the emulator lays anything out: a test states where a tile goes and what must come out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attn_dsl.emulator import ptx

BASE = 0x400  # byte offset of the first shared symbol in the CTA's window
DATA = 1024  # tiles start here, relative to the symbol; mbarriers and the TMEM address lie before

_TYPE_CODES = {
    **dict.fromkeys((torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2), 0),
    **dict.fromkeys((torch.uint16, torch.int16), 1),
    torch.uint32: 2,
    torch.int32: 3,
    torch.uint64: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 9,
    torch.bfloat16: 10,
}
SWIZZLE_CODES = {0: 0, 32: 1, 64: 2, 128: 3}  # span in bytes -> code in a tensor map


def tensor_map(
    tensor: torch.Tensor,
    box: Sequence[int],
    *,
    swizzle: int = 0,
    atom: int = 0,
    nan: bool = False,
    steps: Sequence[int] = (),
    type_code: int | None = None,
) -> bytes:
    """A 128-byte tensor map of `tensor`; `box`: elements, innermost first; `atom`: swizzle atomicity code."""
    sizes, strides = list(tensor.shape)[::-1], list(tensor.stride())[::-1]
    assert strides[0] == 1
    es, rank = tensor.element_size(), len(sizes)
    code = _TYPE_CODES[tensor.dtype] if type_code is None else type_code
    words = [0] * 32
    words[0] = tensor.data_ptr() & 0xFFFFFFFF
    words[1] = tensor.data_ptr() >> 32
    words[2] = 2 | (rank - 1) << 4 | code << 7 | SWIZZLE_CODES[swizzle] << 13 | int(nan) << 15 | 2 << 17 | atom << 19
    for i in range(1, rank):
        units = strides[i] * es >> 4
        words[2 + i] = units & 0xFFFFFFFF
        words[7] |= (units >> 32) << (4 * (i - 1))
    for i, size in enumerate(sizes):
        words[8 + i] = size - 1
    for i, step in enumerate(steps):
        words[13] |= (step - 1) << (3 * i)
    words[13] |= (box[0] - 1) << 24
    for i in range(1, rank):
        words[14] |= (box[i] - 1) << (8 * (i - 1))
    return struct.pack("<32I", *words)


def entry(body: str, *, pointers: int, maps: int = 0, target: str = "sm_100a") -> str:
    """A kernel `k` with `pointers` 64-bit parameters p0.. and `maps` tensor maps m0..; dynamic shared memory `smem`.

    Before `body`: %r0 = tid.x, %r1 = address of smem, %r2 = warp, %r3 = cluster_ctarank, %p0 = thread 0, %p1 = thread 0
    of rank 0; %d0.. = pointers in order, %d16.. = generic addresses of the maps.
    """
    params = [f".param .u64 p{i}" for i in range(pointers)]
    params += [f".param .align 64 .b8 m{i}[128]" for i in range(maps)]
    lines = [
        f".version 8.8\n.target {target}\n.address_size 64",
        ".extern .shared .align 1024 .b8 smem[];",
        f".visible .entry k({', '.join(params)})\n{{",
        ".reg .pred %p<16>;\n.reg .b16 %h<16>;\n.reg .b32 %r<512>;\n.reg .b64 %d<64>;\n.reg .f32 %f<256>;",
        "mov.u32 %r0, %tid.x;",
        "mov.u32 %r1, smem;",
        "shr.u32 %r2, %r0, 5;",
        "mov.u32 %r3, %cluster_ctarank;",
        "setp.eq.s32 %p0, %r0, 0;",
        "or.b32 %r4, %r0, %r3;",
        "setp.eq.s32 %p1, %r4, 0;",
    ]
    lines += [f"ld.param.b64 %d{i}, [p{i}];" for i in range(pointers)]
    for i in range(maps):
        lines += [f"mov.b64 %d{32 + i}, m{i};", f"cvta.param.u64 %d{16 + i}, %d{32 + i};"]
    return "\n".join([*lines, body, "ret;\n}\n"])


def init_barriers(*counts: int) -> str:
    """Mbarrier i at smem + 8 i, made by thread 0, seen by all threads of the cluster."""
    lines = [f"@%p0 mbarrier.init.shared.b64 [%r1+{8 * i}], {n};" for i, n in enumerate(counts)]
    return "\n".join([*lines, "fence.mbarrier_init.release.cluster;", "bar.sync 0;"])


def expect(barrier: int, size: int) -> str:
    return f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+{8 * barrier}], {size};"


def wait(barrier: int, parity: int = 0, name: str = "") -> str:
    """All threads wait for a phase of an mbarrier of their CTA."""
    label = f"W{barrier}_{parity}{name}"
    return (
        f"{label}:\nmbarrier.try_wait.parity.shared.b64 %p8, [%r1+{8 * barrier}], {parity};\n"
        f"@%p8 bra.uni {label}_done;\nbra.uni {label};\n{label}_done:"
    )


def tma_load(dims: int, offset: int, tmap: int, coords: Sequence[int], barrier: int) -> str:
    """By thread 0: a box to smem + offset."""
    return (
        f"add.u32 %r5, %r1, {offset};\nadd.u32 %r6, %r1, {8 * barrier};\n"
        + "\n".join(f"mov.b32 %r{10 + i}, {c};" for i, c in enumerate(coords))
        + f"\n@%p0 cp.async.bulk.tensor.{dims}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        + f" [%r5], [%d{16 + tmap}, {{{', '.join(f'%r{10 + i}' for i in range(len(coords)))}}}], [%r6];"
    )


def dump(size: int, pointer: int, threads: int, offset: int = DATA) -> str:
    """Every thread copies its words of smem + offset to global memory at pointer parameter `pointer`."""
    return "\n".join(
        [
            "mul.lo.s32 %r20, %r0, 4;",
            f"add.u32 %r21, %r1, {offset};",
            "add.u32 %r21, %r21, %r20;",
            "cvt.u64.u32 %d40, %r20;",
            f"add.s64 %d41, %d{pointer}, %d40;",
            "DUMP:",
            f"setp.lt.u32 %p9, %r20, {size};",
            "@!%p9 bra DUMP_END;",
            "ld.shared.b32 %r23, [%r21];",
            "st.global.b32 [%d41], %r23;",
            f"add.u32 %r21, %r21, {4 * threads};",
            f"add.s64 %d41, %d41, {4 * threads};",
            f"add.u32 %r20, %r20, {4 * threads};",
            "bra DUMP;",
            "DUMP_END:",
        ]
    )


def launch(
    text: str,
    args: Sequence[object],
    *,
    block: int = 128,
    cluster: int = 1,
    grid: int = 1,
    smem: int = 200 * 1024,
    **options,
):
    """Runs kernel `k` and returns the report."""
    return ptx.load(text).launch(
        (grid * cluster, 1, 1), (block, 1, 1), list(args), cluster=(cluster, 1, 1), smem=smem, **options
    )


@dataclass(frozen=True)
class Operand:
    """An MMA operand in shared memory as TMA puts it there: mn x k elements, `span` bytes of swizzle (0: none)."""

    mn: int
    k: int
    mn_major: bool
    span: int
    eb: int  # bytes per element
    atom: int = 0  # TMA swizzle atomicity code: 1 is the 32-byte atom of tf32

    @property
    def inner(self) -> int:  # elements of the innermost box dimension
        return (self.span or 16) // self.eb

    @property
    def box(self) -> tuple[int, int]:
        return (self.inner, self.k if self.mn_major else self.mn)

    @property
    def bytes(self) -> int:
        return self.mn * self.k * self.eb

    def loads(self) -> list[tuple[tuple[int, int], int]]:
        """Coordinates and byte offset of every box of the tensor, which is [k, mn] if MN-major, else [mn, k]."""
        extent = self.mn if self.mn_major else self.k
        size = self.box[0] * self.box[1] * self.eb
        return [((i * self.inner, 0), i * size) for i in range(extent // self.inner)]

    def strides(self) -> tuple[int, int]:
        """(LBO, SBO) in bytes."""
        rows = 4 if self.atom else 8
        if self.span == 0:
            return (128, self.k * 16) if self.mn_major else (self.mn * 16, 128)
        return (self.k * self.span, rows * self.span) if self.mn_major else (16, rows * self.span)

    def advance(self, k0: int) -> int:
        """Byte offset of the descriptor's start for the MMA that begins at k0."""
        if self.mn_major:
            return k0 * (self.span or 16)
        chunk, within = divmod(k0, self.inner)
        return chunk * self.box[0] * self.box[1] * self.eb + within * self.eb


_TCGEN05_SWIZZLE = {0: 0, 128: 2, 64: 4, 32: 6}
_WGMMA_SWIZZLE = {0: 0, 128: 1, 64: 2, 32: 3}


def descriptor(op: Operand, start: int, *, wgmma: bool = False) -> int:
    """The 64-bit shared-memory descriptor of an operand that starts at window address `start`."""
    lbo, sbo = op.strides()
    swizzle = _WGMMA_SWIZZLE[op.span] << 62 if wgmma else (1 if op.atom else _TCGEN05_SWIZZLE[op.span]) << 61 | 1 << 46
    return (start & 0x3FFFF) >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | swizzle


def instruction_descriptor(a: int, b: int, d: int, m: int, n: int, a_mn: bool, b_mn: bool, **bits: int) -> int:
    """The 32-bit instruction descriptor of tcgen05.mma; a, b, d are type codes, `bits` the one-bit fields by name."""
    extra = {"saturate": 3, "negate_a": 13, "negate_b": 14}
    word = d << 4 | a << 7 | b << 10 | int(a_mn) << 15 | int(b_mn) << 16 | (n >> 3) << 17 | (m >> 4) << 24
    return word | sum(value << extra[name] for name, value in bits.items())


def tmem_dump(columns: int, pointer: int, taddr: str = "%r60") -> str:
    """Four warps store lanes x columns of TMEM (32-bit cells, row-major) to pointer parameter `pointer`."""
    lines = [
        "shl.b32 %r61, %r2, 21;",
        f"add.u32 %r62, %r61, {taddr};",
        f"mul.lo.s32 %r63, %r0, {4 * columns};",
        "cvt.u64.u32 %d40, %r63;",
        f"add.s64 %d41, %d{pointer}, %d40;",
    ]
    for c in range(0, columns, 8):
        regs = [f"%r{100 + i}" for i in range(8)]
        lines += [
            f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{', '.join(regs)}}}, [%r62+{c}];",
            "tcgen05.wait::ld.sync.aligned;",
        ]
        lines += [f"st.global.b32 [%d41+{4 * (c + i)}], {r};" for i, r in enumerate(regs)]
    return "\n".join(lines)


def tmem_fill(columns: int, value: int = 0) -> str:
    """Four warps write `value` to every lane of the first `columns` columns at %r60."""
    lines = ["shl.b32 %r61, %r2, 21;", "add.u32 %r62, %r61, %r60;", f"mov.b32 %r99, {value};"]
    cells = ", ".join(["%r99"] * 8)
    lines += [f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r62+{c}], {{{cells}}};" for c in range(0, columns, 8)]
    return "\n".join([*lines, "tcgen05.wait::st.sync.aligned;", "bar.sync 0;"])


def alloc(columns: int, group: int = 1) -> str:
    """Warp 0 allocates TMEM; %r60 = its address in every thread."""
    return (
        "setp.eq.u32 %p10, %r2, 0;\nadd.u32 %r64, %r1, 512;\n"
        f"@%p10 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r64], {columns};\n"
        f"@%p10 tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;\n"
        "bar.sync 0;\nld.shared.b32 %r60, [%r64];"
    )


def dealloc(columns: int, group: int = 1) -> str:
    sync = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" if group == 2 else "bar.sync 0;"
    return f"{sync}\n@%p10 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r60, {columns};"
