"""Softmax attention block by block: an online softmax forward, a backward that recomputes each block.

The online softmax is Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867); the
backward formulas are those of FlashAttention (Dao et al., arXiv 2205.14135), extended by a score expression, a sink
and a gradient of the LSE. Memory is O(rows * dim) plus a few blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..expr import FLOAT, Expr
from ..expr.evaluate import evaluate
from .leaves import Block, Leaves, logits, visible_pairs

INFINITY = math.inf
# Pairs in flight, over batch entries and heads together. A dozen temporaries of this size live at once.
_PAIRS = {"cpu": 2**19, "cuda": 2**24}


@dataclass(frozen=True)
class Problem:
    """One call: the expressions with their leaves, and how it is cut into blocks."""

    leaves: Leaves
    names: tuple[str, ...]  # captures and parameters, in the order they are passed to `BlockwiseAttention.apply`
    block_q: int | None  # rows; None: chosen to fit memory
    block_k: int | None

    @property
    def groups(self) -> Iterator[range]:
        """Batch entries that are computed together."""
        return self.leaves.geometry.groups(self._pairs // (self.leaves.extents["heads"] * 64 * 64))

    @property
    def _pairs(self) -> int:
        return _PAIRS.get(self.leaves.algebra.device.type, _PAIRS["cpu"])

    def query_blocks(self, batch: range) -> Iterator[range]:
        return _cut(self.leaves.geometry.q.lengths[batch.start], self.block_q or self._side(batch))

    def key_blocks(self, batch: range, rows: range) -> Iterator[tuple[range, Block, Tensor]]:
        """Blocks of keys that some row may see, with the mask on them."""
        for keys in _cut(self.leaves.geometry.k.lengths[batch.start], self.block_k or self._side(batch)):
            block = self.leaves.block(batch, rows, keys)
            visible = visible_pairs(self.leaves, block)
            if visible.any():
                yield keys, block, visible

    def _side(self, batch: range) -> int:
        return max(16, math.isqrt(self._pairs // (len(batch) * self.leaves.extents["heads"])))


def exact_products(device: torch.device) -> torch.autocast:
    """A context in which products keep the precision of their operands, whatever autocast surrounds it."""
    return torch.autocast(device.type, enabled=False)


def _cut(length: int, step: int) -> Iterator[range]:
    for first in range(0, length, step):
        yield range(first, min(first + step, length))


class BlockwiseAttention(torch.autograd.Function):
    """(o, lse), natural LSE, from rows in storage order.

    q[rows_q, heads, dim], k[rows_k, kv_heads, dim], v[rows_k, kv_heads, dim_v], scale[], sink[batch, heads] or None,
    then the captures and parameters of `problem.names`. o[rows_q, heads, dim_v] is 0 and lse[rows_q, heads] is -inf
    on rows of no sequence.
    """

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, q: Tensor, k: Tensor, v: Tensor, scale: Tensor, sink: Tensor | None, *values: Tensor
    ) -> tuple[Tensor, Tensor]:
        o = q.new_zeros(*q.shape[:2], v.shape[2])
        lse = q.new_full(q.shape[:2], -INFINITY)
        for batch in problem.groups:
            for rows in problem.query_blocks(batch):
                places = problem.leaves.geometry.q.rows(batch, rows, q.device)
                block_o, block_lse = _forward_rows(problem, batch, rows, _take(q, places), k, v, scale, sink)
                o[places], lse[places] = block_o.transpose(1, 2), block_lse.transpose(1, 2)
        ctx.problem = problem
        ctx.save_for_backward(q, k, v, scale, sink, o, lse, *values)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        with exact_products(d_o.device):
            return _backward(ctx, d_o, d_lse)


def _forward_rows(
    problem: Problem, batch: range, rows: range, row_q: Tensor, k: Tensor, v: Tensor, scale: Tensor, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    """o[batch, heads, rows, dim_v] and lse[batch, heads, rows] of one block of query rows."""
    shape = row_q.shape[:3]
    if sink is None:
        top, total = row_q.new_full(shape, -INFINITY), row_q.new_zeros(shape)
    else:  # the sink is a key that comes first and has the value 0
        top = sink[batch.start : batch.stop, :, None].expand(shape)
        total = torch.where(top == -INFINITY, 0.0, 1.0)
    o = row_q.new_zeros(*shape, v.shape[2])
    for keys, block, visible in problem.key_blocks(batch, rows):
        places = problem.leaves.geometry.k.rows(batch, keys, row_q.device)
        score = _dot(row_q, _take(k, places)) * scale
        t = torch.where(visible, logits(problem.leaves, block, score), -INFINITY).expand(block.shape)
        seen = t != -INFINITY  # a weight of 0 takes nothing from v, not even NaN
        new_top = torch.maximum(top, t.amax(-1))
        base = torch.where(new_top == -INFINITY, 0.0, new_top)
        p = torch.exp(t - base[..., None])
        shrink = torch.exp(top - base)
        total = total * shrink + p.sum(-1)
        o = o * shrink[..., None] + seen_product(p, seen, _take(v, places))
        top = new_top
    empty = total == 0
    return (
        torch.where(empty[..., None], 0.0, o / total[..., None]),
        torch.where(empty, -INFINITY, top + torch.log(total)),
    )


def _backward(ctx: Any, d_o: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
    problem: Problem = ctx.problem
    q, k, v, scale, sink, o, lse, *values = ctx.saved_tensors
    d_q, d_k, d_v, d_scale = (torch.zeros_like(x) for x in (q, k, v, scale))
    d_sink = None if sink is None else torch.zeros_like(sink)
    d_values = {
        name: torch.zeros_like(value, dtype=q.dtype)
        for name, value, needed in zip(problem.names, values, ctx.needs_input_grad[6:], strict=True)
        if needed
    }
    for batch in problem.groups:
        for rows in problem.query_blocks(batch):
            places = problem.leaves.geometry.q.rows(batch, rows, q.device)
            row_q, row_do, row_o = (_take(x, places) for x in (q, d_o, o))
            row_lse, row_dlse = (x[places].transpose(1, 2) for x in (lse, d_lse))
            # d t = p * (d p - rest): the softmax's own sum and the LSE's gradient are one number per row
            rest = (row_do * row_o).sum(-1) - row_dlse
            row_dq = torch.zeros_like(row_q)
            for keys, block, visible in problem.key_blocks(batch, rows):
                key_places = problem.leaves.geometry.k.rows(batch, keys, q.device)
                row_k, row_v = _take(k, key_places), _take(v, key_places)
                product = _dot(row_q, row_k)
                trace = _Trace(problem.leaves, block, product * scale, d_values)
                t = trace.logits
                seen = visible & (t != -INFINITY)
                p = torch.where(seen, torch.exp(t - row_lse[..., None]), 0.0)
                d_t = torch.where(seen, p * (_dot(row_do, row_v) - rest[..., None]), 0.0)
                d_score = trace.backward(d_t)
                d_product = d_score * scale
                d_scale += torch.where(d_score != 0, d_score * product, 0.0).sum()
                row_dq += seen_product(d_product, seen, row_k)
                _add(d_k, key_places, _over_rows(d_product, seen, row_q, k.shape[1]))
                _add(d_v, key_places, _over_rows(p, seen, row_do, k.shape[1]))
            _add(d_q, places, row_dq)
            if sink is not None and d_sink is not None:
                row_sink = sink[batch.start : batch.stop, :, None]
                p_sink = torch.where(row_sink == -INFINITY, 0.0, torch.exp(row_sink - row_lse))
                d_sink[batch.start : batch.stop] -= (p_sink * rest).sum(-1)
    return None, d_q, d_k, d_v, d_scale, d_sink, *(d_values.get(name) for name in problem.names)


class _Trace:
    """The logits of one block, and the gradients of what they are made of."""

    def __init__(self, leaves: Leaves, block: Block, score: Tensor, gradients: dict[str, Tensor]) -> None:
        """`gradients`: name of a capture or parameter -> the tensor its gradient is added to."""
        self._leaves, self._block, self._score, self._gradients = leaves, block, score, gradients
        self._inputs: list[tuple[Tensor, str | None, tuple[Tensor, ...]]] = []
        with torch.enable_grad():
            self._logits: Tensor = evaluate([leaves.spec.score], leaves.algebra, self._leaf)[0].expand(block.shape)

    @property
    def logits(self) -> Tensor:
        return self._logits.detach()

    def _leaf(self, node: Expr, indices: tuple[Tensor, ...]) -> Tensor:
        name = str(node.attr)
        if node.op == "var" and node.type is FLOAT:
            return self._input(self._score, None, ())
        value = self._leaves.value(node, indices, self._block)
        if node.op in ("read", "param") and name in self._gradients:
            return self._input(value, name, self._leaves.places(node, indices, self._block))
        return value

    def _input(self, value: Tensor, name: str | None, places: tuple[Tensor, ...]) -> Tensor:
        leaf = value.detach().requires_grad_()
        self._inputs.append((leaf, name, places))
        return leaf

    def backward(self, d_logits: Tensor) -> Tensor:
        """The gradient of the score; those of captures and parameters are added to `gradients`."""
        d_score = torch.zeros_like(d_logits)
        if not self._logits.requires_grad:
            return d_score
        inputs = [leaf for leaf, _, _ in self._inputs]
        found = torch.autograd.grad(self._logits, inputs, d_logits, allow_unused=True)
        for (_, name, places), gradient in zip(self._inputs, found, strict=True):
            if gradient is None:
                continue
            if name is None:
                d_score = gradient
            elif places:
                self._gradients[name].index_put_(places, gradient, accumulate=True)
            else:
                self._gradients[name] += gradient
        return d_score


def seen_product(weights: Tensor, seen: Tensor, values: Tensor) -> Tensor:
    """sum over j of weights[b, h, i, j] * values[b, kv_h, j, :] over seen pairs, as [b, h, i, :].

    `seen` is bool[b, h, i, j]. `weights` are 0 where it is false; NaN or Inf in `values` reaches only rows that see it.
    """
    batch, heads, rows, keys = weights.shape
    folded = (batch, values.shape[1], -1)
    finite = values.isfinite()
    if finite.all():
        return (weights.reshape(*folded, keys) @ values).view(batch, heads, rows, -1)
    total = (weights.reshape(*folded, keys) @ torch.where(finite, values, 0.0)).view(batch, heads, rows, -1)
    group = heads // values.shape[1]
    for j in (~finite).any(3).any(1).any(0).nonzero().flatten().tolist():
        odd = torch.where(finite[:, :, j], 0.0, values[:, :, j]).repeat_interleave(group, 1)[:, :, None]
        total = total + torch.where(seen[..., j, None], weights[..., j, None] * odd, 0.0)
    return total


def _over_rows(weights: Tensor, seen: Tensor, values: Tensor, kv_heads: int) -> Tensor:
    """sum over i and the heads of a group of weights[b, h, i, j] * values[b, h, i, :], as [b, kv_h, j, :]."""
    per_head = seen_product(weights.transpose(2, 3), seen.transpose(2, 3), values)
    batch, _, keys, dim = per_head.shape
    return per_head.view(batch, kv_heads, -1, keys, dim).sum(2)


def _dot(rows: Tensor, keys: Tensor) -> Tensor:
    """[b, h, i, j] = rows[b, h, i, :] . keys[b, kv_h, j, :]."""
    batch, heads, count, dim = rows.shape
    folded = rows.reshape(batch, keys.shape[1], -1, dim) @ keys.transpose(2, 3)
    return folded.view(batch, heads, count, -1)


def _take(rows: Tensor, places: Tensor) -> Tensor:
    """Storage rows as a block [b, heads, i, dim]."""
    return rows[places].transpose(1, 2)


def _add(rows: Tensor, places: Tensor, block: Tensor) -> None:
    """Adds a block [b, heads, i, dim] to storage rows, which may repeat."""
    rows.index_add_(0, places.flatten(), block.transpose(1, 2).flatten(0, 1))
