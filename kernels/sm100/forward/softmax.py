"""A softmax warpgroup: scores of one query tile out of tensor memory, weights back into it; a thread holds a row.

The output is only rescaled where a row's maximum has risen by more than the plan's threshold (FlashAttention-4's lazy
rescaling): until then weights are taken from the old reference, which changes nothing but their common factor.
"""

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, const_expr

from attn_dsl.kernels.common.algebra import here, instruction
from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.common.masks import apply_words, keep_words
from attn_dsl.kernels.common.scores import score_scores
from attn_dsl.kernels.common.softmax import LOG2_E, exp2
from attn_dsl.kernels.sm100.exp2 import Pair, exp2_pair
from attn_dsl.kernels.sm100.forward.turns import last_scores, next_scores
from attn_dsl.kernels.sm100.forward.visits import query_tile_bounds
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before, load_row, store_row
from attn_dsl.lowering.forward.pressure import kept
from attn_dsl.lowering.forward.sm100_plan import ROWS, SLOT

CHAINS = 4  # independent chains of a maximum
SUMS = 2  # independent chains of a sum, of pairs
LOAD_COLUMNS = 32  # per instruction
STORE_COLUMNS = 16  # per instruction: 32 weights


def largest_of(values: list[Float32]) -> Float32:
    """The largest of `values`, two of them per instruction (PTX ISA, max: three operands on sm_100)."""
    chains, rest = values[:CHAINS], values[CHAINS:]
    for place in range(0, len(rest), 2):
        chain = place // 2 % CHAINS
        chains[chain] = _largest(chains[chain], *rest[place : place + 2])
    return _largest(_largest(*chains[:3]), chains[3])


def _largest(*values: Float32) -> Float32:
    names = ", ".join(f"${place}" for place in range(len(values) + 1))
    return instruction(f"max.f32 {names};", Float32, ",".join(["=f", *("f" for _ in values)]), *values)


def weigh(row: cute.Tensor, scale: Float32, base: Float32, on_fma: int, sums: list[Pair]) -> None:
    """Replaces every score by exp2(scale * score - base), and adds the weights to `sums`."""
    for place in range(0, cute.size(row), 2):
        power = cute.arch.fma_packed_f32x2((row[place], row[place + 1]), (scale, scale), (-base, -base))
        pair = exp2_pair(power, place // 2, on_fma)
        row[place], row[place + 1] = pair
        if len(sums) < SUMS:
            sums.append(pair)
        else:
            chain = place // 2 % SUMS
            sums[chain] = cute.arch.add_packed_f32x2(sums[chain], pair)


def rounded(row: cute.Tensor, element: Any) -> cute.Tensor:
    """`row` in 16 bits, two neighbours at a time, viewed as words of 32 bits."""
    narrow = cute.make_rmem_tensor(cute.size(row), element)
    for place in range(0, cute.size(row), 2):
        wide = cute.make_tensor(row.iterator + place, cute.make_layout(2))
        cute.make_tensor(narrow.iterator + place, cute.make_layout(2)).store(wide.load().to(element))
    return cute.recast_tensor(narrow, Float32)


def fragment_of(work: Any, place: Int32) -> Fragment:
    """A thread's scores: all columns of one row, counted in the thread block."""
    q_idx, head = work.row(place)
    heads = None if work.plan.pack == 1 else (head,)
    one = Fragment(rows=(q_idx,), width=1, stride=1, count=1, base=Int32(0), heads=heads)
    return columns_of(one, Int32(0), work.plan.tile_k)


def columns_of(fragment: Fragment, first: Int32, count: int) -> Fragment:
    """`count` neighbouring columns of the rows of `fragment`, from tile column `first` on."""
    return replace(fragment, width=count, stride=1 << (count - 1).bit_length(), count=count, base=first)


def scored(plan: Any, scope: Any, columns: Fragment, dots: cute.Tensor, n: Int32, masked: bool) -> None:
    """Dot products `dots` (1, columns) to scores. What is too much to keep from columns to columns is made again."""
    keeps = kept(plan, plan.logit)
    inside = scope.here() if keeps.remakes_uniform else scope.fresh()
    if keeps.remakes_rows:
        columns = replace(columns, rows=tuple(map(here, columns.rows)))
    score_scores(plan, inside, columns, dots, n, inside=not masked, pairs=True)


@cute.jit
def follow(
    plan: cutlass.Constexpr, largest: Float32, reference: Float32, scale: Float32
) -> tuple[Float32, Float32, Float32]:
    """The reference of a row whose largest score is `largest`: the old one until a maximum rises past the threshold.

    Returns it, the same times `scale` and finite, and what older weights and outputs are to be multiplied with.
    """
    # -inf - -inf is NaN, which is not small either
    largest = cutlass.select_((largest - reference) * scale <= plan.threshold, reference, largest)
    # a row without a visible key has -inf here; any finite number makes its weights exp2(-inf) = 0
    base = cutlass.select_(largest == -Float32.inf, Float32(0.0), largest) * scale
    factor = Float32(1.0)
    if cute.arch.vote_any_sync(largest != reference):
        factor = cutlass.select_(largest == reference, Float32(1.0), exp2(reference * scale - base))
    return largest, base, factor


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
    """Dot products to scores, where they lie in tensor memory, a few columns at a time.

    The code of a score is as long as it is for those columns, and so are the registers it needs.
    """
    count = plan.score_columns
    for first in cutlass.range(0, plan.tile_k, count, unroll=1):
        row = load_row(memory, scores_at + first, count, count, thread)
        cute.arch.fence_view_async_tmem_load()
        viewed = cute.make_tensor(row.iterator, cute.make_layout((1, count)))
        scored(plan, scope, columns_of(fragment, first, count), viewed, n, masked)
        store_row(memory, scores_at + first, row, count, thread)
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
    """Scores of key tile `n` to weights. `state` is (slot, parity, reference, total) before; returns them after."""
    slot, parity, reference, total = state
    scores_at, weights_at = slot * SLOT + plan.column("s0"), slot * SLOT + plan.column("p0")
    if const_expr(masked):
        words = keep_words(plan, scope.fresh(), fragment, n)
    barriers.wait("s_full", slot, parity)
    fence_after()
    if const_expr(not plan.fold_scale):
        score_row(plan, scope, fragment, memory, scores_at, thread, n, masked)
    row = load_row(memory, scores_at, plan.tile_k, LOAD_COLUMNS, thread)
    cute.arch.fence_view_async_tmem_load()
    viewed = cute.make_tensor(row.iterator, cute.make_layout((1, plan.tile_k)))
    if const_expr(masked):
        apply_words(fragment, viewed, words)
    largest = largest_of([reference, *(row[place] for place in range(plan.tile_k))])
    largest, base, factor = follow(plan, largest, reference, scale)
    statistics[thread, slot, 0] = factor
    barriers.arrive("stats_full", slot)
    sums = [(total * factor, Float32(0.0))]
    for column in cutlass.range_constexpr(0, plan.tile_k, 2 * STORE_COLUMNS):
        piece = cute.make_tensor(row.iterator + column, cute.make_layout(2 * STORE_COLUMNS))
        weigh(piece, scale, base, plan.exp2_on_fma, sums)
        store_row(memory, weights_at + column // 2, rounded(piece, element), STORE_COLUMNS, thread)
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
    memory: cute.Pointer,
    statistics: cute.Tensor,
    element: cutlass.Constexpr,
    place: Int32,
    thread: Int32,
) -> None:
    """The softmax of query tile `place`. Leaves reference and sum of each row in `statistics` (rows, slots, 2)."""
    plan = work.plan
    bounds = query_tile_bounds(work, scope.fresh(), place)
    last_visited, is_full = bounds.last_visited, bounds.is_full
    fragment = fragment_of(work, place * ROWS + thread)
    (scale,) = scope.fresh().uniform(plan.scale)
    to_log2 = scale * LOG2_E if const_expr(plan.fold_scale) else Float32(1.0)
    fixed = (plan, scope, barriers, fragment, memory, statistics, element, to_log2, thread)
    slot, parity = Int32(0) if const_expr(plan.keys_ahead) else place, Int32(0)
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
    statistics[thread, slot, 1] = total
    barriers.arrive("stats_full", slot)
