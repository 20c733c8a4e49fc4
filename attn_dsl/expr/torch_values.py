"""The torch algebra: expressions on tensors, element by element, differentiable by torch autograd.

Ints are int64 (exact: the checker refuses what may leave i64), bools are bool, floats have the algebra's precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .node import Expr
from .operators import I32_MAX, I32_MIN
from .types import BOOL, INT, ValueType


class TorchAlgebra:
    """One method per row of `OPERATORS`, each equal to the row's `define`; operands broadcast.

    Floats differ from `define` by rounding only. Derivatives are autograd's, with two choices: at a tie `min` and `max`
    take their first operand, and an element whose gradient is 0 passes on 0, even through an infinite derivative. So
    what a `select` does not choose, or a mask hides, never makes a gradient NaN.
    """

    def __init__(self, float_dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.float_dtype = float_dtype
        self.device = torch.device(device)

    def dtype(self, type: ValueType) -> torch.dtype:
        """The torch dtype of values of an expression type."""
        return torch.bool if type is BOOL else torch.int64 if type is INT else self.float_dtype

    def const(self, node: Expr) -> Tensor:
        return torch.tensor(node.attr, dtype=self.dtype(node.type), device=self.device)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        return _times_derivative(torch.mul, x, y)

    def div(self, x: Tensor, y: Tensor) -> Tensor:
        return _times_derivative(torch.div, x, y)

    def floordiv(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.div(x, y, rounding_mode="floor")

    def mod(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.remainder(x, y)

    def neg(self, x: Tensor) -> Tensor:
        return -x

    def abs(self, x: Tensor) -> Tensor:
        return torch.abs(x)

    def min(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.fmin(x, y)  # unlike minimum: the number, where the other is NaN

    def max(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.fmax(x, y)

    def bitand(self, x: Tensor, y: Tensor) -> Tensor:
        return x & y

    def bitor(self, x: Tensor, y: Tensor) -> Tensor:
        return x | y

    def bitxor(self, x: Tensor, y: Tensor) -> Tensor:
        return x ^ y

    def bitnot(self, x: Tensor) -> Tensor:
        return ~x

    def shl(self, x: Tensor, y: Tensor) -> Tensor:
        return x << y

    def shr(self, x: Tensor, y: Tensor) -> Tensor:
        return x >> y

    def lt(self, x: Tensor, y: Tensor) -> Tensor:
        return x < y

    def le(self, x: Tensor, y: Tensor) -> Tensor:
        return x <= y

    def eq(self, x: Tensor, y: Tensor) -> Tensor:
        return x == y

    def ne(self, x: Tensor, y: Tensor) -> Tensor:
        return x != y

    def and_(self, x: Tensor, y: Tensor) -> Tensor:
        return x & y

    def or_(self, x: Tensor, y: Tensor) -> Tensor:
        return x | y

    def not_(self, x: Tensor) -> Tensor:
        return ~x

    def select(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(condition, yes, no)

    def to_float(self, x: Tensor) -> Tensor:
        return x.to(self.float_dtype)

    def floor(self, x: Tensor) -> Tensor:
        # clamped twice: 2^31 - 1 has no float32, so the float bound is one too large
        bounded = torch.nan_to_num(x.detach().floor(), nan=0.0).clamp(-(2.0**31), 2.0**31)
        return bounded.to(torch.int64).clamp(I32_MIN, I32_MAX)

    def exp(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.exp, x)

    def exp2(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.exp2, x)

    def log(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.log, x)

    def log2(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.log2, x)

    def tanh(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.tanh, x)

    def sqrt(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.sqrt, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.sigmoid, x)

    def sin(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.sin, x)

    def cos(self, x: Tensor) -> Tensor:
        return _times_derivative(torch.cos, x)


def saturated(value: Tensor, type: ValueType, low: int | float | None, high: int | float | None) -> Tensor:
    """The elements of a parameter given as a tensor, moved into its range: `clamp(x, low, high)`, ints also into i32.

    A NaN becomes an end of the range, if it has one: what is proved of a parameter holds for every tensor.
    """
    if type is INT:
        return value.clamp(I32_MIN if low is None else low, I32_MAX if high is None else high)
    end = low if high is None else high
    if end is None:
        return value
    return torch.where(value.isnan(), end, value.clamp(low, high))


def _times_derivative(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """`function(*operands)` whose backward, a product with a derivative, maps a gradient of 0 to 0."""
    if not torch.is_grad_enabled() or not any(operand.requires_grad for operand in operands):
        return function(*operands)
    taps = [operand.view_as(operand) for operand in torch.broadcast_tensors(*operands)]  # type: ignore[no-untyped-call]
    result = function(*taps)
    nothing: list[Tensor] = []  # where the result's gradient is 0; known before the operands' gradients are
    result.register_hook(lambda gradient: nothing.append(gradient == 0))  # type: ignore[no-untyped-call]
    for tap in taps:
        if tap.requires_grad:
            tap.register_hook(lambda gradient: torch.where(nothing[-1], 0.0, gradient))
    return result
