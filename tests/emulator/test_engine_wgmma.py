"""wgmma against integer matrix products, with A in shared memory and in registers, on sm_90a."""

from __future__ import annotations

import pytest
import torch
from engine_gemm import wgmma_gemm


@pytest.mark.parametrize("majors", ["KK", "MK", "KM", "MM"])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_shared_bf16(majors: str, span: int):
    got, a, b = wgmma_gemm(64, 64, torch.bfloat16, majors[0] == "M", majors[1] == "M", span)
    assert torch.equal(got, a.double() @ b.double().T)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str
)
@pytest.mark.parametrize("registers", [False, True])
def test_types(dtype: torch.dtype, registers: bool):
    got, a, b = wgmma_gemm(32, 128 // dtype.itemsize, dtype, False, False, 128, registers=registers)
    assert torch.equal(got, a.double() @ b.double().T)


@pytest.mark.parametrize("n", [8, 80, 256])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_widths_with_a_in_registers(n: int, late: int):
    got, a, b = wgmma_gemm(n, 64, torch.bfloat16, False, n != 80 and n != 8, 128, registers=True, late=late, seed=late)
    assert torch.equal(got, a.double() @ b.double().T)
