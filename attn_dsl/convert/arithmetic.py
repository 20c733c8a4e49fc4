"""Operators of Python, torch and Triton on typed nodes: what each tool promotes by itself is written out.

Values are expression nodes or Python numbers. A bool that meets a number counts as 0 or 1, an int that meets a float
is promoted; the language does neither the first nor, for `&` and `|`, overload one operator for bools and ints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from ..expr import BOOL, FLOAT, INT, Expr, ExprBuilder, ValueType
from ..expr.interval import FloatInterval, Interval, IntInterval, static_intervals
from ..expr.operators import I64_MAX, I64_MIN
from .refusal import Refusal

MAX_POWER = 8  # exponents up to this are written as products
_LOGIC = {"bitand": "and", "bitor": "or", "bitxor": "ne"}


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's; everything else as it is."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


class Arithmetic:
    """Makes nodes in `build`; `leaf_interval` bounds leaves, for what depends on the sign of a value."""

    def __init__(self, build: ExprBuilder, leaf_interval: Callable[[Expr], Interval]) -> None:
        self.build = build
        self._leaf_interval = leaf_interval
        self._divisible: dict[Expr, Expr] = {}  # a truncated remainder -> one of the language that is 0 where it is

    # -- values and types -------------------------------------------------------------------------------------------

    def node(self, value: Any) -> Expr:
        """A Python number as a constant; a node as it is. Raises Refusal for anything else."""
        if isinstance(value, Expr):
            return value
        value = plain(value)
        if isinstance(value, bool | int | float):
            if isinstance(value, float) and math.isnan(value):
                raise Refusal("NaN has no literal in the language")
            if isinstance(value, int) and not I64_MIN <= value <= I64_MAX:
                raise Refusal(f"{value} does not fit 64 bits")
            return self.build.const(value)
        raise Refusal(f"a {type(value).__name__} is no number that an expression can hold")

    def number(self, value: Any) -> Expr:
        """A bool as 0 or 1, a number as it is."""
        node = self.node(value)
        if node.type is not BOOL:
            return node
        return self.build.op("select", node, self.build.const(1), self.build.const(0))

    def cast(self, value: Any, type: ValueType) -> Expr:
        """A value in another type: bools become 0 and 1, floats lose their fraction, numbers are compared with 0."""
        node = self.node(value)
        if node.type is type:
            return node
        if type is BOOL:
            return self.compare("ne", node, 0)
        if type is FLOAT:
            if node.type is BOOL:
                return self.build.op("select", node, self.build.const(1.0), self.build.const(0.0))
            return self.build.as_float(node)
        return self.number(node) if node.type is BOOL else self.truncate(node)

    def alike(self, *values: Any) -> list[Expr]:
        """Numbers of one type: float if one of them is."""
        nodes = [self.number(value) for value in values]
        if any(node.type is FLOAT for node in nodes):
            return [self.build.as_float(node) for node in nodes]
        return nodes

    def floats(self, *values: Any) -> list[Expr]:
        return [self.build.as_float(self.number(value)) for value in values]

    def never_negative(self, value: Expr) -> bool:
        """Whether a number is proved to be at least 0 whatever the call."""
        found = static_intervals([value], self._leaf_interval)[value]
        if isinstance(found, IntInterval):
            return bool(found.lo >= 0)
        return isinstance(found, FloatInterval) and bool(found.lo >= 0 and not found.nan)

    # -- operators --------------------------------------------------------------------------------------------------

    def apply(self, name: str, *values: Any) -> Expr:
        """An operator on numbers of one type."""
        return self.build.op(name, *self.alike(*values))

    def function(self, name: str, value: Any) -> Expr:
        """A function of one float."""
        return self.build.op(name, *self.floats(value))

    def divide(self, x: Any, y: Any) -> Expr:
        return self.build.op("div", *self.floats(x, y))

    def floor_divide(self, x: Any, y: Any) -> Expr:
        """The quotient rounded to minus infinity, in the operands' type."""
        left, right = self.alike(x, y)
        if left.type is FLOAT:
            return self.floor(self.build.op("div", left, right))
        return self.build.op("floordiv", left, right)

    def remainder(self, x: Any, y: Any) -> Expr:
        """What `floor_divide` leaves: it has the divisor's sign."""
        left, right = self.alike(x, y)
        if left.type is FLOAT:
            return self.build.op("sub", left, self.build.op("mul", self.floor_divide(left, right), right))
        return self.build.op("mod", left, right)

    def truncated_divide(self, x: Any, y: Any) -> Expr:
        """The quotient rounded to zero, as C and Triton divide ints."""
        left, right = self.alike(x, y)
        if left.type is FLOAT:
            return self.build.as_float(self.truncate(self.build.op("div", left, right)))
        self._positive_divisor(right)
        quotient = self.build.op("floordiv", left, right)
        if self.never_negative(left):
            return quotient
        mirrored = self.build.op("neg", self.build.op("floordiv", self.build.op("neg", left), right))
        return self.build.op("select", self.compare("le", 0, left), quotient, mirrored)

    def truncated_remainder(self, x: Any, y: Any) -> Expr:
        """What `truncated_divide` leaves: it has the dividend's sign."""
        left, right = self.alike(x, y)
        if left.type is FLOAT:
            return self.build.op("sub", left, self.build.op("mul", self.truncated_divide(left, right), right))
        self._positive_divisor(right)
        rest = self.build.op("mod", left, right)
        if self.never_negative(left):
            return rest
        mirrored = self.build.op("neg", self.build.op("mod", self.build.op("neg", left), right))
        result = self.build.op("select", self.compare("le", 0, left), rest, mirrored)
        self._divisible[result] = rest
        return result

    def _positive_divisor(self, divisor: Expr) -> None:
        if not self.never_negative(divisor):
            raise Refusal("the sign of this divisor is not known", "give it a value of at least 1")

    def bitwise(self, name: str, x: Any, y: Any) -> Expr:
        """`bitand`, `bitor`, `bitxor`: of two bools the logical operation."""
        left, right = self.node(x), self.node(y)
        if left.type is BOOL and right.type is BOOL:
            return self.build.op(_LOGIC[name], left, right)
        left, right = self.number(left), self.number(right)
        if FLOAT in (left.type, right.type):
            raise Refusal("a bitwise operator has no meaning on floats")
        return self.build.op(name, left, right)

    def invert(self, value: Any) -> Expr:
        node = self.node(value)
        if node.type is FLOAT:
            raise Refusal("a bitwise operator has no meaning on floats")
        return self.build.op("not" if node.type is BOOL else "bitnot", node)

    def logical(self, name: str, *values: Any) -> Expr:
        """`and`, `or`, `not`, `ne` on truth values."""
        return self.build.op(name, *(self.cast(value, BOOL) for value in values))

    def compare(self, name: str, x: Any, y: Any) -> Expr:
        """`lt`, `le`, `eq`, `ne`."""
        left, right = self.node(x), self.node(y)
        if name in ("eq", "ne") and left.type is BOOL and right.type is BOOL:
            return self.build.op(name, left, right)
        if name in ("eq", "ne") and right.is_const and right.attr == 0:
            left = self._divisible.get(left, left)
        return self.apply(name, left, right)

    def where(self, condition: Any, x: Any, y: Any) -> Expr:
        chosen, yes, no = self.cast(condition, BOOL), self.node(x), self.node(y)
        if yes.type is not no.type:
            yes, no = self.alike(yes, no)
        return self.build.op("select", chosen, yes, no)

    def clamp(self, value: Any, low: Any = None, high: Any = None) -> Expr:
        """`min(max(value, low), high)`: `high` wins where the bounds cross."""
        result = self.number(value)
        if low is not None:
            result = self.apply("max", result, low)
        return result if high is None else self.apply("min", result, high)

    # -- rounding and powers ----------------------------------------------------------------------------------------

    def floor(self, value: Any) -> Expr:
        """The float below: a float, as torch's `floor` gives one."""
        node = self.number(value)
        return node if node.type is INT else self.build.as_float(self.build.op("floor", node))

    def ceil(self, value: Any) -> Expr:
        node = self.number(value)
        return node if node.type is INT else self.apply("neg", self.floor(self.apply("neg", node)))

    def truncate(self, value: Expr) -> Expr:
        """A float as an int, rounded to zero."""
        if value.type is not FLOAT:
            return self.number(value)
        down = self.build.op("floor", value)
        if self.never_negative(value):
            return down
        up = self.build.op("neg", self.build.op("floor", self.build.op("neg", value)))
        return self.build.op("select", self.compare("le", 0.0, value), down, up)

    def power(self, base: Any, exponent: Any) -> Expr:
        """`base ** exponent` where the language can say it: small whole exponents, 0.5, or a positive constant base."""
        x, y = self.number(base), self.number(exponent)
        if x.is_const and isinstance(x.attr, int) and isinstance(y.attr, int) and y.is_const and y.attr >= 0:
            return self.node(x.attr**y.attr)
        if y.is_const:
            found = self._constant_power(x, y.attr)
            if found is not None:
                return found
        if x.type is INT and y.type is INT:
            raise Refusal("an int to the power of an int has no spelling", "use floats: 2.0 ** x, or torch.exp2(x)")
        if x.is_const and isinstance(x.attr, int | float) and x.attr > 0:
            product = self.build.op("mul", self.build.as_float(y), self.build.const(math.log2(x.attr)))
            return self.function("exp2", product if x.attr != 2 else y)
        if self.never_negative(x) and y.is_const and isinstance(y.attr, float) and y.attr > 0:
            return self.function("exp2", self.apply("mul", self.function("log2", x), y))
        raise Refusal(
            "a power is written for whole exponents up to 8, 0.5, or a positive constant base",
            "write exp2(y * log2(x)) where x is positive",
        )

    def _constant_power(self, x: Expr, exponent: Any) -> Expr | None:
        if exponent == 0.5:
            return self.function("sqrt", x)
        if exponent == -0.5:
            return self.divide(1.0, self.function("sqrt", x))
        if float(exponent) != int(exponent) or not 1 <= abs(int(exponent)) <= MAX_POWER:
            return None
        if exponent < 0:
            if x.type is INT and isinstance(exponent, int):
                raise Refusal("torch has no negative powers of ints")
            return self.divide(1.0, self._constant_power(x, -exponent))
        base = self.build.as_float(x) if isinstance(exponent, float) else x
        result = base
        for _ in range(int(exponent) - 1):
            result = self.build.op("mul", result, base)
        return result
