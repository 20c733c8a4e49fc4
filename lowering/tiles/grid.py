"""The tiles of one call: which are visited, which of these are full, in ranges per query tile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_dsl.lowering.tiles.boxes import Boxes
from attn_dsl.lowering.tiles.cells import Cells
from attn_dsl.lowering.tiles.ranges import TileRanges


@dataclass(frozen=True)
class TileCounts:
    """Numbers of tiles over all batch entries and tiled heads."""

    total: int  # query tiles x key tiles of their sequence
    visited: int  # tiles a kernel works on
    full: int  # visited tiles in which every row sees every one of tile_k keys: no mask code
    partial: int  # visited tiles that need the mask

    @property
    def empty(self) -> int:
        """Tiles that are never touched."""
        return self.total - self.visited


@dataclass(frozen=True)
class Segment:
    """Neighbouring key tiles of one class."""

    start: int  # first key tile
    stop: int  # after the last key tile
    full: bool


@dataclass(frozen=True, eq=False)
class TileGrid:
    """The classes of all tiles of a call. Query tiles are `cells`; heads and batch entries that are alike are one.

    `boxes` is there if conditions that are no ranges were tested tile by tile; then it is the tighter answer.
    """

    cells: Cells
    seen: TileRanges  # int64[tiled heads, query tiles, ranges]: tiles that may have a visible pair
    hidden: TileRanges  # likewise: tiles that may have a pair that is not visible
    boxes: Boxes | None

    @property
    def heads(self) -> int:
        """Tiled heads that are spread out."""
        return self.seen.start.shape[0]

    @property
    def key_tiles(self) -> Tensor:
        """Tiles of keys of each query tile's sequence, int64[query tiles]."""
        return -(-self.cells.seq_k // self.cells.tiling.tile_k)

    def per_query_tile(self) -> tuple[Tensor, Tensor]:
        """(visited, full) numbers of key tiles, int64[tiled heads, query tiles]."""
        if self.boxes is not None:
            return self.boxes.per_query_tile()
        visited = self.seen.length()
        # what is seen and not hidden: |seen or hidden| - |hidden|
        return visited, self.seen.joined(self.hidden).length() - self.hidden.length()

    def counts(self) -> TileCounts:
        visited, full = (int(tiles.sum()) for tiles in self.per_query_tile())
        alike = self.cells.same_batch * self.cells.same_heads
        total = int(self.key_tiles.sum()) * self.heads
        return TileCounts(total * alike, visited * alike, full * alike, (visited - full) * alike)

    @property
    def visited_fraction(self) -> float:
        """Visited tiles out of all; 0 for a call without tiles."""
        counts = self.counts()
        return counts.visited / counts.total if counts.total else 0.0

    def segments(self, batch: int, head: int, tile: int) -> tuple[Segment, ...]:
        """The visited key tiles of one query tile from left to right.

        `head` is a K/V head if GQA is packed, else a query head; `tile` counts the query tiles of the sequence.
        """
        row, place = head // self.cells.same_heads, self._place(batch, tile)
        size = int(self.key_tiles[place])
        if self.boxes is not None:
            seen, full = self.boxes.of(row, place, size)
        else:
            seen = _covered(self.seen, row, place, size)
            full = seen & ~_covered(self.hidden, row, place, size)
        return _runs(seen, full)

    def _place(self, batch: int, tile: int) -> int:
        entry = batch if self.cells.same_batch == 1 else 0
        found = ((self.cells.batch == entry) & (self.cells.tile == tile)).nonzero()
        if len(found) == 0:
            raise IndexError(f"batch entry {batch} has no query tile {tile}")
        return int(found[0])


def _covered(ranges: TileRanges, row: int, place: int, size: int) -> Tensor:
    tiles = torch.arange(size, device=ranges.start.device)
    start, stop = ranges.start[row, place, :, None], ranges.stop[row, place, :, None]
    return ((tiles >= start) & (tiles < stop)).any(0)


def _runs(seen: Tensor, full: Tensor) -> tuple[Segment, ...]:
    kinds = (seen.to(torch.int64) + full.to(torch.int64)).tolist()
    found: list[Segment] = []
    for tile, kind in enumerate(kinds):
        if kind == 0:
            continue
        if found and found[-1].stop == tile and found[-1].full is (kind == 2):
            found[-1] = Segment(found[-1].start, tile + 1, kind == 2)
        else:
            found.append(Segment(tile, tile + 1, kind == 2))
    return tuple(found)
