"""The MMA warp: one thread issues S = Q K^T and O += P V for both tiles of queries, in turn.

While one tile's scores are made into weights, the tensor cores work for the other tile (FlashAttention-4's ping-pong).
Products of one thread run in the order they are issued, so scores may follow the weights that lie in their place.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import tcgen05

from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.kernels.sm100.operands import Operands
from attn_dsl.kernels.sm100.tcgen05 import fence_after, multiply_shared, multiply_tensor
from attn_dsl.lowering.forward.sm100_plan import QUERY_TILES

WEIGHT_COLUMNS = 8  # of tensor memory, per instruction: 16 weights of 16 bits


@cute.jit
def scores_of(
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    place: cutlass.Constexpr[int],
    memory: Int32,
    starts: Values,
    slot: Int32,
) -> None:
    """Issues the scores of query tile `place` against the keys in `slot`."""
    q_starts, k_start, _ = starts
    plan = barriers.plan
    with cute.arch.elect_one():
        k = k_start + slot * operands.k_stage
        column = memory + plan.column(f"s{place}")
        multiply_shared(column, operands.q, q_starts[place], operands.k, k, operands.qk)
        tcgen05.commit(barriers.at("s_full", place))


@cute.jit
def output_of(
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    place: cutlass.Constexpr[int],
    memory: Int32,
    starts: Values,
    slot: Int32,
    accumulate: Int32,
) -> None:
    """Issues the output of query tile `place` for the values in `slot`."""
    v_start = starts[2]
    plan = barriers.plan
    with cute.arch.elect_one():
        v = v_start + slot * operands.v_stage
        target, weights = memory + plan.column(f"o{place}"), memory + plan.column(f"p{place}")
        multiply_tensor(target, weights, WEIGHT_COLUMNS, operands.v, v, operands.pv, accumulate)


@cute.jit
def commit(barriers: cutlass.Constexpr, name: cutlass.Constexpr[str], slot: Int32) -> None:
    """Lets the products issued so far complete a phase of `name`."""
    with cute.arch.elect_one():
        tcgen05.commit(barriers.at(name, slot))


@cute.jit
def multiply_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    operands: cutlass.Constexpr[Operands],
    memory: Int32,
    starts: Values,
    first_row: Int32,
    last_row: Int32,
) -> None:
    """All products of one thread block. Run by one warp.

    `memory` is the address of tensor memory; `starts` are the start address fields of both query tiles, K and V.
    """
    bounds = tile_bounds(plan, scope.fresh(), first_row, last_row)
    last_visited = bounds.last_visited
    n = bounds.first
    if n >= 0:
        slot, parity = Int32(0), Int32(0)
        barriers.wait("k_full", slot, parity)
        for place in cutlass.range_constexpr(QUERY_TILES):
            barriers.wait("q_full", place, Int32(0))
            fence_after()
            scores_of(barriers, operands, place, memory, starts, slot)
        commit(barriers, "k_empty", slot)
        accumulate, turn = Int32(0), Int32(0)
        n = last_visited(n - 1)
        while n >= 0:
            before, parity_before = slot, parity
            slot += 1
            if slot == plan.stages:
                slot = Int32(0)
                parity ^= 1
            barriers.wait("v_full", before, parity_before)
            for place in cutlass.range_constexpr(QUERY_TILES):
                barriers.wait("p_full", place, turn)
                fence_after()
                output_of(barriers, operands, place, memory, starts, before, accumulate)
                if place == QUERY_TILES - 1:
                    commit(barriers, "v_empty", before)
                if place == 0:
                    barriers.wait("k_full", slot, parity)
                scores_of(barriers, operands, place, memory, starts, slot)
            commit(barriers, "k_empty", slot)
            accumulate = Int32(1)
            turn ^= 1
            n = last_visited(n - 1)
        barriers.wait("v_full", slot, parity)
        for place in cutlass.range_constexpr(QUERY_TILES):
            barriers.wait("p_full", place, turn)
            fence_after()
            output_of(barriers, operands, place, memory, starts, slot, accumulate)
            commit(barriers, "o_full", Int32(place))
