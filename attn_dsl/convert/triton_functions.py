"""What Triton's functions and operators mean on typed nodes.

Source: "Triton Semantics" of Triton's documentation. Ints divide as in C, rounded to zero, where the language rounds to
minus infinity; compile-time scalars divide as in Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from ..expr import BOOL, FLOAT, INT, Expr, ValueType, children_first
from .arithmetic import Arithmetic
from .refusal import Refusal

Meaning = Callable[..., Expr]

DTYPES: dict[str, ValueType] = {"int1": BOOL, "int32": INT, "int64": INT, "float32": FLOAT, "float64": FLOAT}
CONSTANTS: dict[str, float] = {"inf": math.inf, "pi": math.pi, "e": math.e}
_FLOAT_FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "sigmoid", "sin", "cos", "tanh")
_ALIASES = {"sqrt_rn": "sqrt", "fast_expf": "exp", "fast_logf": "log", "fast_log2f": "log2", "fast_sinf": "sin"}
_ALIASES |= {"fast_cosf": "cos", "fast_tanhf": "tanh", "fma": "fma", "div_rn": "fdiv", "fast_dividef": "fdiv"}


def cast(a: Arithmetic, value: Any, dtype: Any) -> Expr:
    """`value` in a dtype of Triton's, given by its name."""
    if dtype not in DTYPES:
        raise Refusal(f"a conversion to {dtype} rounds or wraps, and the language computes in f32 and exact ints")
    return a.cast(value, DTYPES[dtype])


def functions(a: Arithmetic) -> dict[str, Meaning]:
    """Name of a function of `tl`, `tl.math`, `math` or `libdevice` -> what it makes of its arguments."""
    table: dict[str, Meaning] = {name: lambda x, name=name: a.function(name, x) for name in _FLOAT_FUNCTIONS}
    table |= {
        "where": a.where,
        "maximum": lambda x, y, **_: a.apply("max", x, y),
        "minimum": lambda x, y, **_: a.apply("min", x, y),
        "max": lambda x, y: a.apply("max", x, y),
        "min": lambda x, y: a.apply("min", x, y),
        "clamp": lambda x, min, max, **_: a.clamp(x, min, max),
        "abs": lambda x: a.apply("abs", x),
        "floor": a.floor,
        "ceil": a.ceil,
        "rsqrt": lambda x: a.divide(1.0, a.function("sqrt", x)),
        "fdiv": lambda x, y, **_: a.divide(x, y),
        "fma": lambda x, y, z: a.apply("add", a.apply("mul", x, y), z),
        "cdiv": lambda x, y: _ceiling_divide(a, x, y),
        "pow": a.power,
        "cast": lambda x, dtype, **_: cast(a, x, dtype),
        "to": lambda x, dtype, **_: cast(a, x, dtype),
        "full": lambda shape, value, dtype: cast(a, value, dtype),
        "zeros": lambda shape, dtype: cast(a, 0, dtype),
        "zeros_like": lambda x: a.cast(0, a.node(x).type),
        "float": lambda x: a.cast(x, FLOAT),
        "int": lambda x: a.cast(x, INT),
        "not_": lambda x: a.logical("not", x),
        **{
            name: lambda x, *_, **__: a.node(x)
            for name in ("broadcast_to", "expand_dims", "multiple_of", "max_contiguous", "max_constancy")
        },
    }
    return table | {alias: table[name] for alias, name in _ALIASES.items()}


def _ceiling_divide(a: Arithmetic, x: Any, y: Any) -> Expr:
    return divide(a, a.apply("sub", a.apply("add", x, y), 1), y)


def binary(a: Arithmetic, operator: ast.operator, x: Expr, y: Expr) -> Expr:
    """`x operator y` of Python's syntax, with Triton's meaning."""
    if isinstance(operator, ast.FloorDiv | ast.Mod):
        return divide(a, x, y) if isinstance(operator, ast.FloorDiv) else remainder(a, x, y)
    name = _BINARY.get(type(operator))
    if name is None:
        raise Refusal(f"the operator {type(operator).__name__} has no spelling in the language")
    if name in ("bitand", "bitor", "bitxor"):
        return a.bitwise(name, x, y)
    if name == "div":
        return a.divide(x, y)
    return a.power(x, y) if name == "pow" else a.apply(name, x, y)


_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
    ast.LShift: "shl",
    ast.RShift: "shr",
}
_COMPARE: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Lt: ("lt", False),
    ast.LtE: ("le", False),
    ast.Gt: ("lt", True),
    ast.GtE: ("le", True),
    ast.Eq: ("eq", False),
    ast.NotEq: ("ne", False),
}


def divide(a: Arithmetic, x: Expr, y: Expr) -> Expr:
    """`//`: of ints."""
    _ints("//", x, y)
    return a.floor_divide(x, y) if _compile_time(x, y) else a.truncated_divide(x, y)


def remainder(a: Arithmetic, x: Expr, y: Expr) -> Expr:
    """`%`: what `//` leaves; of floats what C's fmod leaves."""
    return a.remainder(x, y) if _compile_time(x, y) else a.truncated_remainder(x, y)


def compare(a: Arithmetic, operator: ast.cmpop, x: Expr, y: Expr) -> Expr:
    found = _COMPARE.get(type(operator))
    if found is None:
        raise Refusal(f"the comparison '{type(operator).__name__}' has no spelling in the language")
    name, turned = found
    return a.compare(name, y, x) if turned else a.compare(name, x, y)


def _ints(symbol: str, *values: Expr) -> None:
    if any(value.type is FLOAT for value in values):
        raise Refusal(f"Triton's '{symbol}' takes ints", "use / for floats")


def _compile_time(*values: Expr) -> bool:
    """Whether Triton knows these values when it compiles: then Python divides them."""
    return all(node.op in ("const", "param") for value in values for node in children_first([value]) if not node.args)
