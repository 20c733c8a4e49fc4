"""Which key tiles the query tiles of a thread block visit: each its own, of which all roles take the union in turn.

So a tile of keys that one query tile does not see, as at the diagonal of a causal mask or at the end of the sequence,
is neither multiplied nor masked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
from cutlass import Boolean, Int32

from attn_dsl.kernels.common.algebra import choose, larger
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.tiles import TileBounds, TileRange, tile_bounds
from attn_dsl.lowering.forward.sm100_plan import ROWS, Sm100Plan


@dataclass(frozen=True, eq=False)
class Visits:
    """The key tiles of every query tile; plain values, usable in loops below their definition."""

    tiles: tuple[TileBounds, ...]
    first: Any  # Int32: the last key tile that any visits, with which the walk from right to left begins; -1: none

    def following(self, n: Any) -> Any:
        """The largest key tile below `n` (Int32) that any query tile visits, or -1."""
        found = self.tiles[0].last_visited(n - Int32(1))
        for bounds in self.tiles[1:]:
            found = larger(found, bounds.last_visited(n - Int32(1)))
        return found

    def sees(self, place: int, n: Any) -> Any:
        """Whether query tile `place` visits key tile `n` (Boolean)."""
        if len(self.tiles) == 1:
            return Boolean(True)  # it is the union
        seen = Boolean(False)
        for tiles in self.tiles[place].seen:
            seen = seen | ((n >= tiles.start) & (n < tiles.stop))
        return seen


def visits(plan: Sm100Plan, scope: Scope, tile: Any) -> Visits:
    """The visits of thread block `tile` (Int32) of a head. Whole warps call it."""
    tiles = tuple(query_tile_bounds(plan, scope, first_row_of(plan, tile, place)) for place in range(plan.query_tiles))
    first = tiles[0].first
    for bounds in tiles[1:]:
        first = larger(first, bounds.first)
    return Visits(tiles, first)


def first_row_of(plan: Sm100Plan, tile: Any, place: Any) -> Any:
    """The first row, a pair of query and packed head, of query tile `place` in thread block `tile`."""
    return tile * Int32(plan.tile_q) + place * Int32(ROWS)


def query_tile_bounds(plan: Sm100Plan, scope: Scope, first_row: Any) -> TileBounds:
    """The key tiles that the query tile beginning at `first_row` visits; past the sequence none."""
    rows = scope.seq_q * Int32(plan.pack)
    last_row = cutlass.min(first_row + Int32(ROWS), rows) - Int32(1)
    is_there = first_row < rows
    inside = choose(is_there, first_row, last_row)
    bounds = tile_bounds(plan, scope, query_of(plan, inside), query_of(plan, last_row), ROWS)
    seen = tuple(TileRange(tiles.start, choose(is_there, tiles.stop, tiles.start)) for tiles in bounds.seen)
    return replace(bounds, seen=seen, first=choose(is_there, bounds.first, Int32(-1)))


def query_of(plan: Sm100Plan, row: Any) -> Any:
    """q_idx of a row."""
    return row if plan.pack == 1 else row // Int32(plan.pack)
