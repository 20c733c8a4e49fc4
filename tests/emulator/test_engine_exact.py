"""MMA arithmetic bit by bit, against the rule in integers: align to the largest exponent, truncate, add, truncate."""

from __future__ import annotations

import pytest
import torch
from engine_gemm import KINDS, gemm, wgmma_gemm

SMALLEST = {torch.float16: -14, torch.float8_e5m2: -14, torch.float8_e4m3fn: -6}  # exponents of the smallest normal


def spread(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal values times 2^-3 to 2^3, with zeros and subnormals of the format among them."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g) * torch.exp2(torch.randint(-3, 4, shape, generator=g).float())
    x[torch.rand(shape, generator=g) < 0.05] = 0
    if dtype in SMALLEST:
        tiny = torch.rand(shape, generator=g) < 0.05
        x[tiny] *= 2.0 ** (SMALLEST[dtype] - 2)
    return x.to(dtype)


def exponents(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of float64 values: subnormals of the format keep its smallest exponent, zero counts as 2^-126."""
    e = torch.frexp(x).exponent.long() - 1
    return torch.where(x == 0, -126, e.clamp(min=SMALLEST.get(dtype, -126)))


def truncate_significand(x: torch.Tensor, bits: int) -> torch.Tensor:
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).trunc(), exponent.long() - bits - 1)


def reference(a: torch.Tensor, b: torch.Tensor, step: int, bits: int, out_bits: int) -> torch.Tensor:
    """D of a chain of MMAs along K, `step` products at a time, each in exact integer arithmetic (float64 holds it)."""
    if a.dtype == torch.float32:  # tf32: the low 13 bits are not there
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    x, y = a.double(), b.double()
    ex, ey = exponents(x, a.dtype), exponents(y, b.dtype)
    d = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for k in range(0, a.shape[1], step):
        terms = x[:, None, k : k + step] * y[None, :, k : k + step]
        top = (ex[:, None, k : k + step] + ey[None, :, k : k + step]).amax(-1)
        top = torch.maximum(top, exponents(d, torch.float32))
        unit = torch.ldexp(torch.ones_like(d), top - bits)
        total = (terms / unit[..., None]).trunc().sum(-1) + (d / unit).trunc()
        d = truncate_significand(total * unit, out_bits)
    return d


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize(
    ("dtype", "bits", "out_bits"),
    [
        (torch.bfloat16, 25, 23),
        (torch.float16, 25, 23),
        (torch.float32, 25, 23),
        (torch.float8_e4m3fn, 13, 13),
        (torch.float8_e5m2, 13, 13),
    ],
    ids=str,
)
def test_wgmma(dtype: torch.dtype, bits: int, out_bits: int, registers: bool):
    k = 128 // dtype.itemsize
    d, a, b = wgmma_gemm(64, k, dtype, False, False, 128, registers=registers, values=spread, exact=True)
    assert torch.equal(d, reference(a, b, 32 // dtype.itemsize, bits, out_bits))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_tcgen05(dtype: torch.dtype):
    d, a, b, _ = gemm(128, 64, 128 // dtype.itemsize, dtype, False, False, 128, values=spread, exact=True)
    assert torch.equal(d, reference(a, b, KINDS[dtype][3], 25, 23))


@pytest.mark.parametrize("exact", [False, True])
def test_infinities_and_nan(exact: bool):
    """An infinite operand gives infinities and NaN where arithmetic says so, whatever the rounding."""

    def with_infinity(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
        x = spread(shape, dtype, seed)
        if seed == 0:
            x[3, 5] = torch.inf
            x[4, 40] = torch.nan
        return x

    d, a, b, _ = gemm(128, 64, 64, torch.bfloat16, False, False, 128, values=with_infinity, exact=exact)
    want = a.double() @ b.double().T
    assert torch.equal(d.isnan(), want.isnan())
    assert torch.equal(d[3].isinf(), want[3].isinf())
    finite = want.isfinite()
    assert torch.allclose(d[finite], want[finite], rtol=1e-5, atol=1e-3)
