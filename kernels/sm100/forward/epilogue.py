"""The epilogue warp: output tiles from shared memory by TMA."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.sm100.forward.visits import first_row_of, query_of
from attn_dsl.lowering.forward.sm100_plan import ROWS


@cute.jit
def store_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    o_atom: cute.CopyAtom,
    mO: cute.Tensor,
    o_tiles: Values,
    tile: Int32,
) -> None:
    """Stores the tiles as they are staged. Rows past the sequence and padded columns are cut off by TMA."""
    gO = cute.local_tile(mO[None, None, scope.b], ((plan.pack, ROWS // plan.pack), plan.dim_v_padded), (None, 0))
    for place in cutlass.range_constexpr(plan.query_tiles):
        barriers.wait("o_staged", place, Int32(0))
        if query_of(plan, first_row_of(plan, tile, place)) < scope.seq_q:
            target, source = tma_copy(o_atom, gO, cute.append_ones(o_tiles[place], up_to_rank=3))
            cute.copy(o_atom, source[None, 0], target[None, (scope.h // plan.pack, tile * plan.query_tiles + place)])
            cute.arch.cp_async_bulk_commit_group()
    cute.arch.cp_async_bulk_wait_group(0, read=True)
