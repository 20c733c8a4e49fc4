"""Masks and scores of many values on Blackwell: right, and nothing of them in local memory."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("cutlass")

import gates

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.expr import children_first
from attn_dsl.lowering.forward import ShapeClass, sm100
from attn_dsl.lowering.forward.pressure import MOST_MASK_NODES, kept, mask_columns
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM100, Kernels

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
SPECS = {
    "rows": "mask = any(i in 0..48: kv_idx % (i + 2) == q_idx % (i + 3))\n",
    "uniform": "t: i32[batch, 24]\nmask = any(i in 0..24: kv_idx % 61 == (abs(t[b, i] % 1024) + h * i) % 61)\n",
    "most nodes": "mask = any(i in 0..398: kv_idx % (i + 2) == q_idx % (i + 3))\n",
    "score rows": "t: f32[batch, seq_q, 12]\nscore = score + sum(i in 0..12: t[b, q_idx, i] * (kv_idx % (i + 3)))\n",
    "score reads": "t: f32[batch, 12, seq_q, seq_k]\nscore = score + sum(i in 0..12: t[b, i, q_idx, kv_idx])\n",
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("dim", "pack"),
    [(128, 1), *(pytest.param(*other, marks=pytest.mark.slow) for other in ((64, 1), (256, 1), (128, 3)))],
)
def test_nothing_is_spilled(name: str, dim: int, pack: int) -> None:
    """48 values of the row took 136 bytes of local memory while they were kept from one tile to the next."""
    plan = sm100.select(attn_dsl.parse(HEAD + SPECS[name]), ShapeClass(dim, dim, (), pack))
    assert gates.compiled_or_skip(plan).broken(plan) == []


@pytest.mark.parametrize("name", ["rows", "uniform", "score rows"])
def test_values_that_are_made_again_are_right(name: str) -> None:
    spec = attn_dsl.parse(HEAD + SPECS[name])
    kernels = Kernels(spec, SM100)
    kv_heads = 3 if name == "uniform" else 1  # what differs by head is a value of the row where heads share a tile
    plan = sm100.select(spec, ShapeClass(64, 64, (), 3 // kv_heads))
    keeps = kept(plan, plan.logit if name == "score rows" else plan.mask.mask)
    assert keeps.remakes_uniform if name == "uniform" else keeps.remakes_rows
    extents = {"batch": 2, "seq_q": 50, "seq_k": 150, "heads": 3, "kv_heads": kv_heads, "dim": 64}
    inputs = random_inputs(spec, extents, seed=5)
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    o_exact, lse_exact = reference.attention(spec, call.tensors, {}, precision="float64")
    o, lse = torch.full(o_exact.shape, math.nan, dtype=torch.bfloat16), torch.full(lse_exact.shape, math.nan)
    with emulator.device("sm_100a", seed=5) as gpu:
        kernels.launch(call, o, lse)
    assert not gpu.findings
    assert compare_output(o, o_exact, spec.output.dtype).ok
    assert compare_lse(lse, lse_exact).ok


def test_larger_masks_have_fewer_columns_written_out() -> None:
    columns = []
    for steps in (2, 8, 48, 96, 398):
        plan = sm100.select(attn_dsl.parse(HEAD + SPECS["rows"].replace("48", str(steps))), ShapeClass(64, 64))
        nodes = sum(1 for _ in children_first([plan.mask.mask]))
        assert nodes <= MOST_MASK_NODES
        columns.append(mask_columns(plan))
    assert columns == [16, 8, 4, 2, 1]


def test_divisions_of_what_is_never_negative_are_unsigned() -> None:
    plan = sm100.select(
        attn_dsl.parse(HEAD + "mask = kv_idx // 3 == q_pos // 3 or kv_idx % 5 == 0"), ShapeClass(64, 64)
    )
    divisions = {node for node in children_first([plan.mask.mask]) if node.op in ("floordiv", "mod")}
    assert len(divisions) == 3
    assert plan.unsigned < divisions
    # q_pos may lie before the first key
    assert [node.args[0].attr for node in divisions - plan.unsigned] == ["q_pos"]
