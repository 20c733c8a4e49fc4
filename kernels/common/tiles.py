"""Which tiles of keys a tile of queries visits, and which of those need no mask code.

The pieces of a mask become ranges of key tiles: a bound that moves one way with the row is evaluated at the tile's
first or last row, one of which nothing is known at every row. Both unions of ranges are supersets, so a skipped tile
is empty and a full tile is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int32

from attn_dsl.expr import Expr
from attn_dsl.kernels.common.algebra import choose, clamped, larger, smaller
from attn_dsl.kernels.common.leaves import ROW, Place, Scope, dependences
from attn_dsl.lowering.forward import Bound, ForwardPlan, PiecePlan

LANES = 32  # of a warp


@dataclass(frozen=True, eq=False)
class TileRange:
    """Key tiles start <= n < stop, Int32; empty if start >= stop."""

    start: Any
    stop: Any


@dataclass(frozen=True, eq=False)
class TileBounds:
    """The visited and the full tiles of one tile of queries; plain values, usable in loops below their definition."""

    seen: tuple[TileRange, ...]
    hidden: tuple[TileRange, ...]
    first: Any  # Int32: the last visited tile, with which the walk from right to left begins; -1: none
    ended: Any  # Int32: tiles below it end inside the sequence

    def last_visited(self, n: Any) -> Any:
        """The largest visited tile that is at most `n` (Int32), or -1."""
        return _last_visited(self.seen, n)

    def is_full(self, n: Any) -> Any:
        """Whether every row sees every column of tile `n` (Boolean), columns past the sequence not among them."""
        full = n < self.ended
        for tiles in self.hidden:
            full = full & ((n < tiles.start) | (n >= tiles.stop))
        return full


def tile_bounds(
    plan: ForwardPlan,
    scope: Scope,
    first_row: Any,
    last_row: Any,
    most_rows: int | None = None,
    split: tuple[Any, Any] | None = None,
) -> TileBounds:
    """The tiles of the query rows first_row .. last_row (Int32), both inside the sequence, at most `most_rows` (None:
    those of a tile of the plan); with `split` (number, of how many) a part of them, next to each other.

    Whole warps call it, with the same rows: where the plan has bounds of unknown direction, lanes share the rows.
    """
    ended = scope.seq_k // Int32(plan.tile_k)
    tiles = (scope.seq_k + Int32(plan.tile_k - 1)) // Int32(plan.tile_k)
    finder = _Finder(plan, scope, first_row, last_row, most_rows or plan.tile_q)
    seen = tuple(map(finder.tiles, plan.mask.seen))
    hidden = tuple(map(finder.tiles, plan.mask.hidden))
    last = tiles - Int32(1)
    if split is not None:
        seen, last = _part(seen, _last_visited(seen, last), *split)
    return TileBounds(seen, hidden, _last_visited(seen, last), ended)


def _part(seen: tuple[TileRange, ...], last: Any, number: Any, count: Any) -> tuple[tuple[TileRange, ...], Any]:
    """Part `number` of `count` of the tiles up to `last`, the last visited one, and where that part ends.

    Parts differ by one tile of the range in length; tiles of the range that no row sees are in it.
    """
    first = last
    for tiles in seen:
        first = choose(tiles.start < tiles.stop, smaller(first, tiles.start), first)
    length, rest = (last + Int32(1) - first) // count, (last + Int32(1) - first) % count
    low = first + number * length + smaller(number, rest)
    high = low + length + choose(number < rest, Int32(1), Int32(0))
    cut = tuple(TileRange(larger(tiles.start, low), smaller(tiles.stop, high)) for tiles in seen)
    return cut, high - Int32(1)


def _last_visited(seen: tuple[TileRange, ...], n: Any) -> Any:
    found = Int32(-1)
    for tiles in seen:
        last = smaller(n, tiles.stop - Int32(1))
        found = larger(found, choose(last >= tiles.start, last, Int32(-1)))
    return found


class _Finder:
    def __init__(self, plan: ForwardPlan, scope: Scope, first_row: Any, last_row: Any, most_rows: int) -> None:
        self.plan, self.scope, self.most_rows = plan, scope, most_rows
        self.first_row, self.last_row = first_row, last_row

    def tiles(self, piece: PiecePlan) -> TileRange:
        """The tiles that `piece` touches in some row."""
        first, last, is_there = self._rows(piece)
        depends = dependences((*piece.guard, *piece.widths))
        for guard in piece.guard:
            if ROW not in depends[guard]:
                is_there = is_there & self.scope.uniform(guard)[0]
        for width in self.scope.uniform(*piece.widths):
            is_there = is_there & (width > type(width)(0))
        low, high = Int32(0), self.scope.seq_k
        guards = tuple(guard for guard in piece.guard if ROW in depends[guard])
        if guards or any(bound.direction == "unknown" for bound in (*piece.low, *piece.high)):
            low, high = self._over_rows(piece, guards, first.index, last.index)
        for bound in piece.low:
            if bound.direction != "unknown":
                low = larger(low, self._column(bound, last if bound.direction == "falling" else first))
        for bound in piece.high:
            if bound.direction != "unknown":
                high = smaller(high, self._column(bound, first if bound.direction == "falling" else last))
        is_there = is_there & (low < high)
        start = low // Int32(self.plan.tile_k)
        stop = (high + Int32(self.plan.tile_k - 1)) // Int32(self.plan.tile_k)
        return TileRange(start, choose(is_there, stop, start))

    def _over_rows(self, piece: PiecePlan, guards: tuple[Expr, ...], first: Any, last: Any) -> tuple[Any, Any]:
        """The smallest low and the largest high over the rows whose guards hold, by bounds of unknown direction.

        The lanes of a warp share the rows, so all 32 of them have to be here.
        """
        low, high = self.scope.seq_k, Int32(0)
        for step in range(0, self.most_rows, LANES):
            row = Place(smaller(first + cute.arch.lane_idx() + Int32(step), last))
            row_low, row_high = Int32(0), self.scope.seq_k
            for bound in piece.low:
                if bound.direction == "unknown":
                    row_low = larger(row_low, self._column(bound, row))
            for bound in piece.high:
                if bound.direction == "unknown":
                    row_high = smaller(row_high, self._column(bound, row))
            is_there = Boolean(True)
            for guard in self.scope.evaluate(guards, row=row):
                is_there = is_there & guard
            low = choose(is_there, smaller(low, row_low), low)
            high = choose(is_there, larger(high, row_high), high)
        return cute.arch.warp_redux_sync(low, "min"), cute.arch.warp_redux_sync(high, "max")

    def _rows(self, piece: PiecePlan) -> tuple[Place, Place, Any]:
        """The first and the last row of the piece, kept inside the tile, and whether there is any."""
        first, last, is_there = self.first_row, self.last_row, Boolean(True)
        for bound in piece.row_low:
            first = larger(first, self._row(bound, 0))
        for bound in piece.row_high:
            last = smaller(last, self._row(bound, -1))
        if piece.row_low or piece.row_high:
            is_there = first <= last
        return Place(smaller(first, self.last_row)), Place(larger(last, self.first_row)), is_there

    def _row(self, bound: Expr, shift: int) -> Any:
        """bound + shift as Int32, moved to just outside the sequence where it lies farther."""
        (value,) = self.scope.uniform(bound)
        return clamped(value, 0, self.scope.seq_q) + Int32(shift)

    def _column(self, bound: Bound, place: Place) -> Any:
        """The bound at a row, as a column 0 .. seq_k."""
        (value,) = self.scope.evaluate([bound.expr], row=place)
        return clamped(value, 0, self.scope.seq_k)
