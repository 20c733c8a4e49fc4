"""From column forms to tiles of keys: which tiles the pieces touch, for every query tile at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_dsl.expr import FLOAT, INT, Expr, children_first
from attn_dsl.expr.interval import Interval, IntInterval, Truth
from attn_dsl.lowering.tiles.binding import Leaves
from attn_dsl.lowering.tiles.cells import Cells
from attn_dsl.lowering.tiles.columns import ColumnForm, Piece
from attn_dsl.lowering.tiles.dependence import COLUMN, ROW, Dependence
from attn_dsl.lowering.tiles.tables import KeyRanges, column_tables, key_tiles, row_tables

# operators whose hull over a tile interval arithmetic overestimates
_OPAQUE = frozenset({"read", "mod", "bitand", "bitor", "bitxor"})
_ORDER = ("lt", "le", "eq")


@dataclass(frozen=True)
class TileRanges:
    """Ranges start <= key tile < stop, int64[query tiles..., pieces]; an empty range has start = stop."""

    start: Tensor
    stop: Tensor

    def disjoint(self) -> tuple[Tensor, Tensor]:
        """(start, length) of ranges with the same union that do not overlap, from left to right."""
        order = self.start.argsort(-1)
        start, stop = self.start.gather(-1, order), self.stop.gather(-1, order)
        reached = torch.cummax(stop, -1).values
        start[..., 1:] = torch.maximum(start[..., 1:], reached[..., :-1])
        return start, (stop - start).clamp(min=0)

    def length(self) -> Tensor:
        """How many key tiles the union of a query tile's ranges has, int64[query tiles...]."""
        return self.disjoint()[1].sum(-1)

    def covers(self, place: tuple[Tensor, ...], tile: Tensor) -> Tensor:
        """Whether the ranges at `place`, an index into the query tiles, cover the key tiles `tile`."""
        return ((tile[:, None] >= self.start[place]) & (tile[:, None] < self.stop[place])).any(-1)

    def joined(self, other: TileRanges) -> TileRanges:
        return TileRanges(torch.cat([self.start, other.start], -1), torch.cat([self.stop, other.stop], -1))


def needs_table(node: Expr, dependence: Dependence) -> bool:
    """Whether evaluating `node` row by row, or column by column, says more than interval arithmetic.

    Not where floats are more than read: a table would hold one rounding, and the proof has to hold for any.
    """
    below = list(children_first([node]))
    exact = all(part.type is not FLOAT or part.op == "read" for part in below)
    return exact and any(part.op in _OPAQUE and dependence.on(part, ROW, COLUMN) for part in below)


class RangeFinder:
    """Evaluates column forms over the query tiles of one call. `shift` is q_pos - q_idx, [tiles]."""

    def __init__(self, leaves: Leaves, dependence: Dependence, cells: Cells, shift: Tensor) -> None:
        self._leaves, self._dependence, self._cells, self._shift = leaves, dependence, cells, shift
        self._tiles = key_tiles(leaves, cells)
        self._key_ranges = KeyRanges(leaves, cells)
        self._columns: dict[Expr, Interval] = {}

    def seen(self, form: ColumnForm) -> TileRanges:
        """The tiles in which some row sees some key."""
        return self._ranges(form, self._cells.seq_k)

    def hidden(self, form: ColumnForm) -> TileRanges:
        """The tiles in which some row does not see some column, a column past the last key included."""
        size = self._cells.tiling.tile_k
        found = self._ranges(form, self._cells.seq_k.new_tensor(self._tiles * size))
        tail = (self._cells.seq_k // size).expand(self._cells.shape)
        stop = torch.where(self._cells.seq_k % size > 0, tail + 1, tail)
        return found.joined(TileRanges(tail[..., None], stop[..., None]))

    def _ranges(self, form: ColumnForm, columns: Tensor) -> TileRanges:
        """The ranges of every piece, of which the columns 0 .. columns - 1 count."""
        if not form.pieces:
            none = self._cells.tile.new_zeros((*self._cells.shape, 1))
            return TileRanges(none, none)
        found = [self._piece(piece, columns) for piece in form.pieces]
        return TileRanges(*(torch.stack([getattr(r, side) for r in found], -1) for side in ("start", "stop")))

    def _piece(self, piece: Piece, columns: Tensor) -> TileRanges:
        cells, size = self._cells, self._cells.tiling.tile_k
        first, last = self._rows(piece)
        values = self._over_rows(
            [*(bound.expr for bound in (*piece.low, *piece.high)), *piece.widths, *piece.guard], first, last
        )
        zero = cells.tile.new_zeros(())
        low, high = zero, columns
        empty = first > last
        for bound in piece.low:
            low = torch.maximum(low, _ints(values[bound.expr]).lo)
        for bound in piece.high:
            high = torch.minimum(high, _ints(values[bound.expr]).hi)
        for width in piece.widths:
            empty = empty | (_ints(values[width]).hi <= 0)
        for guard in piece.guard:
            empty = empty | ~_truth(values[guard]).may_be_true
        empty = empty | (low >= high)
        start, stop = low // size, -(-high // size)
        for condition in piece.leftover:
            start, stop = self._narrowed(condition, first, last, start, stop)
        empty = empty | (start >= stop)
        start, stop = (torch.where(empty, zero, side).expand(cells.shape) for side in (start, stop))
        return TileRanges(start, stop)

    def _rows(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """First and last row of each query tile that lie in the piece's row range."""
        first, last = self._cells.first, self._cells.last
        for bound in self._leaves.all_at(list(piece.row_low), self._cells.index()):
            first = torch.maximum(first, bound)
        for bound in self._leaves.all_at(list(piece.row_high), self._cells.index()):
            last = torch.minimum(last, bound - 1)
        return first, last

    def _over_rows(self, roots: list[Expr], first: Tensor, last: Tensor) -> dict[Expr, Interval]:
        """The hulls of expressions free of kv_idx over the rows first..last of each query tile."""
        tabled = [root for root in roots if needs_table(root, self._dependence)]
        plain = [root for root in roots if root not in tabled]
        found: dict[Expr, Interval] = {}
        if tabled:
            tables = row_tables(self._leaves, self._cells, tabled, first, last, self._shift)
            found.update(zip(tabled, tables, strict=True))
        ranges = self._cells.ranges(first, last, self._shift)
        found.update(zip(plain, self._leaves.over(plain, ranges), strict=True))
        return found

    def _column_table(self, root: Expr) -> Interval:
        if root not in self._columns:
            self._columns[root] = column_tables(self._leaves, self._cells, [root])[0]
        return self._columns[root]

    # --- conditions on columns that leave a range of tiles

    def _narrowed(
        self, condition: Expr, first: Tensor, last: Tensor, start: Tensor, stop: Tensor
    ) -> tuple[Tensor, Tensor]:
        """start .. stop without tiles at either end in which `condition` cannot hold."""
        on = self._dependence.on
        found: list[tuple[Tensor, Tensor]] = []
        if not on(condition, ROW) and needs_table(condition, self._dependence):
            found.append(self._key_ranges.anywhere(_truth(self._column_table(condition)).may_be_true))
        elif condition.op in _ORDER and condition.args[0].type is INT:
            x, y = condition.args
            strict = 1 if condition.op == "lt" else 0
            for column, row, column_is_left in ((x, y, True), (y, x, False)):
                if on(column, ROW) or on(row, COLUMN) or not needs_table(column, self._dependence):
                    continue
                table = _ints(self._column_table(column))
                limits = _ints(self._over_rows([row], first, last)[row])
                if condition.op == "eq" or not column_is_left:
                    found.append(self._key_ranges.at_least(table.hi, limits.lo + strict))
                if condition.op == "eq" or column_is_left:
                    found.append(self._key_ranges.at_least(-table.lo, -limits.hi + strict))
        for low, high in found:
            start, stop = torch.maximum(start, low), torch.minimum(stop, high)
        return start, stop


def _ints(interval: Interval) -> IntInterval:
    assert isinstance(interval, IntInterval)
    return interval


def _truth(interval: Interval) -> Truth:
    assert isinstance(interval, Truth)
    return interval
