"""Per-tile tables of what interval arithmetic cannot see through: captured tensors, remainders, bit tests.

A row table holds the hull of an expression of the row over each query tile, a column table that of an expression
of the column over each tile of keys. They are made by evaluating the expression once per row or column, in blocks:
O(seq) time on the device the captures live on, O(tiles) memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attn_dsl.expr import Expr, children_first
from attn_dsl.expr.interval import FloatInterval, Interval, IntInterval, Truth
from attn_dsl.lowering.tiles.binding import Leaves, hull
from attn_dsl.lowering.tiles.cells import Cells

BLOCK = 2**20  # numbers held at once while tables are made
_FAR = 2**33  # past every value that a comparison of i32 tables can have


def row_tables(
    leaves: Leaves, cells: Cells, roots: list[Expr], first: Tensor, last: Tensor, shift: Tensor
) -> list[Interval]:
    """The hull of each root, free of kv_idx, over the rows first..last of each query tile."""
    heads, members, tiles = cells.shape
    first, last, shift = (value.expand(heads, members, tiles) for value in (first, last, shift))

    def block(part: slice) -> list[Interval]:
        q_idx = first[:, :, part, None] + torch.arange(cells.rows, device=first.device)
        q_idx = torch.minimum(q_idx, last[:, :, part, None])
        index = {
            "b": cells.batch[part, None],
            "kv_h": cells.kv_head[..., None],
            "h": cells.head[..., None],
            "seq_q": cells.seq_q[part, None],
            "seq_k": cells.seq_k[part, None],
            "q_idx": q_idx,
            "q_pos": q_idx + shift[:, :, part, None],
        }
        return [hull(value.expand(q_idx.shape), -1) for value in leaves.all_at(roots, index)]

    return _in_blocks(block, tiles, heads * members * cells.rows * held_numbers(roots))


def column_tables(leaves: Leaves, cells: Cells, roots: list[Expr]) -> list[Interval]:
    """The hull of each root, free of q_idx and q_pos, over the keys of each tile.

    Axes: K/V head, head of its group, batch entry present, tile of keys. Tiles past the end of a sequence repeat its
    last key.
    """
    heads, members, _ = cells.shape
    tile_k = cells.tiling.tile_k
    seq_k = leaves.binding.seq_k[cells.entries]
    seq_q = leaves.binding.seq_q[cells.entries]
    tiles = key_tiles(leaves, cells)
    shape = (heads, members, len(cells.entries))

    def block(part: slice) -> list[Interval]:
        starts = torch.arange(part.start, part.stop, device=seq_k.device) * tile_k
        kv_idx = starts[:, None] + torch.arange(tile_k, device=seq_k.device)
        kv_idx = torch.minimum(kv_idx, (seq_k - 1).clamp(min=0)[:, None, None])
        index = {
            "b": cells.entries[:, None, None],
            "kv_h": cells.kv_head[..., None, None],
            "h": cells.head[..., None, None],
            "seq_q": seq_q[:, None, None],
            "seq_k": seq_k[:, None, None],
            "kv_idx": kv_idx,
        }
        full = (*shape, part.stop - part.start, tile_k)
        return [hull(value.expand(full), -1) for value in leaves.all_at(roots, index)]

    return _in_blocks(block, tiles, heads * members * len(cells.entries) * tile_k * held_numbers(roots))


def held_numbers(roots: list[Expr]) -> int:
    """Numbers held for one element while `roots` are evaluated: one per node."""
    return max(1, sum(1 for _ in children_first(roots)))


def key_tiles(leaves: Leaves, cells: Cells) -> int:
    """Tiles of keys of the longest sequence."""
    if len(cells.entries) == 0:
        return 0
    return -(-int(leaves.binding.seq_k[cells.entries].max()) // cells.tiling.tile_k)


def _in_blocks(block: Callable[[slice], list[Interval]], tiles: int, elements: int) -> list[Interval]:
    """`block` over parts of the last axis of `tiles`, of which each tile holds `elements` numbers at once."""
    parts = [block(part) for part in _parts(tiles, max(1, BLOCK // max(1, elements)))]
    return [_joined(list(intervals)) for intervals in zip(*parts, strict=True)]


def _parts(total: int, step: int) -> Iterator[slice]:
    for start in range(0, max(total, 1), step):
        yield slice(start, min(start + step, total))


def _joined(parts: list[Interval]) -> Interval:
    if len(parts) == 1:
        return parts[0]

    def along(field: str) -> Tensor:
        return torch.cat([getattr(part, field) for part in parts], dim=-1)

    if isinstance(parts[0], Truth):
        return Truth(along("may_be_true"), along("may_be_false"))
    if isinstance(parts[0], FloatInterval):
        return FloatInterval(along("lo"), along("hi"), along("nan"))
    return IntInterval(along("lo"), along("hi"))


class KeyRanges:
    """First and last tile of keys in which a column condition can hold, by running maxima and binary search."""

    def __init__(self, leaves: Leaves, cells: Cells) -> None:
        self._cells = cells
        self._tiles = key_tiles(leaves, cells)
        seq_k = leaves.binding.seq_k[cells.entries]
        in_sequence = torch.arange(self._tiles, device=seq_k.device) * cells.tiling.tile_k < seq_k[:, None]
        self._in_sequence = in_sequence  # bool[batch entries, tiles]

    def at_least(self, largest: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """The range [first, stop) of tiles that covers every tile whose `largest` value is at least `wanted`.

        `largest` is [K/V heads, heads of a group, batch entries, key tiles], `wanted` [..., query tiles].
        """
        heads, members, tiles = self._cells.shape
        largest = torch.where(self._in_sequence, largest.clamp(-_FAR, _FAR), -_FAR - 1)
        largest = largest.expand(heads, members, *self._in_sequence.shape)
        wanted = wanted.clamp(-_FAR, _FAR).expand(heads, members, tiles)
        # one sorted list for all batch entries: each lies in a range of its own
        apart = self._cells.entries * (4 * _FAR)
        wanted = wanted + apart[self._cells.batch]
        forward = largest.cummax(-1).values + apart[:, None]
        backward = largest.flip(-1).cummax(-1).values + apart[:, None]
        before = self._cells.batch * self._tiles
        first = torch.searchsorted(forward.flatten(2), wanted) - before
        from_end = torch.searchsorted(backward.flatten(2), wanted) - before
        return first.clamp(0, self._tiles), self._tiles - from_end.clamp(0, self._tiles)

    def anywhere(self, holds: Tensor) -> tuple[Tensor, Tensor]:
        """The range of tiles that covers every tile in which `holds`, for each query tile."""
        return self.at_least(holds.to(torch.int64), torch.ones((), dtype=torch.int64, device=holds.device))
