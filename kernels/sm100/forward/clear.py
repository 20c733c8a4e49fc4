"""What lies past the last key of a sequence: values that must not be multiplied."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from attn_dsl.lowering.forward.sm100_plan import WARP

VECTOR = 8  # elements of 16 bits: 16 bytes


@cute.jit
def clear_values(
    plan: cutlass.Constexpr, barriers: cutlass.Constexpr, sV: cute.Tensor, places: cutlass.Constexpr, keys: Int32
) -> None:
    """Makes zeros of the rows from `keys` on of a tile of values, whose parts come to `places` of the ring.

    Their weights are 0, but what lies there may be NaN, and 0 * NaN is NaN. The load warp does it, of the tile where
    the sequence ends: it alone knows that a place holds this tile and none before.
    """
    zeros = cute.make_rmem_tensor(VECTOR, sV.element_type)
    zeros.fill(0.0)
    vectors = plan.v_part // VECTOR
    for part in cutlass.range_constexpr(plan.v_parts):
        slot, parity = places[part]
        barriers.wait("kv_full", slot, parity)
        place = keys * vectors + cute.arch.lane_idx()
        while place < plan.tile_k * vectors:
            row = cute.flat_divide(sV[place // vectors, None, slot], (VECTOR,))
            cute.autovec_copy(zeros, row[None, place % vectors])
            place += WARP
    # the tensor cores read by the asynchronous proxy
    cute.arch.fence_view_async_shared()
    barriers.arrive("v_clear", 0)


@cute.jit
def wait_clear(plan: cutlass.Constexpr, scope: cutlass.Constexpr, barriers: cutlass.Constexpr, first: Int32) -> None:
    """Waits until the values of the tile where the sequence ends are cleared: of the first tile visited, or none."""
    if scope.seq_k - first * plan.tile_k < plan.tile_k:
        barriers.wait("v_clear", 0, Int32(0))
