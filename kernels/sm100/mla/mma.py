"""The MMA warp: one thread issues S = Q K^T and O += P V, with V in the bytes of K.

The scores of the next tile are made before the output of this one, while its weights are made. Products of one thread
run in the order they are issued.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr
from cutlass.cute.nvgpu import tcgen05

from attn_dsl.kernels.common.launch import Values
from attn_dsl.kernels.mma_sm100_desc import Major, make_instr_desc
from attn_dsl.kernels.sm100.forward.clear import wait_clear
from attn_dsl.kernels.sm100.forward.mma import WEIGHT_COLUMNS, commit
from attn_dsl.kernels.sm100.forward.turns import next_scores
from attn_dsl.kernels.sm100.mla.halves import UPPER
from attn_dsl.kernels.sm100.mla.visits import visits
from attn_dsl.kernels.sm100.operands import UNIT, operand
from attn_dsl.kernels.sm100.tcgen05 import SharedOperand, fence_after, multiply_shared, multiply_tensor
from attn_dsl.lowering.forward.sm100_mla_plan import HALVES, ROWS, MlaPlan


@dataclass(frozen=True, eq=False)
class Operands:
    """What both products are made of."""

    q: tuple[SharedOperand, ...]  # the columns of each group
    k: tuple[SharedOperand, ...]  # a group of columns of a tile of keys
    v: SharedOperand  # a half of the values of a tile
    qk: int  # instruction descriptors
    pv: int  # of one half
    part: int  # 16-byte units from one part of a tile to the next


def operands(plan: MlaPlan, element: Any, q_layout: Any, k_layout: Any, v_layout: Any) -> Operands:
    """From the layouts of the queries, of a tile of keys and of half of its values, row-major (rows, columns)."""
    part = plan.part_elements * element.width // 8 // UNIT
    return Operands(
        _grouped(plan, operand(q_layout, element, Major.K)),
        _grouped(plan, operand(k_layout, element, Major.K)),
        operand(v_layout, element, Major.MN),
        make_instr_desc(element, element, "Float32", ROWS, plan.tile_k),
        make_instr_desc(element, element, "Float32", ROWS, plan.half_columns, b_major=Major.MN),
        part,
    )


def _grouped(plan: MlaPlan, whole: SharedOperand) -> tuple[SharedOperand, ...]:
    """The steps along k of each group."""
    each = len(whole.steps) // plan.key_parts
    return tuple(
        SharedOperand(whole.base, whole.steps[group.first * each : (group.first + group.parts) * each])
        for group in plan.groups
    )


@cute.jit
def give_back(barriers: cutlass.Constexpr, slot: Int32, place: cutlass.Constexpr[int]) -> None:
    """Gives a group of columns back, to all thread blocks of the cluster, when the products so far are done."""
    plan = barriers.plan
    empty = barriers.at("kv_empty", slot * len(plan.groups) + place)
    with cute.arch.elect_one():
        if const_expr(plan.cluster > 1):
            tcgen05.commit(empty, (1 << plan.cluster) - 1)
        else:
            tcgen05.commit(empty)


@cute.jit
def scores_of(
    barriers: cutlass.Constexpr,
    products: cutlass.Constexpr[Operands],
    memory: Int32,
    starts: Values,
    slot: Int32,
    parity: Int32,
) -> None:
    """Issues the scores against the keys in `slot` of the ring, into the slot of scores of that number."""
    plan = barriers.plan
    q_start, ring = starts
    tile = ring + slot * (plan.key_parts * products.part)
    column = memory + plan.column("s0") + slot * plan.tile_k
    for place in cutlass.range_constexpr(len(plan.groups)):
        barriers.wait("kv_full", slot * len(plan.groups) + place, parity)
        with cute.arch.elect_one():
            q, k = products.q[place], products.k[place]
            multiply_shared(column, q, q_start + q.low, k, tile + k.low, products.qk, place > 0)
    commit(barriers, "s_full", slot)
    for place in cutlass.range_constexpr(len(plan.groups) - HALVES):
        give_back(barriers, slot, place)


@cute.jit
def output_of(
    barriers: cutlass.Constexpr,
    products: cutlass.Constexpr[Operands],
    memory: Int32,
    starts: Values,
    slot: Int32,
    accumulate: Int32,
) -> None:
    """Issues both halves of the output for the values and the weights in `slot`."""
    plan = barriers.plan
    _, ring = starts
    weights = memory + plan.column("p0") + slot * (plan.tile_k // 2)
    first = len(plan.groups) - HALVES
    for half in cutlass.range_constexpr(HALVES):
        parts = slot * plan.key_parts + plan.groups[first + half].first
        with cute.arch.elect_one():
            target = memory + (plan.column("o0") + half * UPPER)
            start = ring + parts * products.part + products.v.low
            multiply_tensor(target, weights + half * UPPER, WEIGHT_COLUMNS, products.v, start, products.pv, accumulate)
        give_back(barriers, slot, first + half)
    commit(barriers, "o_full", Int32(0))


@cute.jit
def multiply_tiles(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    products: cutlass.Constexpr[Operands],
    rank: Int32,
    memory: Int32,
    starts: Values,
) -> None:
    """All products of a thread block. Run by one warp.

    `memory` is the address of tensor memory; `starts` are the start address fields of the queries and of the ring.
    """
    plan = work.plan
    bounds = visits(work, scope.fresh(), rank)
    last_visited, n = bounds.last_visited, bounds.first
    if n >= 0:
        barriers.wait("q_full", 0, Int32(0))
        if const_expr(plan.clears):
            wait_clear(plan, scope, barriers, n)
        slot, parity, begun = Int32(0), Int32(0), Int32(0)
        scores_of(barriers, products, memory, starts, slot, parity)
        n = last_visited(n - 1)
        while n >= 0:
            next_slot, next_parity = next_scores(plan, slot, parity)
            scores_of(barriers, products, memory, starts, next_slot, next_parity)
            barriers.wait("p_full", slot, parity)
            fence_after()
            output_of(barriers, products, memory, starts, slot, begun)
            slot, parity, begun = next_slot, next_parity, Int32(1)
            n = last_visited(n - 1)
        barriers.wait("p_full", slot, parity)
        fence_after()
        output_of(barriers, products, memory, starts, slot, begun)
