"""The correction warpgroup: rescales outputs in tensor memory, and finishes them: sink, denominator, rounding, LSE."""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, const_expr

from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.common.softmax import LN_2, LOG2_E, normalised
from attn_dsl.kernels.pack_gqa import store_lse
from attn_dsl.kernels.sm100.forward.epilogue import scatter_tile
from attn_dsl.kernels.sm100.forward.load import gather_queries
from attn_dsl.kernels.sm100.forward.parts import store_part
from attn_dsl.kernels.sm100.forward.turns import next_scores
from attn_dsl.kernels.sm100.forward.visits import visits
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before, load_row, store_row
from attn_dsl.lowering.forward.sm100_plan import ROWS


def scaled(row: cute.Tensor, factor: Float32) -> None:
    """Multiplies every element with `factor`."""
    for pair in range(0, cute.size(row), 2):
        row[pair], row[pair + 1] = cute.arch.mul_packed_f32x2((row[pair], row[pair + 1]), (factor, factor))


@cute.jit
def rescale(
    plan: cutlass.Constexpr, memory: cute.Pointer, place: cutlass.Constexpr[int], factor: Float32, thread: Int32
) -> None:
    """Multiplies this thread's row of the output with `factor`."""
    first, count = plan.column(f"o{place}"), plan.output_columns
    for column in cutlass.range_constexpr(0, plan.dim_v_padded, count):
        row = load_row(memory, first + column, count, count, thread)
        cute.arch.fence_view_async_tmem_load()
        scaled(row, factor)
        store_row(memory, first + column, row, count, thread)
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def stage(
    plan: cutlass.Constexpr,
    memory: cute.Pointer,
    sO: cute.Tensor,
    place: cutlass.Constexpr[int],
    factor: Float32,
    visited: cutlass.Constexpr[bool],
    is_there: Boolean,
    thread: Int32,
) -> None:
    """Writes this thread's row of the output, times `factor` and rounded, to shared memory; zeros if there is none."""
    first, count = plan.column(f"o{place}"), plan.output_columns
    vector = 128 // sO.element_type.width
    store = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), sO.element_type, num_bits_per_copy=128)
    vectors = cute.flat_divide(sO[thread, None], (vector,))
    for column in cutlass.range_constexpr(0, plan.dim_v_padded, count):
        rounded = cute.make_rmem_tensor(count, sO.element_type)
        if const_expr(visited):
            row = load_row(memory, first + column, count, count, thread)
            scaled(row, factor)
            if const_expr(plan.q_ends_early):
                for element in cutlass.range_constexpr(count):
                    row[element] = cutlass.select_(is_there, row[element], Float32(0.0))
            rounded.store(row.load().to(sO.element_type))
        else:
            rounded.fill(0.0)
        pieces = cute.flat_divide(rounded, (vector,))
        for piece in cutlass.range_constexpr(count // vector):
            cute.copy(store, pieces[None, piece], vectors[None, column // vector + piece])


@cute.jit
def correct_tiles(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    memory: cute.Pointer,
    statistics: cute.Tensor,
    plain: Values,
    tiles: Values,
    thread: Int32,
) -> None:
    """Rescales and finishes all query tiles; a thread works on one row of each.

    `plain` are the rows of the sequence in Q, O and LSE, `tiles` the tiles of Q and O in shared memory. Bit i of
    `begun` and `turns` is of query tile i: there is an output, the parity of the phase in which its next statistics
    come.
    """
    plan = work.plan
    mQ, mO, mLSE = plain
    q_tiles, o_tiles = tiles
    seen = visits(work, scope.fresh())
    if const_expr(not plan.by_tma):
        gather_queries(work, barriers, mQ, q_tiles, seen, thread)
    following, sees, n = seen.following, seen.sees, seen.first
    begun, turns = Int32(0), Int32(0)
    slot, last_output = Int32(0), Int32(1)  # with one query tile: the slot of the scores, the parity of the last output
    while n >= 0:
        for place in cutlass.range_constexpr(plan.query_tiles):
            if sees(place, n):
                at = slot if const_expr(plan.keys_ahead) else place
                bit = 1 << place
                barriers.wait("stats_full", at, turns >> place & 1)
                factor = statistics[thread, at, 0]
                changes = cute.arch.vote_any_sync(factor != 1.0)
                if const_expr(plan.keys_ahead):
                    # every phase is waited for: by its parity alone it is not told from the one before the last
                    if begun != 0:
                        barriers.wait("o_full", 0, last_output)
                # there is no output before the first tile; with more than one query tile, scores that are there say
                # that the output before them is complete
                if changes and begun & bit != 0:
                    fence_after()
                    rescale(plan, memory, place, factor, thread)
                    fence_before()
                barriers.arrive("p_full", at)
                begun |= bit
                if const_expr(plan.keys_ahead):
                    slot, turns = next_scores(plan, slot, turns)
                    last_output ^= 1
                else:
                    turns ^= bit
        n = following(n)
    for place in cutlass.range_constexpr(plan.query_tiles):
        at = slot if const_expr(plan.keys_ahead) else place
        barriers.wait("stats_full", at, turns >> place & 1)
        largest, total = statistics[thread, at, 0], statistics[thread, at, 1]
        q_idx, head = work.row(place * ROWS + thread)
        is_there = q_idx < work.q.count
        sink, ending = None, scope.fresh()
        if const_expr(plan.sink is not None):
            sink = ending.evaluate([plan.sink], row=ending.row(q_idx, head))[0] * LOG2_E
            if const_expr(plan.partial):  # it joins one part alone
                sink = cutlass.select_(work.split[0] == 0, sink, -Float32.inf)
        factor, lse = normalised(largest, total, sink)
        if const_expr(plan.descale_v is not None):
            factor = factor * ending.evaluate([plan.descale_v], row=ending.row(q_idx, head))[0]
        if const_expr(plan.q_ends_early):
            lse = cutlass.select_(is_there, lse, -Float32.inf)
        in_base_2 = plan.partial or plan.lse_base == "2"
        store_lse(mLSE, q_idx, head, work.q.slots, lse if const_expr(in_base_2) else lse * LN_2)
        if begun & 1 << place != 0:
            barriers.wait("o_full", place, last_output if const_expr(plan.keys_ahead) else Int32(0))
            fence_after()
            if const_expr(plan.stages_output):
                stage(plan, memory, o_tiles[place], place, factor, True, is_there, thread)
            else:
                store_part(work, memory, mO, place, factor, True, q_idx, head, thread)
        elif const_expr(plan.stages_output):
            stage(plan, memory, o_tiles[place], place, factor, False, is_there, thread)
        else:
            store_part(work, memory, mO, place, factor, False, q_idx, head, thread)
        if const_expr(plan.stages_output):
            if const_expr(plan.stores_boxes):
                # what threads wrote must be visible to the copy engine before it is told
                cute.arch.fence_view_async_shared()
            barriers.arrive("o_staged", place)
            if const_expr(not plan.stores_boxes):
                scatter_tile(work, barriers, mO, o_tiles[place], place, thread)
    # outputs have been read before tensor memory is freed; until here, a dependence on their registers was enough
    cute.arch.fence_view_async_tmem_load()
    fence_before()
