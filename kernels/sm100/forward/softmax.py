"""A softmax warpgroup: scores of one query tile out of tensor memory, weights back into it; a thread holds a row.

The output is only rescaled where a row's maximum has risen by more than the plan's threshold (FlashAttention-4's lazy
rescaling): until then weights are taken from the old reference, which changes nothing but their common factor.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.masks import mask_scores
from attn_dsl.kernels.common.scores import score_scores
from attn_dsl.kernels.common.softmax import LOG2_E, exp2
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before, load_row, store_row
from attn_dsl.lowering.forward.sm100_plan import ROWS, SLOT

CHAINS = 4  # independent chains of a reduction
LOAD_COLUMNS = 32  # per instruction
STORE_COLUMNS = 16  # per instruction: 32 weights


def largest_of(row: cute.Tensor) -> Float32:
    """The largest element of `row`."""
    values = [row[place] for place in range(cute.size(row))]
    chains = values[:CHAINS]
    for place, value in enumerate(values[CHAINS:]):
        chains[place % CHAINS] = cute.arch.fmax(chains[place % CHAINS], value)
    return cute.arch.fmax(cute.arch.fmax(chains[0], chains[1]), cute.arch.fmax(chains[2], chains[3]))


def sum_of(values: list[Float32]) -> Float32:
    """The sum of `values`, two chains of pairs."""
    pairs = [(values[place], values[place + 1]) for place in range(0, len(values), 2)]
    chains = pairs[:2]
    for place, pair in enumerate(pairs[2:]):
        chains[place % 2] = cute.arch.add_packed_f32x2(chains[place % 2], pair)
    low, high = cute.arch.add_packed_f32x2(*chains)
    return low + high


def weigh(row: cute.Tensor, scale: Float32, base: Float32) -> Float32:
    """Replaces every score by exp2(scale * score - base); their sum."""
    weights: list[Float32] = []
    for place in range(0, cute.size(row), 2):
        pair = cute.arch.fma_packed_f32x2((row[place], row[place + 1]), (scale, scale), (-base, -base))
        weights += [exp2(value) for value in pair]
    for place, weight in enumerate(weights):
        row[place] = weight
    return sum_of(weights)


def rounded(row: cute.Tensor, element: Any) -> cute.Tensor:
    """`row` in 16 bits, two neighbours at a time, viewed as words of 32 bits."""
    narrow = cute.make_rmem_tensor(cute.size(row), element)
    for place in range(0, cute.size(row), 2):
        wide = cute.make_tensor(row.iterator + place, cute.make_layout(2))
        cute.make_tensor(narrow.iterator + place, cute.make_layout(2)).store(wide.load().to(element))
    return cute.recast_tensor(narrow, Float32)


def fragment_of(plan: Any, row: Int32) -> Fragment:
    """A thread's scores: all columns of one row."""
    stride = 1 << (plan.tile_k - 1).bit_length()
    return Fragment(rows=(row,), width=plan.tile_k, stride=stride, count=plan.tile_k, base=Int32(0))


@cute.jit
def softmax_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    memory: cute.Pointer,
    statistics: cute.Tensor,
    element: cutlass.Constexpr,
    first_row: Int32,
    last_row: Int32,
    place: Int32,
    thread: Int32,
) -> None:
    """The softmax of query tile `place`. Leaves reference and sum of each row in `statistics` (rows, tiles, 2)."""
    bounds = tile_bounds(plan, scope.fresh(), first_row, last_row)
    last_visited, is_full = bounds.last_visited, bounds.is_full
    fragment = fragment_of(plan, first_row + place * ROWS + thread)
    (scale,) = scope.fresh().uniform(plan.scale)
    to_log2 = scale * LOG2_E if const_expr(plan.fold_scale) else Float32(1.0)
    reference, total = -Float32.inf, Float32(0.0)
    n, turn = bounds.first, Int32(0)
    scores_at, weights_at = place * SLOT + plan.column("s0"), place * SLOT + plan.column("p0")
    while n >= 0:
        barriers.wait("s_full", place, turn)
        fence_after()
        row = load_row(memory, scores_at, plan.tile_k, LOAD_COLUMNS, thread)
        cute.arch.fence_view_async_tmem_load()
        viewed = cute.make_tensor(row.iterator, cute.make_layout((1, plan.tile_k)))
        score_scores(plan, scope.fresh(), fragment, viewed, n)
        if not is_full(n):
            mask_scores(plan, scope.fresh(), fragment, viewed, n)
        largest = cute.arch.fmax(reference, largest_of(row))
        # -inf - -inf is NaN, which is not small either
        largest = cutlass.select_((largest - reference) * to_log2 <= plan.threshold, reference, largest)
        # a row without a visible key has -inf here; any finite number makes its weights exp2(-inf) = 0
        base = cutlass.select_(largest == -Float32.inf, Float32(0.0), largest) * to_log2
        factor = cutlass.select_(largest == reference, Float32(1.0), exp2(reference * to_log2 - base))
        barriers.wait("stats_empty", place, turn ^ 1)
        statistics[thread, place, 0] = factor
        barriers.arrive("stats_full", place)
        added = weigh(row, to_log2, base)
        store_row(memory, weights_at, rounded(row, element), STORE_COLUMNS, thread)
        cute.arch.fence_view_async_tmem_store()
        fence_before()
        barriers.arrive("p_full", place)
        total = total * factor + added
        reference = largest
        turn ^= 1
        n = last_visited(n - 1)
    barriers.wait("stats_empty", place, turn ^ 1)
    statistics[thread, place, 0] = reference * to_log2
    statistics[thread, place, 1] = total
    barriers.arrive("stats_full", place)
