"""The end of a consumer warpgroup: its rows of O through shared memory by TMA, LSE from registers."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from cutlass.cute.nvgpu import warp

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.common.softmax import LANES_PER_ROW, LN_2
from attn_dsl.kernels.named_barrier import WARPGROUP, ForwardBarriers
from attn_dsl.kernels.sm90.consume import convert


@cute.jit
def store_lse(
    plan: cutlass.Constexpr,
    mLSE: cute.Tensor,
    scope: cutlass.Constexpr,
    fragment: cutlass.Constexpr,
    lse: Values,
    lane: Int32,
) -> None:
    """Writes the logarithm of each row's denominator; one of the lanes that share a row does."""
    for place in cutlass.range_constexpr(len(lse)):
        value = lse[place] if const_expr(plan.lse_base == "2") else lse[place] * LN_2
        if lane % LANES_PER_ROW == 0 and fragment.rows[place] < scope.seq_q:
            mLSE[fragment.rows[place], fragment.heads[place], scope.b] = value


@cute.jit
def store_output(
    plan: cutlass.Constexpr,
    barriers: cutlass.Constexpr[ForwardBarriers],
    scope: cutlass.Constexpr,
    pv: cute.TiledMma,
    o_atom: cute.CopyAtom,
    mO: cute.Tensor,
    sO: cute.Tensor,
    output: cute.Tensor,
    tile: Int32,
    thread: Int32,
) -> None:
    """Writes the 64 rows of this warpgroup. Rows past the sequence and padded columns are cut off by TMA.

    O lies over the queries in shared memory. A warpgroup reads no other rows of them than its own; only where O is of
    another width than Q its rows lie elsewhere, and all warpgroups have to be done with Q.
    """
    group = cute.arch.make_warp_uniform(thread // WARPGROUP)
    if const_expr(plan.dim_padded != plan.dim_v_padded):
        cute.arch.barrier(barrier_id=barriers.consumers.id, number_of_threads=barriers.consumers.threads)
    rounded = cute.make_rmem_tensor_like(output, sO.element_type)
    convert(output, rounded)
    store_atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), sO.element_type)
    copy = cute.make_tiled_copy_C(store_atom, pv).get_slice(thread)
    cute.copy(store_atom, copy.retile(rounded), copy.partition_D(sO))
    # stores of this thread must be visible to the copy engine before one thread starts it
    cute.arch.fence_view_async_shared()
    cute.arch.barrier(barrier_id=barriers.output[0].id + group, number_of_threads=barriers.output[0].threads)
    rows = WARPGROUP // 2
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4 == 0:
        packed = (plan.pack, rows // plan.pack)
        gO = cute.local_tile(mO[None, None, scope.b], (packed, plan.dim_v_padded), (None, 0))
        target, source = tma_copy(o_atom, gO, cute.flat_divide(sO, (rows, plan.dim_v_padded))[None, None, None, 0])
        cute.copy(o_atom, source[None, group], target[None, (scope.h // plan.pack, tile * plan.consumers + group)])
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)
