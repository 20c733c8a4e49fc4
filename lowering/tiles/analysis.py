"""The tile analysis of a spec: done once per spec, evaluated for any lengths, parameters and tile shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attn_dsl.expr import FLOAT, Expr, ExprBuilder, children_first
from attn_dsl.lowering.tiles.binding import Binding, Leaves
from attn_dsl.lowering.tiles.boxes import Boxes, BoxTester
from attn_dsl.lowering.tiles.cells import Cells, Tiling, cells_of
from attn_dsl.lowering.tiles.columns import Columns, Piece, columns_of
from attn_dsl.lowering.tiles.dependence import Dependence, position_shift
from attn_dsl.lowering.tiles.grid import TileGrid
from attn_dsl.lowering.tiles.ranges import RangeFinder, TileRanges
from attn_dsl.lowering.tiles.report import TableStep, describe, table_steps
from attn_dsl.lowering.tiles.tables import BLOCK
from attn_dsl.spec.model import AttentionSpec
from attn_dsl.spec.proofs import Ranges

MAX_BOXES = 2**22  # key tiles x query tiles that `evaluate` tests one by one unless asked to


@dataclass(frozen=True, eq=False)
class TileAnalysis:
    """Which tiles a mask touches and which it fills, as expressions of run-time values."""

    spec: AttentionSpec
    columns: Columns
    shift: Expr  # q_pos - q_idx
    build: ExprBuilder
    dependence: Dependence

    @property
    def is_ranges(self) -> bool:
        """Whether each row sees a union of column ranges and nothing else decides."""
        return self.columns.seen.is_ranges and self.columns.hidden.is_ranges

    @property
    def is_exact(self) -> bool:
        """Whether it is proved that no empty tile is visited and no full tile called partial, in any call."""
        return self.columns.seen.is_exact and self.columns.hidden.is_exact

    @cached_property
    def varies(self) -> frozenset[str]:
        """What the mask depends on."""
        return self.dependence.of(self.spec.mask) | self.dependence.of(self.shift)

    def evaluate(
        self, binding: Binding, tile_q: int = 128, tile_k: int = 128, pack_gqa: bool = False, exact: bool | None = None
    ) -> TileGrid:
        """The tiles of one call.

        `tile_q` counts rows, `tile_k` keys; with `pack_gqa` a row is a pair of query row and head of a group. Where a
        mask is more than column ranges, `exact=True` tests every candidate tile by itself, in time proportional to
        their number, `exact=False` none, and the default does so for at most MAX_BOXES tiles. In any case skipped tiles
        are empty and full tiles are full.
        """
        cells = cells_of(binding, Tiling(tile_q, tile_k, pack_gqa), self.varies)
        leaves = Leaves(self.spec, self.dependence, binding)
        shift = leaves.at(self.shift, cells.index()).expand(cells.shape[2])
        finder = RangeFinder(leaves, self.dependence, cells, shift)
        seen = _per_tiled_head(finder.seen(self.columns.seen), cells)
        hidden = _per_tiled_head(finder.hidden(self.columns.hidden), cells)
        boxes: Boxes | None = None
        if not self.is_ranges and exact is not False:
            few = exact or int(seen.length().sum()) <= MAX_BOXES
            if few:
                tester = BoxTester(self.spec.mask, self.build, leaves, self.dependence, cells, shift)
                boxes = tester.test(seen, hidden)
        return TileGrid(cells, seen, hidden, boxes)

    def row_ranges(self, binding: Binding, batch: int, head: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The columns each query row sees: (low, high), i64[pieces, rows], each a range low <= kv_idx < high.

        Ranges may overlap; an empty one has low >= high. Exact if `is_ranges`, with conditions on floats decided in
        double precision; else a superset of what the rows see.
        """
        index = self._row_index(binding, torch.tensor(batch), torch.tensor(head), rows)
        low, high = self._row_ranges(Leaves(self.spec, self.dependence, binding), index)
        return low, high

    def visible_pairs(self, binding: Binding) -> int | None:
        """The number of visible (row, key) pairs over all batch entries and query heads; None unless `is_ranges`.

        Evaluates every query row once: O(seq_q) time.
        """
        if not self.is_ranges or any(node.type is FLOAT for node in children_first([self.spec.mask])):
            return None
        leaves = Leaves(self.spec, self.dependence, binding)
        cells = cells_of(binding, Tiling(1, 1), self.varies)
        total = 0
        rows = BLOCK // 8
        for first in range(0, cells.shape[2], rows):
            batch, row = cells.batch[first : first + rows], cells.tile[first : first + rows]
            for head in cells.head.flatten():
                index = self._row_index(binding, batch, head, row)
                low, high = self._row_ranges(leaves, index)
                total += int(TileRanges(low.T, torch.maximum(low, high).T).length().sum())
        return total * cells.same_batch * cells.same_heads

    def _row_index(self, binding: Binding, batch: Tensor, head: Tensor, rows: Tensor) -> dict[str, Tensor]:
        batch, head, rows = (value.to(binding.device) for value in (batch, head, rows))
        index = {"b": batch, "h": head, "kv_h": head // binding.group}
        index |= {"seq_q": binding.seq_q[batch], "seq_k": binding.seq_k[batch], "q_idx": rows}
        shift = Leaves(self.spec, self.dependence, binding).at(self.shift, index)
        return {**index, "q_pos": rows + shift}

    def _row_ranges(self, leaves: Leaves, index: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        rows = index["q_idx"]
        found = [_row_range(piece, leaves, index) for piece in self.columns.seen.pieces]
        none = (torch.zeros_like(rows), torch.zeros_like(rows))
        low, high = (
            torch.stack([side.expand(rows.shape) for side in sides]) for sides in zip(*(found or [none]), strict=True)
        )
        return low, high

    @cached_property
    def tables(self) -> tuple[TableStep, ...]:
        """The captures that `evaluate` reads."""
        return tuple(table_steps(self))

    def __str__(self) -> str:
        return describe(self)


def _row_range(piece: Piece, leaves: Leaves, index: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    rows = index["q_idx"]
    low, high = torch.zeros_like(rows), index["seq_k"].expand(rows.shape)
    for bound in leaves.all_at([bound.expr for bound in piece.low], index):
        low = torch.maximum(low, bound)
    for bound in leaves.all_at([bound.expr for bound in piece.high], index):
        high = torch.minimum(high, bound)
    seen = low < high
    for bound in leaves.all_at(list(piece.row_low), index):
        seen = seen & (rows >= bound)
    for bound in leaves.all_at(list(piece.row_high), index):
        seen = seen & (rows < bound)
    for guard in leaves.all_at(list(piece.guard), index):
        seen = seen & guard
    return torch.where(seen, low, 0), torch.where(seen, high, 0)


def _per_tiled_head(ranges: TileRanges, cells: Cells) -> TileRanges:
    """Ranges as [tiled heads, query tiles, ranges]: heads that share a tile put their ranges together."""

    def arranged(side: Tensor) -> Tensor:
        if cells.tiling.pack_gqa:
            return side.transpose(1, 2).flatten(2)
        return side.flatten(0, 1)

    return TileRanges(arranged(ranges.start), arranged(ranges.stop))


def analyze(spec: AttentionSpec) -> TileAnalysis:
    """The tile analysis of a typed spec. Never fails: a mask that cannot be taken apart is tested tile by tile."""
    build, dependence = ExprBuilder(), Dependence(spec)
    dtypes = {tensor.name: tensor.dtype for tensor in spec.tensors}
    ranges = Ranges(dict(spec.fixed_axes), spec.params, dtypes, spec.align.kind)
    shift = position_shift(spec, build)
    columns = columns_of(spec.mask, build, dependence, ranges.leaf, shift)
    return TileAnalysis(spec, columns, shift, build, dependence)
