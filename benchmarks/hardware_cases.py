"""Small sm_90a kernels that isolate one instruction (or a few of one family) each, for the comparison with hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from engine_kernels import (
    DATA,
    Operand,
    descriptor,
    dump,
    entry,
    expect,
    init_barriers,
    tensor_map,
    tma_load,
    wait,
)

TARGET = "sm_90a"
_THREADS = 256


@dataclass(frozen=True)
class SmallCase:
    """A kernel text with its arguments. `outputs`: (name, index of the tensor argument, dtype name)."""

    name: str
    text: str
    args: Sequence[torch.Tensor | bytes]
    outputs: Sequence[tuple[str, int, str]]
    grid: int = 1
    block: int = 128
    smem: int = 65536


def elementwise(name: str, ops: Sequence[str], inputs: Sequence[torch.Tensor], out_dtype: str) -> SmallCase:
    """One thread per element: `ops` compute <D> from <A>, <B>, <C> (32 bits each), output k holds op k"""
    n = inputs[0].numel()
    assert n % _THREADS == 0
    body = ["mov.u32 %r30, %ctaid.x;", f"mad.lo.s32 %r31, %r30, {_THREADS}, %r0;", "mul.wide.u32 %d30, %r31, 4;"]
    names = {}
    for i in range(len(inputs)):
        body += [f"add.s64 %d31, %d{i}, %d30;", f"ld.global.b32 %r{40 + i}, [%d31];"]
        names[f"<{'ABC'[i]}>"] = f"%r{40 + i}"
    body.append(f"add.s64 %d32, %d{len(inputs)}, %d30;")
    for k, op in enumerate(ops):
        line = op.replace("<D>", f"%r{60 + k}")
        for key, register in names.items():
            line = line.replace(key, register)
        body += [f"{{ {line} }}", f"st.global.b32 [%d32], %r{60 + k};", f"add.s64 %d32, %d32, {4 * n};"]
    out = torch.zeros(len(ops), n, dtype=torch.int32)
    text = entry("\n".join(body), pointers=len(inputs) + 1, target=TARGET)
    return SmallCase(name, text, [*inputs, out], [("out", len(inputs), out_dtype)], n // _THREADS, _THREADS)


def _bits(seed: int, n: int = 4096) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (n,), generator=g).to(torch.int32)


def _floats(seed: int, scale: float, n: int = 4096) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(n, generator=g) * scale).view(torch.int32)


def _arithmetic() -> list[SmallCase]:
    a, b, c = _floats(1, 3.0), _floats(2, 0.5), _floats(3, 1.0)
    wild = [_bits(4), _bits(5), _bits(6)]
    exact = [
        "add.rn.f32",
        "sub.rn.f32",
        "mul.rn.f32",
        "add.rm.f32",
        "mul.rz.f32",
        "add.rp.ftz.f32",
        "max.f32",
        "min.NaN.f32",
    ]
    return [
        elementwise("f32 rounding modes, min and max", [f"{op} <D>, <A>, <B>;" for op in exact], wild[:2], "int32"),
        elementwise(
            "f32 fused multiply-add, division, square root",
            [
                "fma.rn.f32 <D>, <A>, <B>, <C>;",
                "fma.rz.f32 <D>, <A>, <B>, <C>;",
                "div.rn.f32 <D>, <A>, <B>;",
                "sqrt.rn.f32 <D>, <A>;",
            ],
            wild,
            "int32",
        ),
        elementwise(
            "f32 contraction (un-suffixed mul, sub)",
            [".reg .f32 t; mul.f32 t, <A>, <B>; sub.f32 <D>, t, <C>;"],
            [a, b, c],
            "float32",
        ),
        *(
            elementwise(f"{op}", [f"{op} <D>, <A>;"], [_floats(7, s)], "float32")
            for op, s in (
                ("ex2.approx.ftz.f32", 20.0),
                ("rcp.approx.ftz.f32", 5.0),
                ("tanh.approx.f32", 1.5),
                ("rsqrt.approx.ftz.f32", 5.0),
            )
        ),
        elementwise("lg2.approx.ftz.f32", ["lg2.approx.ftz.f32 <D>, <A>;"], [_floats(8, 4.0)], "float32"),
    ]


def _conversions() -> list[SmallCase]:
    wild = [_bits(11), _bits(12)]
    narrow = [
        "cvt.rn.bf16x2.f32 <D>, <A>, <B>;",
        "cvt.rz.bf16x2.f32 <D>, <A>, <B>;",
        "cvt.rn.f16x2.f32 <D>, <A>, <B>;",
        "cvt.rna.tf32.f32 <D>, <A>;",
        ".reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, <A>, <B>; cvt.u32.u16 <D>, h;",
        ".reg .b16 h; cvt.rn.satfinite.e5m2x2.f32 h, <A>, <B>; cvt.u32.u16 <D>, h;",
    ]
    integer = [
        *(f"cvt.{r}.s32.f32 <D>, <A>;" for r in ("rni", "rzi", "rmi", "rpi")),
        "cvt.rzi.u32.f32 <D>, <A>;",
        "cvt.rn.f32.s32 <D>, <A>;",
        "cvt.rz.f32.u32 <D>, <A>;",
    ]
    half = [
        f".reg .b16 a, b, c, u; mov.b32 {{a, u}}, <A>; mov.b32 {{b, u}}, <B>; mov.b32 {{c, u}}, <C>;"
        f" {op}; mov.b32 <D>, {{u, u}};"
        for op in (
            "fma.rn.bf16 u, a, b, c",
            "fma.rn.f16 u, a, b, c",
            "add.rn.f16 u, a, b",
            "mul.rn.bf16 u, a, b",
            "max.f16 u, a, b",
        )
    ]
    return [
        elementwise("cvt to bf16, f16, tf32, e4m3, e5m2", narrow, wild, "int32"),
        elementwise("cvt between f32 and integers", integer, wild[:1], "int32"),
        elementwise("f16 and bf16 arithmetic", half, [*wild, _bits(13)], "int32"),
    ]


def _corner_cases() -> list[SmallCase]:
    """Modifiers whose corner cases the ISA leaves to one sentence: saturation of -0 and NaN, signs, ties."""
    wild = [_bits(14), _bits(15), _bits(16)]
    wild[0][:6] = torch.tensor([-(2**31), 0, 2**31 - 1, 0x3F800000, -0x40800000, 1], dtype=torch.int32)
    floats = [
        "mul.sat.f32 <D>, <A>, <B>;",
        "fma.rm.ftz.sat.f32 <D>, <A>, <B>, <C>;",
        "add.sat.f32 <D>, <A>, <A>;",
        "min.xorsign.abs.f32 <D>, <A>, <B>;",
        "max.NaN.xorsign.abs.f32 <D>, <A>, <B>;",
        ".reg .pred p; setp.ltu.ftz.f32 p, <A>, <B>; selp.b32 <D>, 1, 0, p;",
    ]
    pairs = [
        "mul.rn.sat.f16x2 <D>, <A>, <B>;",
        "add.ftz.f16x2 <D>, <A>, <B>;",
        "fma.rn.relu.bf16x2 <D>, <A>, <B>, <C>;",
        "min.xorsign.abs.f16x2 <D>, <A>, <B>;",
        "max.NaN.bf16x2 <D>, <A>, <B>;",
        "cvt.rn.relu.bf16x2.f32 <D>, <A>, <B>;",
        "cvt.rz.relu.f16x2.f32 <D>, <A>, <B>;",
    ]
    wide = [
        f".reg .b64 x; .reg .f64 y; .reg .b32 lo, hi; mov.b64 x, {{<A>, <B>}}; cvt.{mode}.f64.{kind} y, x;"
        " mov.b64 {lo, hi}, y; xor.b32 <D>, lo, hi;"
        for mode in ("rn", "rz", "rm", "rp")
        for kind in ("u64", "s64")
    ]
    return [
        elementwise("f32 saturation, xorsign, unordered comparison", floats, wild, "int32"),
        elementwise("f16x2 and bf16x2 saturation, relu, xorsign", pairs, wild, "int32"),
        elementwise("f64 from 64-bit integers, four rounding modes", wide, wild[:2], "int32"),
    ]


def _repeated_reductions() -> SmallCase:
    """bar.red over 256 threads, three times in a row on one barrier."""
    ops = []
    for i, below in enumerate((100, 7, 256)):
        ops.append(
            f".reg .pred p, q, r; .reg .b32 n, m; setp.lt.u32 p, %r0, {below}; bar.red.popc.u32 n, 2, p;"
            f" bar.red.and.pred q, 2, p; bar.red.or.pred r, 2, p; selp.b32 m, 1000, {i}, q; add.s32 n, n, m;"
            " selp.b32 m, 5000, 0, r; add.s32 <D>, n, m;"
        )
    return elementwise("bar.red, repeated", ops, [_bits(33)], "int32")


def _bulk_reductions() -> SmallCase:
    """Four reductions of 1 KiB each from shared to global memory."""
    kinds = (("inc", "u32"), ("min", "s32"), ("max", "u64"), ("add.noftz", "f16"))
    tensor = _bits(34, 1024)
    tensor[::5] = 3
    body = [_FILL, "fence.proxy.async.shared::cta; bar.sync 0;"]
    for i, (op, kind) in enumerate(kinds):
        body.append(
            f"add.u32 %r34, %r1, {1024 + 1024 * i}; add.s64 %d40, %d0, {1024 * i};"
            f" @%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{kind} [%d40], [%r34], 1024;"
        )
    body.append("@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;")
    text = entry("\n".join(body), pointers=1, target=TARGET)
    return SmallCase("bulk reductions: inc, min, max, f16 add", text, [tensor], [("tensor", 0, "int32")])


def _integers() -> SmallCase:
    ops = [
        "mul.hi.s32 <D>, <A>, <B>;",
        "mad.lo.s32 <D>, <A>, <B>, <C>;",
        "div.s32 <D>, <A>, <C>;",
        "rem.u32 <D>, <A>, <B>;",
        "bfe.s32 <D>, <A>, <B>, <C>;",
        "bfi.b32 <D>, <A>, <B>, 3, 11;",
        "prmt.b32 <D>, <A>, <B>, <C>;",
        "lop3.b32 <D>, <A>, <B>, <C>, 0x6a;",
        "shf.l.wrap.b32 <D>, <A>, <B>, <C>;",
        "shr.s32 <D>, <A>, 40;",
        "popc.b32 <D>, <A>;",
        "bfind.s32 <D>, <A>;",
        "brev.b32 <D>, <A>;",
    ]
    return elementwise("integer instructions", ops, [_bits(21), _bits(22), _bits(23)], "int32")


def _warp_wide() -> SmallCase:
    ops = [
        "shfl.sync.bfly.b32 <D>, <A>, 5, 31, -1;",
        "shfl.sync.up.b32 <D>, <A>, 3, 0x1800, -1;",
        "shfl.sync.idx.b32 <D>, <A>, <B>, 0x101f, -1;",
        ".reg .pred q; setp.lt.s32 q, <A>, <B>; vote.sync.ballot.b32 <D>, q, -1;",
        "redux.sync.add.s32 <D>, <A>, -1;",
        "redux.sync.min.u32 <D>, <A>, -1;",
        ".reg .b32 m; and.b32 m, <A>, 3; match.any.sync.b32 <D>, m, -1;",
        ".reg .pred q; .reg .b32 l; elect.sync l|q, -1; selp.b32 <D>, l, 77, q;",
    ]
    return elementwise("shfl, vote, redux, match, elect", ops, [_bits(31), _bits(32)], "int32")


def _tma(name: str, coords: Sequence[int], span: int, dtype: torch.dtype = torch.bfloat16) -> SmallCase:
    """A box that leaves the tensor on purpose: what lands in shared memory, and that the barrier completes."""
    tensor = torch.arange(40 * 96, dtype=torch.float32).reshape(40, 96).to(dtype)
    box = (span // tensor.element_size(), 32)
    size = box[0] * box[1] * tensor.element_size()
    out = torch.zeros(size // 4, dtype=torch.int32)
    body = [
        init_barriers(1),
        expect(0, size),
        tma_load(2, DATA, 0, coords, 0),
        wait(0),
        dump(size, 1, 128),
    ]
    text = entry("\n".join(body), pointers=2, maps=1, target=TARGET)
    return SmallCase(name, text, [tensor, out, tensor_map(tensor, box, swizzle=span)], [("smem", 1, "int32")])


_FILL = """
mov.b32 %r30, %r0; add.u32 %r31, %r1, 1024; shl.b32 %r32, %r0, 2; add.u32 %r31, %r31, %r32;
FILL: add.s32 %r33, %r30, 1000; cvt.rn.f32.s32 %f30, %r33; st.shared.b32 [%r31], %f30;
add.u32 %r31, %r31, 512; add.s32 %r30, %r30, 128; setp.lt.s32 %p3, %r30, 1024; @%p3 bra FILL;
fence.proxy.async.shared::cta; bar.sync 0;
"""


def _tma_store(name: str, opcode: str) -> SmallCase:
    """A 32 x 32 box of f32 stored (or added) so that it overhangs two edges of the tensor."""
    tensor = torch.full((40, 48), 0.5)
    body = (
        _FILL
        + f"add.u32 %r34, %r1, 1024; mov.b32 %r10, 24; mov.b32 %r11, 20; @%p0 {opcode} [%d16, {{%r10, %r11}}], [%r34];"
        + "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"
    )
    text = entry(body, pointers=1, maps=1, target=TARGET)
    return SmallCase(name, text, [tensor, tensor_map(tensor, (32, 32))], [("tensor", 0, "float32")])


def _wgmma(
    name: str, dtype: torch.dtype, k: int, kind: str, a_mn: bool, b_mn: bool, span: int, random: bool
) -> SmallCase:
    """D = A B for one m64 n64 instruction; operands through TMA."""
    g = torch.Generator().manual_seed(41)
    eb = torch.empty(0, dtype=dtype).element_size()
    ops = [Operand(64, k, mn, span, eb) for mn in (a_mn, b_mn)]
    tensors, maps, loads, starts, at = [], [], [], [], DATA
    for i, op in enumerate(ops):
        shape = (k, 64) if op.mn_major else (64, max(k, op.inner))
        values = torch.randn(shape, generator=g) if random else torch.randint(-4, 5, shape, generator=g).float()
        tensors.append(values.to(dtype))
        maps.append(tensor_map(tensors[i], op.box, swizzle=span))
        starts.append(at)
        extent = 64 if op.mn_major else op.inner
        for j in range(max(1, (extent if op.mn_major else k) // op.inner)):
            loads.append(tma_load(2, at, i, (j * op.inner, 0), 0))
            at += op.box[0] * op.box[1] * eb
    total = at - DATA
    regs = ", ".join(f"%f{i}" for i in range(32))
    trans = f", {int(a_mn)}, {int(b_mn)}" if eb == 2 else ""
    body = [init_barriers(1), expect(0, total), *loads, wait(0)]
    for register, op, start in (("%d50", ops[0], starts[0]), ("%d51", ops[1], starts[1])):
        fields = descriptor(op, 0, wgmma=True)
        body += [
            f"add.u32 %r50, %r1, {start}; and.b32 %r50, %r50, 0x3ffff; shr.u32 %r50, %r50, 4;",
            f"cvt.u64.u32 {register}, %r50; or.b64 {register}, {register}, {fields};",
        ]
    body += [f"mov.b32 %f{i}, 0f00000000;" for i in range(32)]
    body += [
        "setp.ne.s32 %p4, 1, 0; wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n64k{k}.f32.{kind}.{kind} {{{regs}}}, %d50, %d51, %p4, 1, 1{trans};",
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        "mul.lo.s32 %r51, %r0, 128; cvt.u64.u32 %d52, %r51; add.s64 %d53, %d2, %d52;",
        *(f"st.global.b32 [%d53+{4 * i}], %f{i};" for i in range(32)),
    ]
    out = torch.zeros(128, 32)
    text = entry("\n".join(body), pointers=3, maps=2, target=TARGET)
    return SmallCase(name, text, [*tensors, out, *maps], [("D", 2, "float32")])


def _matrix_store(trans: bool) -> SmallCase:
    """stmatrix of four 8x8 matrices, read back word by word."""
    body = [
        "and.b32 %r30, %r0, 31; shl.b32 %r31, %r30, 4; add.u32 %r32, %r1, 1024; add.u32 %r32, %r32, %r31;",
        *(f"mad.lo.s32 %r{33 + i}, %r30, 8, {i * 65536 + 7 * i};" for i in range(4)),
        f"stmatrix.sync.aligned.m8n8.x4{'.trans' if trans else ''}.shared.b16 [%r32], {{%r33, %r34, %r35, %r36}};",
        "bar.sync 0;",
        dump(512, 0, 32),
    ]
    out = torch.zeros(128, dtype=torch.int32)
    text = entry("\n".join(body), pointers=1, target=TARGET)
    return SmallCase(f"stmatrix.x4{' .trans' if trans else ''}", text, [out], [("smem", 0, "int32")], block=32)


def _phases() -> SmallCase:
    """Parities seen by test_wait over three phases of a barrier with count 2, thread 0 alone."""
    steps = ["mbarrier.init.shared.b64 [%r1], 2;", "mov.b64 %d40, %d0;"]
    for _ in range(6):
        for parity in (0, 1):
            steps += [
                f"mbarrier.test_wait.parity.shared.b64 %p5, [%r1], {parity}; selp.b32 %r40, 1, 0, %p5;",
                "st.global.b32 [%d40], %r40; add.s64 %d40, %d40, 4;",
            ]
        steps.append("mbarrier.arrive.shared.b64 _, [%r1];")
    body = "@!%p0 bra DONE;\n" + "\n".join(steps) + "\nDONE:"
    out = torch.zeros(16, dtype=torch.int32)
    return SmallCase(
        "mbarrier phases", entry(body, pointers=1, target=TARGET), [out], [("answers", 0, "int32")], block=32
    )


def small_cases() -> list[SmallCase]:
    store = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
    reduce = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    bf16, e4m3 = torch.bfloat16, torch.float8_e4m3fn
    return [
        _integers(),
        _warp_wide(),
        *_arithmetic(),
        *_conversions(),
        *_corner_cases(),
        _repeated_reductions(),
        _tma("TMA load, box past the end", (64, 24), 128),
        _tma("TMA load, negative start", (-8, -5), 64),
        _tma("TMA load, all outside", (96, 40), 32),
        _tma_store("TMA store, clipped", store),
        _tma_store("TMA reduce add.f32, clipped", reduce),
        _bulk_reductions(),
        _wgmma("wgmma bf16, K-major, exact", bf16, 16, "bf16", False, False, 128, False),
        _wgmma("wgmma bf16, MN-major, exact", bf16, 16, "bf16", True, True, 64, False),
        _wgmma("wgmma bf16, random", bf16, 16, "bf16", False, True, 128, True),
        _wgmma("wgmma e4m3, random", e4m3, 32, "e4m3", False, False, 32, True),
        _matrix_store(False),
        _matrix_store(True),
        _phases(),
    ]
