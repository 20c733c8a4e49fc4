"""Tensor memory of matrix products of 64 rows, where a row has one of every 32 lanes for each half of something.

Row 16 w + r has the lanes 32 w + r and 32 w + 16 + r (PTX ISA, tcgen05.mma data path layout F), and so the threads r
and r + 16 of warp w. Of scores both read the same lane, each half of its columns; of outputs each has its own lane.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm, nvvm

from attn_dsl.kernels.sm100.tcgen05 import LANE_STRIDE
from attn_dsl.lowering.forward.sm100_mla_plan import HALF_LANES
from attn_dsl.lowering.forward.sm100_plan import WARP

UPPER = HALF_LANES * LANE_STRIDE  # from one half of the output to the other, in addresses of tensor memory
TENSOR_MEMORY = 6  # the address space, as NVVM counts them
SHAPE = nvvm.Tcgen05LdStShape.SHAPE_16X32BX2


def row_of(thread: Any) -> Any:
    """The row, 0 to 63, of a thread of a warpgroup (Int32)."""
    return thread // WARP * HALF_LANES + thread % HALF_LANES


def half_of(thread: Any) -> Any:
    """Which half of its row a thread has (Int32)."""
    return thread % WARP // HALF_LANES


def load_halves(memory: Any, column: Any, count: int, apart: int, thread: Any) -> Any:
    """`count` columns of this thread's row, f32 in registers: from `column` on, of the second half from `apart` later.

    `count` is a power of two, 2 to 64. The caller waits for the load.
    """
    words = ir.VectorType.get([count], ir.IntegerType.get_signless(32))
    loaded = nvvm.tcgen05_ld(words, SHAPE, _address(memory, column, thread), offset=Int64(apart).ir_value())
    values = llvm.bitcast(ir.VectorType.get([count], Float32.mlir_type), loaded)
    row = cute.make_rmem_tensor(count, Float32)
    row.store(cute.TensorSSA(values, count, Float32))
    return row


def store_halves(memory: Any, column: Any, row: Any, apart: int, thread: Any) -> None:
    """Writes f32 registers to where `load_halves` reads them. The caller waits for the store."""
    words = ir.VectorType.get([cute.size(row)], ir.IntegerType.get_signless(32))
    values = llvm.bitcast(words, row.load().ir_value())
    nvvm.tcgen05_st(SHAPE, _address(memory, column, thread), values, offset=Int64(apart).ir_value())


def _address(memory: Any, column: Any, thread: Any) -> Any:
    """The address of `column` in the first lane of this thread's warp."""
    lanes = cute.arch.make_warp_uniform(thread // WARP) * Int32(WARP * LANE_STRIDE)
    address = memory.toint() + lanes + column
    return llvm.inttoptr(llvm.PointerType.get(TENSOR_MEMORY), address.ir_value())
