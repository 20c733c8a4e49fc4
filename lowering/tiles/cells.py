"""The query tiles of a call: the rows a kernel really tiles, per batch entry and K/V head.

Unpacked, tile t of query head h has the rows t * tile_q .. of that head. Packed, the heads of a group share tiles:
row r of K/V head kv_h is query row r // group of head kv_h * group + r % group.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_dsl.expr.interval import IntInterval
from attn_dsl.lowering.tiles.binding import Binding
from attn_dsl.lowering.tiles.dependence import BATCH, HEAD, KV_HEAD


@dataclass(frozen=True)
class Tiling:
    """The shape of a kernel's tiles."""

    tile_q: int  # rows: query rows of one head, or rows of seq_q x group when packed
    tile_k: int  # keys
    pack_gqa: bool = False

    def __post_init__(self) -> None:
        if self.tile_q < 1 or self.tile_k < 1:
            raise ValueError(f"a tile has at least one row and one key, not {self.tile_q} x {self.tile_k}")


@dataclass(frozen=True)
class Cells:
    """Query tiles with what decides the mask in them. Axes: K/V head, head of its group, tile of any batch entry.

    Only what the mask depends on is spread out: an axis is 1 long if all its entries are alike.
    """

    tiling: Tiling
    batch: Tensor  # i64[tiles]: batch entry
    tile: Tensor  # i64[tiles]: number of the query tile in its sequence
    first: Tensor  # i64[heads of a group, tiles]: first query row of the tile that belongs to the head
    last: Tensor  # likewise the last one; below `first` where the head has no row in the tile
    seq_q: Tensor  # i64[tiles]
    seq_k: Tensor  # i64[tiles]
    kv_head: Tensor  # i64[K/V heads, 1, 1]
    head: Tensor  # i64[K/V heads, heads of a group, 1]: query head
    entries: Tensor  # i64[batch entries present]: their numbers, from 0
    rows: int  # query rows of one head in one tile, at most
    same_batch: int  # batch entries that each present one stands for
    same_heads: int  # tiled heads that each present one stands for

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.head.shape[0], self.head.shape[1], self.tile.shape[0]

    def index(self) -> dict[str, Tensor]:
        """Index values that do not change inside a tile."""
        return {"b": self.batch, "kv_h": self.kv_head, "h": self.head, "seq_q": self.seq_q, "seq_k": self.seq_k}

    def ranges(self, first: Tensor, last: Tensor, shift: Tensor) -> dict[str, IntInterval]:
        """Index ranges over the rows first..last; `shift` is q_pos - q_idx."""
        points = {name: IntInterval(value, value) for name, value in self.index().items()}
        return {
            **points,
            "q_idx": IntInterval(first, last),
            "q_pos": IntInterval(first + shift, last + shift),
        }


def cells_of(binding: Binding, tiling: Tiling, varies: Collection[str]) -> Cells:
    """The query tiles of a call for a mask that depends on `varies`."""
    device, group = binding.device, binding.group
    alike = binding.batch > 0 and bool(
        (binding.seq_q == binding.seq_q[0]).all() & (binding.seq_k == binding.seq_k[0]).all()
    )
    spread = BATCH in varies or not alike
    entries = torch.arange(binding.batch if spread else 1, device=device)
    kv_heads = binding.extents["kv_heads"] if KV_HEAD in varies or HEAD in varies else 1
    members = group if HEAD in varies else 1
    kv_head = torch.arange(kv_heads, device=device).view(-1, 1, 1)
    member = torch.arange(members, device=device).view(-1, 1)
    rows = binding.seq_q[entries] * (group if tiling.pack_gqa else 1)
    counts = -(-rows // tiling.tile_q)
    batch = torch.repeat_interleave(entries, counts)
    tile = torch.arange(batch.numel(), device=device) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    start = tile * tiling.tile_q
    stop = torch.minimum(start + tiling.tile_q, rows[batch])
    if not tiling.pack_gqa:
        first, last = start.expand(members, -1), (stop - 1).expand(members, -1)
    elif members == 1:
        first, last = (start // group)[None], ((stop - 1) // group)[None]
    else:
        first, last = -((member - start) // group), (stop - 1 - member) // group
    tiled = binding.extents["kv_heads" if tiling.pack_gqa else "heads"]
    return Cells(
        tiling,
        batch,
        tile,
        first,
        last,
        binding.seq_q[batch],
        binding.seq_k[batch],
        kv_head,
        kv_head * group + member,
        entries,
        (tiling.tile_q - 1) // group + 2 if tiling.pack_gqa else tiling.tile_q,
        1 if spread else binding.batch,
        tiled // (kv_heads if tiling.pack_gqa else kv_heads * members),
    )
