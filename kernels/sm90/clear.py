"""What lies past the rows of a sequence: values that must not be multiplied, outputs that are cleared."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from attn_dsl.kernels.named_barrier import WARPGROUP, ForwardBarriers
from attn_dsl.lowering.forward import ForwardPlan

VECTOR = 8  # elements of 16 bits: 16 bytes


def may_end_early(plan: ForwardPlan) -> bool:
    """Whether rows of k and v that belong to no key of the sequence can follow its last one."""
    dense = plan.paging is None and not plan.widens  # else rows past the last one are zeros
    return dense and (plan.lengths_k.cu_seqlens is not None or plan.lengths_k.used is not None)


@cute.jit
def clear_values(
    plan: cutlass.Constexpr,
    barriers: cutlass.Constexpr[ForwardBarriers],
    sV: cute.Tensor,
    keys: Int32,
    thread: Int32,
) -> None:
    """Makes zeros of the rows of a tile (keys, dim_v) from row `keys` on. All consumers call it.

    Their weights are 0, but what lies there may be NaN, and 0 * NaN is NaN.
    """
    if keys < plan.tile_k:
        zeros = cute.make_rmem_tensor(VECTOR, sV.element_type)
        zeros.fill(0.0)
        vectors = plan.dim_v_padded // VECTOR
        place = keys * vectors + thread
        while place < plan.tile_k * vectors:
            row = cute.flat_divide(sV[place // vectors, None], (VECTOR,))
            cute.autovec_copy(zeros, row[None, place % vectors])
            place += plan.consumers * WARPGROUP
        # the tensor cores read by the asynchronous proxy
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=barriers.consumers.id, number_of_threads=barriers.consumers.threads)


@cute.jit
def clear_outputs(work: cutlass.Constexpr, mO: cute.Tensor, mLSE: cute.Tensor, thread: Int32) -> None:
    """Writes 0 to O and -inf to LSE in a tile without rows, where the sequence has slots.

    `mO` is ((heads, slots), dim_v), `mLSE` (slots, heads). All consumers call it.
    """
    plan = work.plan
    zeros = cute.make_rmem_tensor(VECTOR, mO.element_type)
    zeros.fill(0.0)
    vectors = plan.dim_v // VECTOR
    place = thread
    while place < plan.tile_q * vectors:
        slot, head = work.row(place // vectors)
        if slot < work.q.slots:
            target = cute.flat_divide(mO[(head, slot), None], (VECTOR,))
            cute.autovec_copy(zeros, target[None, place % vectors])
            if place % vectors == 0:
                mLSE[slot, head] = -Float32.inf
        place += plan.consumers * WARPGROUP


@cute.jit
def clear_rows(output: cute.Tensor, lse: list[Float32], rows: cutlass.Constexpr, seq_q: Int32) -> list[Float32]:
    """Clears the rows of an accumulator (rows, columns) that lie past the sequence; returns the logarithms likewise."""
    cleared = []
    for place in cutlass.range_constexpr(len(lse)):
        is_there = rows[place] < seq_q
        cleared.append(cutlass.select_(is_there, lse[place], -Float32.inf))
        for column in cutlass.range_constexpr(cute.size(output, mode=[1])):
            output[place, column] = cutlass.select_(is_there, output[place, column], Float32(0.0))
    return cleared
