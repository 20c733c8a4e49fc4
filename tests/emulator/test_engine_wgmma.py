"""wgmma against integer matrix products, with A in shared memory and in registers, on sm_90a."""

from __future__ import annotations

import pytest
import torch
from engine_kernels import (
    BASE,
    DATA,
    Operand,
    descriptor,
    entry,
    expect,
    init_barriers,
    launch,
    tensor_map,
    tma_load,
    wait,
)

K_STEP = {
    torch.bfloat16: 16,
    torch.float16: 16,
    torch.float32: 8,
    torch.float8_e4m3fn: 32,
    torch.float8_e5m2: 32,
    torch.int8: 32,
}
NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "tf32",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int8: "s8",
}


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def d_positions(registers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns, [128 threads, registers], of 32-bit D (PTX ISA, figure of the accumulator fragment)."""
    thread, reg = torch.arange(128)[:, None], torch.arange(registers)[None]
    group, quad = thread % 32 // 4, thread % 4
    return 16 * (thread // 32) + group + 8 * (reg // 2 % 2), 8 * (reg // 4) + 2 * quad + reg % 2


def store_d(registers: int) -> str:
    """Thread t stores its D registers (from %r200) to row t of pointer parameter 0."""
    lines = [f"mul.lo.s32 %r80, %r0, {4 * registers};", "cvt.u64.u32 %d40, %r80;", "add.s64 %d41, %d0, %d40;"]
    return "\n".join([*lines, *(f"st.global.b32 [%d41+{4 * r}], %r{200 + r};" for r in range(registers))])


def unscatter(out: torch.Tensor, n: int) -> torch.Tensor:
    """[128 threads, registers] of 32-bit D to [64, n]."""
    d = torch.zeros(64, n, dtype=out.dtype)
    d[d_positions(out.shape[1])] = out
    return d


def load_a_fragments(words: int) -> str:
    """Thread t loads its A registers, row t of pointer parameter 3, to %r120..."""
    lines = [f"mul.lo.s32 %r81, %r0, {4 * words};", "cvt.u64.u32 %d42, %r81;", "add.s64 %d43, %d3, %d42;"]
    return "\n".join([*lines, *(f"ld.global.b32 %r{120 + r}, [%d43+{4 * r}];" for r in range(words))])


def a_fragments(a: torch.Tensor, step: int) -> torch.Tensor:
    """[128 threads, 4 registers x K steps] of int32: the A fragments of a [64, K] operand."""
    eb = a.element_size()
    per = 4 // eb
    raw = a.contiguous().view(torch.uint8).reshape(64, -1)
    thread, reg = torch.arange(128)[:, None, None], torch.arange(4 * (a.shape[1] // step))[None, :, None]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (reg % 2)
    k = step * (reg // 4) + per * (thread % 4) + 4 * per * (reg % 4 // 2)
    return raw[row, k * eb + torch.arange(4)].view(torch.int32).reshape(128, -1)


def wgmma_gemm(
    n: int, k: int, dtype: torch.dtype, a_mn: bool, b_mn: bool, span: int, *, registers: bool = False, **options
):
    step, eb = K_STEP[dtype], torch.empty(0, dtype=dtype).element_size()
    a, b = Operand(64, k, a_mn, span, eb), Operand(n, k, b_mn, span, eb)
    a_values, b_values = integers((64, k), dtype, n), integers((n, k), dtype, n + 1)
    a_tensor = a_values.t().contiguous() if a_mn else a_values
    b_tensor = b_values.t().contiguous() if b_mn else b_values
    fragments = a_fragments(a_values, step)
    b_at = DATA + (a.bytes + 1023) // 1024 * 1024
    dtype_d = "s32" if dtype == torch.int8 else "f32"
    n_d = n // 2
    d = ", ".join(f"%r{200 + i}" for i in range(n_d))
    lines = [init_barriers(1), expect(0, a.bytes + b.bytes)]
    lines += [tma_load(2, DATA + at, 0, c, 0) for c, at in a.loads()] + [
        tma_load(2, b_at + at, 1, c, 0) for c, at in b.loads()
    ]
    if registers:
        lines.append(load_a_fragments(fragments.shape[1]))
    lines += [wait(0), "wgmma.fence.sync.aligned;"]
    for i, k0 in enumerate(range(0, k, step)):
        left = f"{{{', '.join(f'%r{120 + 4 * i + r}' for r in range(4))}}}" if registers else "%d10"
        immediates = "" if dtype == torch.int8 else ", 1, 1"
        if eb == 2:
            immediates += f", {int(b_mn)}" if registers else f", {int(a_mn)}, {int(b_mn)}"
        lines += [
            f"mov.b64 %d10, {descriptor(a, BASE + DATA + a.advance(k0), wgmma=True)};",
            f"mov.b64 %d11, {descriptor(b, BASE + b_at + b.advance(k0), wgmma=True)};",
            f"setp.ne.s32 %p3, {int(k0 > 0)}, 0;",
            f"wgmma.mma_async.sync.aligned.m64n{n}k{step}.{dtype_d}.{NAMES[dtype]}.{NAMES[dtype]} "
            f"{{{d}}}, {left}, %d11, %p3{immediates};",
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", store_d(n_d)]
    out = torch.zeros(128, n_d, dtype=torch.int32)
    text = entry("\n".join(lines), pointers=4, maps=2, target="sm_90a")
    maps = [tensor_map(t, op.box, swizzle=op.span) for t, op in ((a_tensor, a), (b_tensor, b))]
    launch(text, [out, a_tensor, b_tensor, fragments, *maps], **options)
    got = unscatter(out if dtype == torch.int8 else out.view(torch.float32), n)
    return got.double(), a_values.double() @ b_values.double().T


@pytest.mark.parametrize("majors", ["KK", "MK", "KM", "MM"])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_shared_bf16(majors: str, span: int):
    got, want = wgmma_gemm(64, 64, torch.bfloat16, majors[0] == "M", majors[1] == "M", span)
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str
)
@pytest.mark.parametrize("registers", [False, True])
def test_types(dtype: torch.dtype, registers: bool):
    got, want = wgmma_gemm(32, 128 // dtype.itemsize, dtype, False, False, 128, registers=registers)
    assert torch.equal(got, want)


@pytest.mark.parametrize("n", [8, 80, 256])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_widths_with_a_in_registers(n: int, late: int):
    got, want = wgmma_gemm(n, 64, torch.bfloat16, False, n != 80 and n != 8, 128, registers=True, late=late, seed=late)
    assert torch.equal(got, want)
