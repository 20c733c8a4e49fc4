"""The end of a thread block that saw a part of the keys: O in f32 from tensor memory to where it belongs."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from attn_dsl.kernels.sm100.tcgen05 import load_row

VECTOR = 4  # f32 values of one access


@cute.jit
def store_part(
    work: cutlass.Constexpr,
    memory: cute.Pointer,
    mO: cute.Tensor,
    place: cutlass.Constexpr[int],
    factor: Float32,
    visited: cutlass.Constexpr[bool],
    q_idx: Int32,
    head: Int32,
    thread: Int32,
) -> None:
    """Writes this thread's row of the output, times `factor`, to `mO` ((heads, slots), dim_v); zeros if there is none.

    Whole warps call it. Few rows of a tile are there, so they do not go through shared memory to the copy engine.
    """
    plan = work.plan
    first, count = plan.column(f"o{place}"), plan.output_columns
    is_there = q_idx < work.q.slots
    for column in cutlass.range_constexpr(0, plan.dim_v_padded, count):
        if const_expr(visited):
            row = load_row(memory, first + column, count, count, thread)
        else:
            row = cute.make_rmem_tensor(count, Float32)
            row.fill(0.0)
        if is_there:
            target = cute.flat_divide(mO[(head, q_idx), None], (VECTOR,))
            for piece in cutlass.range_constexpr(min(count, plan.dim_v - column) // VECTOR):
                values = cute.make_rmem_tensor(VECTOR, Float32)
                for element in cutlass.range_constexpr(VECTOR):
                    values[element] = row[piece * VECTOR + element] * factor
                cute.autovec_copy(values, target[None, column // VECTOR + piece])
