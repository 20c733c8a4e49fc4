"""What torch's functions and tensor methods mean on typed nodes: one table for `torch.f(x)`, `x.f()` and operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ..expr import BOOL, FLOAT, INT, Expr, ValueType
from .arithmetic import Arithmetic
from .refusal import Refusal

Meaning = Callable[..., Expr]

FLOATS = (torch.float32, torch.float64)
INTS = (torch.int64, torch.int32)


def type_of(dtype: torch.dtype) -> ValueType:
    """The value type of elements of a dtype that a conversion may ask for. Raises Refusal where it would round."""
    if dtype is torch.bool:
        return BOOL
    if dtype in FLOATS:
        return FLOAT
    if dtype in INTS:
        return INT
    raise Refusal(f"a conversion to {dtype} rounds or wraps, and the language computes in f32 and exact ints")


def meanings(arithmetic: Arithmetic) -> dict[str, Meaning]:
    """Name of a torch function, tensor method or operator -> what it makes of its arguments."""
    a = arithmetic
    table: dict[str, Meaning] = {
        **_operators(a),
        **_rounding(a),
        **_conversions(a),
        **_constants(a),
    }
    for name in ("exp", "exp2", "log", "log2", "tanh", "sqrt", "sigmoid", "sin", "cos"):
        table[name] = lambda x, name=name: a.function(name, x)
    table["where"] = a.where
    table["maximum"] = table["fmax"] = lambda x, y: a.apply("max", x, y)
    table["minimum"] = table["fmin"] = lambda x, y: a.apply("min", x, y)
    table["max"], table["min"] = _pairwise(a, "max"), _pairwise(a, "min")
    table["clamp"] = table["clip"] = lambda x, min=None, max=None: a.clamp(x, min, max)
    table["clamp_min"] = lambda x, min: a.clamp(x, min, None)
    table["clamp_max"] = lambda x, max: a.clamp(x, None, max)
    table["relu"] = lambda x: a.clamp(x, 0)
    table["abs"] = table["absolute"] = lambda x: a.apply("abs", x)
    table["neg"] = table["negative"] = lambda x: a.apply("neg", x)
    table["pos"] = table["positive"] = a.number
    table["square"] = lambda x: a.power(x, 2)
    table["rsqrt"] = lambda x: a.divide(1.0, a.function("sqrt", x))
    table["reciprocal"] = lambda x: a.divide(1.0, x)
    table["log1p"] = lambda x: a.function("log", a.apply("add", 1.0, x))
    table["expm1"] = lambda x: a.apply("sub", a.function("exp", x), 1.0)
    table["sign"] = table["sgn"] = lambda x: a.where(
        a.compare("lt", 0, x), *a.alike(1, a.where(a.compare("lt", x, 0), *_like(a, x, -1, 0)))
    )
    table["log10"] = lambda x: a.apply("mul", a.function("log2", x), 0.30102999566398120)
    return table


def _like(a: Arithmetic, x: Any, *values: int) -> list[Expr]:
    """Whole numbers in the type of `x`."""
    return [a.cast(value, a.number(x).type) for value in values]


def _operators(a: Arithmetic) -> dict[str, Meaning]:
    return {
        "add": _scaled(a, "add"),
        "sub": _scaled(a, "sub"),
        "subtract": _scaled(a, "sub"),
        "rsub": lambda x, y: a.apply("sub", y, x),
        "mul": lambda x, y: _product(a, x, y),
        "multiply": lambda x, y: _product(a, x, y),
        "truediv": a.divide,
        "true_divide": a.divide,
        "div": lambda x, y, rounding_mode=None: _division(a, x, y, rounding_mode),
        "divide": lambda x, y, rounding_mode=None: _division(a, x, y, rounding_mode),
        "floordiv": a.floor_divide,
        "floor_divide": a.floor_divide,
        "mod": a.remainder,
        "remainder": a.remainder,
        "fmod": a.truncated_remainder,
        "pow": a.power,
        "and_": lambda x, y: a.bitwise("bitand", x, y),
        "or_": lambda x, y: a.bitwise("bitor", x, y),
        "xor": lambda x, y: a.bitwise("bitxor", x, y),
        "bitwise_and": lambda x, y: a.bitwise("bitand", x, y),
        "bitwise_or": lambda x, y: a.bitwise("bitor", x, y),
        "bitwise_xor": lambda x, y: a.bitwise("bitxor", x, y),
        "bitwise_not": a.invert,
        "invert": a.invert,
        "lshift": lambda x, y: a.apply("shl", x, y),
        "rshift": lambda x, y: a.apply("shr", x, y),
        "bitwise_left_shift": lambda x, y: a.apply("shl", x, y),
        "bitwise_right_shift": lambda x, y: a.apply("shr", x, y),
        "logical_and": lambda x, y: a.logical("and", x, y),
        "logical_or": lambda x, y: a.logical("or", x, y),
        "logical_xor": lambda x, y: a.logical("ne", x, y),
        "logical_not": lambda x: a.logical("not", x),
        **{name: _comparison(a, *row) for name, row in _COMPARISONS.items()},
    }


_COMPARISONS = {  # torch's name -> the language's operator, and whether its operands change places
    "lt": ("lt", False),
    "less": ("lt", False),
    "le": ("le", False),
    "less_equal": ("le", False),
    "gt": ("lt", True),
    "greater": ("lt", True),
    "ge": ("le", True),
    "greater_equal": ("le", True),
    "eq": ("eq", False),
    "ne": ("ne", False),
    "not_equal": ("ne", False),
}


def _comparison(a: Arithmetic, name: str, turned: bool) -> Meaning:
    return lambda x, y: a.compare(name, y, x) if turned else a.compare(name, x, y)


def _product(a: Arithmetic, x: Any, y: Any) -> Expr:
    left, right = a.node(x), a.node(y)
    if left.type is BOOL and right.type is BOOL:
        return a.build.op("and", left, right)
    return a.apply("mul", left, right)


def _scaled(a: Arithmetic, name: str) -> Meaning:
    def apply(x: Any, y: Any, *, alpha: Any = 1) -> Expr:
        return a.apply(name, x, y if alpha == 1 else a.apply("mul", y, alpha))

    return apply


def _division(a: Arithmetic, x: Any, y: Any, rounding_mode: str | None) -> Expr:
    if rounding_mode is None:
        return a.divide(x, y)
    return a.floor_divide(x, y) if rounding_mode == "floor" else a.truncated_divide(x, y)


def _pairwise(a: Arithmetic, name: str) -> Meaning:
    def apply(x: Any, y: Any = None, **_: Any) -> Expr:
        if not isinstance(y, Expr):
            raise Refusal(f"torch.{name} over an axis reduces a tensor, and a mask or score sees one pair at a time")
        return a.apply(name, x, y)

    return apply


def _rounding(a: Arithmetic) -> dict[str, Meaning]:
    return {
        "floor": a.floor,
        "ceil": a.ceil,
        "trunc": lambda x: a.cast(a.truncate(a.number(x)), a.number(x).type),
        "fix": lambda x: a.cast(a.truncate(a.number(x)), a.number(x).type),
    }


def _conversions(a: Arithmetic) -> dict[str, Meaning]:
    def to(x: Any, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Expr:
        dtypes = [arg for arg in (*args, dtype) if isinstance(arg, torch.dtype)]
        return a.cast(x, type_of(dtypes[0])) if dtypes else a.node(x)

    same: dict[str, Meaning] = {
        name: lambda x, *args, **kwargs: a.node(x)
        for name in ("detach", "clone", "contiguous", "squeeze", "cpu", "cuda", "alias")
    }
    return {
        **same,
        "to": to,
        "type": to,
        "type_as": lambda x, other: a.cast(x, a.node(other).type),
        "float": lambda x: a.cast(x, FLOAT),
        "double": lambda x: a.cast(x, FLOAT),
        "int": lambda x: a.cast(x, INT),
        "long": lambda x: a.cast(x, INT),
        "bool": lambda x: a.cast(x, BOOL),
    }


def _constants(a: Arithmetic) -> dict[str, Meaning]:
    """Factories of one element."""

    def filled(x: Any, size: Any, value: Any, dtype: torch.dtype | None = None, **_: Any) -> Expr:
        if size is not None and tuple(size) != ():
            raise Refusal("a mask or score makes no tensors: it sees one pair at a time")
        return a.cast(value, a.node(x).type if dtype is None else type_of(dtype))

    return {
        "new_ones": lambda x, size=(), **options: filled(x, size, 1, **options),
        "new_zeros": lambda x, size=(), **options: filled(x, size, 0, **options),
        "new_full": lambda x, size, fill_value, **options: filled(x, size, fill_value, **options),
        "new_tensor": lambda x, data, **options: filled(x, None, data, **options),
        "ones_like": lambda x, **options: filled(x, None, 1, **options),
        "zeros_like": lambda x, **options: filled(x, None, 0, **options),
        "full_like": lambda x, fill_value, **options: filled(x, None, fill_value, **options),
        "scalar_tensor": lambda x, **_: a.node(x),
        "masked_fill": lambda x, mask, value: a.where(mask, value, x),
    }


def name_of(target: Any) -> str:
    """The name under which a traced call is looked up: of a method, an operator, or a function of torch."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).split(".")[1]
    name = target if isinstance(target, str) else str(getattr(target, "__name__", target))
    return name.strip("_") if name.startswith("__") else name


GETITEM = (operator.getitem, "__getitem__")
