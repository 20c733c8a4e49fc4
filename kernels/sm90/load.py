"""The producer warp: queries once, then keys and values of every visited tile, from right to left."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, pipeline

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.common.tiles import tile_bounds


@cute.jit
def load_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    atoms: Values,
    tensors: Values,
    shared: Values,
    pipes: Values,
    tile: Int32,
    first_row: Int32,
    last_row: Int32,
) -> None:
    """Fills the ring for one tile of queries, from the rows of its sequence. Run by one warp."""
    q_atom, k_atom, v_atom = atoms
    mQ, mK, mV = tensors
    sQ, sK, sV = shared
    q_pipe, k_pipe, v_pipe = pipes
    rows = (plan.pack, plan.tile_q // plan.pack)
    gQ = cute.local_tile(mQ, (rows, plan.dim_padded), (None, 0))
    gK = cute.local_tile(mK, (plan.tile_k, plan.dim_padded), (None, 0))
    gV = cute.local_tile(mV, (plan.tile_k, plan.dim_v_padded), (None, 0))
    q_source, q_target = tma_copy(q_atom, gQ, cute.append_ones(sQ, up_to_rank=3))
    k_source, k_target = tma_copy(k_atom, gK, sK)
    v_source, v_target = tma_copy(v_atom, gV, sV)

    bounds = tile_bounds(plan, scope.fresh(), first_row, last_row)
    last_visited = bounds.last_visited  # an object whose methods are called would be carried by the branches below
    n = bounds.first
    if n >= 0:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, plan.stages)
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        k_pipe.producer_acquire(state)
        cute.copy(
            k_atom, k_source[None, n], k_target[None, state.index], tma_bar_ptr=k_pipe.producer_get_barrier(state)
        )
        q_pipe.producer_acquire(q_state)
        full = q_pipe.producer_get_barrier(q_state)
        cute.copy(q_atom, q_source[None, (scope.h // plan.pack, tile)], q_target[None, 0], tma_bar_ptr=full)
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
