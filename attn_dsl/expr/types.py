"""Value types of expressions. Three are enough: an element type belongs to a tensor, a width to a proof."""

from __future__ import annotations

from enum import Enum


class ValueType(Enum):
    """`bool`, `int` (i32, or i64 where an interval proof asks for it) and `float` (f32)."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"

    def __str__(self) -> str:
        return self.value


BOOL, INT, FLOAT = ValueType.BOOL, ValueType.INT, ValueType.FLOAT
