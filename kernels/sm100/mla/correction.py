"""The correction warpgroup: rescales the output in tensor memory, and finishes it: sink, denominator, rounding, LSE.

A thread has one half of the columns of a row: those of its own lane.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, const_expr

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.common.softmax import LN_2, LOG2_E, normalised
from attn_dsl.kernels.pack_gqa import Packing, store_lse, store_rows
from attn_dsl.kernels.sm100.forward.correction import scaled
from attn_dsl.kernels.sm100.forward.load import rows_from
from attn_dsl.kernels.sm100.forward.turns import next_scores
from attn_dsl.kernels.sm100.mla.halves import half_of, row_of
from attn_dsl.kernels.sm100.mla.load import box_of
from attn_dsl.kernels.sm100.mla.visits import visits
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before, load_row, store_row
from attn_dsl.lowering.forward.sm100_mla_plan import ROWS, THREADS

LOAD_COLUMNS = 32  # per instruction


def cleared(row: cute.Tensor, is_there: Boolean) -> None:
    """Makes zeros of every element unless the row is there."""
    for element in range(cute.size(row)):
        row[element] = cutlass.select_(is_there, row[element], Float32(0.0))


@cute.jit
def rescale(plan: cutlass.Constexpr, memory: cute.Pointer, factor: Float32, thread: Int32) -> None:
    """Multiplies this thread's columns of the output with `factor`."""
    count = plan.output_columns
    for column in cutlass.range(plan.column("o0"), plan.column("o0") + plan.half_columns, count, unroll=1):
        row = load_row(memory, column, count, LOAD_COLUMNS, thread)
        cute.arch.fence_view_async_tmem_load()
        scaled(row, factor)
        store_row(memory, column, row, LOAD_COLUMNS, thread)
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def stage(
    plan: cutlass.Constexpr,
    memory: cute.Pointer,
    sO: cute.Tensor,
    factor: Float32,
    visited: cutlass.Constexpr[bool],
    is_there: Boolean,
    thread: Int32,
) -> None:
    """Writes this thread's columns of the output, times `factor` and rounded, to shared memory; zeros if there is
    none."""
    count = plan.output_columns
    vector = 128 // sO.element_type.width
    store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), sO.element_type, num_bits_per_copy=128)
    vectors = cute.flat_divide(sO[row_of(thread), None], (vector,))
    first = half_of(thread) * (plan.half_columns // vector)
    for place in cutlass.range(plan.half_columns // count, unroll=1):
        narrow = cute.make_rmem_tensor(count, sO.element_type)
        if const_expr(visited):
            row = load_row(memory, plan.column("o0") + place * count, count, LOAD_COLUMNS, thread)
            cute.arch.fence_view_async_tmem_load()
            scaled(row, factor)
            if const_expr(plan.q_ends_early):
                cleared(row, is_there)
            narrow.store(row.load().to(sO.element_type))
        else:
            narrow.fill(0.0)
        pieces = cute.flat_divide(narrow, (vector,))
        for piece in cutlass.range_constexpr(count // vector):
            cute.copy(store, pieces[None, piece], vectors[None, first + place * (count // vector) + piece])


@cute.jit
def correct_tiles(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    rank: Int32,
    memory: cute.Pointer,
    statistics: cute.Tensor,
    plain: Values,
    sO: cute.Tensor,
    thread: Int32,
) -> None:
    """Rescales and finishes all rows. `plain` are the rows of the sequence in O and LSE."""
    plan = work.plan
    mO, mLSE = plain
    bounds = visits(work, scope.fresh(), rank)
    last_visited, n = bounds.last_visited, bounds.first
    slot, parity, outputs = Int32(0), Int32(0), Int32(0)
    while n >= 0:
        barriers.wait("stats_full", slot, parity)
        factor = statistics[thread, slot, 0]
        changes = cute.arch.vote_any_sync(factor != 1.0)
        if outputs > 0:
            # every phase is waited for: by its parity alone it is not told from the one before the last
            barriers.wait("o_full", 0, (outputs - 1) & 1)
            if changes:
                fence_after()
                rescale(plan, memory, factor, thread)
                fence_before()
        barriers.arrive("p_full", slot)
        slot, parity = next_scores(plan, slot, parity)
        outputs += 1
        n = last_visited(n - 1)
    barriers.wait("stats_full", slot, parity)
    largest, total = statistics[thread, slot, 0], statistics[thread, slot, 1]
    q_idx, head = work.row(rank * ROWS + row_of(thread))
    is_there = q_idx < work.q.count
    sink, ending = None, scope.fresh()
    if const_expr(plan.sink is not None):
        sink = ending.evaluate([plan.sink], row=ending.row(q_idx, head))[0] * LOG2_E
        if const_expr(plan.partial):
            sink = cutlass.select_(work.split[0] == 0, sink, -Float32.inf)
    factor, lse = normalised(largest, total, sink)
    if const_expr(plan.descale_v is not None):
        factor = factor * ending.evaluate([plan.descale_v], row=ending.row(q_idx, head))[0]
    if const_expr(plan.q_ends_early):
        lse = cutlass.select_(is_there, lse, -Float32.inf)
    if half_of(thread) == 0:
        in_base_2 = plan.partial or plan.lse_base == "2"
        store_lse(mLSE, q_idx, head, work.q.slots, lse if const_expr(in_base_2) else lse * LN_2)
    if outputs > 0:
        barriers.wait("o_full", 0, (outputs - 1) & 1)
        fence_after()
        stage(plan, memory, sO, factor, True, is_there, thread)
    else:
        stage(plan, memory, sO, factor, False, is_there, thread)
    if const_expr(plan.stores_boxes):
        # what threads wrote must be visible to the copy engine before it is told
        cute.arch.fence_view_async_shared()
    barriers.arrive("o_staged", 0)
    if const_expr(not plan.stores_boxes):
        barriers.wait("o_staged", 0, Int32(0))
        store_rows(rows_from(work, mO), sO, work.skipped + rank * ROWS, thread, THREADS)


@cute.jit
def store_tile(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    rank: Int32,
    o_atom: cute.CopyAtom,
    mO: cute.Tensor,
    sO: cute.Tensor,
) -> None:
    """Stores the rows as a box of heads and query rows. What lies past the axis is cut off by TMA. Run by one warp."""
    plan = work.plan
    barriers.wait("o_staged", 0, Int32(0))
    gO = cute.local_tile(mO, (Packing(plan.box_heads, ROWS).box, plan.dim_v_padded), (None, 0))
    target, source = tma_copy(o_atom, gO, cute.append_ones(sO, up_to_rank=3))
    cute.copy(o_atom, source[None, 0], target[None, box_of(work, rank)])
    cute.arch.cp_async_bulk_commit_group()
    cute.arch.cp_async_bulk_wait_group(0, read=True)
