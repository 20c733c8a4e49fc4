"""What plans of SM100 kernels can ask for besides what specs make them: other tiles, shares and architectures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cubin import resources

pytest.importorskip("cutlass")

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.emulator import Device
from attn_dsl.kernels.sm100.build import compile_forward
from attn_dsl.kernels.sm100.exp2 import polynomial_exp2
from attn_dsl.lowering.forward import ShapeClass, sm100
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM100, Kernels
from attn_dsl.runtime.signature import Signature

HEAD = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
"""
CAUSAL = "mask = kv_idx <= q_pos\n"
TILE = 128  # rows, and keys
FAR = 2**31 + 64  # elements between batch entries


def kernels_of(text: str) -> Kernels:
    return Kernels(attn_dsl.parse(HEAD + text), SM100)


def run(
    kernels: Kernels,
    extents: dict[str, int],
    *,
    late: int = 0,
    magnitude: float = 1.0,
    changes: dict[str, object] | None = None,
    far: bool = False,
) -> Device:
    """One launch on the virtual device, held to float64; `changes` are made to the plan that a call selects,
    `far` puts batch entries 2^31 elements apart."""
    spec = kernels.spec
    inputs = random_inputs(spec, extents, seed=late + 1)
    tensors = dict(inputs.tensors)
    tensors["k"] = tensors["k"] * magnitude
    o_exact, lse_exact = reference.attention(
        spec, bind(spec, (), {**tensors, **inputs.params}, False).tensors, {}, precision="float64"
    )
    o = torch.full(o_exact.shape, math.nan, dtype=torch.bfloat16)
    lse = torch.full(lse_exact.shape, math.nan)
    if far:
        tensors = {name: apart(tensor) for name, tensor in tensors.items()}
        o, lse = apart(o), apart(lse)
    call = bind(spec, (), {**tensors, **inputs.params}, False)
    with emulator.device("sm_100a", late=late, seed=late + 1) as gpu:
        if changes:
            shape = ShapeClass(extents["dim"], extents["dim_v"])
            plan = replace(sm100.select(spec, shape), **changes)
            assert not sm100.check(plan)
            kernel = kernels.kernel(shape)
            kernels.compiled[shape] = replace(
                kernel, signature=Signature.of(plan, SM100.arch), function=compile_forward(plan)
            )
        kernels.launch(call, o, lse)
    assert not gpu.findings
    assert compare_output(o, o_exact, spec.output.dtype).ok, compare_output(o, o_exact, spec.output.dtype)
    assert compare_lse(lse, lse_exact).ok, compare_lse(lse, lse_exact)
    return gpu


def sizes(seq_q: int, seq_k: int, heads: int, kv_heads: int, dim: int, dim_v: int) -> dict[str, int]:
    return {
        "batch": 2,
        "seq_q": seq_q,
        "seq_k": seq_k,
        "heads": heads,
        "kv_heads": kv_heads,
        "dim": dim,
        "dim_v": dim_v,
    }


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose batch entries are `FAR` elements apart; memory between them is never touched."""
    one = tensor[0].contiguous()
    place = torch.empty(FAR + one.numel(), dtype=tensor.dtype).as_strided(tensor.shape, (FAR, *one.stride()))
    return place.copy_(tensor)


@pytest.mark.parametrize(
    ("dims", "hints"),
    [
        ((256, 256), ""),
        pytest.param((192, 128), "", marks=pytest.mark.slow),
        pytest.param((136, 72), "", marks=pytest.mark.slow),
        pytest.param((64, 256), "", marks=pytest.mark.slow),
        pytest.param((64, 64), "tile_q = 128", marks=pytest.mark.slow),
        pytest.param((128, 128), "tile_q = 128\nstages = 1\ntile_k = 64", marks=pytest.mark.slow),
        pytest.param((64, 64), "exp2_share = 100", marks=pytest.mark.slow),
        pytest.param((64, 64), "exp2_share = 0", marks=pytest.mark.slow),
    ],
)
def test_wide_heads_and_schedules(dims: tuple[int, int], hints: str) -> None:
    schedule = f"schedule {{ {hints} }}" if hints else ""
    kernels = kernels_of(CAUSAL + schedule)
    for late in range(3):
        run(kernels, sizes(150, 333, 2, 1, *dims), late=late)


@pytest.mark.parametrize("query_tiles", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_references_that_are_always_the_maximum(query_tiles: int) -> None:
    """A threshold of 0 rescales whenever a maximum rises, which here is often."""
    extents = sizes(140, 500, 1, 1, 64, 64)
    schedule = f"schedule {{ tile_q = {128 * query_tiles} }}"
    kernels = kernels_of(CAUSAL + schedule)
    lazy = run(kernels, extents, magnitude=3.0)
    exact = run(kernels, extents, magnitude=3.0, changes={"threshold": 0.0})
    rescaled = [gpu.reports[-1].roles[4 * query_tiles]["f32x2"] for gpu in (lazy, exact)]
    assert rescaled[0] < rescaled[1]


def test_a_query_tile_visits_its_own_keys_only() -> None:
    """A causal block of two query tiles shares the tiles of keys below both; the one at the end only the second sees.
    A second tile past the queries sees none."""
    kernels = kernels_of(CAUSAL)
    for queries, tiles in ((4 * TILE, 1 + 2 + 3 + 4), (3 * TILE, 1 + 2 + 3), (TILE - 3, 1)):
        gpu = run(kernels, sizes(queries, queries, 1, 1, 64, 64))
        assert gpu.reports[-1].engines["mma_flop"] == 2 * tiles * 2 * (2 * TILE * TILE * 64)


@pytest.mark.parametrize("heads", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_tensors_of_more_than_31_bits(heads: int) -> None:
    """By rows and by boxes: addresses of every tensor pass 2^31 elements."""
    bias = "bias: f32[batch, heads, seq_k]\nscore = score + bias[b, h, kv_idx]\n"
    run(kernels_of(bias + CAUSAL), sizes(70, 150, heads, 1, 64, 64), far=True)


@pytest.mark.parametrize("arch", [pytest.param("sm_100a", marks=pytest.mark.slow), "sm_103a"])
def test_architectures(arch: str, tmp_path: Path) -> None:
    plan = sm100.select(attn_dsl.parse(HEAD + CAUSAL), ShapeClass(64, 64), arch)
    assert (plan.exp2_on_fma == 0) == (arch == "sm_103a")
    compile_forward(plan, f"--keep-ptx --keep-cubin --dump-dir {tmp_path}")
    (ptx,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    (cubin,) = (path.read_bytes() for path in tmp_path.glob("*.cubin"))
    assert f".target {arch}" in ptx
    assert ("add.rm.f32x2" in ptx) == (plan.exp2_on_fma > 0)
    assert resources(cubin).stack == 0


@cute.kernel
def _powers(x: cute.Tensor, y: cute.Tensor) -> None:
    place = 2 * (cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0])
    low, high = polynomial_exp2((x[place], x[place + 1]))
    y[place] = low
    y[place + 1] = high


@cute.jit
def _launch(x: cute.Tensor, y: cute.Tensor, blocks: cutlass.Constexpr[int]) -> None:
    _powers(x, y).launch(grid=(blocks, 1, 1), block=(32, 1, 1))


def test_exponentials_on_fma_units() -> None:
    """Exact at integers, 8.7e-5 off at most, 0 from -127 on; NaN and infinity do not turn into small numbers."""
    blocks = 256
    x = torch.linspace(-126.0, 8.0, 64 * blocks)
    whole, low = torch.arange(-126.0, 9.0), torch.tensor([-127.0, -127.5, -1e30, -math.inf])
    x[: len(whole)], x[-6:-2], x[-2], x[-1] = whole, low, math.nan, math.inf
    y = torch.full_like(x, math.nan)
    with emulator.device("sm_100a"):
        _launch(from_dlpack(x), from_dlpack(y), blocks)
    exact = torch.exp2(x.double())
    assert torch.equal(y[: len(whole)].double(), exact[: len(whole)])
    assert ((y.double() - exact).abs() / exact)[:-6].max() < 8.7e-5
    assert not y[-6:-2].any()
    assert not (y[-2:].abs() < 1e38).any()
