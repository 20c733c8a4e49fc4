"""The end of a consumer warpgroup: its rows of O through shared memory, LSE from registers."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from cutlass.cute.nvgpu import warp

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.common.softmax import LANES_PER_ROW, LN_2
from attn_dsl.kernels.named_barrier import WARPGROUP, ForwardBarriers
from attn_dsl.kernels.pack_gqa import store_lse, store_rows
from attn_dsl.kernels.sm90.load import packing
from attn_dsl.kernels.sm90.softmax import convert
from attn_dsl.lowering.forward import ForwardPlan
from attn_dsl.lowering.forward.rules import ROWS

PAIR, STEP = 2, 8  # a thread has two neighbouring columns of every eight (PTX ISA, accumulators of wgmma)


def is_box(plan: ForwardPlan) -> bool:
    """Whether the rows of a warpgroup are a box of O that nothing else follows."""
    return packing(plan).by_tma and plan.lengths_q.cu_seqlens is None and not plan.partial


@cute.jit
def store_logarithms(
    work: cutlass.Constexpr, mLSE: cute.Tensor, fragment: cutlass.Constexpr, lse: Values, lane: Int32
) -> None:
    """Writes the logarithm of each row's denominator to `mLSE` (slots, heads); one of the lanes that share it does."""
    for place in cutlass.range_constexpr(len(lse)):
        value = lse[place] if const_expr(work.plan.lse_base == "2" or work.plan.partial) else lse[place] * LN_2
        if lane % LANES_PER_ROW == 0:
            store_lse(mLSE, fragment.rows[place], fragment.heads[place], work.q.slots, value)


@cute.jit
def stage_output(
    plan: cutlass.Constexpr,
    barriers: cutlass.Constexpr[ForwardBarriers],
    pv: cute.TiledMma,
    sO: cute.Tensor,
    output: cute.Tensor,
    thread: Int32,
) -> None:
    """Rounds the 64 rows of this warpgroup to shared memory, visible to the copy engine too.

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


@cute.jit
def store_partial(
    work: cutlass.Constexpr, mO: cute.Tensor, fragment: cutlass.Constexpr, output: cute.Tensor, lane: Int32
) -> None:
    """Writes this thread's part of the output, in f32 from its registers, to `mO` ((heads, slots), dim_v)."""
    plan = work.plan
    steps = plan.dim_v // STEP
    layout = cute.make_layout((PAIR, len(fragment.rows), plan.dim_v_padded // STEP), stride=(1, PAIR, 2 * PAIR))
    pairs = cute.make_tensor(output.iterator, layout)
    for place in cutlass.range_constexpr(len(fragment.rows)):
        if fragment.rows[place] < work.q.slots:
            row = cute.flat_divide(mO[(fragment.heads[place], fragment.rows[place]), None], (PAIR,))
            for step in cutlass.range_constexpr(steps):
                column = step * (STEP // PAIR) + lane % LANES_PER_ROW
                cute.autovec_copy(pairs[None, place, step], row[None, column])


@cute.jit
def store_box(work: cutlass.Constexpr, o_atom: cute.CopyAtom, mO: cute.Tensor, sO: cute.Tensor, thread: Int32) -> None:
    """Writes the 64 rows of this warpgroup by TMA, which cuts off rows past the axis and padded columns."""
    plan = work.plan
    group = cute.arch.make_warp_uniform(thread // WARPGROUP)
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) % 4 == 0:
        gO = cute.local_tile(mO, ((plan.pack, ROWS // plan.pack), plan.dim_v_padded), (None, 0))
        target, source = tma_copy(o_atom, gO, cute.flat_divide(sO, (ROWS, plan.dim_v_padded))[None, None, None, 0])
        cute.copy(
            o_atom, source[None, group], target[None, (work.head // plan.pack, work.tile * plan.consumers + group)]
        )
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def store_by_rows(work: cutlass.Constexpr, mO: cute.Tensor, sO: cute.Tensor, thread: Int32) -> None:
    """Writes the 64 rows of this warpgroup to `mO` ((heads, slots), dim_v) where the rows are no box of it.

    That is so where they start between two heads, and where the rows of another sequence follow.
    """
    plan = work.plan
    group = cute.arch.make_warp_uniform(thread // WARPGROUP)
    own = cute.domain_offset(((0, work.first_row), 0), mO)
    rows = packing(plan).view(own, work.head, work.q.slots - work.first_row)
    tile = cute.flat_divide(sO, (ROWS, plan.dim_v_padded))[None, None, group, 0]
    store_rows(rows, tile, work.skipped + group * ROWS, thread % WARPGROUP, WARPGROUP)
