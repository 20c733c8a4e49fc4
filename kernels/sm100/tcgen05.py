"""Matrix products from descriptors, and rows of tensor memory (PTX ISA, "TensorCore 5th Generation").

A thread of a warpgroup owns one lane of tensor memory: with 128 rows per tile, one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Float32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cute.nvgpu import tcgen05

LANE_STRIDE = 1 << 16  # of addresses of tensor memory
LANES = 128
WORD = 32  # bits
_LOW = (1 << WORD) - 1


@dataclass(frozen=True, eq=False)
class SharedOperand:
    """An operand in shared memory: the descriptor but for its address, and the steps along k of the start address."""

    base: int
    steps: tuple[int, ...]  # 16-byte units

    @property
    def low(self) -> int:
        """The lower word, to which a start address field is added, as a signed number."""
        word = self.base & _LOW
        return word - (1 << WORD) if word >> (WORD - 1) else word


def multiply_shared(
    accumulator: Any, a: SharedOperand, a_low: Any, b: SharedOperand, b_low: Any, instruction: int, accumulate: bool
) -> None:
    """accumulator (+)= A B, both in shared memory. One thread issues it.

    `a_low` and `b_low` are the lower words (Int32) of the descriptors of both tiles; only they change from one step
    along k to the next.
    """
    lines = [*_descriptors("a", a), *_descriptors("b", b)]
    for step, (a_step, b_step) in enumerate(zip(a.steps, b.steps, strict=True)):
        lines += [*_advanced("a", "$1", a_step), *_advanced("b", "$2", b_step)]
        lines.append(_product("a", step > 0 or accumulate))
    _issue(lines, "r,r,r", (accumulator, a_low, b_low), instruction)


def multiply_tensor(
    accumulator: Any, a: Any, a_step: int, b: SharedOperand, b_low: Any, instruction: int, accumulate: Any
) -> None:
    """accumulator = A B (+ accumulator if `accumulate`, an Int32), with A in tensor memory at column address `a`.

    Each instruction takes `a_step` columns of A. One thread issues it.
    """
    lines = [*_descriptors("b", b), ".reg .pred more;", "setp.ne.b32 more, $3, 0;"]
    for step, b_step in enumerate(b.steps):
        lines += _advanced("b", "$2", b_step)
        lines.append(_product(f"[$1+{step * a_step}]", True if step else "more"))
    _issue(lines, "r,r,r,r", (accumulator, a, b_low, accumulate), instruction)


def _descriptors(name: str, operand: SharedOperand) -> list[str]:
    """Declares the descriptor `name` with the upper word of `operand`, which all steps share."""
    return [f".reg .b32 {name}l, {name}h;", f".reg .b64 {name};", f"mov.b32 {name}h, {operand.base >> WORD:#x};"]


def _advanced(name: str, low: str, step: int) -> list[str]:
    move = f"add.s32 {name}l, {low}, {step};" if step else f"mov.b32 {name}l, {low};"
    return [move, f"mov.b64 {name}, {{{name}l, {name}h}};"]


def _product(a: str, accumulate: bool | str) -> str:
    """One instruction; `accumulate` is known, or a predicate."""
    more = accumulate if isinstance(accumulate, str) else str(int(accumulate))
    return f"tcgen05.mma.cta_group::1.kind::f16 [$0], {a}, b, kind, {more};"


def _issue(lines: Sequence[str], constraints: str, operands: Sequence[Any], instruction: int) -> None:
    text = "\n".join(["{", ".reg .b32 kind;", f"mov.b32 kind, {instruction:#x};", *lines, "}"])
    values = [operand.ir_value() for operand in operands]
    llvm.inline_asm(None, values, text, constraints, has_side_effects=True)


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
