"""Terms of the distance of query and key, which rows of a thread share, on the virtual device against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.lowering.forward import ShapeClass, select
from attn_dsl.runtime.binding import bind
from attn_dsl.runtime.kernels import SM90, Kernels

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
BUCKETS = (
    "table: f32[heads, 32]\nlet distance = max(q_pos - kv_idx, 0)\n"
    "let bucket = distance if distance < 16 else min(31, 16 + floor(log(float(distance) / 16.0) * 7.6944))\n"
    "score = score + table[h, bucket]\n"
)
TABLE = "table: f32[heads, seq_q + seq_k]\nscore = score + table[h, q_idx - kv_idx + seq_k]\n"
REVERSED = "table: f32[heads, 2 * (seq_q + seq_k)]\nscore = score * table[h, 2 * (kv_idx - q_idx) + 2 * seq_q]\n"
CAUSAL = "mask = kv_idx <= q_pos"


def plan_of(text: str, pack: int = 1) -> Any:
    return select(attn_dsl.parse(HEAD + text, name="distances"), ShapeClass(64, 64, (), pack))


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        (TABLE, ["table[h, distance + seq_k] * 1.4426950408889634"]),
        (REVERSED, ["table[h, 2 * seq_q - 2 * distance]"]),
        ("score = score + float(q_pos - kv_idx)", []),  # cheaper than keeping it
        ("score = score + exp(float(q_idx + kv_idx))", []),  # a sum, not a distance
        ("score = score + exp(float(2 * q_idx - kv_idx))", []),
        ("bias: f32[seq_q, seq_k]\nscore = score + bias[q_idx, kv_idx]", []),
        ("score = score + exp(float(kv_idx - q_idx))", []),  # kept as kv_base and kv_step
    ],
)
def test_what_is_shared(text: str, shared: list[str]) -> None:
    assert [repr(term.of_distance) for term in plan_of(text).distances] == [f"Expr({term})" for term in shared]
    assert not plan_of(text, pack=2).distances  # rows of a thread are of several heads


@pytest.mark.parametrize("text", [TABLE + CAUSAL, REVERSED, BUCKETS + CAUSAL, BUCKETS], ids=str)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(200, 330), (150, 70)])
def test_results(text: str, seq_q: int, seq_k: int) -> None:
    """Sizes that fill no tile, so that rows and columns past the sequences would read outside of the tables."""
    spec = attn_dsl.parse(HEAD + text, name="distances")
    make = torch.Generator().manual_seed(seq_q)
    q, k, v = (torch.randn(1, rows, 2, 64, generator=make).bfloat16() for rows in (seq_q, seq_k, seq_k))
    columns = {TABLE: seq_q + seq_k, REVERSED: 2 * (seq_q + seq_k)}.get(text.replace(CAUSAL, ""), 32)
    captures = {"table": torch.randn(2, columns, generator=make)}
    out, lse = torch.full_like(q, math.nan), torch.full((1, 2, seq_q), math.nan)
    with emulator.device("sm_90a") as gpu:
        Kernels(spec, SM90).launch(bind(spec, (q, k, v), captures, False), out, lse)
    assert not gpu.findings
    true_o, true_lse = reference.attention(spec, {"q": q, "k": k, "v": v, **captures}, {}, precision="float64")
    assert torch.isneginf(true_lse).equal(torch.isneginf(lse))
    seen = ~torch.isneginf(lse)
    assert (lse - true_lse)[seen].abs().max() < 1e-4  # buckets and tables move a score by some units
    assert (out.double() - true_o).abs().max() < 2**-7 * true_o.abs().max()
