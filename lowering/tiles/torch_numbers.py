"""Interval arithmetic on torch tensors: one int64 or float64 element per tile.

No overflow checks: the checker has bounded every int of a spec, and the rules are inclusion monotone.
"""

from __future__ import annotations

import torch

from attn_dsl.expr.number_backend import Number

_SHIFTS = (1, 2, 4, 8, 16, 32)


class TorchNumbers:
    """The `Numbers` of `attn_dsl.expr.number_backend`, elementwise and broadcasting, on one device."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def const(self, value: bool | int | float) -> Number:
        dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64
        return torch.tensor(value, dtype=dtype, device=self._device)

    def where(self, condition: Number, yes: Number, no: Number) -> Number:
        return torch.where(condition, yes, no)

    def minimum(self, x: Number, y: Number) -> Number:
        return torch.minimum(x, y)

    def maximum(self, x: Number, y: Number) -> Number:
        return torch.maximum(x, y)

    def negate(self, condition: Number) -> Number:
        return ~condition

    def smear(self, x: Number) -> Number:
        for shift in _SHIFTS:
            x = x | (x >> shift)
        return x

    def saturate(self, low: Number, high: Number) -> tuple[Number, Number]:
        return low, high

    def to_float(self, x: Number) -> Number:
        return x.to(torch.float64)

    def floor_to_int(self, x: Number) -> Number:
        return torch.floor(x).to(torch.int64)

    def function(self, name: str, x: Number) -> Number:
        function = getattr(torch, name)
        return function(x)

    def f32_down(self, x: Number) -> Number:
        nearest = x.to(torch.float32)
        below = torch.nextafter(nearest, nearest.new_tensor(-torch.inf))
        return torch.where(nearest.to(torch.float64) > x, below, nearest).to(torch.float64)

    def f32_up(self, x: Number) -> Number:
        nearest = x.to(torch.float32)
        above = torch.nextafter(nearest, nearest.new_tensor(torch.inf))
        return torch.where(nearest.to(torch.float64) < x, above, nearest).to(torch.float64)
