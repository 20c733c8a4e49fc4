"""NaN and Inf where the mask is false: no row that masks a key ever sees anything of it, forward or backward."""

import math

import pytest
import torch

import attn_dsl
from attn_dsl.reference import attention

TEXT = """
q: f32[batch, seq_q, heads, dim]
k, v: f32[batch, seq_k, kv_heads, dim]
bias: f32[heads, seq_q, seq_k]
per_key: f32[seq_k]
"""
SCORE = "score = score + bias[h, q_idx, kv_idx] * per_key[kv_idx]\n"
MASK = {
    "a key nobody sees": ("mask = kv_idx != 4 and kv_idx <= q_pos\n", lambda i, j, h: (j != 4) & (j <= i + 3)),
    "a key some rows see": ("mask = kv_idx <= q_idx\n", lambda i, j, h: j <= i),
    "a key some heads see": ("mask = kv_idx != 4 or h == 1\n", lambda i, j, h: (j != 4) | (h == 1)),
}
SHAPES = {"q": (2, 5, 4, 3), "k": (2, 8, 2, 3), "v": (2, 8, 2, 3), "bias": (4, 5, 8), "per_key": (8,)}
KEY = 4


def _inputs():
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in SHAPES.items()}


def _run(text, inputs, weights):
    """o, lse and every gradient of a loss over rows that `weights` picks."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    o, lse = attention(attn_dsl.parse(TEXT + SCORE + text), leaves, {}, precision="float64", block_q=3, block_k=3)
    kept = torch.where(weights, o.transpose(1, 2), 0.0).square().sum() + torch.where(weights[..., 0], lse, 0.0).sum()
    gradients = torch.autograd.grad(kept, leaves.values())
    return o, lse, dict(zip(leaves, gradients, strict=True))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("where", ["k", "v", "per_key", "bias", "all"])
@pytest.mark.parametrize("case", MASK)
def test_a_masked_key_has_no_influence(case, where, poison):
    text, visible = MASK[case]
    clean, poisoned = _inputs(), _inputs()
    for name in ("k", "v", "per_key", "bias") if where == "all" else (where,):
        at = {"k": (slice(None), KEY), "v": (slice(None), KEY), "per_key": KEY, "bias": (slice(None), slice(None), KEY)}
        poisoned[name][at[name]] = poison
    h, i = torch.arange(4)[:, None], torch.arange(5)
    blind = ~visible(i, torch.tensor(KEY), h).expand(4, 5)  # rows that must not notice
    assert blind.any()
    weights = blind[None, :, :, None]
    o, lse, gradients = _run(text, clean, weights)
    bad_o, bad_lse, bad_gradients = _run(text, poisoned, weights)
    rows = blind.expand(2, 4, 5)
    assert torch.equal(o.transpose(1, 2)[rows], bad_o.transpose(1, 2)[rows])
    assert torch.equal(lse[rows], bad_lse[rows])
    if blind.all():
        for name, gradient in gradients.items():
            torch.testing.assert_close(bad_gradients[name], gradient, rtol=1e-12, atol=1e-14, msg=name)
    # rows that mask the key get the gradients they would get without the poison
    blind_rows = blind.expand(2, 4, 5).transpose(1, 2)
    assert torch.equal(bad_gradients["q"][blind_rows], gradients["q"][blind_rows])
    assert torch.equal(bad_gradients["bias"][blind], gradients["bias"][blind])


@pytest.mark.parametrize("poison", [math.nan, math.inf], ids=str)
def test_a_row_that_sees_the_poison_shows_it(poison):
    """Nothing is swept under the rug: a visible NaN or Inf in v reaches exactly the rows that see it."""
    text, _ = MASK["a key some rows see"]
    inputs = _inputs()
    inputs["v"][:, KEY] = poison
    o, lse = attention(attn_dsl.parse(TEXT + SCORE + text), inputs, {}, precision="float64", block_k=3)
    sees = torch.arange(5) >= KEY
    assert not o[:, sees].isfinite().any()
    assert o[:, ~sees].isfinite().all()
    assert lse.isfinite().all()


def test_a_poisoned_query_row_reaches_no_key_that_it_masks():
    """The gradient of keys and values gets nothing from rows that mask them, whatever q and the loss hold there."""
    inputs = _inputs()
    inputs["q"][:, 2] = math.nan
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    o, _ = attention(
        attn_dsl.parse(TEXT + SCORE + "mask = kv_idx <= q_idx"), leaves, {}, precision="float64", block_q=3
    )
    assert o[:, 2].isnan().all()
    assert o[:, [0, 1, 3, 4]].isfinite().all()
    gradients = dict(zip(leaves, torch.autograd.grad(o.sum(), leaves.values()), strict=True))
    for name in ("k", "v"):
        assert gradients[name][:, 3:].isfinite().all(), name
        assert gradients[name][:, :3].isnan().any(), name
    assert gradients["per_key"][3:].isfinite().all()
    assert gradients["q"][:, [0, 1, 3, 4]].isfinite().all()


def test_values_that_are_all_poison_behind_a_mask_that_is_all_false():
    inputs = {name: torch.full(shape, math.nan) for name, shape in SHAPES.items()}
    o, lse = attention(attn_dsl.parse(TEXT + SCORE + "mask = kv_idx < 0 * q_idx"), inputs, {})
    assert (o == 0).all()
    assert (lse == -math.inf).all()
