"""The correction warpgroup: rescales outputs in tensor memory, and finishes them: sink, denominator, rounding, LSE."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.common.softmax import LN_2, LOG2_E, normalised
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before, load_row, store_row
from attn_dsl.lowering.forward.sm100_plan import QUERY_TILES, ROWS

COLUMNS = 16  # of the output at a time


@cute.jit
def rescale(
    plan: cutlass.Constexpr, memory: cute.Pointer, place: cutlass.Constexpr[int], factor: Float32, thread: Int32
) -> None:
    """Multiplies this thread's row of the output with `factor`."""
    first = plan.column(f"o{place}")
    for column in cutlass.range_constexpr(0, plan.dim_v_padded, COLUMNS):
        row = load_row(memory, first + column, COLUMNS, COLUMNS, thread)
        cute.arch.fence_view_async_tmem_load()
        for pair in cutlass.range_constexpr(0, COLUMNS, 2):
            row[pair], row[pair + 1] = cute.arch.mul_packed_f32x2((row[pair], row[pair + 1]), (factor, factor))
        store_row(memory, first + column, row, COLUMNS, thread)
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def stage(
    plan: cutlass.Constexpr,
    memory: cute.Pointer,
    sO: cute.Tensor,
    place: cutlass.Constexpr[int],
    factor: Float32,
    visited: cutlass.Boolean,
    thread: Int32,
) -> None:
    """Writes this thread's row of the output, times `factor` and rounded, to shared memory."""
    first = plan.column(f"o{place}")
    vector = 128 // sO.element_type.width
    store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), sO.element_type, num_bits_per_copy=128)
    vectors = cute.flat_divide(sO[thread, None], (vector,))
    for column in cutlass.range_constexpr(0, plan.dim_v_padded, COLUMNS):
        row = cute.make_rmem_tensor(COLUMNS, Float32)
        row.fill(0.0)
        if visited:
            loaded = load_row(memory, first + column, COLUMNS, COLUMNS, thread)
            cute.arch.fence_view_async_tmem_load()
            for place_in in cutlass.range_constexpr(COLUMNS):
                row[place_in] = loaded[place_in] * factor
        rounded = cute.make_rmem_tensor(COLUMNS, sO.element_type)
        rounded.store(row.load().to(sO.element_type))
        pieces = cute.flat_divide(rounded, (vector,))
        for piece in cutlass.range_constexpr(COLUMNS // vector):
            cute.copy(store, pieces[None, piece], vectors[None, column // vector + piece])


@cute.jit
def correct_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    memory: cute.Pointer,
    statistics: cute.Tensor,
    o_tiles: Values,
    mLSE: cute.Tensor,
    first_row: Int32,
    last_row: Int32,
    thread: Int32,
) -> None:
    """Rescales and finishes both query tiles; a thread works on one row of each."""
    bounds = tile_bounds(plan, scope.fresh(), first_row, last_row)
    last_visited = bounds.last_visited
    visited = bounds.first >= 0
    n, turn, is_first = bounds.first, Int32(0), cutlass.Boolean(True)
    while n >= 0:
        for place in cutlass.range_constexpr(QUERY_TILES):
            barriers.wait("stats_full", place, turn)
            factor = statistics[thread, place, 0]
            barriers.arrive("stats_empty", place)
            changes = cute.arch.vote_any_sync(factor != 1.0)
            # there is no output before the first tile; later, scores that are there say that it is complete
            if changes and not is_first:
                fence_after()
                rescale(plan, memory, place, factor, thread)
                fence_before()
            barriers.arrive("p_full", place)
        is_first = cutlass.Boolean(False)
        turn ^= 1
        n = last_visited(n - 1)
    sink = None
    if const_expr(plan.sink is not None):
        (logit,) = scope.fresh().uniform(plan.sink)
        sink = logit * LOG2_E
    for place in cutlass.range_constexpr(QUERY_TILES):
        barriers.wait("stats_full", place, turn)
        largest, total = statistics[thread, place, 0], statistics[thread, place, 1]
        factor, lse = normalised(largest, total, sink)
        row = first_row + place * ROWS + thread
        if row < scope.seq_q:
            mLSE[row, scope.h, scope.b] = lse if const_expr(plan.lse_base == "2") else lse * LN_2
        if visited:
            barriers.wait("o_full", place, Int32(0))
            fence_after()
        stage(plan, memory, o_tiles[place], place, factor, visited, thread)
        # what threads wrote must be visible to the copy engine before it is told
        cute.arch.fence_view_async_shared()
        barriers.arrive("o_staged", place)
