"""The producers where keys and values lie in pages: `kernels/paged_kv.py` into the rings of the kernel.

Row by row, the whole warpgroup copies: each thread finds the pages of its rows one tile ahead of their use, and its
copies arrive on the tile's barrier by themselves. In boxes, one warp does all: full tiles by TMA, and the tile in which
the sequence ends row by row, which it waits for.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr, pipeline

from attn_dsl.kernels.common.launch import ELEMENTS, Values, tile_layout
from attn_dsl.kernels.named_barrier import WARP, WARPGROUP
from attn_dsl.kernels.paged_kv import (
    PagedBoxes,
    PagedRows,
    copy_boxes,
    copy_rows,
    empty_entries,
    find_boxes,
    find_rows,
    number_rows,
    page_boxes,
)
from attn_dsl.kernels.sm90.load import load_box, visits
from attn_dsl.lowering.forward import ForwardPlan


def by_rows(plan: ForwardPlan) -> bool:
    """Whether every tile of keys and values is copied row by row."""
    return plan.widens or (plan.paging is not None and not plan.page_size)


def rows_of_tiles(plan: ForwardPlan) -> tuple[PagedRows, PagedRows]:
    """How a tile of keys and one of values are copied row by row."""
    threads, bits = WARPGROUP if by_rows(plan) else WARP, ELEMENTS[plan.kv_dtype].width
    return (
        PagedRows(plan.tile_k, plan.dim_padded, plan.dim, bits, threads),
        PagedRows(plan.tile_k, plan.dim_v_padded, plan.dim_v, bits, threads),
    )


def boxes_of_tiles(plan: ForwardPlan) -> PagedBoxes | None:
    """How a tile is made of boxes; None: it is not."""
    return PagedBoxes(plan.tile_k, plan.page_size) if plan.page_size else None


def boxes_of_pools(plan: ForwardPlan, k: cute.Tensor, v: cute.Tensor) -> tuple[Values, Values]:
    """(atoms, tensors) of TMA copies out of (page_size, dim, kv_heads, pages), on the host; none by rows."""
    boxes = boxes_of_tiles(plan)
    if boxes is None:
        return (), ()
    made = [
        page_boxes(boxes, pool, columns, tile_layout(pool.element_type, boxes.box, columns))
        for pool, columns in ((k, plan.dim_padded), (v, plan.dim_v_padded))
    ]
    return tuple(atom for atom, _ in made), tuple(tensor for _, tensor in made)


@dataclass(frozen=True)
class RowsRing(pipeline.PipelineCpAsync):
    """A ring that the copies of many threads fill. What they write is made visible to the tensor cores' proxy."""

    @staticmethod
    def make(barriers: Any, stages: int, consumers: Any) -> Any:
        """`consumers` counts threads: each of them releases a tile."""
        made = pipeline.PipelineCpAsync.create(
            barrier_storage=barriers,
            num_stages=stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPGROUP),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, consumers),
            defer_sync=True,
        )
        return RowsRing(made.sync_object_full, made.sync_object_empty, made.num_stages, None, None)

    def consumer_wait(self, state: Any, *args: Any, **kwargs: Any) -> None:
        """Waits until the tile of `state` is there for wgmma."""
        super().consumer_wait(state, *args, **kwargs)
        cute.arch.fence_view_async_shared()


@cute.jit
def find_tile(
    plan: cutlass.Constexpr,
    work: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    tile: Int32,
    thread: Int32,
    entries: cute.Tensor,
) -> None:
    """Looks up where the rows of a tile lie; of a negative tile, those of the first."""
    rows, _ = rows_of_tiles(plan)
    start = cutlass.max(tile, Int32(0)) * plan.tile_k
    if const_expr(plan.paging is None):
        number_rows(rows, start, work.k.count - start, thread, entries)
    else:
        find_rows(rows, pages.numbers, pages.size, work.k.first + start, work.k.count - start, thread, entries)


@cute.jit
def fill_rows(
    rows: cutlass.Constexpr,
    pool: cute.Tensor,
    ring: cute.Tensor,
    pipe: Values,
    state: pipeline.PipelineState,
    entries: cute.Tensor,
    thread: Int32,
) -> None:
    """Starts to fill a tile row by row. Run by the whole warpgroup."""
    pipe.producer_acquire(state)
    copy_rows(rows, pool, ring[None, None, state.index], entries, thread)
    pipe.producer_commit(state)


@cute.jit
def load_rows(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    work: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    pools: Values,
    shared: Values,
    pipes: Values,
    queries: Values,
    thread: Int32,
) -> None:
    """Fills the rings for one tile of queries. Run by the whole warpgroup.

    Args:
        pools: (page_size, dim, pages) of one head, keys and values.
        queries: (atom, tensor, tile in shared memory) of a copy by TMA, or empty.
    """
    q_pipe, *rings = pipes
    keys, values = zip(rows_of_tiles(plan), pools, shared, rings, strict=True)
    n, last_visited = visits(plan, scope, work)
    if n >= 0:
        own, coming = (empty_entries(keys[0].entries) for _ in range(2))
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, plan.stages)
        find_tile(plan, work, pages, n, thread, own)
        fill_rows(*keys, state, own, thread)
        if const_expr(len(queries) > 0):
            if cute.arch.make_warp_uniform(thread // WARP) == 0:
                load_box(plan, work, q_pipe, *queries)
        following = last_visited(n - 1)
        find_tile(plan, work, pages, following, thread, coming)
        while following >= 0:
            before = state.clone()
            state.advance()
            fill_rows(*keys, state, coming, thread)
            fill_rows(*values, before, own, thread)
            own.store(coming.load())
            following = last_visited(following - 1)
            find_tile(plan, work, pages, following, thread, coming)
        fill_rows(*values, state, own, thread)
        # a thread that ends must have no copies under way
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)


@cute.jit
def fill_end(
    rows: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    pool: cute.Tensor,
    target: cute.Tensor,
    pipe: Values,
    state: pipeline.PipelineState,
    first_slot: Int32,
    count: Int32,
) -> None:
    """Fills a tile row by row, of which `count` rows exist, and waits for it. Run by one warp."""
    lane = cute.arch.lane_idx()
    entries = empty_entries(rows.entries)
    find_rows(rows, pages.numbers, pages.size, first_slot, count, lane, entries)
    pipe.sync_object_empty.wait(state.index, state.phase)
    copy_rows(rows, pool, target, entries, lane)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(pipe.producer_get_barrier(state))


@cute.jit
def fill_boxes(
    plan: cutlass.Constexpr,
    atom: cute.CopyAtom,
    boxes: cute.Tensor,
    target: cute.Tensor,
    pipe: Values,
    state: pipeline.PipelineState,
    entries: cute.Tensor,
) -> None:
    """Starts to fill a full tile by TMA. Run by one warp."""
    pipe.producer_acquire(state)  # and expects the bytes
    copy_boxes(boxes_of_tiles(plan), atom, boxes, target, entries, pipe.producer_get_barrier(state))


@cute.jit
def load_boxes(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    work: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    atoms: Values,
    boxes: Values,
    pools: Values,
    shared: Values,
    pipes: Values,
    queries: Values,
) -> None:
    """Fills the rings for one tile of queries. Run by one warp; arguments as of `load_rows`, `boxes` for TMA."""
    k_rows, v_rows = rows_of_tiles(plan)
    sK, sV = shared
    q_pipe, k_pipe, v_pipe = pipes
    first_slot, count = work.k.first, work.k.count
    n, last_visited = visits(plan, scope, work)
    if n >= 0:
        tiles, lane = boxes_of_tiles(plan), cute.arch.lane_idx()
        own, coming = empty_entries(1), empty_entries(1)
        keys, values = (plan, atoms[0], boxes[0]), (plan, atoms[1], boxes[1])
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, plan.stages)
        start = n * plan.tile_k
        # only the first tile can be the one in which the sequence ends
        is_full = count - start >= plan.tile_k
        end = (k_rows, pages, pools[0]), (v_rows, pages, pools[1])
        rest = (first_slot + start, count - start)
        if is_full:
            find_boxes(tiles, pages.numbers, first_slot + start, lane, own)
            fill_boxes(*keys, sK[None, None, state.index], k_pipe, state, own)
        else:
            fill_end(*end[0], sK[None, None, state.index], k_pipe, state, *rest)
        if const_expr(len(queries) > 0):
            load_box(plan, work, q_pipe, *queries)
        following = last_visited(n - 1)
        if following >= 0:
            find_boxes(tiles, pages.numbers, first_slot + following * plan.tile_k, lane, coming)
        while following >= 0:
            before = state.clone()
            state.advance()
            fill_boxes(*keys, sK[None, None, state.index], k_pipe, state, coming)
            if is_full:
                fill_boxes(*values, sV[None, None, before.index], v_pipe, before, own)
            else:
                fill_end(*end[1], sV[None, None, before.index], v_pipe, before, *rest)
            is_full = Boolean(True)
            own.store(coming.load())
            following = last_visited(following - 1)
            if following >= 0:
                find_boxes(tiles, pages.numbers, first_slot + following * plan.tile_k, lane, coming)
        if is_full:
            fill_boxes(*values, sV[None, None, state.index], v_pipe, state, own)
        else:
            fill_end(*end[1], sV[None, None, state.index], v_pipe, state, *rest)
