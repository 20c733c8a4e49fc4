"""The load warp: the queries once, then the keys of every visited tile, from right to left.

A tile of keys is loaded once, for both products. Its columns come in groups, each with its mbarrier, in the order in
which the products are done with them. Of a cluster every thread block loads as many rows for all of them.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.pack_gqa import Packing
from attn_dsl.kernels.sm100.forward.load import fetch
from attn_dsl.kernels.sm100.forward.turns import next_scores
from attn_dsl.kernels.sm100.mla.visits import visits
from attn_dsl.lowering.forward.sm100_mla_plan import PART, ROWS
from attn_dsl.lowering.forward.sm100_plan import WARP

VECTOR = 8  # elements of 16 bits: 16 bytes


@cute.jit
def fetch_queries(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    atom: cute.CopyAtom,
    mQ: cute.Tensor,
    q_tile: cute.Tensor,
    rank: Int32,
) -> None:
    """Copies the queries, a box of heads and query rows, out of ((heads, rows), dim)."""
    plan = work.plan
    packing = Packing(plan.box_heads, ROWS)
    gQ = cute.local_tile(mQ, (packing.box, plan.dim_padded), (None, 0))
    source, target = tma_copy(atom, gQ, cute.append_ones(q_tile, up_to_rank=3))
    bytes_ = ROWS * plan.dim_padded * q_tile.element_type.width // 8
    fetch(barriers, "q_full", Int32(0), bytes_, atom, source[None, box_of(work, rank)], target[None, 0])


def box_of(work: Any, rank: Any) -> Any:
    """Where the rows of a thread block stand among all boxes of heads and query rows."""
    return Packing(work.plan.box_heads, ROWS).place(work.head + rank * ROWS, work.tile)


@cute.jit
def fetch_keys(
    barriers: cutlass.Constexpr,
    atom: cute.CopyAtom,
    source: cute.Tensor,
    target: cute.Tensor,
    rank: Int32,
    n: Int32,
    slot: Int32,
    parity: Int32,
) -> None:
    """Copies key tile `n` to `slot` of the ring, as the products give back what lies there."""
    plan = barriers.plan
    part_bytes = plan.part_elements * target.element_type.width // 8
    for place in cutlass.range_constexpr(len(plan.groups)):
        group = plan.groups[place]
        at = slot * len(plan.groups) + place
        barriers.wait("kv_empty", at, parity ^ 1)
        full = barriers.at("kv_full", at)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, group.parts * part_bytes)
        for part in cutlass.range_constexpr(group.first, group.first + group.parts):
            tile = source[None, n * plan.cluster + rank, part]
            place_of = target[None, rank, slot * plan.key_parts + part]
            if const_expr(plan.cluster > 1):
                cute.copy(atom, tile, place_of, tma_bar_ptr=full, mcast_mask=cutlass.Int16((1 << plan.cluster) - 1))
            else:
                cute.copy(atom, tile, place_of, tma_bar_ptr=full)


@cute.jit
def clear_keys(barriers: cutlass.Constexpr, sK: cute.Tensor, keys: Int32) -> None:
    """Makes zeros of the rows from `keys` on of the first tile, as far as they are values.

    Their weights are 0, but what lies there may be NaN, and 0 * NaN is NaN. The scores wait for it too: they read the
    same bytes.
    """
    plan = barriers.plan
    zeros = cute.make_rmem_tensor(VECTOR, sK.element_type)
    zeros.fill(0.0)
    for place in cutlass.range_constexpr(len(plan.groups)):
        barriers.wait("kv_full", place, Int32(0))
    vectors = PART // VECTOR
    for part in cutlass.range(plan.dim_v_padded // PART, unroll=1):
        place = keys * vectors + cute.arch.lane_idx()
        while place < plan.tile_k * vectors:
            row = cute.flat_divide(sK[place // vectors, None, part], (VECTOR,))
            cute.autovec_copy(zeros, row[None, place % vectors])
            place += WARP
    # the tensor cores read by the asynchronous proxy
    cute.arch.fence_view_async_shared()
    barriers.arrive("v_clear", 0)


@cute.jit
def load_tiles(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    rank: Int32,
    atoms: Values,
    tensors: Values,
    shared: Values,
) -> None:
    """Fills shared memory for one thread block. Run by one warp.

    `tensors` are the rows of its sequence and head: queries, keys; `shared` the queries, the ring in boxes (rows,
    columns, thread blocks, parts) and the ring in parts (rows, columns, parts).
    """
    plan = work.plan
    q_atom, k_atom = atoms
    mQ, mK = tensors
    q_tile, boxes, sK = shared
    gK = cute.local_tile(mK, (plan.tile_k // plan.cluster, PART), (None, None))
    source, target = tma_copy(k_atom, gK, boxes)
    bounds = visits(work, scope.fresh(), rank)
    last_visited, n = bounds.last_visited, bounds.first
    if n >= 0:
        slot, parity = Int32(0), Int32(0)
        fetch_queries(work, barriers, q_atom, mQ, q_tile, rank)
        keys = scope.seq_k - n * plan.tile_k
        while n >= 0:
            fetch_keys(barriers, k_atom, source, target, rank, n, slot, parity)
            if const_expr(plan.clears):
                if keys < plan.tile_k:
                    clear_keys(barriers, sK, keys)
                    keys = Int32(plan.tile_k)
            slot, parity = next_scores(plan, slot, parity)
            n = last_visited(n - 1)
        if const_expr(plan.cluster > 1):
            # others arrive at the barriers of this thread block: it must not end before
            for _ in cutlass.range_constexpr(plan.stages):
                for place in cutlass.range_constexpr(len(plan.groups)):
                    barriers.wait("kv_empty", slot * len(plan.groups) + place, parity ^ 1)
                slot, parity = next_scores(plan, slot, parity)
