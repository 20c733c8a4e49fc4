"""Softmax attention written out row by row in float64: what the reference is compared with.

It shares nothing with the package: masks and scores are Python functions, a row is a softmax over the keys it sees.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """One query row of one head against all keys of its sequence."""

    b: int
    h: int
    kv_h: int
    i: int  # query row
    p: int  # its position among the keys
    j: Tensor  # all keys, i64[seq_k]
    seq_q: int
    seq_k: int


@dataclass(frozen=True)
class Sequence:
    """q[seq_q, heads, dim], k[seq_k, kv_heads, dim], v[seq_k, kv_heads, dim_v] and q_pos - q_idx."""

    q: Tensor
    k: Tensor
    v: Tensor
    shift: int


Mask = Callable[[Row], Tensor | bool]  # bool[seq_k]
Score = Callable[[Tensor, Row], Tensor]  # scaled dot products [seq_k] to logits [seq_k]


def bottom_right(q: Tensor, k: Tensor, v: Tensor) -> Sequence:
    return Sequence(q, k, v, len(k) - len(q))


def dense_attention(
    sequences: list[Sequence],
    mask: Mask = lambda row: True,
    score: Score = lambda s, row: s,
    *,
    scale: float | Tensor | None = None,
    sink: Callable[[int, int], Tensor] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """For each sequence o[seq_q, heads, dim_v] and natural lse[seq_q, heads]; sink(b, h) is a logit."""
    return [_sequence(b, sequence, mask, score, scale, sink) for b, sequence in enumerate(sequences)]


def _sequence(b, sequence, mask, score, scale, sink):
    q, k, v = sequence.q, sequence.k, sequence.v
    (seq_q, heads, dim), (seq_k, kv_heads, dim_v) = q.shape, v.shape
    factor = 1 / math.sqrt(dim) if scale is None else scale
    o, lse = [], []
    for i in range(seq_q):
        for h in range(heads):
            kv_h = h // (heads // kv_heads)
            row = Row(b, h, kv_h, i, i + sequence.shift, torch.arange(seq_k), seq_q, seq_k)
            seen = torch.as_tensor(mask(row)).expand(seq_k).nonzero().flatten()
            products = torch.stack([factor * (q[i, h] @ k[j, kv_h]) for j in range(seq_k)]) if seq_k else q.new_zeros(0)
            logits = score(products, row)[seen]
            values = v[seen, kv_h]
            if sink is not None:
                logits = torch.cat([logits, sink(b, h).reshape(1)])
                values = torch.cat([values, values.new_zeros(1, dim_v)])
            if len(logits) == 0 or bool((logits == -math.inf).all()):
                o.append(v.new_zeros(dim_v))
                lse.append(q.new_tensor(-math.inf))
            else:
                o.append(torch.softmax(logits, 0) @ values)
                lse.append(torch.logsumexp(logits, 0))
    if not o:
        return q.new_zeros(seq_q, heads, dim_v), q.new_zeros(seq_q, heads)
    return torch.stack(o).view(seq_q, heads, dim_v), torch.stack(lse).view(seq_q, heads)
