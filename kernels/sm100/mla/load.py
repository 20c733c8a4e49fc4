"""The load warp: the queries once, then the keys of every visited tile, from right to left.

A tile of keys is loaded once, for both products. Its columns come in groups, each with its mbarrier, in the order in
which the products are done with them. Of a cluster every thread block loads as many rows for all of them. Keys in pages
come in boxes that are pages or equal parts of them; boxes past the last key are left out, so that no page is looked up
that the sequence does not have.
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
def find_boxes(
    plan: cutlass.Constexpr, work: cutlass.Constexpr, pages: cutlass.Constexpr, rank: Int32, n: Int32
) -> tuple[Int32, Int32]:
    """(page, box in it) of the box of key tile `n` that this lane looks up; page -1 stands for a box without a key."""
    start = n * plan.tile_k + rank * plan.rows_loaded + cute.arch.lane_idx() * plan.key_box
    page, box = Int32(-1), Int32(0)
    if (cute.arch.lane_idx() < plan.rows_loaded // plan.key_box) & (start < work.k.count):
        slot = work.k.first + start
        if const_expr(plan.page_size > 0):
            number, within = slot // plan.page_size, slot % plan.page_size
        else:
            number, within = divmod(slot, pages.size)
        page = cutlass.max(pages.numbers[Int32(number)], Int32(0))
        box = Int32(within) // plan.key_box
    return page, box


@cute.jit
def fetch_keys(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    pages: cutlass.Constexpr,
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
    boxes = plan.rows_loaded // plan.key_box
    part_bytes = plan.part_elements * target.element_type.width // 8
    if const_expr(plan.paging is not None):
        page, number = find_boxes(plan, work, pages, rank, n)
        coming = cutlass.min(work.k.count - n * plan.tile_k, Int32(plan.tile_k))
        rows = (coming + (plan.key_box - 1)) // plan.key_box * plan.key_box
        part_bytes = rows * (PART * target.element_type.width // 8)
    for place in cutlass.range_constexpr(len(plan.groups)):
        group = plan.groups[place]
        at = slot * len(plan.groups) + place
        barriers.wait("kv_empty", at, parity ^ 1)
        full = barriers.at("kv_full", at)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, group.parts * part_bytes)
        for box in cutlass.range_constexpr(boxes):
            if const_expr(plan.paging is not None):
                in_page, from_page = cute.arch.shuffle_sync(number, box), cute.arch.shuffle_sync(page, box)
                if from_page >= 0:
                    one = source[None, in_page, None, from_page]
                    fetch_box(plan, group, atom, one, target[None, rank * boxes + box, None], slot, full)
            else:
                one = source[None, n * plan.cluster + rank, None]
                fetch_box(plan, group, atom, one, target[None, rank, None], slot, full)


@cute.jit
def fetch_box(
    plan: cutlass.Constexpr,
    group: cutlass.Constexpr,
    atom: cute.CopyAtom,
    source: cute.Tensor,
    target: cute.Tensor,
    slot: Int32,
    full: cute.Pointer,
) -> None:
    """Copies the parts of a group of columns of some rows, to every thread block of the cluster."""
    for part in cutlass.range_constexpr(group.first, group.first + group.parts):
        here = target[None, slot * plan.key_parts + part]
        if const_expr(plan.cluster > 1):
            mask = cutlass.Int16((1 << plan.cluster) - 1)
            cute.copy(atom, source[None, part], here, tma_bar_ptr=full, mcast_mask=mask)
        else:
            cute.copy(atom, source[None, part], here, tma_bar_ptr=full)


@cute.jit
def clear_keys(barriers: cutlass.Constexpr, sK: cute.Tensor, keys: Int32) -> None:
    """Makes zeros of the rows from `keys` on of the first tile.

    Their weights are 0, but what lies there may be NaN, and 0 * NaN is NaN. The scores wait for it too: they read the
    same bytes. Of boxes that were left out nothing has come, also of what is no value.
    """
    plan = barriers.plan
    parts = plan.key_parts if plan.paging is not None else plan.dim_v_padded // PART
    zeros = cute.make_rmem_tensor(VECTOR, sK.element_type)
    zeros.fill(0.0)
    for place in cutlass.range_constexpr(len(plan.groups)):
        barriers.wait("kv_full", place, Int32(0))
    vectors = PART // VECTOR
    for part in cutlass.range(parts, unroll=1):
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
    pages: cutlass.Constexpr,
    rank: Int32,
    atoms: Values,
    tensors: Values,
    shared: Values,
) -> None:
    """Fills shared memory for one thread block. Run by one warp.

    `tensors` are the rows of its sequence and head: queries, keys, or (page_size, dim, pages); `shared` the queries,
    the ring in boxes (rows, columns, boxes, parts) and the ring in parts (rows, columns, parts).
    """
    plan = work.plan
    q_atom, k_atom = atoms
    mQ, mK = tensors
    q_tile, boxes, sK = shared
    gK = cute.local_tile(mK, (plan.key_box, PART), (None,) * cute.rank(mK))
    source, target = tma_copy(k_atom, gK, boxes)
    bounds = visits(work, scope.fresh(), rank)
    last_visited, n = bounds.last_visited, bounds.first
    if n >= 0:
        slot, parity = Int32(0), Int32(0)
        fetch_queries(work, barriers, q_atom, mQ, q_tile, rank)
        keys = scope.seq_k - n * plan.tile_k
        while n >= 0:
            fetch_keys(work, barriers, pages, k_atom, source, target, rank, n, slot, parity)
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
