"""Tile classes beside FlexAttention's create_block_mask, which builds the dense mask."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import attn_dsl
from attn_dsl.lowering.tiles import Binding, analyze

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
DOCUMENT = torch.tensor([0, 3, 5, 9]).repeat_interleave(torch.tensor([100, 300, 17, 607]))
REACH = torch.tensor([5, 70, 300, 1000])
CASES = {
    "causal": ("mask = kv_idx <= q_idx", lambda b, h, q, k: k <= q),
    "window of each head": (
        "param reach: int[heads]\nmask = abs(q_idx - kv_idx) <= reach",
        lambda b, h, q, k: (q - k).abs() <= REACH[h],
    ),
    "prefix": ("mask = kv_idx < 150 or kv_idx <= q_idx", lambda b, h, q, k: (k < 150) | (k <= q)),
    "chunks": (
        "mask = kv_idx <= q_idx and kv_idx // 200 == q_idx // 200",
        lambda b, h, q, k: (k <= q) & (k // 200 == q // 200),
    ),
    "sinks and window": (
        "mask = kv_idx <= q_idx and (kv_idx < 4 or q_idx - kv_idx < 130)",
        lambda b, h, q, k: (k <= q) & ((k < 4) | (q - k < 130)),
    ),
    "documents": (
        "document: i32[seq_k]\nmask = kv_idx <= q_idx and document[q_pos] == document[kv_idx]",
        lambda b, h, q, k: (k <= q) & (DOCUMENT[q] == DOCUMENT[k]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_same_tiles(name: str) -> None:
    text, predicate = CASES[name]
    mod: Callable[..., torch.Tensor] = predicate
    size, rows, keys = 1024, 64, 32
    mask = create_block_mask(mod, None, 4, size, size, device="cpu", BLOCK_SIZE=(rows, keys))
    dense = torch.zeros(4, size // rows, size // keys, dtype=torch.int64)
    for kind, counts, indices in (
        (1, mask.kv_num_blocks, mask.kv_indices),
        (2, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for h in range(4):
            for i in range(size // rows):
                dense[h, i, indices[0, h, i, : counts[0, h, i]].long()] = kind
    extents = {"batch": 1, "heads": 4, "kv_heads": 4, "seq_q": size, "seq_k": size}
    call = Binding.of(extents, {"reach": REACH, "document": DOCUMENT})
    grid = analyze(attn_dsl.parse(HEAD + text)).evaluate(call, rows, keys)
    found = torch.zeros_like(dense)
    for h in range(4):
        for i in range(size // rows):
            for segment in grid.segments(0, h, i):
                found[h, i, segment.start : segment.stop] = 2 if segment.full else 1
    assert torch.equal(found, dense)
