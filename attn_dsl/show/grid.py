"""A mask as a grid of cells, each saying how many of its (query, key) pairs are visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL = 255  # the level of a cell all of whose pairs are visible


@dataclass(frozen=True)
class MaskGrid:
    """One head's mask, cut into cells of `tile_q` rows and `tile_k` keys; the last of each may be cut short.

    `levels[row * columns + column]` is 0 exactly if no pair of the cell is visible, 255 (`FULL`) exactly if all are,
    and 1..254 in proportion between.
    """

    seq_q: int  # query rows of the sequence
    seq_k: int  # keys of the sequence
    tile_q: int  # query rows of a cell
    tile_k: int  # keys of a cell
    visible: int  # visible pairs in the whole mask
    levels: bytes

    @property
    def rows(self) -> int:
        return -(-self.seq_q // self.tile_q)

    @property
    def columns(self) -> int:
        return -(-self.seq_k // self.tile_k)

    @property
    def exact(self) -> bool:
        """Whether every cell is one pair."""
        return self.tile_q == self.tile_k == 1


def level(visible: int, pairs: int) -> int:
    """The level of a cell with `visible` of its `pairs` visible."""
    if visible in (0, pairs):
        return 0 if visible == 0 else FULL
    return max(1, min(FULL - 1, visible * FULL // pairs))


def grid_of_counts(
    counts: Sequence[Sequence[int]], *, seq_q: int, seq_k: int, tile_q: int = 1, tile_k: int = 1
) -> MaskGrid:
    """A grid from visible pairs per cell, one row of cells after the other."""
    heights = [min(tile_q, seq_q - first) for first in range(0, seq_q, tile_q)]
    widths = [min(tile_k, seq_k - first) for first in range(0, seq_k, tile_k)]
    levels = bytearray()
    for height, row in zip(heights, counts, strict=True):
        levels += bytes(level(visible, height * width) for visible, width in zip(row, widths, strict=True))
    return MaskGrid(seq_q, seq_k, tile_q, tile_k, sum(map(sum, counts)), bytes(levels))
