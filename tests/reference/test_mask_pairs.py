"""`mask_pairs` gives what `mask_block` gives, for every sequence and head at once."""

import pytest
import torch

import attn_dsl
from attn_dsl.reference import mask_block, mask_pairs

HEAD = "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, kv_heads, dim]\n"
BATCH, HEADS, ROWS, KEYS = 3, 4, 7, 9


def inputs(**more):
    tensors = {"q": torch.zeros(BATCH, ROWS, HEADS, 8)}
    tensors |= {name: torch.zeros(BATCH, KEYS, 2, 8) for name in ("k", "v")}
    return {**tensors, **more}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mask = kv_idx <= q_pos",
        "mask = kv_idx < 3 + kv_h",
        "t: bool[batch, heads, seq_k]\nmask = t[b, h, kv_idx]",
        "param n: int[heads] = 2\nmask = q_pos - kv_idx < n + b",
    ],
)
@pytest.mark.parametrize(("rows", "cols"), [(slice(0, ROWS), slice(0, KEYS)), (slice(2, 5), slice(4, 20))])
def test_the_same_as_one_by_one(text, rows, cols):
    spec = attn_dsl.parse(HEAD + text)
    table = torch.rand(BATCH, HEADS, KEYS, generator=torch.Generator().manual_seed(0)) < 0.5
    tensors = inputs(t=table) if "t:" in text else inputs()
    params = {"n": torch.tensor([1, 4, 2, 9], dtype=torch.int32)} if "param" in text else {}
    found = mask_pairs(spec, tensors, params, rows=rows, cols=cols)
    for batch in range(BATCH):
        for head in range(HEADS):
            expected = mask_block(spec, tensors, params, batch=batch, head=head, rows=rows, cols=cols)
            assert torch.equal(found.expand(BATCH, HEADS, *expected.shape)[batch, head], expected)


def test_sequences_of_different_lengths_have_none():
    spec = attn_dsl.parse(HEAD + "used: i32[batch]\nlengths k { used = used }")
    used = torch.tensor([3, 9, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="3 different lengths"):
        mask_pairs(spec, inputs(used=used), {}, rows=slice(0, ROWS), cols=slice(0, KEYS))
