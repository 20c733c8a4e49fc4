"""The producers where keys and values have 8 bits: into tiles of bytes, and widened from there into the rings.

The whole warpgroup copies row by row, out of pages or of tensors, several tiles ahead. Every thread
widens what it copied itself, so that nothing but its own copies has to be waited for.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, pipeline

from attn_dsl.kernels.common.launch import ELEMENTS, Values
from attn_dsl.kernels.common.widen import widen_rows
from attn_dsl.kernels.named_barrier import WARP, WARPGROUP
from attn_dsl.kernels.paged_kv import copy_rows, empty_entries
from attn_dsl.kernels.sm90.load import load_box, visits
from attn_dsl.kernels.sm90.pages import RowsRing, find_tile, rows_of_tiles
from attn_dsl.lowering.forward import ForwardPlan
from attn_dsl.lowering.forward.plan import SHARED_ALIGNMENT


@dataclass(frozen=True)
class WidenedRing(RowsRing):
    """A ring that the threads of the producers' warpgroup write. Each warp arrives once.

    What they write is made visible to the tensor cores by who waits for it: a fence here would also wait for the copies
    that are under way.
    """

    @staticmethod
    def make(barriers: Any, stages: int, consumers: Any) -> Any:
        """`consumers` counts threads: each of them releases a tile."""
        made = pipeline.PipelineAsync.create(
            barrier_storage=barriers,
            num_stages=stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPGROUP // WARP),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, consumers),
            defer_sync=True,
        )
        return WidenedRing(made.sync_object_full, made.sync_object_empty, made.num_stages, None, None)

    def producer_commit(self, state: Any, *args: Any, **kwargs: Any) -> None:
        """What the threads of a warp wrote is there."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            super().producer_commit(state, *args, **kwargs)


def narrow_tiles(plan: ForwardPlan, memory: Any) -> Values:
    """Shared memory of keys and values before they are widened: (tile_k, columns, narrow stages); none if none are."""
    if not plan.widens:
        return ()
    layouts = (
        cute.make_layout((plan.tile_k, columns, plan.narrow_stages), stride=(columns, 1, plan.tile_k * columns))
        for columns in (plan.dim_padded, plan.dim_v_padded)
    )
    element = ELEMENTS[plan.kv_dtype]
    return tuple(memory.allocate_tensor(element, layout, byte_alignment=SHARED_ALIGNMENT) for layout in layouts)


@cute.jit
def fetch(
    rows: cutlass.Constexpr, pool: cute.Tensor, target: cute.Tensor, entries: cute.Tensor, tile: Int32, thread: Int32
) -> None:
    """Starts to copy the bytes of a tile, of a negative one none: a group of copies either way."""
    if tile >= 0:
        copy_rows(rows, pool, target, entries, thread)
    cute.arch.cp_async_commit_group()


@cute.jit
def load_widened(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    work: cutlass.Constexpr,
    pages: cutlass.Constexpr,
    pools: Values,
    narrow: Values,
    shared: Values,
    pipes: Values,
    queries: Values,
    thread: Int32,
) -> None:
    """Fills the rings for one tile of queries. Run by the whole warpgroup.

    Args:
        pools: (page_size, dim, pages) of one head, keys and values; without pages the rows of the sequence are one.
        narrow: as `narrow_tiles` gives them.
        queries: (atom, tensor, tile in shared memory) of a copy by TMA, or empty.
    """
    n, last_visited = visits(plan, scope, work)
    if n >= 0:
        q_pipe, *pipes_kv = pipes
        steps = tuple(zip(rows_of_tiles(plan), pools, narrow, shared, pipes_kv, strict=True))
        entries = empty_entries(steps[0][0].entries)
        ahead = n  # the tile to copy next
        find_tile(plan, work, pages, ahead, thread, entries)
        for stage in cutlass.range_constexpr(plan.narrow_stages):
            for rows, pool, tiles, _, _ in steps:
                fetch(rows, pool, tiles[None, None, stage], entries, ahead, thread)
            ahead = last_visited(ahead - 1)
            find_tile(plan, work, pages, ahead, thread, entries)
        if const_expr(len(queries) > 0):
            if cute.arch.make_warp_uniform(thread // WARP) == 0:
                load_box(plan, work, q_pipe, *queries)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, plan.stages)
        fetched = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, plan.narrow_stages)
        while n >= 0:
            for rows, pool, tiles, ring, pipe in steps:
                cute.arch.cp_async_wait_group(2 * plan.narrow_stages - 1)
                pipe.producer_acquire(state)
                own = tiles[None, None, fetched.index]
                widen_rows(rows, plan.kv_dtype, own, ring[None, None, state.index], thread)
                pipe.producer_commit(state)
                fetch(rows, pool, own, entries, ahead, thread)
            state.advance()
            fetched.advance()
            n = last_visited(n - 1)
            ahead = last_visited(ahead - 1)
            find_tile(plan, work, pages, ahead, thread, entries)
