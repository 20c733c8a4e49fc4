"""The producers: queries once, then keys and values of every visited tile, from right to left."""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr, pipeline

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.kernels.named_barrier import WARP
from attn_dsl.kernels.pack_gqa import Packing, load_rows
from attn_dsl.lowering.forward import ForwardPlan
from attn_dsl.lowering.forward.rules import ROWS

LOADERS = 2  # warps that copy queries, where TMA cannot: the last ones of the producers' warpgroup


def packing(plan: ForwardPlan) -> Packing:
    """How the rows of a warpgroup are pairs of head and query; all warpgroups alike are a tile."""
    return Packing(plan.pack, ROWS)


def visits(plan: ForwardPlan, scope: Any, work: Any) -> tuple[Any, Any]:
    """(the first tile of keys to visit or -1, what gives the last visited tile up to another).

    The object with both would be carried by the branches in which its methods are called.
    """
    bounds = tile_bounds(plan, scope.fresh(), work.first_row, work.last_row, split=work.split)
    return bounds.first, bounds.last_visited


@cute.jit
def load_queries(
    work: cutlass.Constexpr, barrier: cutlass.Constexpr, mQ: cute.Tensor, sQ: cute.Tensor, thread: Int32
) -> None:
    """Copies a tile that is no box of heads and queries; `LOADERS` warps do, and then arrive at the barrier.

    `mQ` is ((heads, slots), dim), the rows of the sequence.
    """
    packed = packing(work.plan)
    rows = packed.view(cute.domain_offset(((0, work.first_row), 0), mQ), work.head, work.q.count - work.first_row)
    load_rows(rows, sQ, work.skipped, thread, LOADERS * WARP)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    # the tensor cores read by the asynchronous proxy
    cute.arch.fence_view_async_shared()
    cute.arch.barrier_arrive(barrier_id=barrier.id, number_of_threads=barrier.threads)


@cute.jit
def load_box(
    plan: cutlass.Constexpr,
    work: cutlass.Constexpr,
    q_pipe: Values,
    q_atom: cute.CopyAtom,
    mQ: cute.Tensor,
    sQ: cute.Tensor,
) -> None:
    """Copies a tile of queries by TMA."""
    gQ = cute.local_tile(mQ, ((plan.pack, plan.tile_q // plan.pack), plan.dim_padded), (None, 0))
    source, target = tma_copy(q_atom, gQ, cute.append_ones(sQ, up_to_rank=3))
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
    q_pipe.producer_acquire(state)
    full = q_pipe.producer_get_barrier(state)
    cute.copy(q_atom, source[None, packing(plan).place(work.head, work.tile)], target[None, 0], tma_bar_ptr=full)


@cute.jit
def load_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    work: cutlass.Constexpr,
    atoms: Values,
    tensors: Values,
    shared: Values,
    pipes: Values,
    queries: Values,
) -> None:
    """Fills the ring for one tile of queries, from the rows of its sequence. Run by one warp.

    `queries` is (atom, tensor, tile in shared memory) of a copy by TMA, or empty.
    """
    k_atom, v_atom = atoms
    mK, mV = tensors
    sK, sV = shared
    q_pipe, k_pipe, v_pipe = pipes
    gK = cute.local_tile(mK, (plan.tile_k, plan.dim_padded), (None, 0))
    gV = cute.local_tile(mV, (plan.tile_k, plan.dim_v_padded), (None, 0))
    k_source, k_target = tma_copy(k_atom, gK, sK)
    v_source, v_target = tma_copy(v_atom, gV, sV)

    n, last_visited = visits(plan, scope, work)
    if n >= 0:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, plan.stages)
        k_pipe.producer_acquire(state)
        cute.copy(
            k_atom, k_source[None, n], k_target[None, state.index], tma_bar_ptr=k_pipe.producer_get_barrier(state)
        )
        if const_expr(len(queries) > 0):
            load_box(plan, work, q_pipe, *queries)
        # keys run one tile ahead of values, as the consumers do
        following = last_visited(n - 1)
        while following >= 0:
            before = state.clone()
            state.advance()
            k_pipe.producer_acquire(state)
            full = k_pipe.producer_get_barrier(state)
            cute.copy(k_atom, k_source[None, following], k_target[None, state.index], tma_bar_ptr=full)
            v_pipe.producer_acquire(before)
            full = v_pipe.producer_get_barrier(before)
            cute.copy(v_atom, v_source[None, n], v_target[None, before.index], tma_bar_ptr=full)
            n = following
            following = last_visited(n - 1)
        v_pipe.producer_acquire(state)
        cute.copy(
            v_atom, v_source[None, n], v_target[None, state.index], tma_bar_ptr=v_pipe.producer_get_barrier(state)
        )
