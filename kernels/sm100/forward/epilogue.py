"""The epilogue: output tiles from shared memory to where they belong, by TMA if they are boxes of heads and queries."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.pack_gqa import Packing, store_rows
from attn_dsl.kernels.sm100.forward.load import rows_from
from attn_dsl.lowering.forward.sm100_plan import ROWS


@cute.jit
def store_tiles(
    work: cutlass.Constexpr, barriers: cutlass.Constexpr, o_atom: cute.CopyAtom, mO: cute.Tensor, o_tiles: Values
) -> None:
    """Stores the tiles as they are staged, as boxes. Rows past the axis and padded columns are cut off by TMA."""
    plan = work.plan
    packing = Packing(plan.pack, ROWS)
    gO = cute.local_tile(mO, (packing.box, plan.dim_v_padded), (None, 0))
    for place in cutlass.range_constexpr(plan.query_tiles):
        barriers.wait("o_staged", place, Int32(0))
        first, _ = work.row(place * ROWS)
        if first < work.q.slots:
            target, source = tma_copy(o_atom, gO, cute.append_ones(o_tiles[place], up_to_rank=3))
            box = packing.place(work.head, work.tile * plan.query_tiles + place)
            cute.copy(o_atom, source[None, 0], target[None, box])
    cute.arch.cp_async_bulk_commit_group()
    cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def scatter_tile(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    mO: cute.Tensor,
    o_tile: cute.Tensor,
    place: cutlass.Constexpr[int],
    thread: Int32,
) -> None:
    """Stores one staged tile row by row. Run by the correction warpgroup, which has staged it."""
    barriers.wait("o_staged", place, Int32(0))
    store_rows(rows_from(work, mO), o_tile, work.skipped + place * ROWS, thread, ROWS)
