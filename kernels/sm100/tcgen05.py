"""Matrix products from descriptors, and rows of tensor memory (PTX ISA, "TensorCore 5th Generation").

A thread of a warpgroup owns one lane of tensor memory: with 128 rows per tile, one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cute.nvgpu import tcgen05

LANE_STRIDE = 1 << 16  # of addresses of tensor memory
LANES = 128
# A product whose last operand is a predicate "add to what is there": of shared memory by shared memory, and of tensor
# memory by shared memory
_FROM_SHARED = "tcgen05.mma.cta_group::1.kind::f16 [$0], $1, $2, $3, p;"
_FROM_TENSOR = "tcgen05.mma.cta_group::1.kind::f16 [$0], [$1], $2, $3, p;"
_ISSUE = "{\n.reg .pred p;\nsetp.ne.b32 p, $4, 0;\n%s\n}"


@dataclass(frozen=True, eq=False)
class SharedOperand:
    """An operand in shared memory: the descriptor but for its address, and the steps along k of the start address."""

    base: int
    steps: tuple[int, ...]  # 16-byte units

    def descriptor(self, start: Any, step: int) -> Any:
        """Of instruction `step` along k, for a start address field (Int32)."""
        return Int64(start + Int32(self.steps[step])) | Int64(self.base)


def multiply_shared(
    accumulator: Any, a: SharedOperand, a_start: Any, b: SharedOperand, b_start: Any, instruction: int
) -> None:
    """accumulator = A B, both in shared memory. One thread issues it."""
    for step in range(len(a.steps)):
        operands = (accumulator, a.descriptor(a_start, step), b.descriptor(b_start, step))
        _issue(_FROM_SHARED, "r,l,l,r,r", operands, instruction, Int32(int(step > 0)))


def multiply_tensor(
    accumulator: Any, a: Any, a_step: int, b: SharedOperand, b_start: Any, instruction: int, accumulate: Any
) -> None:
    """accumulator = A B (+ accumulator if `accumulate`, an Int32), with A in tensor memory at column address `a`.

    Each instruction takes `a_step` columns of A. One thread issues it.
    """
    for step in range(len(b.steps)):
        operands = (accumulator, a + Int32(step * a_step), b.descriptor(b_start, step))
        _issue(_FROM_TENSOR, "r,r,l,r,r", operands, instruction, Int32(1) if step else accumulate)


def _issue(text: str, constraints: str, operands: Sequence[Any], instruction: int, accumulate: Any) -> None:
    values = [*operands, Int32(instruction), accumulate]
    llvm.inline_asm(None, [value.ir_value() for value in values], _ISSUE % text, constraints, has_side_effects=True)


def fence_before() -> None:
    """Orders this thread's tensor-memory work before the synchronisation that follows."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


def fence_after() -> None:
    """Orders this thread's tensor-memory work after the synchronisation before."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def _columns(memory: Any, column: Any, count: int) -> Any:
    layout = cute.make_layout((LANES, count), stride=(LANE_STRIDE, 1))
    return cute.make_tensor(memory + column, layout)


def load_row(memory: Any, column: Any, count: int, repeat: int, thread: Any) -> Any:
    """`count` columns of this thread's row, f32 in registers; `repeat` columns by each instruction."""
    source = _columns(memory, column, count)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(repeat)), Float32)
    part = tcgen05.make_tmem_copy(atom, source).get_slice(thread)
    places = part.partition_D(cute.make_identity_tensor((LANES, count)))
    row = cute.make_rmem_tensor(places.shape, Float32)
    cute.copy(atom, part.partition_S(source), row)
    return cute.make_tensor(row.iterator, cute.make_layout(count))


def store_row(memory: Any, column: Any, row: Any, repeat: int, thread: Any) -> None:
    """Writes f32 registers to columns of this thread's row; `repeat` columns by each instruction."""
    count = cute.size(row)
    target = _columns(memory, column, count)
    atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(repeat)), Float32)
    part = tcgen05.make_tmem_copy(atom, target).get_slice(thread)
    places = part.partition_S(cute.make_identity_tensor((LANES, count)))
    cute.copy(atom, cute.make_tensor(row.iterator, cute.make_layout(places.shape)), part.partition_D(target))
