"""The table of operators: one row says an operator's types, its meaning, its spelling and its derivative.

`define` is the meaning on Python values (integers exact, floats in double precision); constants are folded
with it and every algebra is tested against it. An algebra gives each row a method of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .types import BOOL, FLOAT, INT, ValueType

if TYPE_CHECKING:
    from .node import Expr, ExprBuilder

I32_MIN, I32_MAX = -(2**31), 2**31 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1

Signature = tuple[tuple[ValueType, ...], ValueType]
# (builder, operands, value) -> one float partial derivative per operand; None where an operand is no float
Derivative = Callable[["ExprBuilder", tuple["Expr", ...], "Expr"], tuple["Expr | None", ...]]


@dataclass(frozen=True)
class Operator:
    """One row. `derivative` is a rule, or a sentence that says why there is none."""

    name: str
    signatures: tuple[Signature, ...]
    define: Callable[..., Any]
    spelling: str  # infix or prefix symbol, or a function's name
    precedence: int  # binding strength of the spelling as in docs/language.md; CALL for functions
    derivative: Derivative | str

    def result(self, operands: tuple[ValueType, ...]) -> ValueType | None:
        """The result type for exactly these operand types, or None if no signature fits."""
        for given, result in self.signatures:
            if given == operands:
                return result
        return None


TERNARY, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, CALL = range(1, 14)


def _floor(x: float) -> int:
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return I32_MAX if x > 0 else I32_MIN
    return max(I32_MIN, min(I32_MAX, math.floor(x)))


def _divide(x: float, y: float) -> float:
    if y != 0.0:
        return x / y
    if x == 0.0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def _guarded(function: Callable[[float], float], overflow: float) -> Callable[[float], float]:
    """`function` with IEEE results where Python's math module raises."""

    def guarded(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return overflow
        except ValueError:
            return math.nan

    return guarded


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: -math.inf if x == 0 else math.nan if x < 0 else function(x)


def _sigmoid(x: float) -> float:
    return 0.0 if x < -700.0 else 1.0 / (1.0 + math.exp(-x))  # NaN takes the second branch


def _minimum(x: Any, y: Any) -> Any:
    return y if x != x else x if y != y else min(x, y)


def _maximum(x: Any, y: Any) -> Any:
    return y if x != x else x if y != y else max(x, y)


_INT1, _INT2 = ((INT,), INT), ((INT, INT), INT)
_FLOAT1, _FLOAT2 = ((FLOAT,), FLOAT), ((FLOAT, FLOAT), FLOAT)
_NUMBER1, _NUMBER2 = (_INT1, _FLOAT1), (_INT2, _FLOAT2)
_ORDER: tuple[Signature, ...] = (((INT, INT), BOOL), ((FLOAT, FLOAT), BOOL))
_EQUALITY: tuple[Signature, ...] = (*_ORDER, ((BOOL, BOOL), BOOL))
_LOGIC: tuple[Signature, ...] = (((BOOL, BOOL), BOOL),)

_DISCRETE = "its value is an integer or a truth value: piecewise constant, the derivative is zero"


def _chosen(b: ExprBuilder, condition: Expr) -> tuple[Expr, Expr]:
    one, zero = b.const(1.0), b.const(0.0)
    return b.op("select", condition, one, zero), b.op("select", condition, zero, one)


def _d_min(b: ExprBuilder, x: tuple[Expr, ...], _value: Expr) -> tuple[Expr, Expr]:
    return _chosen(b, b.op("or", b.op("le", x[0], x[1]), b.op("ne", x[1], x[1])))  # a NaN is never the result


def _d_max(b: ExprBuilder, x: tuple[Expr, ...], _value: Expr) -> tuple[Expr, Expr]:
    return _chosen(b, b.op("or", b.op("le", x[1], x[0]), b.op("ne", x[1], x[1])))


def _d_abs(b: ExprBuilder, x: tuple[Expr, ...], _value: Expr) -> tuple[Expr]:
    """The sign, 0 at 0, as autograd has it."""
    zero = b.const(0.0)
    positive = b.op("select", b.op("lt", zero, x[0]), b.const(1.0), zero)
    return (b.op("select", b.op("lt", x[0], zero), b.const(-1.0), positive),)


def _d_div(b: ExprBuilder, x: tuple[Expr, ...], value: Expr) -> tuple[Expr, Expr]:
    return b.op("div", b.const(1.0), x[1]), b.op("neg", b.op("div", value, x[1]))


def _d_sigmoid(b: ExprBuilder, _x: tuple[Expr, ...], value: Expr) -> tuple[Expr]:
    return (b.op("mul", value, b.op("sub", b.const(1.0), value)),)


_ROWS = (
    Operator("add", _NUMBER2, lambda x, y: x + y, "+", SUM, lambda b, x, v: (b.const(1.0), b.const(1.0))),
    Operator("sub", _NUMBER2, lambda x, y: x - y, "-", SUM, lambda b, x, v: (b.const(1.0), b.const(-1.0))),
    Operator("mul", _NUMBER2, lambda x, y: x * y, "*", PRODUCT, lambda b, x, v: (x[1], x[0])),
    Operator("div", (_FLOAT2,), _divide, "/", PRODUCT, _d_div),
    Operator("floordiv", (_INT2,), lambda x, y: x // y, "//", PRODUCT, _DISCRETE),
    Operator("mod", (_INT2,), lambda x, y: x % y, "%", PRODUCT, _DISCRETE),
    Operator("neg", _NUMBER1, lambda x: -x, "-", UNARY, lambda b, x, v: (b.const(-1.0),)),
    Operator(
        "abs",
        _NUMBER1,
        abs,
        "abs",
        CALL,
        _d_abs,
    ),
    Operator("min", _NUMBER2, _minimum, "min", CALL, _d_min),
    Operator("max", _NUMBER2, _maximum, "max", CALL, _d_max),
    Operator("bitand", (_INT2,), lambda x, y: x & y, "&", BIT_AND, _DISCRETE),
    Operator("bitor", (_INT2,), lambda x, y: x | y, "|", BIT_OR, _DISCRETE),
    Operator("bitxor", (_INT2,), lambda x, y: x ^ y, "^", BIT_XOR, _DISCRETE),
    Operator("bitnot", (_INT1,), lambda x: ~x, "~", UNARY, _DISCRETE),
    Operator("shl", (_INT2,), lambda x, y: x << y, "<<", SHIFT, _DISCRETE),
    Operator("shr", (_INT2,), lambda x, y: x >> y, ">>", SHIFT, _DISCRETE),
    Operator("lt", _ORDER, lambda x, y: x < y, "<", COMPARE, _DISCRETE),
    Operator("le", _ORDER, lambda x, y: x <= y, "<=", COMPARE, _DISCRETE),
    Operator("eq", _EQUALITY, lambda x, y: x == y, "==", COMPARE, _DISCRETE),
    Operator("ne", _EQUALITY, lambda x, y: x != y, "!=", COMPARE, _DISCRETE),
    Operator("and", _LOGIC, lambda x, y: x and y, "and", AND, _DISCRETE),
    Operator("or", _LOGIC, lambda x, y: x or y, "or", OR, _DISCRETE),
    Operator("not", (((BOOL,), BOOL),), lambda x: not x, "not", NOT, _DISCRETE),
    Operator(
        "select",
        tuple(((BOOL, kind, kind), kind) for kind in ValueType),
        lambda condition, x, y: x if condition else y,
        "if else",
        TERNARY,
        lambda b, x, v: (None, *_chosen(b, x[0])),
    ),
    Operator("to_float", (((INT,), FLOAT),), float, "float", CALL, _DISCRETE),
    Operator("floor", (((FLOAT,), INT),), _floor, "floor", CALL, _DISCRETE),
    Operator("exp", (_FLOAT1,), _guarded(math.exp, math.inf), "exp", CALL, lambda b, x, v: (v,)),
    Operator(
        "exp2",
        (_FLOAT1,),
        _guarded(lambda x: 2.0**x, math.inf),
        "exp2",
        CALL,
        lambda b, x, v: (b.op("mul", v, b.const(math.log(2.0))),),
    ),
    Operator("log", (_FLOAT1,), _logarithm(math.log), "log", CALL, lambda b, x, v: (b.op("div", b.const(1.0), x[0]),)),
    Operator(
        "log2",
        (_FLOAT1,),
        _logarithm(math.log2),
        "log2",
        CALL,
        lambda b, x, v: (b.op("div", b.const(1.0 / math.log(2.0)), x[0]),),
    ),
    Operator(
        "tanh",
        (_FLOAT1,),
        math.tanh,
        "tanh",
        CALL,
        lambda b, x, v: (b.op("sub", b.const(1.0), b.op("mul", v, v)),),
    ),
    Operator(
        "sqrt",
        (_FLOAT1,),
        _guarded(math.sqrt, math.inf),
        "sqrt",
        CALL,
        lambda b, x, v: (b.op("div", b.const(0.5), v),),
    ),
    Operator("sigmoid", (_FLOAT1,), _sigmoid, "sigmoid", CALL, _d_sigmoid),
    Operator("sin", (_FLOAT1,), _guarded(math.sin, math.nan), "sin", CALL, lambda b, x, v: (b.op("cos", x[0]),)),
    Operator(
        "cos",
        (_FLOAT1,),
        _guarded(math.cos, math.nan),
        "cos",
        CALL,
        lambda b, x, v: (b.op("neg", b.op("sin", x[0])),),
    ),
)

OPERATORS: dict[str, Operator] = {row.name: row for row in _ROWS}
