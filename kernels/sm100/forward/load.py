"""The load warp: both tiles of queries once, then keys and values of every visited tile, from right to left."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.lowering.forward.sm100_plan import QUERY_TILES, ROWS


@cute.jit
def fetch(
    barriers: cutlass.Constexpr,
    name: cutlass.Constexpr[str],
    slot: Int32,
    bytes_: cutlass.Constexpr[int],
    atom: cute.CopyAtom,
    source: cute.Tensor,
    target: cute.Tensor,
) -> None:
    """Copies one tile and completes a phase of `name` when it has landed."""
    full = barriers.at(name, slot)
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_)
    cute.copy(atom, source, target, tma_bar_ptr=full)


@cute.jit
def load_tiles(
    plan: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    atoms: Values,
    tensors: Values,
    shared: Values,
    tile: Int32,
    first_row: Int32,
    last_row: Int32,
) -> None:
    """Fills both rings for one thread block. Run by one warp."""
    q_atom, k_atom, v_atom = atoms
    mQ, mK, mV = tensors
    q_tiles, sK, sV = shared
    gQ = cute.local_tile(mQ[None, None, scope.h, scope.b], (ROWS, plan.dim_padded), (None, 0))
    gK = cute.local_tile(mK[None, None, scope.kv_h, scope.b], (plan.tile_k, plan.dim_padded), (None, 0))
    gV = cute.local_tile(mV[None, None, scope.kv_h, scope.b], (plan.tile_k, plan.dim_v_padded), (None, 0))
    k_source, k_target = tma_copy(k_atom, gK, sK)
    v_source, v_target = tma_copy(v_atom, gV, sV)
    element_bytes = sK.element_type.width // 8
    k_bytes = plan.tile_k * plan.dim_padded * element_bytes
    v_bytes = plan.tile_k * plan.dim_v_padded * element_bytes

    bounds = tile_bounds(plan, scope.fresh(), first_row, last_row)
    last_visited = bounds.last_visited  # an object whose methods are called would be carried by the loop below
    n = bounds.first
    if n >= 0:
        slot, parity = Int32(0), Int32(1)
        fetch(barriers, "k_full", slot, k_bytes, k_atom, k_source[None, n], k_target[None, slot])
        for place in cutlass.range_constexpr(QUERY_TILES):
            q_source, q_target = tma_copy(q_atom, gQ, cute.append_ones(q_tiles[place], up_to_rank=3))
            q_bytes = ROWS * plan.dim_padded * element_bytes
            source = q_source[None, tile * QUERY_TILES + place]
            fetch(barriers, "q_full", Int32(place), q_bytes, q_atom, source, q_target[None, 0])
        fetch(barriers, "v_full", slot, v_bytes, v_atom, v_source[None, n], v_target[None, slot])
        n = last_visited(n - 1)
        while n >= 0:
            slot += 1
            if slot == plan.stages:
                slot = Int32(0)
                parity ^= 1
            barriers.wait("k_empty", slot, parity)
            fetch(barriers, "k_full", slot, k_bytes, k_atom, k_source[None, n], k_target[None, slot])
            barriers.wait("v_empty", slot, parity)
            fetch(barriers, "v_full", slot, v_bytes, v_atom, v_source[None, n], v_target[None, slot])
            n = last_visited(n - 1)
