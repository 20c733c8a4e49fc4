"""Blackwell kernels on the virtual device against float64, and what ptxas makes of them. No B200 is needed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cubin import resources
from forward_specs import HEAD

pytest.importorskip("cutlass")

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.kernels.sm100.build import compile_forward
from attn_dsl.lowering.forward import ParamArgument, ShapeClass, sm100
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM100, Kernels

SPECS = {
    "full": "",
    "causal": "mask = kv_idx <= q_pos",
    "window": """
        param width: int in 1.. = 70
        sinks: f32[heads]
        mask = kv_idx <= q_pos and q_pos - kv_idx < width
        sink = sinks[h]""",
    "softcap": """
        param cap: float in 1.0.. = 5.0
        mask = kv_idx <= q_pos
        score = cap * tanh(score / cap)""",
    "documents": """
        ids: i32[batch, seq_q + seq_k]
        mask = kv_idx <= q_pos and ids[b, q_idx] == ids[b, kv_idx]""",
    "nothing_visible": """
        sinks: f32[heads]
        mask = kv_idx < q_pos - 40
        sink = sinks[h]""",
    "base_2": "lse_base = 2\nmask = kv_idx < q_pos - 40",
    "descaled": """
        gain_q: f32[heads]
        gain_k, gain_v: f32[batch, kv_heads]
        descale q = gain_q[h]
        descale k = gain_k[b, kv_h]
        descale v = gain_v[b, kv_h]""",
    "negative_scale": "param factor: float = -0.3\nscale = factor",
}


def spec_of(name: str, dtype: str = "bf16") -> attn_dsl.AttentionSpec:
    lines = [line.strip() for line in SPECS[name].splitlines()]
    return attn_dsl.parse(HEAD.format(dtype=dtype) + "\n".join(lines), name=name)


def check(kernels: Kernels, sizes: tuple[int, ...], *, seed: int, late: int, magnitude: float = 1.0) -> None:
    """One launch into outputs full of NaN; sizes are seq_q, seq_k, heads, kv_heads, dim, dim_v."""
    spec = kernels.spec
    extents = dict(zip(("seq_q", "seq_k", "heads", "kv_heads", "dim", "dim_v"), sizes, strict=True)) | {"batch": 2}
    inputs = random_inputs(spec, extents, seed=seed)
    tensors = dict(inputs.tensors)
    tensors["k"] = tensors["k"] * magnitude
    call = bind(spec, (), {**tensors, **inputs.params}, False)
    o_exact, lse_exact = reference.attention(spec, call.tensors, call.params, precision="float64")
    o, lse = torch.full(o_exact.shape, math.nan, dtype=tensors["q"].dtype), torch.full(lse_exact.shape, math.nan)
    with emulator.device("sm_100a", late=late, seed=seed) as gpu:
        kernels.launch(call, o, lse)
    assert not gpu.findings
    assert compare_output(o, o_exact, spec.output.dtype).ok, compare_output(o, o_exact, spec.output.dtype)
    assert compare_lse(lse, lse_exact).ok, compare_lse(lse, lse_exact)


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "lengths"),
    [
        ("causal", "bf16", (128, 128), [(300, 333), (0, 5)]),
        ("window", "f16", (64, 64), [(257, 200), (130, 0)]),
        ("nothing_visible", "bf16", (40, 24), [(150, 129)]),
        ("descaled", "bf16", (64, 64), [(40, 77)]),
    ],
)
def test_lengths_and_groups(name: str, dtype: str, dims: tuple[int, int], lengths: list[tuple[int, int]]) -> None:
    """One kernel serves every length; asynchronous work completes as late as it may, or at random times."""
    kernels = Kernels(spec_of(name, dtype), SM100)
    for place, (seq_q, seq_k) in enumerate(lengths):
        check(kernels, (seq_q, seq_k, 6, 2, *dims), seed=place + 1, late=1 + place % 2)
    assert len(kernels.compiled) == 1


def test_rows_whose_maximum_rises_are_rescaled() -> None:
    """Scores far apart: references move by more than the threshold, rows beside them by less."""
    check(Kernels(spec_of("causal"), SM100), (140, 700, 2, 1, 64, 64), seed=3, late=1, magnitude=30.0)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(8, 8), (64, 64), (72, 96), (120, 64), (64, 128), (128, 128)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", SPECS)
def test_every_length_and_head_dim(name: str, dtype: str, dims: tuple[int, int]) -> None:
    kernels = Kernels(spec_of(name, dtype), SM100)
    lengths = [(1, 1), (63, 257), (128, 128), (129, 640), (255, 384), (640, 127), (384, 255), (0, 5), (5, 0)]
    groups = [(3, 3), (5, 1), (6, 1), (14, 2), (12, 1), (16, 1), (4, 2), (2, 1), (3, 1)]
    for place, ((seq_q, seq_k), heads) in enumerate(zip(lengths, groups, strict=True)):
        check(kernels, (seq_q, seq_k, *heads, *dims), seed=place + 1, late=place % 3)


CAP = ParamArgument("cap", False, None, "number", "f32", 1.0, None)


@pytest.mark.parametrize(
    ("name", "shape", "spilled"), [("causal", ShapeClass(128, 128), 0), ("softcap", ShapeClass(64, 64, (CAP,)), 0)]
)
def test_a_kernel_compiles(name: str, shape: ShapeClass, spilled: int, tmp_path: Path) -> None:
    """Offline, for sm_100a: as many registers at launch as threads can have, and no more bytes of them spilled."""
    plan = sm100.select(spec_of(name), shape)
    compile_forward(plan, f"--keep-ptx --keep-cubin --dump-dir {tmp_path}")
    (ptx,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    (cubin,) = (path.read_bytes() for path in tmp_path.glob("*.cubin"))
    found = resources(cubin)
    assert found.stack <= spilled
    assert ".local" not in ptx
    assert found.registers <= 65536 // plan.threads // 8 * 8
    for role in plan.roles:
        assert f"setmaxnreg.{'inc' if role.name == 'softmax' else 'dec'}.sync.aligned.u32 \t{role.registers}" in ptx


def test_what_a_plan_holds_to() -> None:
    plan = sm100.select(spec_of("causal"), ShapeClass(128, 128))
    assert sm100.check(plan) == ()
    assert plan.threads == 512
    assert sum(role.threads * role.registers for role in plan.roles) == 65536


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("pack gqa on\naxis heads = 34\naxis kv_heads = 2", "'pack gqa on' with 17 query heads for one of k and v"),
        ("pack gqa on\nmask = kv_idx <= h", "'pack gqa on', but the mask differs from head to head"),
        ("schedule { tile_q = 64 }", "tile_q is 64; a thread block has 1 or 2 tiles of 128 rows"),
        ("schedule { registers = 128 }", "a schedule cannot set registers"),
    ],
)
def test_what_a_spec_may_not_ask(lines: str, message: str) -> None:
    with pytest.raises(attn_dsl.UnsupportedError) as caught:
        attn_dsl.compile(attn_dsl.parse(HEAD.format(dtype="bf16") + lines), target="sm100")
    assert caught.value.code == "E281"
    assert f"target 'sm100': {message}" in str(caught.value)


def test_schedules_reach_the_plan() -> None:
    hints = "schedule { tile_q = 128\n tile_k = 64\n stages = 3\n exp2_share = 25 }"
    plan = sm100.select(attn_dsl.parse(HEAD.format(dtype="bf16") + hints), ShapeClass(128, 128))
    assert (plan.tile_q, plan.query_tiles, plan.tile_k, plan.exp2_on_fma) == (128, 1, 64, 4)
    assert plan.stages == 6  # parts of K and V


@pytest.mark.slow
@pytest.mark.parametrize(("tile_k", "stages"), [(32, 2), (64, 3), (96, 2)])
def test_schedules_run(tile_k: int, stages: int) -> None:
    text = f"mask = kv_idx <= q_pos\nschedule {{ tile_k = {tile_k}\n stages = {stages} }}"
    kernels = Kernels(attn_dsl.parse(HEAD.format(dtype="bf16") + text), SM100)
    check(kernels, (140, 200, 2, 1, 128, 128), seed=1, late=2)
