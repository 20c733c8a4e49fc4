"""The MMA warp: one thread issues S = Q K^T and O += P V.

While one tile's scores are made into weights, the tensor cores work for another: with two query tiles for the other of
them (FlashAttention-4's ping-pong), with one for the scores of the next keys. Products of one thread run in the order
they are issued, so scores may follow the weights that lie in their place.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from cutlass.cute.nvgpu import tcgen05

from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.sm100.forward.clear import wait_clear
from attn_dsl.kernels.sm100.forward.turns import next_scores, parts
from attn_dsl.kernels.sm100.forward.visits import visits
from attn_dsl.kernels.sm100.operands import Operands
from attn_dsl.kernels.sm100.tcgen05 import fence_after, multiply_shared, multiply_tensor
from attn_dsl.lowering.forward.sm100_plan import SLOT

WEIGHT_COLUMNS = 8  # of tensor memory, per instruction: 16 weights of 16 bits


@cute.jit
def wait_for(barriers: cutlass.Constexpr, places: cutlass.Constexpr) -> None:
    """Waits until parts of K or V have landed."""
    for slot, parity in places:
        barriers.wait("kv_full", slot, parity)
    if const_expr(barriers.plan.loads_rows):
        # threads wrote them, matrix products read them through the async proxy
        cute.arch.fence_view_async_shared()


@cute.jit
def release(barriers: cutlass.Constexpr, places: cutlass.Constexpr) -> None:
    """Gives parts back when the products issued so far are done."""
    with cute.arch.elect_one():
        for slot, _ in places:
            tcgen05.commit(barriers.at("kv_empty", slot))


@cute.jit
def scores_of(
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    place: cutlass.Constexpr[int],
    scores: Int32,
    memory: Int32,
    starts: Values,
    places: cutlass.Constexpr,
) -> None:
    """Issues the scores of query tile `place` against the keys at `places` of the ring, into a slot of scores."""
    q_starts, ring = starts
    with cute.arch.elect_one():
        column = memory + scores * SLOT
        q, k = q_starts[place] + operands.q[0].low, ring + operands.k.low
        for part in cutlass.range_constexpr(len(places)):
            start = k + places[part][0] * operands.part
            multiply_shared(column, operands.q[part], q, operands.k, start, operands.qk, part > 0)
        tcgen05.commit(barriers.at("s_full", scores))


@cute.jit
def output_of(
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    place: cutlass.Constexpr[int],
    scores: Int32,
    memory: Int32,
    starts: Values,
    places: cutlass.Constexpr,
    accumulate: Int32,
) -> None:
    """Issues the output of query tile `place` for the values at `places` of the ring and a slot of weights."""
    plan = barriers.plan
    with cute.arch.elect_one():
        weights, v = memory + plan.column("p0") + scores * SLOT, starts[1] + operands.v.low
        for part in cutlass.range_constexpr(len(places)):
            target = memory + plan.column(f"o{place}") + part * plan.v_part
            start = v + places[part][0] * operands.part
            multiply_tensor(target, weights, WEIGHT_COLUMNS, operands.v, start, operands.pv, accumulate)


@cute.jit
def commit(barriers: cutlass.Constexpr, name: cutlass.Constexpr[str], slot: Int32) -> None:
    """Lets the products issued so far complete a phase of `name`."""
    with cute.arch.elect_one():
        tcgen05.commit(barriers.at(name, slot))


@cute.jit
def multiply_in_turns(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    memory: Int32,
    starts: Values,
) -> None:
    """All products of a thread block with several query tiles, each with its own slot of scores. Run by one warp.

    `memory` is the address of tensor memory; `starts` are the start address fields of the query tiles and of the ring.
    Bit i of `waiting`, `begun` and `turns` is of query tile i: weights are to come, there is an output, the parity of
    the phase in which its weights come.
    """
    plan = work.plan
    seen = visits(work, scope.fresh())
    following, sees, n = seen.following, seen.sees, seen.first
    if n >= 0:
        keys, slot, parity = parts(plan, Int32(0), Int32(0), plan.k_parts)
        wait_for(barriers, keys)
        waiting, begun, turns = Int32(0), Int32(0), Int32(0)
        for place in cutlass.range_constexpr(plan.query_tiles):
            if seen.tiles[place].first >= 0:
                barriers.wait("q_full", place, Int32(0))
            if sees(place, n):
                scores_of(barriers, operands, place, Int32(place), memory, starts, keys)
                waiting |= 1 << place
        release(barriers, keys)
        if const_expr(plan.clears):
            wait_clear(plan, scope, barriers, n)
        n = following(n)
        while n >= 0:
            values, slot, parity = parts(plan, slot, parity, plan.v_parts)
            new_keys, slot, parity = parts(plan, slot, parity, plan.k_parts)
            wait_for(barriers, values)
            for place in cutlass.range_constexpr(plan.query_tiles):
                bit = 1 << place
                if waiting & bit != 0:
                    barriers.wait("p_full", place, turns >> place & 1)
                    fence_after()
                    output_of(barriers, operands, place, Int32(place), memory, starts, values, begun & bit)
                    begun |= bit
                    turns ^= bit
                if const_expr(place == 0):
                    wait_for(barriers, new_keys)
                if const_expr(place == plan.query_tiles - 1):
                    release(barriers, values)
                waiting &= ~bit
                if sees(place, n):
                    scores_of(barriers, operands, place, Int32(place), memory, starts, new_keys)
                    waiting |= bit
            release(barriers, new_keys)
            n = following(n)
        last_values, _, _ = parts(plan, slot, parity, plan.v_parts)
        wait_for(barriers, last_values)
        for place in cutlass.range_constexpr(plan.query_tiles):
            bit = 1 << place
            if waiting & bit != 0:
                barriers.wait("p_full", place, turns >> place & 1)
                fence_after()
                output_of(barriers, operands, place, Int32(place), memory, starts, last_values, begun & bit)
            commit(barriers, "o_full", Int32(place))


@cute.jit
def multiply_ahead(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    memory: Int32,
    starts: Values,
) -> None:
    """As `multiply_in_turns`, of a thread block with one query tile: the next scores are made before an output."""
    plan = work.plan
    seen = visits(work, scope.fresh())
    following, n = seen.following, seen.first
    if n >= 0:
        keys, slot, parity = parts(plan, Int32(0), Int32(0), plan.k_parts)
        wait_for(barriers, keys)
        barriers.wait("q_full", 0, Int32(0))
        scores, turn = Int32(0), Int32(0)
        scores_of(barriers, operands, 0, scores, memory, starts, keys)
        release(barriers, keys)
        first, begun = n, Int32(0)
        n = following(n)
        while n >= 0:
            new_keys, slot, parity = parts(plan, slot, parity, plan.k_parts)
            values, slot, parity = parts(plan, slot, parity, plan.v_parts)
            wait_for(barriers, new_keys)
            scores_of(barriers, operands, 0, scores ^ 1, memory, starts, new_keys)
            release(barriers, new_keys)
            wait_for(barriers, values)
            if const_expr(plan.clears):
                wait_clear(plan, scope, barriers, first)
            barriers.wait("p_full", scores, turn)
            fence_after()
            output_of(barriers, operands, 0, scores, memory, starts, values, begun)
            release(barriers, values)
            commit(barriers, "o_full", Int32(0))
            begun = Int32(1)
            scores, turn = next_scores(plan, scores, turn)
            n = following(n)
        last_values, _, _ = parts(plan, slot, parity, plan.v_parts)
        wait_for(barriers, last_values)
        if const_expr(plan.clears):
            wait_clear(plan, scope, barriers, first)
        barriers.wait("p_full", scores, turn)
        fence_after()
        output_of(barriers, operands, 0, scores, memory, starts, last_values, begun)
        commit(barriers, "o_full", Int32(0))
