"""The softmax of Hopper kernels where its reference has to move, on the virtual device against float64."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("cutlass")

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.runtime.binding import bind
from attn_dsl.runtime.kernels import SM90, Kernels

SEQ_Q, SEQ_K, DIM = 70, 520, 64  # five tiles of keys, visited from the last to the first


def run(text: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Runs a spec and compares outputs and log-sum-exps."""
    dtype = "f16" if q.dtype is torch.float16 else "bf16"
    head = f"q: {dtype}[batch, seq_q, heads, dim]\nk, v: {dtype}[batch, seq_k, kv_heads, dim]\n"
    spec = attn_dsl.parse(head + text, name="rising")
    out, lse = torch.full_like(q, math.nan), torch.full((1, q.shape[2], q.shape[1]), math.nan)
    with emulator.device("sm_90a") as gpu:
        Kernels(spec, SM90).launch(bind(spec, (q, k, v), {}, False), out, lse)
    assert not gpu.findings
    true_o, true_lse = reference.attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64")
    assert torch.isneginf(true_lse).equal(torch.isneginf(lse))
    seen = ~torch.isneginf(lse)
    assert ((lse - true_lse)[seen].abs() <= 1e-5 + 1e-6 * true_lse[seen].abs()).all()
    # the unit of the output's last place at its largest value, twice: weights are rounded, too
    assert (out.double() - true_o).abs().max() < 2.0 ** (-10 if dtype == "f16" else -7) * true_o.abs().max()
    assert (out == 0)[~seen.transpose(1, 2)].all()


def tensors(dtype: torch.dtype, seed: int, heads: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, rows, heads, DIM, generator=make) for rows in (SEQ_Q, SEQ_K, SEQ_K))
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rise", [-3.0, 0.5, 3.0, 30.0])
def test_scores_that_rise_from_tile_to_tile(rise: float, dtype: torch.dtype) -> None:
    """Scores of a tile lie about `rise` above those of the tile visited before, for half of the rows."""
    q, k, v = tensors(dtype, 1)
    q[..., 0] = torch.where(torch.arange(SEQ_Q) % 2 == 0, 8.0, 0.0)[None, :, None].to(dtype)
    k[..., 0] = (rise * torch.arange(SEQ_K, 0, -1) / 128)[None, :, None].to(dtype)
    run("", q, k, v)


@pytest.mark.parametrize("rise", [0.5, 3.0, 30.0])
def test_computed_scores_that_rise(rise: float) -> None:
    """The same where scores are computed: above the reference at once, hidden ones, tiny ones and huge ones."""
    q, k, v = tensors(torch.bfloat16, 5)
    q[..., 0] = torch.where(torch.arange(SEQ_Q) % 2 == 0, 8.0, 0.0)[None, :, None].to(q.dtype)
    k[..., 0] = (rise * torch.arange(SEQ_K, 0, -1) / 128)[None, :, None].to(k.dtype)
    run("score = 300.0 * tanh(score / 300.0)\nmask = kv_idx <= q_idx + 400 and kv_idx != 37", q, k, v)


def test_one_key_far_above_all_others() -> None:
    """A single score that overflows the weights of its tile against the reference of the tiles before."""
    q, k, v = tensors(torch.bfloat16, 2)
    q[..., 0], k[..., 0] = 16.0, 0.0
    k[0, 37, 0, 0] = 250.0
    run("", q, k, v)


def test_rows_that_see_their_first_key_late() -> None:
    """Tiles are visited before a row has a reference; some rows never get one."""
    run("mask = kv_idx <= q_pos - 300 or kv_idx == q_idx and q_idx >= 40", *tensors(torch.bfloat16, 3))


def test_scores_far_below_all_others() -> None:
    """A score that hides keys as a mask does, all those of the tiles that are visited first among them."""
    run("score = score if kv_idx % 5 == 0 and kv_idx < 300 else -1.0e30", *tensors(torch.bfloat16, 4))
