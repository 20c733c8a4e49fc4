"""The test of single tiles: the mask over a box of rows and keys, in three-valued logic.

Needed where a mask is more than column ranges. Each visited tile costs one evaluation of the mask on intervals, all
tiles of a block together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_dsl.expr import BOOL, Expr, ExprBuilder, evaluate
from attn_dsl.expr.interval import FloatInterval, Interval, IntInterval, Truth
from attn_dsl.lowering.tiles.binding import Leaves
from attn_dsl.lowering.tiles.cells import Cells
from attn_dsl.lowering.tiles.dependence import COLUMN, ROW, Dependence, substitute
from attn_dsl.lowering.tiles.ranges import TileRanges, needs_table
from attn_dsl.lowering.tiles.tables import BLOCK, column_tables, held_numbers, row_tables


@dataclass(frozen=True, eq=False)
class Boxes:
    """The visited tiles one by one, in the order of `row`, `cell`, `key_tile`."""

    heads: int  # tiled heads that are spread out
    cells: int  # query tiles
    row: Tensor  # i64[visited]: tiled head
    cell: Tensor  # i64[visited]: query tile
    key_tile: Tensor  # i64[visited]
    full: Tensor  # bool[visited]

    def per_query_tile(self) -> tuple[Tensor, Tensor]:
        """(visited, full) numbers of key tiles, int64[tiled heads, query tiles]."""
        place = self.row * self.cells + self.cell
        counts = [
            torch.bincount(place if weight is None else place[weight], minlength=self.heads * self.cells)
            for weight in (None, self.full)
        ]
        visited, full = (count.view(self.heads, self.cells) for count in counts)
        return visited, full

    def of(self, row: int, cell: int, size: int) -> tuple[Tensor, Tensor]:
        """(visited, full) of each of a query tile's `size` key tiles, as bools."""
        here = (self.row == row) & (self.cell == cell)
        seen, full = (torch.zeros(size, dtype=torch.bool, device=self.row.device) for _ in range(2))
        seen[self.key_tile[here]] = True
        full[self.key_tile[here & self.full]] = True
        return seen, full


class BoxTester:
    """Tests the tiles of one call against the whole mask."""

    def __init__(
        self, mask: Expr, build: ExprBuilder, leaves: Leaves, dependence: Dependence, cells: Cells, shift: Tensor
    ) -> None:
        self._leaves, self._dependence, self._cells = leaves, dependence, cells
        self._shift = shift.expand(cells.shape[2])
        self._counts: dict[Expr, Tensor] = {}
        rows = [node for node in _outermost(mask, dependence, COLUMN) if needs_table(node, dependence)]
        columns = [node for node in _outermost(mask, dependence, ROW) if needs_table(node, dependence)]
        stand_ins = {node: Expr("var", (), f"table {i}", node.type) for i, node in enumerate((*rows, *columns))}
        self._mask = substitute(build, mask, stand_ins)
        row_hulls = row_tables(leaves, cells, rows, cells.first, cells.last, self._shift)
        column_hulls = column_tables(leaves, cells, columns)
        self._rows = {stand_ins[node]: table for node, table in zip(rows, row_hulls, strict=True)}
        self._columns = {stand_ins[node]: table for node, table in zip(columns, column_hulls, strict=True)}

    def test(self, seen: TileRanges, hidden: TileRanges) -> Boxes:
        """The visited tiles among those of `seen`, [tiled heads, query tiles, ranges]."""
        heads, tiles, _ = seen.start.shape
        found = [
            self._block(rows, cells, keys, covered) for rows, cells, keys, covered in self._candidates(seen, hidden)
        ]
        empty = self._cells.tile.new_zeros(0)
        parts = list(zip(*found, strict=True)) or [(empty,)] * 3 + [(empty.to(torch.bool),)]
        row, cell, key_tile, full = (torch.cat(part) for part in parts)
        return Boxes(heads, tiles, row, cell, key_tile, full)

    def _candidates(self, seen: TileRanges, hidden: TileRanges) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Tiles of `seen` in blocks: tiled head, query tile, key tile, and whether `hidden` covers it too."""
        _, tiles, ranges = seen.start.shape
        start, length = (side.flatten() for side in seen.disjoint())
        done = length.cumsum(0)
        most = max(1, BLOCK // (2 * held_numbers([self._mask]) * self._cells.shape[1]))
        first = 0
        while first < len(length):
            before = int(done[first - 1]) if first else 0
            stop = max(first + 1, int(torch.searchsorted(done, before + most, right=True)))
            counts = length[first:stop]
            which = torch.repeat_interleave(torch.arange(first, stop, device=length.device), counts)
            key = torch.arange(len(which), device=length.device) - (done[which] - length[which] - before) + start[which]
            row, cell = which // ranges // tiles, which // ranges % tiles
            yield row, cell, key, hidden.covers((row, cell), key)
            first = stop

    def _block(self, row: Tensor, cell: Tensor, key: Tensor, covered: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The visited ones among some tiles, and which of them are full."""
        cells = self._cells
        _, members, _ = cells.shape
        if cells.tiling.pack_gqa:
            kv, member = row[:, None], torch.arange(members, device=row.device)[None]
        else:
            kv, member = (row // members)[:, None], (row % members)[:, None]
        at, tile = cell[:, None], key[:, None]
        first, last = cells.first[member, at], cells.last[member, at]
        starts = tile * cells.tiling.tile_k
        stops = torch.minimum(starts + cells.tiling.tile_k, cells.seq_k[at])
        points = {
            "b": cells.batch[at],
            "kv_h": cells.kv_head[kv, 0, 0],
            "h": cells.head[kv, member, 0],
            "seq_q": cells.seq_q[at],
            "seq_k": cells.seq_k[at],
        }
        ranges = {name: IntInterval(value, value) for name, value in points.items()}
        ranges["q_idx"] = IntInterval(first, last)
        ranges["q_pos"] = IntInterval(first + self._shift[at], last + self._shift[at])
        ranges["kv_idx"] = IntInterval(starts, stops - 1)
        known = {leaf: _gather(table, (kv, member, at)) for leaf, table in self._rows.items()}
        entry = cells.batch[at]
        known |= {leaf: _gather(table, (kv, member, entry, tile)) for leaf, table in self._columns.items()}
        value = self._value(ranges, known)
        has_rows = first <= last
        visited = (value.may_be_true & has_rows).any(1)
        full = (~value.may_be_false | ~has_rows).all(1) | ~covered
        full = full & (starts + cells.tiling.tile_k <= cells.seq_k[at])[:, 0]
        return row[visited], cell[visited], key[visited], full[visited]

    def _value(self, ranges: dict[str, IntInterval], known: dict[Expr, Interval]) -> Truth:
        def leaf(node: Expr, operands: tuple[Any, ...]) -> Interval:
            if node in known:
                return known[node]
            if node.op == "read" and node.type is BOOL and self._dependence.on(node, ROW, COLUMN):
                return self._bool_read(node, operands, ranges)
            return self._leaves.interval(node, operands, ranges)

        value = evaluate([self._mask], self._leaves.intervals, leaf)[0]
        assert isinstance(value, Truth)
        return value

    def _bool_read(self, node: Expr, operands: tuple[IntInterval, ...], ranges: dict[str, IntInterval]) -> Truth:
        """Whether any and whether all elements of a box of a bool tensor are true, from sums over its prefixes."""
        table = self._leaves.binding.values[str(node.attr)]
        moving = [axis for axis, index in enumerate(node.args) if self._dependence.on(index, ROW, COLUMN)]
        if table.numel() == 0 or len(moving) > 2:
            whole = self._leaves.whole(node)
            assert isinstance(whole, Truth)
            return whole
        if node not in self._counts:
            sums = table.to(torch.int32)
            for axis in moving:
                before = torch.zeros_like(sums.narrow(axis, 0, 1))
                sums = torch.cat([before, sums.cumsum(axis, dtype=torch.int32)], axis)
            self._counts[node] = sums
        sums = self._counts[node]
        points = {name: interval.lo for name, interval in ranges.items()}
        low = self._leaves.places(node, tuple(operand.lo for operand in operands), points)
        high = self._leaves.places(node, tuple(operand.hi for operand in operands), points)
        trues: Tensor | int = 0
        area: Tensor | int = 1
        for axis in moving:
            area = area * (high[axis] - low[axis] + 1)
        for corner in range(1 << len(moving)):
            place, sign = list(low), 1
            for bit, axis in enumerate(moving):
                if corner >> bit & 1:
                    place[axis] = high[axis] + 1
                else:
                    sign = -sign
            trues = trues + sign * sums[tuple(place)]
        assert isinstance(trues, Tensor)
        return Truth(trues > 0, trues < area)


def _outermost(mask: Expr, dependence: Dependence, other: str) -> list[Expr]:
    """The largest parts of `mask` that depend on row or column but not on `other`."""
    found: list[Expr] = []
    done: set[Expr] = set()
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node in done:
            continue
        done.add(node)
        if not dependence.on(node, other):
            if dependence.on(node, ROW, COLUMN):
                found.append(node)
        else:
            waiting.extend(node.args)
    return found


def _gather(table: Interval, place: tuple[Tensor, ...]) -> Interval:
    """Elements of a table. An axis of the table that is 1 long, or missing in front, is the same everywhere."""

    def pick(values: Tensor) -> Tensor:
        values = values[(None,) * (len(place) - values.dim())]
        return values[tuple(p.clamp(max=extent - 1) for p, extent in zip(place, values.shape, strict=True))]

    if isinstance(table, Truth):
        return Truth(pick(table.may_be_true), pick(table.may_be_false))
    if isinstance(table, FloatInterval):
        return FloatInterval(pick(table.lo), pick(table.hi), pick(table.nan))
    return IntInterval(pick(table.lo), pick(table.hi))
