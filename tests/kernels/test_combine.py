"""Splits joined on the virtual devices, against the same sums in float64."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from attn_dsl import emulator
from attn_dsl.kernels.common.combine import CombinePlan, compile_combine

DENSE = (("batch", "seq_q", "heads", "dim"), ("batch", "heads", "seq_q"))
PACKED = (("total_q", "heads", "dim_v"), ("heads", "total_q"))
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def parts(splits: int, shape: tuple[int, ...], lse_axes: list[int], empty: float = 0.3) -> tuple[Tensor, Tensor]:
    """Random outputs and logarithms in base 2. Outputs of empty splits are NaN; row 0 is empty in every split."""
    make = torch.Generator().manual_seed(splits)
    o = torch.randn(splits, *shape, generator=make)
    lse = torch.randn(splits, *shape[:-1], generator=make) * 6
    lse[torch.rand(lse.shape, generator=make) < empty] = -math.inf
    lse.flatten(1)[:, 0] = -math.inf
    o[torch.isneginf(lse)] = math.nan
    return o, lse.permute([0, *(axis + 1 for axis in lse_axes)]).contiguous()


@cache
def compiled(plan: CombinePlan, arch: str):
    """Called where a device is open."""
    return compile_combine(plan, arch)


def combined(plan: CombinePlan, arch: str, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, emulator.Device]:
    out = torch.full(o.shape[1:], math.nan, dtype=DTYPES[plan.o_dtype])
    logs = torch.full(lse.shape[1:], math.nan)
    with emulator.device(arch) as gpu:
        compiled(plan, arch)(o, lse, out, logs)
    return out, logs, gpu


def truth(o: Tensor, lse: Tensor, lse_axes: list[int]) -> tuple[Tensor, Tensor]:
    """In float64; lse in base 2."""
    logs = lse.double() * math.log(2)
    total = logs.logsumexp(0)
    weights = torch.where(torch.isneginf(logs), 0.0, (logs - total).exp())
    back = [0, *(lse_axes.index(axis) + 1 for axis in range(len(lse_axes)))]
    return (o.double().nan_to_num() * weights.permute(back)[..., None]).sum(0), total / math.log(2)


@pytest.mark.parametrize(
    ("arch", "splits"),
    [("sm_90a", splits) for splits in (1, 2, 3, 8, 31, 32, 33, 256)]
    + [pytest.param("sm_100a", splits, marks=pytest.mark.slow) for splits in (3, 130)],
)
def test_splits(arch: str, splits: int) -> None:
    plan = CombinePlan("sm90", "f32", 72, *DENSE, "e", 32 if splits <= 32 else 256)
    o, lse = parts(splits, (2, 3, 5, 72), [0, 2, 1])
    out, logs, gpu = combined(plan, arch, o, lse)
    true_o, true_lse = truth(o, lse, [0, 2, 1])
    torch.testing.assert_close(out.double(), true_o, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(logs.double(), true_lse * math.log(2), atol=2e-6, rtol=1e-6)
    assert (out[0, 0, 0] == 0).all()
    assert torch.isneginf(logs[0, 0, 0])
    again, logs_again, _ = combined(plan, arch, o, lse)
    assert torch.equal(out, again)
    assert torch.equal(logs, logs_again)
    # outputs of empty splits are not read: each row reads its logarithms, by each of the warps that share it
    assert gpu.reports[0].engines["global_bytes"] == (
        int((~torch.isneginf(lse)).sum()) * 72 * 4 + plan.warps * lse.numel() * 4 + out.numel() * 4 + logs.numel() * 4
    )


@pytest.mark.parametrize("o_dtype", ["bf16", pytest.param("f16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dim", "most"), [(8, 32), pytest.param(256, 32, marks=pytest.mark.slow), (512, 256)])
def test_packed_rows_in_base_2(o_dtype: str, dim: int, most: int) -> None:
    o, lse = parts(7, (13, 3, dim), [1, 0])
    out, logs, _ = combined(CombinePlan("sm90", o_dtype, dim, *PACKED, "2", most), "sm_90a", o, lse)
    true_o, true_lse = truth(o, lse, [1, 0])
    step = torch.finfo(DTYPES[o_dtype]).eps / 2
    assert ((out.double() - true_o).abs() <= step * true_o.abs() + 2e-6).all()
    torch.testing.assert_close(logs.double(), true_lse, atol=2e-6, rtol=1e-6)


def test_large_logarithms_and_a_split_that_is_a_sink() -> None:
    """Nothing overflows; an output of 0 with a finite logarithm takes its part of the denominator."""
    o, lse = parts(4, (1, 6, 2, 16), [0, 2, 1], empty=0.0)
    lse += 1e4
    o[0], lse[0] = 0.0, torch.tensor([9990.0, 10010.0])[:, None]
    out, logs, _ = combined(CombinePlan("sm90", "f32", 16, *DENSE, "2", 32), "sm_90a", o, lse)
    true_o, true_lse = truth(o, lse, [0, 2, 1])
    torch.testing.assert_close(out.double(), true_o, atol=2e-3, rtol=2e-3)  # logarithms have steps of 2^-10
    torch.testing.assert_close(logs.double(), true_lse, atol=2e-3, rtol=0.0)
