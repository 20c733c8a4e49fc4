"""Scores of traced kernels, run on the virtual device, against the score expression in float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tile_oracle import dense_values
from torch import Tensor

pytest.importorskip("cutlass")

from cute_walk import Walker

import attn_dsl
from attn_dsl import emulator
from attn_dsl.expr import Expr, evaluate
from attn_dsl.expr.torch_values import TorchAlgebra
from attn_dsl.lowering.tiles import Binding
from attn_dsl.runtime.inputs import random_inputs
from attn_dsl.spec.model import AttentionSpec, Role

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
SCORES = {
    "softcap": "param cap: float in 1.0.. = 20.0\nscore = cap * tanh(score / cap)",
    "alibi": "slopes: f32[heads]\nscore = score + slopes[h] * float(kv_idx - q_pos)",
    "symmetric distance": "slopes: f16[heads]\nscore = score - slopes[h] * float(abs(3 * kv_idx - q_pos + 7))",
    "relative table": "table: bf16[heads, seq_q + seq_k]\nscore = score + table[h, q_idx - kv_idx + seq_k - 1]",
    "pair bias": "bias: f32[batch, heads, seq_q, seq_k]\nscore = 2 * score - bias[b, h, q_idx, kv_idx] / 3",
    "key bias": "bias: i8[batch, seq_k]\nscore = score + float(bias[b, kv_idx]) * 0.25",
    "bias and distance": "bias: f32[batch, seq_k]\nscore = score + bias[b, kv_idx] - 0.1 * float(kv_idx - q_pos)",
    "row temperature": "param tau: float[heads] in 0.5.. \nscore = score * (1 + tau * log(1.0 + float(q_idx)))",
    "sigmoid": "score = 4 * sigmoid(score) - exp(min(score, 3.0)) / (1 + exp2(score / 8)) + log2(1 + abs(score))",
    "constant": "score = float(q_idx - kv_idx) * 0.01 + sqrt(float(seq_k))",
    "negative scale": "param factor: float = -0.3\nscale = factor",
    "choice": "score = score if kv_idx % 3 == q_idx % 3 else score - 5.0 if kv_idx < q_idx else max(score, 0.5)",
    "buckets": "table: f32[heads, 8]\nscore = score + table[h, min(abs(q_pos - kv_idx) // 16, 7)]",
    "steps": "score = score + 0.5 * float(floor(float(kv_idx) / 41.0)) - (0.25 if float(q_idx) / 41.0 >= 1.0 else 0.0)",
    "waves": "score = score + sin(float(q_pos - kv_idx)) + cos(float(kv_idx) * 0.37)",
}
UNWALKED = {"alphafold_pair_bias"}  # keys do not fill their axis, and the walk below knows no lengths
GALLERY = sorted({path.stem for path in EXAMPLES.glob("*.attn") if "\nscore" in path.read_text()} - UNWALKED)
SHORTER = {"sandwich": {"pairs": 8}}  # constants: its 64 cosines are more than a plan of this target evaluates
EXTENTS = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 70, "seq_k": 90}


def expected(spec: AttentionSpec, call: Binding, dots: Tensor, dim: int) -> Tensor:
    """The logits in base e of one call's padded dot products, float64."""
    found = torch.full_like(dots, math.nan, dtype=torch.float64)
    algebra = TorchAlgebra(torch.float64)
    rows, keys = call.extents["seq_q"], call.extents["seq_k"]

    def scalar(node: Expr, _: object) -> Tensor:
        value = torch.as_tensor(dim if node.op == "size" else call.values[str(node.attr)])
        return value.to(algebra.dtype(node.type))

    (scale,) = evaluate([spec.scale], algebra, scalar)
    for b in range(call.batch):
        scaled = dots[b, :, :rows, :keys].double() * scale
        found[b, :, :rows, :keys] = dense_values(spec, call, b, spec.score, {"score": scaled})
    return found


def check(spec: AttentionSpec, extents: dict[str, int], tile_k: int = 16) -> None:
    """Every visible logit; hidden ones are the masks' affair."""
    made = random_inputs(spec, {**extents, "dim": spec.fixed("dim") or 64}, seed=3, operands=False)
    values = {t.name: made.tensors[t.name] for t in spec.tensors if t.role is Role.CAPTURE}
    values |= {p.name: made.params.get(p.name, p.default) for p in spec.params}
    walker = Walker(spec, values, tile_k=tile_k, dim=made.extents["dim"])
    with emulator.device("sm_90a"):
        found = walker.run(made.extents, values)
    call = Binding.of(made.extents, values)
    wanted = expected(spec, call, found.dots, made.extents["dim"])
    assert not walker.plan.fold_scale
    got = found.logits.double() / math.log2(math.e)
    seen = ~(got.isnan() | torch.isneginf(got))
    seen[:, :, made.extents["seq_q"] :] = False
    assert seen.sum() > 100
    assert not got[seen].isinf().any()
    error = (got - wanted)[seen].abs() / (1 + wanted[seen].abs())
    assert error.max() < 2e-5, (error.max(), walker.plan.logit)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    check(attn_dsl.parse(HEAD + SCORES[name], name="spec"), EXTENTS)


@pytest.mark.parametrize("name", GALLERY)
def test_gallery(name: str) -> None:
    """Specs whose operands this target takes, at sizes that fill no tile."""
    spec = attn_dsl.load(EXAMPLES / f"{name}.attn", **SHORTER.get(name, {}))
    heads = {"heads": 4} if spec.kv_heads_axis == "heads" else {"heads": 4, "kv_heads": 2}
    axes = {axis.name for tensor in spec.tensors for axis in tensor.axes if axis.name} - {"dim", "dim_v"}
    extents = dict.fromkeys(axes, 16) | {"batch": 2, "seq_q": 70, "seq_k": 90} | heads
    check(spec, {name: n for name, n in extents.items() if spec.fixed(name) is None})
