"""The warps that load where keys and values lie in pages: `kernels/paged_kv.py` into the ring of a thread block.

Row by row, two warps copy: each thread finds the pages of its rows one tile ahead of their use, and its copies arrive
on the barrier of a part by themselves. In boxes, one warp does all: full tiles by TMA, and the tile in which the
sequence ends row by row, which it waits for.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from attn_dsl.kernels.common.launch import ELEMENTS, Values, tile_layout
from attn_dsl.kernels.paged_kv import (
    PagedBoxes,
    PagedRows,
    copy_boxes,
    copy_rows,
    empty_entries,
    find_boxes,
    find_rows,
    page_boxes,
)
from attn_dsl.kernels.sm100.forward.load import fetch_queries
from attn_dsl.kernels.sm100.forward.turns import parts
from attn_dsl.kernels.sm100.forward.visits import visits
from attn_dsl.lowering.forward.sm100_plan import WARP, Sm100Plan


def rows_of_parts(plan: Sm100Plan) -> tuple[tuple[PagedRows, ...], tuple[PagedRows, ...]]:
    """How the parts of a tile of keys, and those of one of values, are copied row by row."""
    bits, threads = ELEMENTS[plan.kv_dtype].width, plan.load_warps * WARP

    def made(width: int, count: int, dim: int) -> tuple[PagedRows, ...]:
        return tuple(
            PagedRows(plan.tile_k, width, min(width, dim - part * width), bits, threads) for part in range(count)
        )

    return made(plan.k_part, plan.k_parts, plan.dim), made(plan.v_part, plan.v_parts, plan.dim_v)


def boxes_of_parts(plan: Sm100Plan) -> PagedBoxes:
    """How a part of a tile is made of boxes."""
    return PagedBoxes(plan.tile_k, plan.page_size)


def boxes_of_pools(plan: Sm100Plan, k: cute.Tensor, v: cute.Tensor) -> tuple[Values, Values]:
    """(atoms, tensors) of TMA copies out of (page_size, dim, kv_heads, pages), on the host."""
    boxes = boxes_of_parts(plan)
    made = [
        page_boxes(boxes, pool, width, tile_layout(pool.element_type, boxes.box, width))
        for pool, width in ((k, plan.k_part), (v, plan.v_part))
    ]
    return tuple(atom for atom, _ in made), tuple(tensor for _, tensor in made)


@cute.jit
def fill_rows(
    barriers: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    pool: cute.Tensor,
    ring: cute.Tensor,
    places: cutlass.Constexpr,
    entries: cute.Tensor,
    thread: Int32,
) -> None:
    """Starts to copy the parts of a tile to `places` of the ring. Every thread that loads calls it."""
    for part in cutlass.range_constexpr(len(rows)):
        slot, parity = places[part]
        barriers.wait("kv_empty", slot, parity ^ 1)
        columns = cute.domain_offset((0, part * rows[part].columns, 0), pool)
        copy_rows(rows[part], columns, ring[None, None, slot], entries, thread)
        cute.arch.cp_async_mbarrier_arrive_noinc(barriers.at("kv_full", slot))


@cute.jit
def fetch_all_queries(
    work: cutlass.Constexpr, barriers: cutlass.Constexpr, seen: cutlass.Constexpr, queries: Values
) -> None:
    """Copies query tiles that visit keys, if they are boxes; `queries` is (atom, tensor, tiles). Run by one warp."""
    atom, mQ, q_tiles = queries
    if const_expr(work.plan.by_tma):
        for place in cutlass.range_constexpr(work.plan.query_tiles):
            if seen.tiles[place].first >= 0:
                fetch_queries(work, barriers, atom, mQ, q_tiles[place], place)


@cute.jit
def find_tile(
    work: cutlass.Constexpr,
    rows: cutlass.Constexpr[PagedRows],
    pages: cutlass.Constexpr,
    tile: Int32,
    thread: Int32,
    entries: cute.Tensor,
) -> None:
    """Looks up where the rows of a tile lie; of a negative tile, those of the first."""
    start = cutlass.max(tile, Int32(0)) * work.plan.tile_k
    find_rows(rows, pages.numbers, pages.size, work.k.first + start, work.k.count - start, thread, entries)


@cute.jit
def load_rows(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    pools: Values,
    ring: Values,
    queries: Values,
    thread: Int32,
) -> None:
    """Fills shared memory for one thread block, row by row. Run by all warps that load.

    Args:
        pools: (page_size, dim, pages) of one head, keys and values.
        ring: the ring as parts of keys, and as parts of values.
        queries: (atom, tensor, tiles in shared memory) of copies by TMA.
    """
    plan = work.plan
    k_rows, v_rows = rows_of_parts(plan)
    keys, values = (barriers, k_rows, pools[0], ring[0]), (barriers, v_rows, pools[1], ring[1])
    seen = visits(work, scope.fresh())
    following, n = seen.following, seen.first
    if n >= 0:
        own, coming = empty_entries(k_rows[0].entries), empty_entries(k_rows[0].entries)
        find_tile(work, k_rows[0], pages, n, thread, own)
        places, slot, parity = parts(plan, Int32(0), Int32(0), plan.k_parts)
        fill_rows(*keys, places, own, thread)
        if cute.arch.make_warp_uniform(thread // WARP) == 0:
            fetch_all_queries(work, barriers, seen, queries)
        n = following(n)
        find_tile(work, k_rows[0], pages, n, thread, coming)
        if const_expr(not plan.keys_ahead):
            places, slot, parity = parts(plan, slot, parity, plan.v_parts)
            fill_rows(*values, places, own, thread)
        while n >= 0:
            places, slot, parity = parts(plan, slot, parity, plan.k_parts)
            fill_rows(*keys, places, coming, thread)
            if const_expr(plan.keys_ahead):
                places, slot, parity = parts(plan, slot, parity, plan.v_parts)
                fill_rows(*values, places, own, thread)
            own.store(coming.load())
            n = following(n)
            find_tile(work, k_rows[0], pages, n, thread, coming)
            if const_expr(not plan.keys_ahead):
                places, slot, parity = parts(plan, slot, parity, plan.v_parts)
                fill_rows(*values, places, own, thread)
        if const_expr(plan.keys_ahead):
            places, slot, parity = parts(plan, slot, parity, plan.v_parts)
            fill_rows(*values, places, own, thread)
        # a thread that ends must have no copies under way
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def fill_end(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    pool: cute.Tensor,
    ring: cute.Tensor,
    places: cutlass.Constexpr,
    tile: Int32,
) -> None:
    """Fills the tile in which the sequence ends row by row, zeros behind its last row, and waits for it. Run by one
    warp."""
    lane = cute.arch.lane_idx()
    entries = empty_entries(rows[0].entries)
    find_tile(work, rows[0], pages, tile, lane, entries)
    for part in cutlass.range_constexpr(len(rows)):
        slot, parity = places[part]
        barriers.wait("kv_empty", slot, parity ^ 1)
        columns = cute.domain_offset((0, part * rows[part].columns, 0), pool)
        copy_rows(rows[part], columns, ring[None, None, slot], entries, lane)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    # threads wrote them, matrix products read them through the async proxy
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        for part in cutlass.range_constexpr(len(rows)):
            barriers.arrive("kv_full", places[part][0])


@cute.jit
def fill_boxes(
    barriers: cutlass.Constexpr,
    atom: cute.CopyAtom,
    pool: cute.Tensor,
    ring: cute.Tensor,
    places: cutlass.Constexpr,
    entries: cute.Tensor,
) -> None:
    """Starts to copy the parts of a full tile by TMA. Run by one warp."""
    bytes_ = cute.size(ring, mode=[0]) * cute.size(ring, mode=[1]) * ring.element_type.width // 8
    for part in cutlass.range_constexpr(len(places)):
        slot, parity = places[part]
        barriers.wait("kv_empty", slot, parity ^ 1)
        full = barriers.at("kv_full", slot)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_)
        copy_boxes(boxes_of_parts(barriers.plan), atom, pool, ring[None, None, slot], entries, full, part)


@cute.jit
def load_boxes(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    atoms: Values,
    boxes: Values,
    pools: Values,
    ring: Values,
    queries: Values,
) -> None:
    """As `load_rows`, in boxes. Run by one warp. `boxes` are the pools as TMA takes them, with their `atoms`."""
    plan = work.plan
    k_rows, v_rows = rows_of_parts(plan)
    k_boxes, v_boxes = (barriers, atoms[0], boxes[0], ring[0]), (barriers, atoms[1], boxes[1], ring[1])
    k_end, v_end = (
        (work, barriers, k_rows, pages, pools[0], ring[0]),
        (work, barriers, v_rows, pages, pools[1], ring[1]),
    )
    seen = visits(work, scope.fresh())
    following, n = seen.following, seen.first
    if n >= 0:
        lookup = (boxes_of_parts(plan), pages.numbers)
        lane = cute.arch.lane_idx()
        own, coming = empty_entries(1), empty_entries(1)
        # only the first tile can be the one in which the sequence ends
        first, is_full = n, work.k.count - n * plan.tile_k >= plan.tile_k
        places, slot, parity = parts(plan, Int32(0), Int32(0), plan.k_parts)
        if is_full:
            find_boxes(*lookup, work.k.first + n * plan.tile_k, lane, own)
            fill_boxes(*k_boxes, places, own)
        else:
            fill_end(*k_end, places, first)
        fetch_all_queries(work, barriers, seen, queries)
        if const_expr(not plan.keys_ahead):
            places, slot, parity = parts(plan, slot, parity, plan.v_parts)
            if is_full:
                fill_boxes(*v_boxes, places, own)
            else:
                fill_end(*v_end, places, first)
        n = following(n)
        if n >= 0:
            find_boxes(*lookup, work.k.first + n * plan.tile_k, lane, coming)
        while n >= 0:
            places, slot, parity = parts(plan, slot, parity, plan.k_parts)
            fill_boxes(*k_boxes, places, coming)
            if const_expr(plan.keys_ahead):
                places, slot, parity = parts(plan, slot, parity, plan.v_parts)
                if is_full:
                    fill_boxes(*v_boxes, places, own)
                else:
                    fill_end(*v_end, places, first)
                is_full = cutlass.Boolean(True)
            own.store(coming.load())
            n = following(n)
            if n >= 0:
                find_boxes(*lookup, work.k.first + n * plan.tile_k, lane, coming)
            if const_expr(not plan.keys_ahead):
                places, slot, parity = parts(plan, slot, parity, plan.v_parts)
                fill_boxes(*v_boxes, places, own)
        if const_expr(plan.keys_ahead):
            places, slot, parity = parts(plan, slot, parity, plan.v_parts)
            if is_full:
                fill_boxes(*v_boxes, places, own)
            else:
                fill_end(*v_end, places, first)
