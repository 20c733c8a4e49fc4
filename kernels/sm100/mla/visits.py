"""Which key tiles the rows of a thread block visit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutlass import Int32

from attn_dsl.kernels.common.algebra import choose, larger, smaller
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.lengths import Work
from attn_dsl.kernels.common.tiles import TileBounds, TileRange, tile_bounds
from attn_dsl.lowering.forward.sm100_mla_plan import ROWS


def visits(work: Work, scope: Scope, rank: Any) -> TileBounds:
    """Those of the 64 rows of thread block `rank` of its cluster (Int32); past the sequence none. Whole warps call it.

    Thread blocks of one cluster have heads of one query, whose mask is the same: they visit the same tiles.
    """
    first, _ = work.row(rank * ROWS)
    last, _ = work.row(rank * ROWS + (ROWS - 1))
    last = smaller(last, work.q.count - Int32(1))
    is_there = first <= last
    # rows that there are, for what is read at them
    last = larger(last, Int32(0))
    bounds = tile_bounds(work.plan, scope, smaller(first, last), last, ROWS, split=work.split)
    seen = tuple(TileRange(tiles.start, choose(is_there, tiles.stop, tiles.start)) for tiles in bounds.seen)
    return replace(bounds, seen=seen, first=choose(is_there, bounds.first, Int32(-1)))
