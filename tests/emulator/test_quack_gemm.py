"""Matrix products by quack's own CuTe DSL kernels: other people's TMA, tcgen05 and wgmma code, exact on integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from attn_dsl import emulator

gemm_module = pytest.importorskip("quack.gemm", reason="needs quack-kernels (requirements/peers.txt)")


@dataclass(frozen=True)
class Product:
    """D[m, n] = A[m, k] B[n, k]^T in tiles of `tile` over clusters of `cluster` CTAs."""

    name: str
    arch: str
    shape: tuple[int, int, int]
    majors: str = "KK"  # of A and B
    tile: tuple[int, int] = (128, 128)
    cluster: tuple[int, int] = (1, 1)
    dtype: torch.dtype = torch.bfloat16
    batch: int = 1
    options: dict[str, Any] = field(default_factory=dict)


CLC = {"is_dynamic_persistent": True}
PINGPONG = {"pingpong": True}
CASES = [
    Product("1 CTA", "sm_100a", (200, 160, 96)),
    Product("MN-major", "sm_100a", (200, 160, 96), "MM", (128, 192)),
    Product("e4m3", "sm_100a", (200, 160, 128), dtype=torch.float8_e4m3fn),
    Product("fp16, batch", "sm_100a", (130, 72, 64), "KM", dtype=torch.float16, batch=2),
    Product("pair", "sm_100a", (400, 256, 128), "KM", (256, 128), (2, 1)),
    Product("pair, CLC", "sm_100a", (400, 256, 128), "MK", (256, 256), (2, 1), options=CLC),
    Product("pair, multicast", "sm_100a", (600, 512, 128), "MK", (256, 128), (2, 2)),
    Product("1 CTA", "sm_90a", (200, 160, 96)),
    Product("MN-major", "sm_90a", (200, 160, 96), "MM", (128, 192)),
    Product("pingpong", "sm_90a", (200, 256, 128), tile=(64, 128), options=PINGPONG),
    Product("multicast", "sm_90a", (400, 256, 128), "KM", cluster=(2, 1)),
]
QUICK = {("pair, CLC", "sm_100a"), ("MN-major", "sm_90a")}


def parameters() -> list[Any]:
    return [
        pytest.param(c, id=f"{c.arch} {c.name}", marks=[] if (c.name, c.arch) in QUICK else pytest.mark.slow)
        for c in CASES
    ]


def forget_hardware() -> None:
    """quack remembers the device it saw first, and plans made for it."""
    from quack import cute_dsl_utils

    for remembered in (
        cute_dsl_utils.get_device_multiprocessor_count,
        cute_dsl_utils.get_max_active_clusters,
        cute_dsl_utils._get_device_capacity_cached,
        cute_dsl_utils.get_compile_target_capacity,
    ):
        remembered.cache_clear()
    gemm_module._gemm_plan_cache.clear()
    gemm_module._compile_gemm.cache_clear()


def operand(case: Product, rows: int, major: str, seed: int) -> torch.Tensor:
    k = case.shape[2]
    size = (case.batch, rows, k) if major == "K" else (case.batch, k, rows)
    values = torch.randint(-3, 4, size, generator=torch.Generator().manual_seed(seed)).to(case.dtype)
    return values if major == "K" else values.transpose(1, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", parameters())
def test_product(case: Product, monkeypatch: pytest.MonkeyPatch):
    m, n, _ = case.shape
    a, b = operand(case, m, case.majors[0], 1), operand(case, n, case.majors[1], 2)
    d = torch.zeros(case.batch, m, n)
    monkeypatch.setattr("quack.cache.CACHE_ENABLED", False)  # objects on disk have no PTX to run
    forget_hardware()
    with emulator.device(case.arch) as gpu:
        gemm_module.gemm(a, b, d, None, None, *case.tile, *case.cluster, **case.options)
    assert torch.equal(d.double(), a.double() @ b.double().transpose(1, 2))
    assert len(gpu.reports) == 1
