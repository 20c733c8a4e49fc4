"""The tiles of a mask by brute force: the dense mask, cut into tiles. Shares nothing with the tile analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_dsl.expr import Expr, evaluate
from attn_dsl.expr.torch_values import TorchAlgebra
from attn_dsl.lowering.tiles import Binding, TileGrid
from attn_dsl.spec.model import AlignKind, AttentionSpec

EMPTY, PARTIAL, FULL = 0, 1, 2


def dense_mask(spec: AttentionSpec, call: Binding, batch: int) -> Tensor:
    """bool[heads, seq_q, seq_k] of one batch entry."""
    return dense_values(spec, call, batch, spec.mask)


def dense_values(
    spec: AttentionSpec, call: Binding, batch: int, expr: Expr, given: Mapping[str, Tensor] | None = None
) -> Tensor:
    """`expr` for every head, row and key of one batch entry, [heads, seq_q, seq_k]; `given` are values of variables."""
    heads, group = call.extents["heads"], call.extents["heads"] // call.extents["kv_heads"]
    seq_q, seq_k = int(call.seq_q[batch]), int(call.seq_k[batch])
    h = torch.arange(heads).view(-1, 1, 1)
    q_idx, kv_idx = torch.arange(seq_q).view(1, -1, 1), torch.arange(seq_k).view(1, 1, -1)
    index = {"b": torch.tensor(batch), "h": h, "kv_h": h // group, "q_idx": q_idx, "kv_idx": kv_idx}
    index |= {"seq_q": torch.tensor(seq_q), "seq_k": torch.tensor(seq_k), **(given or {})}
    algebra = TorchAlgebra(torch.float64)
    starts = {"total_q": call.packed_q, "total_k": call.packed_k}

    def leaf(node: Expr, operands: tuple[Any, ...]) -> Tensor:
        name = str(node.attr)
        if node.op == "var":
            return index[name]
        if node.op == "size":
            return torch.tensor(call.extents[name])
        value = call.values[name]
        if node.op == "param":
            per = spec.param(name).per
            value = (
                value
                if value.dim() == 0 or per is None
                else value[index[{"heads": "h", "kv_heads": "kv_h"}.get(per, "b")]]
            )
        elif value.numel() == 0:
            value = torch.zeros((), dtype=value.dtype)
        else:
            places = []
            for axis, extent, place in zip(spec.tensor(name).axes, value.shape, operands, strict=True):
                start = starts.get(axis.name or "")
                places.append((place + (0 if start is None else start[batch])).clamp(0, extent - 1))
            value = value[tuple(places)]
        return value.to(algebra.dtype(node.type))

    shift: Any = {AlignKind.BOTTOM_RIGHT: seq_k - seq_q, AlignKind.TOP_LEFT: 0}.get(spec.align.kind)
    if shift is None:
        shift = evaluate([spec.align.offset], algebra, leaf)[0]
    index["q_pos"] = q_idx + shift
    return evaluate([expr], algebra, leaf)[0].expand(heads, seq_q, seq_k)


def tile_classes(mask: Tensor, rows: int, keys: int, group: int | None) -> Tensor:
    """Classes [tiled heads, query tiles, key tiles] of a dense mask; `group` heads share tiles if it is given."""
    heads, seq_q, seq_k = mask.shape
    if group is not None:  # row r of a K/V head is query row r // group of head r % group
        mask = (
            mask.view(heads // group, group, seq_q, seq_k).transpose(1, 2).reshape(heads // group, seq_q * group, seq_k)
        )
    found = torch.zeros(mask.shape[0], -(-mask.shape[1] // rows), -(-seq_k // keys), dtype=torch.int64)
    for i in range(found.shape[1]):
        for j in range(found.shape[2]):
            part = mask[:, i * rows : (i + 1) * rows, j * keys : (j + 1) * keys].flatten(1)
            whole = (j + 1) * keys <= seq_k
            found[:, i, j] = part.any(1).to(torch.int64) + (part.all(1) & whole).to(torch.int64)
    return found


@dataclass(frozen=True)
class Differences:
    """How an analysis differs from the truth; the first two must be empty."""

    skipped_but_seen: list[tuple[int, ...]]
    full_but_not: list[tuple[int, ...]]
    visited_but_empty: list[tuple[int, ...]]
    partial_but_full: list[tuple[int, ...]]

    @property
    def is_sound(self) -> bool:
        return not self.skipped_but_seen and not self.full_but_not

    @property
    def is_exact(self) -> bool:
        return self.is_sound and not self.visited_but_empty and not self.partial_but_full


def compare(spec: AttentionSpec, call: Binding, grid: TileGrid) -> Differences:
    """The differences of every tile of a call as (batch, tiled head, query tile, key tile), and the counts checked."""
    tiling = grid.cells.tiling
    group = call.extents["heads"] // call.extents["kv_heads"] if tiling.pack_gqa else None
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    totals = torch.zeros(3, dtype=torch.int64)
    for b in range(call.batch):
        truth = tile_classes(dense_mask(spec, call, b), tiling.tile_q, tiling.tile_k, group)
        for head in range(truth.shape[0]):
            for tile in range(truth.shape[1]):
                classes = [EMPTY] * truth.shape[2]
                for segment in grid.segments(b, head, tile):
                    classes[segment.start : segment.stop] = [FULL if segment.full else PARTIAL] * (
                        segment.stop - segment.start
                    )
                for key_tile, (said, true) in enumerate(zip(classes, truth[head, tile].tolist(), strict=True)):
                    found.setdefault((said, true), []).append((b, head, tile, key_tile))
                    totals[said] += 1
    counts = grid.counts()
    assert (counts.empty, counts.partial, counts.full) == tuple(totals.tolist()), (counts, totals)
    assert counts.total == int(totals.sum())
    return Differences(
        skipped_but_seen=found.get((EMPTY, PARTIAL), []) + found.get((EMPTY, FULL), []),
        full_but_not=found.get((FULL, PARTIAL), []) + found.get((FULL, EMPTY), []),
        visited_but_empty=found.get((PARTIAL, EMPTY), []),
        partial_but_full=found.get((PARTIAL, FULL), []),
    )
