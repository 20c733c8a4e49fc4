"""Values of two neighbouring columns at once, for devices whose FMA units take two floats per instruction (sm_100)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute

# Operators whose floats come in pairs (PTX ISA: add, sub, mul, fma of .f32x2), by the names of the operator table.
_PACKED: dict[str, Callable[..., Any]] = {
    "add": cute.arch.add_packed_f32x2,
    "sub": cute.arch.sub_packed_f32x2,
    "mul": cute.arch.mul_packed_f32x2,
    "fma": cute.arch.fma_packed_f32x2,
}


@dataclass(frozen=True, eq=False)
class Pair:
    """One value for each of two columns."""

    low: Any
    high: Any


def each(function: Callable[..., Any], *operands: Any, packed: str = "") -> Any:
    """`function` of the operands, column by column if one of them is a pair; `packed` names the operator, if it is one
    on floats, that a single instruction may do for both columns."""
    if not any(isinstance(operand, Pair) for operand in operands):
        return function(*operands)
    columns = [(x.low, x.high) if isinstance(x, Pair) else (x, x) for x in operands]
    if packed in _PACKED:
        return Pair(*_PACKED[packed](*columns))
    low, high = zip(*columns, strict=True)
    return Pair(function(*low), function(*high))
