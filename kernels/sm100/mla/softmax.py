"""The softmax warpgroup: scores out of tensor memory, weights back into it; two threads hold a row, half of it each.

Rescaling is as lazy as in `sm100.forward.softmax`.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, const_expr

from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.common.masks import apply_words, keep_words
from attn_dsl.kernels.common.softmax import LOG2_E
from attn_dsl.kernels.sm100.forward.softmax import columns_of, follow, largest_of, rounded, scored, weigh
from attn_dsl.kernels.sm100.forward.turns import last_scores, next_scores
from attn_dsl.kernels.sm100.mla.halves import UPPER, half_of, load_halves, row_of, store_halves
from attn_dsl.kernels.sm100.mla.visits import visits
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before
from attn_dsl.lowering.forward.sm100_mla_plan import HALF_LANES, HALVES, ROWS


def fragment_of(work: Any, rank: Int32, thread: Int32) -> Fragment:
    """A thread's scores: one half of the columns of one row."""
    plan = work.plan
    q_idx, head = work.row(rank * ROWS + row_of(thread))
    heads = None if plan.pack == 1 else (head,)
    one = Fragment(rows=(q_idx,), width=1, stride=1, count=1, base=Int32(0), heads=heads)
    return columns_of(one, half_of(thread) * plan.thread_keys, plan.thread_keys)


def other_half(value: Float32) -> Float32:
    """The value of the thread that holds the other half of this thread's row."""
    return cute.arch.shuffle_sync_bfly(value, HALF_LANES)


@cute.jit
def score_row(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    fragment: cutlass.Constexpr,
    memory: cute.Pointer,
    scores_at: Int32,
    thread: Int32,
    n: Int32,
    masked: cutlass.Constexpr[bool],
) -> None:
    """Dot products to scores, where they lie in tensor memory, a few columns at a time."""
    count = plan.score_columns
    for first in cutlass.range(0, plan.thread_keys, count, unroll=1):
        row = load_halves(memory, scores_at + first, count, plan.thread_keys, thread)
        cute.arch.fence_view_async_tmem_load()
        viewed = cute.make_tensor(row.iterator, cute.make_layout((1, count)))
        scored(plan, scope, columns_of(fragment, fragment.base + first, count), viewed, n, masked)
        store_halves(memory, scores_at + first, row, plan.thread_keys, thread)
    cute.arch.fence_view_async_tmem_store()


@cute.jit
def step(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    fragment: cutlass.Constexpr,
    memory: cute.Pointer,
    statistics: cute.Tensor,
    element: cutlass.Constexpr,
    scale: Float32,
    thread: Int32,
    state: Values,
    n: Int32,
    masked: cutlass.Constexpr[bool],
) -> tuple[Int32, Int32, Float32, Float32]:
    """Scores of key tile `n` to weights. `state` is (slot, parity, reference, total) before; returns them after. The
    total is that of the thread's own columns."""
    slot, parity, reference, total = state
    count = plan.thread_keys
    scores_at = plan.column("s0") + slot * plan.tile_k
    weights_at = plan.column("p0") + slot * (plan.tile_k // 2)
    if const_expr(masked):
        words = keep_words(plan, scope.fresh(), fragment, n)
    barriers.wait("s_full", slot, parity)
    fence_after()
    if const_expr(not plan.fold_scale):
        score_row(plan, scope, fragment, memory, scores_at, thread, n, masked)
    row = load_halves(memory, scores_at, count, count, thread)
    cute.arch.fence_view_async_tmem_load()
    viewed = cute.make_tensor(row.iterator, cute.make_layout((1, count)))
    if const_expr(masked):
        apply_words(fragment, viewed, words)
    largest = largest_of([reference, *(row[place] for place in range(count))])
    largest = cute.arch.fmax(largest, other_half(largest))
    largest, base, factor = follow(plan, largest, reference, scale)
    statistics[thread, slot, 0] = factor
    barriers.arrive("stats_full", slot)
    sums = [(total * factor, Float32(0.0))]
    weigh(row, scale, base, plan.exp2_on_fma, sums)
    weights = rounded(row, element)
    for half in cutlass.range_constexpr(HALVES):
        store_halves(memory, weights_at + half * UPPER, weights, count // 2, thread)
    cute.arch.fence_view_async_tmem_store()
    fence_before()
    barriers.arrive("p_full", slot)
    low, high = cute.arch.add_packed_f32x2(*sums)
    slot, parity = next_scores(plan, slot, parity)
    return slot, parity, largest, low + high


@cute.jit
def softmax_tiles(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    rank: Int32,
    memory: cute.Pointer,
    statistics: cute.Tensor,
    element: cutlass.Constexpr,
    thread: Int32,
) -> None:
    """The softmax of all rows. Leaves reference and sum of each row in `statistics` (threads, slots, 2), for both of
    its threads."""
    plan = work.plan
    bounds = visits(work, scope.fresh(), rank)
    last_visited, is_full = bounds.last_visited, bounds.is_full
    fragment = fragment_of(work, rank, thread)
    (scale,) = scope.fresh().uniform(plan.scale)
    to_log2 = scale * LOG2_E if const_expr(plan.fold_scale) else Float32(1.0)
    fixed = (plan, scope, barriers, fragment, memory, statistics, element, to_log2, thread)
    slot, parity = Int32(0), Int32(0)
    reference, total = -Float32.inf, Float32(0.0)
    n = bounds.first
    # a loop for each class of tiles: in one loop, mask code would run for full tiles too, with its results thrown away
    while n >= 0:
        while (n >= 0) & (is_full(n) == Boolean(False)):
            slot, parity, reference, total = step(*fixed, (slot, parity, reference, total), n, True)
            n = last_visited(n - 1)
        while (n >= 0) & is_full(n):
            slot, parity, reference, total = step(*fixed, (slot, parity, reference, total), n, False)
            n = last_visited(n - 1)
    if bounds.first >= 0:
        # the last factor has been read
        before, turn = last_scores(plan, slot, parity)
        barriers.wait("p_full", before, turn)
    statistics[thread, slot, 0] = reference * to_log2
    statistics[thread, slot, 1] = total + other_half(total)
    barriers.arrive("stats_full", slot)
