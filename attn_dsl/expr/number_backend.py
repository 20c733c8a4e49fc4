"""What interval arithmetic needs of its numbers; here for Python scalars, in `lowering/tiles` for torch tensors.

Integers of the scalar backend are exact and unbounded up to `SATURATION`; past it they become `INT_INFINITY`, an
int like any other, chosen so large that no operator of the language brings it back below `SATURATION`.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Protocol

from .operators import OPERATORS

SATURATION = 2**80  # a finite bound is at most this in magnitude; i64 fits far below
INT_INFINITY = 2**200  # stands for "no bound"; even INT_INFINITY // SATURATION and >> 63 stay past SATURATION

F32_MAX = 2.0**128 - 2.0**104
F32_TINY = 2.0**-126  # below it a kernel may flush to zero

Number = Any  # an int, float or bool of the backend


class Numbers(Protocol):
    """Elementwise operations beyond Python's own operators (`+ - * // % >> << & | ^ ~` and comparisons)."""

    def const(self, value: bool | int | float) -> Number:
        """A constant as a number of this backend."""

    def where(self, condition: Number, yes: Number, no: Number) -> Number:
        """`yes` where `condition`, else `no`; both are evaluated."""

    def minimum(self, x: Number, y: Number) -> Number: ...

    def maximum(self, x: Number, y: Number) -> Number: ...

    def negate(self, condition: Number) -> Number:
        """Logical not."""

    def smear(self, x: Number) -> Number:
        """All bits from the highest set bit of an int downwards; -1 for a negative int."""

    def saturate(self, low: Number, high: Number) -> tuple[Number, Number]:
        """Bounds of an int interval with overflow turned into infinity."""

    def to_float(self, x: Number) -> Number:
        """An int rounded to the nearest float in double precision."""

    def floor_to_int(self, x: Number) -> Number:
        """floor of a float that is no NaN and lies in the i32 range."""

    def function(self, name: str, x: Number) -> Number:
        """One of exp exp2 log log2 tanh sqrt sigmoid, in double precision; NaN outside the domain."""

    def f32_down(self, x: Number) -> Number:
        """The largest f32 at most `x` (a double); -inf below the smallest one."""

    def f32_up(self, x: Number) -> Number:
        """The smallest f32 at least `x`; inf above the largest one."""


class ScalarNumbers:
    """Python's bool, int and float."""

    def const(self, value: bool | int | float) -> Number:
        return value

    def where(self, condition: Number, yes: Number, no: Number) -> Number:
        return yes if condition else no

    def minimum(self, x: Number, y: Number) -> Number:
        return y if y < x else x

    def maximum(self, x: Number, y: Number) -> Number:
        return y if y > x else x

    def negate(self, condition: Number) -> Number:
        return not condition

    def smear(self, x: Number) -> Number:
        return -1 if x < 0 else (1 << x.bit_length()) - 1

    def saturate(self, low: Number, high: Number) -> tuple[Number, Number]:
        low = -INT_INFINITY if low < -SATURATION else min(low, SATURATION)
        high = INT_INFINITY if high > SATURATION else max(high, -SATURATION)
        return low, high

    def to_float(self, x: Number) -> Number:
        return math.copysign(math.inf, x) if abs(x) == INT_INFINITY else float(x)

    def floor_to_int(self, x: Number) -> Number:
        return math.floor(x)

    def function(self, name: str, x: Number) -> Number:
        return OPERATORS[name].define(x)

    def f32_down(self, x: Number) -> Number:
        return -self.f32_up(-x)

    def f32_up(self, x: Number) -> Number:
        if math.isnan(x) or math.isinf(x) or x == 0.0:
            return x
        if x > F32_MAX:
            return math.inf
        if x < -F32_MAX:
            return -F32_MAX
        bits = struct.unpack("<i", struct.pack("<f", x))[0]
        nearest = _f32_of(bits)
        if nearest >= x:
            return nearest
        # one step up: larger magnitude for positive numbers, smaller for negative ones; the sign is the top bit
        return _f32_of(bits + 1 if x > 0 else bits - 1)


def _f32_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<i", bits))[0])
