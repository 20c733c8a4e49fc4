"""A consumer warpgroup: 64 rows of queries against every visited tile of keys.

The product of weights and values of one tile runs while the warpgroup takes the softmax of the next tile. Warpgroups
take turns in issuing products, so that one's softmax runs beside another's products (FlashAttention-3, arXiv
2407.08608, sections 3.1 and 3.2). Weights stay in registers: the accumulator layout of one product is the operand
layout of the next (PTX ISA, `wgmma.mma_async`, register fragments).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, const_expr, pipeline
from cutlass.cute.nvgpu import warpgroup

from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.common.masks import mask_scores
from attn_dsl.kernels.common.scores import score_scores
from attn_dsl.kernels.common.softmax import LOG2_E
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.kernels.named_barrier import WARPGROUP, ForwardBarriers
from attn_dsl.kernels.sm90.clear import clear_rows, clear_values, may_end_early
from attn_dsl.kernels.sm90.softmax import (
    COLUMNS_PER_STEP,
    ROWS_PER_THREAD,
    by_row,
    finish_softmax,
    move_reference,
    reference_serves,
    rescale,
    weigh,
)
from attn_dsl.lowering.forward.plan import piece_expressions
from attn_dsl.lowering.forward.rules import ROWS

ROW_STEP = 8


def multiply(
    tiled_mma: cute.TiledMma, accumulator: cute.Tensor, a: cute.Tensor, b: cute.Tensor, accumulate: bool
) -> None:
    """Issues accumulator (+)= a @ b as one group of wgmma; `a` and `b` have their k blocks in mode 2."""
    warpgroup.fence()
    # an atom of its own: the accumulate flag is part of the value and must not cross a dynamic loop
    atom = cute.make_mma_atom(tiled_mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, accumulate)
    for block in range(cute.size(a, mode=[2])):
        cute.gemm(atom, accumulator, a[None, None, block], b[None, None, block], accumulator)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@cute.jit
def wait_turn(barriers: cutlass.Constexpr[ForwardBarriers], group: Int32) -> None:
    """Waits until this warpgroup may issue matrix products."""
    if const_expr(barriers.turn):
        cute.arch.barrier(barrier_id=barriers.turn[0].id + group, number_of_threads=barriers.turn[0].threads)


@cute.jit
def pass_turn(barriers: cutlass.Constexpr[ForwardBarriers], group: Int32) -> None:
    """Lets the next warpgroup issue its matrix products."""
    if const_expr(barriers.turn):
        following = group + 1
        if following == len(barriers.turn):
            following = Int32(0)
        cute.arch.barrier_arrive(barrier_id=barriers.turn[0].id + following, number_of_threads=barriers.turn[0].threads)


@cute.jit
def score_and_mask(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    fragment: cutlass.Constexpr,
    scores: cute.Tensor,
    reference: cute.Tensor,
    tile: Int32,
    masked: cutlass.Constexpr[bool],
) -> None:
    """Dot products of one tile, in place, to scores in base 2 above the reference, or, where the plan folds the scale,
    to those before scale and reference."""
    viewed = by_row(scores)
    score_scores(plan, scope.fresh(), fragment, viewed, tile, inside=not masked, references=reference)
    if const_expr(masked):
        mask_scores(plan, scope.fresh(), fragment, viewed, tile)


@cute.jit
def step(
    plan: cutlass.Constexpr,
    barriers: cutlass.Constexpr[ForwardBarriers],
    scope: cutlass.Constexpr,
    fragment: cutlass.Constexpr,
    products: Values,
    operands: Values,
    accumulators: Values,
    pipes: Values,
    group: Int32,
    scale: Float32,
    state: pipeline.PipelineState,
    tile: Int32,
    masked: cutlass.Constexpr[bool],
) -> pipeline.PipelineState:
    """One tile: its scores, the output of the tile before, then its weights. `state` is the ring's place before."""
    qk, pv = products
    queries, keys, values, weights = operands
    scores, output, statistics = accumulators
    reference, base, row_sum = statistics
    _, k_pipe, v_pipe = pipes
    before = state.clone()
    state.advance()
    k_pipe.consumer_wait(state)
    wait_turn(barriers, group)
    multiply(qk, scores, queries, keys[None, None, None, state.index], False)
    v_pipe.consumer_wait(before)
    multiply(pv, output, weights, values[None, None, None, before.index], True)
    pass_turn(barriers, group)
    warpgroup.wait_group(1)
    k_pipe.consumer_release(state)
    score_and_mask(plan, scope, fragment, scores, reference, tile, masked)
    warpgroup.wait_group(0)
    v_pipe.consumer_release(before)
    sums = weigh(scores, weights, reference if plan.fold_scale else None, scale)
    if cute.arch.vote_any_sync(reference_serves(sums, reference, base) == Boolean(False)):
        move_reference(scores, weights, output, statistics, Float32(1.0))
    else:
        for row in cutlass.range_constexpr(ROWS_PER_THREAD):
            row_sum[row] = row_sum[row] + sums[row]
    return state


@cute.jit
def let_pass(
    plan: cutlass.Constexpr,
    barriers: cutlass.Constexpr[ForwardBarriers],
    last_visited: cutlass.Constexpr,
    pipes: Values,
    group: Int32,
    n: Int32,
    values: cute.Tensor,
    keys: Int32,
    thread: Int32,
) -> None:
    """The walk from tile `n` on of a warpgroup without rows: tiles and turns go by, and the others are not held up.

    `values` and `keys` are the ring of V and the length of the sequence.
    """
    q_pipe, k_pipe, v_pipe = pipes
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, plan.stages)
    k_pipe.consumer_wait(state)
    if const_expr(not barriers.queries):  # the output comes to lie where queries still arrive
        q_pipe.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
    k_pipe.consumer_release(state)
    if const_expr(may_end_early(plan)):
        v_pipe.consumer_wait(state)
        clear_values(plan, barriers, values[None, None, state.index], keys - n * plan.tile_k, thread)
    n = last_visited(n - 1)
    while n >= 0:
        before = state.clone()
        state.advance()
        k_pipe.consumer_wait(state)
        wait_turn(barriers, group)
        pass_turn(barriers, group)
        k_pipe.consumer_release(state)
        v_pipe.consumer_wait(before)
        v_pipe.consumer_release(before)
        n = last_visited(n - 1)
    v_pipe.consumer_wait(state)
    v_pipe.consumer_release(state)


@cute.jit
def consume_tiles(
    plan: cutlass.Constexpr,
    barriers: cutlass.Constexpr[ForwardBarriers],
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    products: Values,
    shared: Values,
    pipes: Values,
    thread: Int32,
) -> tuple[cute.Tensor, list[Float32], Fragment]:
    """(output accumulator, lse in base 2, where they stand) of this thread's rows."""
    qk, pv = products
    sQ, sK, sV = shared
    q_pipe, k_pipe, v_pipe = pipes
    group = cute.arch.make_warp_uniform(thread // WARPGROUP)
    lane = thread % WARPGROUP
    qk_part = qk.get_slice(group * WARPGROUP)
    pv_part = pv.get_slice(group * WARPGROUP)
    sVt = cute.composition(sV, cute.make_ordered_layout((plan.dim_v_padded, plan.tile_k, plan.stages), order=(1, 0, 2)))
    queries = qk_part.make_fragment_A(qk_part.partition_A(sQ))
    keys = qk_part.make_fragment_B(qk_part.partition_B(sK))
    values = pv_part.make_fragment_B(pv_part.partition_B(sVt))
    scores = cute.make_rmem_tensor(qk.partition_shape_C((plan.tile_q, plan.tile_k)), Float32)
    output = cute.make_rmem_tensor(pv.partition_shape_C((plan.tile_q, plan.dim_v_padded)), Float32)
    weights = pv_part.make_fragment_A(pv.partition_shape_A((plan.tile_q, plan.tile_k)))
    reference, base, row_sum = (cute.make_rmem_tensor(ROWS_PER_THREAD, Float32) for _ in range(3))
    output.fill(0.0)
    reference.fill(0.0)
    base.fill(-Float32.inf)
    row_sum.fill(0.0)

    own = group * ROWS + lane // 32 * 16 + lane % 32 // 4
    rows, heads = zip(*(work.row(place) for place in (own, own + ROW_STEP)), strict=True)
    fragment = Fragment(
        rows=rows,
        width=COLUMNS_PER_STEP,
        stride=8,
        count=plan.tile_k // 4,
        base=lane % 4 * COLUMNS_PER_STEP,
        heads=heads,
        steps=(0, ROW_STEP) if const_expr(plan.pack == 1) else None,
    )
    (scale,) = scope.fresh().uniform(plan.scale)
    scale = scale * LOG2_E if const_expr(plan.fold_scale) else Float32(1.0)
    bounds = tile_bounds(plan, scope.fresh(), work.first_row, work.last_row, split=work.split)
    last_visited, is_full = bounds.last_visited, bounds.is_full  # an object would be carried by the branches below
    n = bounds.first
    if const_expr(barriers.queries):
        cute.arch.barrier(barrier_id=barriers.queries[0].id, number_of_threads=barriers.queries[0].threads)
    if const_expr(barriers.turn):
        if (n >= 0) & (group == len(barriers.turn) - 1):
            pass_turn(barriers, group)
    has_rows = True if const_expr(plan.consumers == 1) else work.row(group * ROWS)[0] < work.q.count
    if (n >= 0) & (has_rows == Boolean(False)):
        let_pass(plan, barriers, last_visited, pipes, group, n, sV, scope.seq_k, thread)
    if (n >= 0) & has_rows:
        operands, accumulators = (queries, keys, values, weights), (scores, output, (reference, base, row_sum))
        keeping = scope.keeping(fragment, plan.logit, plan.mask.mask, *piece_expressions(plan.mask))
        fixed = (plan, barriers, keeping, fragment, products, operands, accumulators, pipes, group, scale)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, plan.stages)
        k_pipe.consumer_wait(state)
        if const_expr(not barriers.queries):
            q_pipe.consumer_wait(pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1))
        multiply(qk, scores, queries, keys[None, None, None, state.index], False)
        warpgroup.wait_group(0)
        k_pipe.consumer_release(state)
        score_and_mask(plan, keeping, fragment, scores, reference, n, True)
        move_reference(scores, weights, output, accumulators[2], scale, first=True)
        if const_expr(may_end_early(plan)):
            v_pipe.consumer_wait(state)
            clear_values(plan, barriers, sV[None, None, state.index], scope.seq_k - n * plan.tile_k, thread)
        n = last_visited(n - 1)
        # a loop for each class of tiles: its body is one stretch of code, in which waits for the tensor cores can move
        while n >= 0:
            if const_expr(plan.mask.kind != "none"):  # else the first tile alone may be cut by the end of the sequence
                while (n >= 0) & (is_full(n) == Boolean(False)):
                    state = step(*fixed, state, n, True)
                    n = last_visited(n - 1)
            while (n >= 0) & is_full(n):
                state = step(*fixed, state, n, False)
                n = last_visited(n - 1)
        v_pipe.consumer_wait(state)
        multiply(pv, output, weights, values[None, None, None, state.index], True)
        warpgroup.wait_group(0)
        v_pipe.consumer_release(state)

    ending = scope.fresh()
    factors, lse = [], []
    for row in cutlass.range_constexpr(ROWS_PER_THREAD):
        sink = None
        if const_expr(plan.sink is not None):
            sink = ending.evaluate([plan.sink], row=ending.rows(fragment)[row])[0] * LOG2_E
            if const_expr(plan.partial):  # it joins the denominator once
                sink = cutlass.select_(work.split[0] == 0, sink, -Float32.inf)
        factor, logarithm = finish_softmax(base[row], row_sum[row], sink)
        if const_expr(plan.descale_v is not None):
            factor = factor * ending.evaluate([plan.descale_v], row=ending.rows(fragment)[row])[0]
        factors.append(factor)
        lse.append(logarithm)
    rescale(output, factors)
    if const_expr(plan.lengths_q.used is not None):
        lse = clear_rows(by_row(output), lse, fragment.rows, scope.seq_q)
    return output, lse, fragment
