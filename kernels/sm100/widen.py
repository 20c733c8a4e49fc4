"""The warps that load where keys and values have 8 bits: into tiles of bytes, and widened from there into the ring.

Four warps copy row by row, out of pages or of tensors, two tiles ahead. Every thread widens what it copied itself, so
that nothing but its own copies has to be waited for.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from attn_dsl.kernels.common.launch import ELEMENTS, Values
from attn_dsl.kernels.common.widen import widen_rows
from attn_dsl.kernels.paged_kv import copy_rows, empty_entries, number_rows
from attn_dsl.kernels.sm100.forward.turns import parts
from attn_dsl.kernels.sm100.forward.visits import visits
from attn_dsl.kernels.sm100.pages import fetch_all_queries, find_tile, rows_of_parts
from attn_dsl.lowering.forward.plan import SHARED_ALIGNMENT
from attn_dsl.lowering.forward.sm100_plan import NARROW_TILES, WARP, Sm100Plan

IN_FLIGHT = 2 * NARROW_TILES - 1  # tiles of keys or values that may be under way while the one before them is widened


def narrow_tiles(plan: Sm100Plan, memory: Any) -> Values:
    """Shared memory of keys and of values before they are widened: (tile_k, columns, parts, tiles); else none."""
    if not plan.widens:
        return ()
    made = []
    for width, count in ((plan.k_part, plan.k_parts), (plan.v_part, plan.v_parts)):
        part = plan.tile_k * width
        layout = cute.make_layout((plan.tile_k, width, count, NARROW_TILES), stride=(width, 1, part, part * count))
        made.append(memory.allocate_tensor(ELEMENTS[plan.kv_dtype], layout, byte_alignment=SHARED_ALIGNMENT))
    return tuple(made)


@cute.jit
def find(
    work: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    tile: Int32,
    thread: Int32,
    entries: cute.Tensor,
) -> None:
    """Looks up where the rows of a tile lie; of a negative tile, those of the first."""
    if const_expr(work.plan.paging is None):
        start = cutlass.max(tile, Int32(0)) * work.plan.tile_k
        number_rows(rows, start, work.k.count - start, thread, entries)
    else:
        find_tile(work, rows, pages, tile, thread, entries)


@cute.jit
def fetch(
    rows: cutlass.Constexpr, pool: cute.Tensor, target: cute.Tensor, entries: cute.Tensor, tile: Int32, thread: Int32
) -> None:
    """Starts to copy the bytes of a tile, of a negative one none: a group of copies either way."""
    if tile >= 0:
        for part in cutlass.range_constexpr(len(rows)):
            columns = cute.domain_offset((0, part * rows[part].columns, 0), pool)
            copy_rows(rows[part], columns, target[None, None, part], entries, thread)
    cute.arch.cp_async_commit_group()


@cute.jit
def widen(
    barriers: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    source: cute.Tensor,
    ring: cute.Tensor,
    places: cutlass.Constexpr,
    thread: Int32,
) -> None:
    """Waits for the bytes of a tile, and makes operands of them at `places` of the ring."""
    cute.arch.cp_async_wait_group(IN_FLIGHT)
    for part in cutlass.range_constexpr(len(rows)):
        slot, parity = places[part]
        barriers.wait("kv_empty", slot, parity ^ 1)
        widen_rows(rows[part], barriers.plan.kv_dtype, source[None, None, part], ring[None, None, slot], thread)
        # threads wrote them, matrix products read them through the async proxy
        cute.arch.fence_view_async_shared()
        barriers.arrive("kv_full", slot)


@cute.jit
def load_widened(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    pools: Values,
    narrow: Values,
    ring: Values,
    queries: Values,
    thread: Int32,
) -> None:
    """Fills shared memory for one thread block, whose keys run one tile ahead of values. Run by all warps that load.

    Args:
        pools: (page_size, dim, pages) of one head, keys and values; without pages the rows of the sequence are one.
        narrow: as `narrow_tiles` gives them.
        ring: the ring as parts of keys, and as parts of values.
        queries: (atom, tensor, tiles in shared memory) of copies by TMA.
    """
    plan = work.plan
    (k_rows, v_rows), (sK, sV) = rows_of_parts(plan), ring
    (k_pool, v_pool), (k_bytes, v_bytes) = pools, narrow
    looked = k_rows[0]
    seen = visits(work, scope.fresh())
    following, n = seen.following, seen.first
    if n >= 0:
        own, coming = empty_entries(looked.entries), empty_entries(looked.entries)
        # copies begin in the order in which they are widened: keys 0, keys 1, values 0, keys 2, values 1 and so on
        find(work, looked, pages, n, thread, own)
        fetch(k_rows, k_pool, k_bytes[None, None, None, 0], own, n, thread)
        before, ahead = n, following(n)
        find(work, looked, pages, ahead, thread, coming)
        fetch(k_rows, k_pool, k_bytes[None, None, None, 1], coming, ahead, thread)
        fetch(v_rows, v_pool, v_bytes[None, None, None, 0], own, before, thread)
        if cute.arch.make_warp_uniform(thread // WARP) == 0:
            fetch_all_queries(work, barriers, seen, queries)
        # the first tile of keys has two others behind it, and an empty group stands for the third
        cute.arch.cp_async_commit_group()
        places, slot, parity = parts(plan, Int32(0), Int32(0), plan.k_parts)
        widen(barriers, k_rows, k_bytes[None, None, None, 0], sK, places, thread)
        own.store(coming.load())
        before, ahead = ahead, following(ahead)
        find(work, looked, pages, ahead, thread, coming)
        fetch(k_rows, k_pool, k_bytes[None, None, None, 0], coming, ahead, thread)
        fetch(v_rows, v_pool, v_bytes[None, None, None, 1], own, before, thread)
        n = following(n)
        at = Int32(0)  # of the values to widen next; of the keys it is the other one
        while n >= 0:
            own.store(coming.load())
            before, ahead = ahead, following(ahead)
            find(work, looked, pages, ahead, thread, coming)
            places, slot, parity = parts(plan, slot, parity, plan.k_parts)
            widen(barriers, k_rows, k_bytes[None, None, None, at ^ 1], sK, places, thread)
            fetch(k_rows, k_pool, k_bytes[None, None, None, at ^ 1], coming, ahead, thread)
            places, slot, parity = parts(plan, slot, parity, plan.v_parts)
            widen(barriers, v_rows, v_bytes[None, None, None, at], sV, places, thread)
            fetch(v_rows, v_pool, v_bytes[None, None, None, at], own, before, thread)
            at ^= 1
            n = following(n)
        cute.arch.cp_async_wait_group(0)  # fewer groups are behind the last values
        places, slot, parity = parts(plan, slot, parity, plan.v_parts)
        widen(barriers, v_rows, v_bytes[None, None, None, at], sV, places, thread)
