"""Where a thread's scores stand in a tile: the layout of an accumulator, as far as masks and scores need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from attn_dsl.kernels.common.algebra import clamped, smaller


@dataclass(frozen=True, eq=False)
class Fragment:
    """A thread holds `count` columns of each of its rows; the j-th stands in tile column base + offset(j).

    Of a wgmma accumulator a thread holds two neighbouring columns of every eight: width 2, stride 8.
    """

    rows: tuple[Any, ...]  # Int32: q_idx of each row
    width: int  # neighbouring columns
    stride: int  # columns from one group of `width` to the next; a power of two
    count: int  # columns of a row
    base: Any  # Int32: the first column, below `stride`
    steps: tuple[int, ...] | None = None  # rows from the first to each; None: not known while tracing
    heads: tuple[Any, ...] | None = None  # Int32: query head of each row; None: all rows are of the work tile's head

    def offset(self, j: int) -> int:
        """The distance of column j from the thread's first."""
        return j // self.width * self.stride + j % self.width

    def below(self, limit: Any) -> Any:
        """How many of the thread's columns lie below tile column `limit` (Int32): a number from 0 to `count`."""
        distance = limit - self.base
        groups = distance >> Int32(self.stride.bit_length() - 1)
        rest = smaller(distance & Int32(self.stride - 1), Int32(self.width))
        return clamped(groups * Int32(self.width) + rest, 0, Int32(self.count))
