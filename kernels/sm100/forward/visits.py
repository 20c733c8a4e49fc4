"""Which key tiles the query tiles of a thread block visit: each its own, of which all roles take the union in turn.

So a tile of keys that one query tile does not see, as at the diagonal of a causal mask or at the end of the sequence,
is neither multiplied nor masked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cutlass import Boolean, Int32

from attn_dsl.kernels.common.algebra import choose, larger, smaller
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.lengths import Work
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


def visits(work: Work, scope: Scope) -> Visits:
    """The visits of a thread block. Whole warps call it."""
    assert isinstance(work.plan, Sm100Plan)
    tiles = tuple(query_tile_bounds(work, scope, place) for place in range(work.plan.query_tiles))
    first = tiles[0].first
    for bounds in tiles[1:]:
        first = larger(first, bounds.first)
    return Visits(tiles, first)


def query_tile_bounds(work: Work, scope: Scope, place: Any) -> TileBounds:
    """The key tiles that query tile `place`, an int or an Int32, visits; past the sequence none."""
    first, _ = work.row(place * ROWS)
    last, _ = work.row(place * ROWS + (ROWS - 1))
    last = smaller(last, work.q.count - Int32(1))
    is_there = first <= last
    # rows that there are, for what is read at them
    last = larger(last, Int32(0))
    bounds = tile_bounds(work.plan, scope, smaller(first, last), last, ROWS, work.split)
    seen = tuple(TileRange(tiles.start, choose(is_there, tiles.stop, tiles.start)) for tiles in bounds.seen)
    return replace(bounds, seen=seen, first=choose(is_there, bounds.first, Int32(-1)))
