"""The run-time values a mask is analysed with, and the values of leaves at given indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_dsl.expr import Expr, evaluate
from attn_dsl.expr.interval import FloatInterval, Interval, IntervalAlgebra, IntInterval, Truth
from attn_dsl.expr.torch_values import TorchAlgebra, saturated
from attn_dsl.lowering.tiles.dependence import COLUMN, ROW, Dependence
from attn_dsl.lowering.tiles.torch_numbers import TorchNumbers
from attn_dsl.spec.model import AttentionSpec

_PACKED = {"total_q": "q", "total_k": "k"}
_PARAM_INDEX = {"heads": "h", "kv_heads": "kv_h", "batch": "b"}


@dataclass(frozen=True)
class Binding:
    """One call as the mask sees it. Tensors may live on any one device.

    Everything the mask reads has to be there; what only q, k, v, score or sink need may be left out.
    """

    seq_q: Tensor  # i64[batch]: query rows of each sequence
    seq_k: Tensor  # i64[batch]: keys of each sequence
    extents: Mapping[str, int]  # axis name -> extent; heads and kv_heads at least
    values: Mapping[str, Tensor]  # captures by name, and parameters as tensors of shape () or [axis]
    packed_q: Tensor | None = None  # i64[batch]: cu_seqlens[b], where captures on total_q begin; None: 0
    packed_k: Tensor | None = None  # i64[batch]: likewise for total_k

    @staticmethod
    def of(
        extents: Mapping[str, int],
        values: Mapping[str, Tensor | int | float],
        seq_q: Tensor | list[int] | None = None,
        seq_k: Tensor | list[int] | None = None,
        packed_q: Tensor | list[int] | None = None,
        packed_k: Tensor | list[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Binding:
        """A binding from plain values. Lengths left out are the axis's extent for every sequence."""

        def rows(given: Tensor | list[int] | None, axis: str) -> Tensor:
            if given is None:
                return torch.full((extents["batch"],), extents[axis], dtype=torch.int64, device=device)
            return torch.as_tensor(given, dtype=torch.int64, device=device)

        def starts(given: Tensor | list[int] | None) -> Tensor | None:
            return None if given is None else torch.as_tensor(given, dtype=torch.int64, device=device)

        def tensor(value: Tensor | int | float) -> Tensor:
            if isinstance(value, float):
                return torch.tensor(value, dtype=torch.float64, device=device)
            return torch.as_tensor(value, device=device)

        tensors = {name: tensor(value) for name, value in values.items()}
        lengths = rows(seq_q, "seq_q"), rows(seq_k, "seq_k")
        return Binding(*lengths, extents, tensors, starts(packed_q), starts(packed_k))

    @property
    def batch(self) -> int:
        return self.seq_q.numel()

    @property
    def group(self) -> int:
        """Query heads per K/V head."""
        return self.extents["heads"] // self.extents["kv_heads"]

    @property
    def device(self) -> torch.device:
        return self.seq_q.device


Index = Mapping[str, Tensor]  # values of b, h, kv_h, q_idx, q_pos, kv_idx, seq_q, seq_k that broadcast together
IndexRange = Mapping[str, IntInterval]  # their ranges


class Leaves:
    """Values of leaves for one binding. Indices of reads are clamped into their axes, as the language says."""

    def __init__(self, spec: AttentionSpec, dependence: Dependence, binding: Binding) -> None:
        self._spec = spec
        self._dependence = dependence
        self.binding = binding
        self.values = TorchAlgebra(torch.float64, binding.device)
        self._numbers = TorchNumbers(binding.device)
        self.intervals = IntervalAlgebra(self._numbers)

    def at(self, root: Expr, index: Index) -> Tensor:
        """`root` at points; broadcasts to the shape of the indices it depends on."""
        return self.all_at([root], index)[0]

    def all_at(self, roots: list[Expr], index: Index) -> list[Tensor]:
        return evaluate(roots, self.values, lambda node, operands: self._point(node, operands, index))

    def over(self, roots: list[Expr], ranges: IndexRange) -> list[Any]:
        """The intervals of `roots` over boxes of indices."""
        return evaluate(roots, self.intervals, lambda node, operands: self.interval(node, operands, ranges))

    def _point(self, node: Expr, operands: tuple[Tensor, ...], index: Index) -> Tensor:
        name = str(node.attr)
        if node.op == "var":
            return index[name]
        if node.op == "size":
            return torch.tensor(self.binding.extents[name], device=self.binding.device)
        value = self.binding.values[name]
        if node.op == "param":
            param = self._spec.param(name)
            value = saturated(value.to(self.values.dtype(node.type)), node.type, param.low, param.high)
            value = value if value.dim() == 0 or param.per is None else value[index[_PARAM_INDEX[param.per]]]
        else:
            value = self._element(node, value, operands, index)
        return value.to(self.values.dtype(node.type))

    def _element(self, node: Expr, value: Tensor, operands: tuple[Tensor, ...], index: Index) -> Tensor:
        if value.numel() == 0:
            return torch.zeros((), dtype=value.dtype, device=value.device)
        return value[self.places(node, operands, index)]

    def places(self, node: Expr, operands: tuple[Tensor, ...], index: Index) -> tuple[Tensor, ...]:
        """Storage indices of a read, one per axis."""
        extents = self.binding.values[str(node.attr)].shape
        starts = self.starts(node, index)
        return tuple(
            (operand + start).clamp(0, extent - 1)
            for operand, start, extent in zip(operands, starts, extents, strict=True)
        )

    def starts(self, node: Expr, index: Index) -> list[Tensor | int]:
        """Where this sequence begins on each axis of a read: on a packed axis behind the sequences before it."""
        packed = {"q": self.binding.packed_q, "k": self.binding.packed_k}
        found: list[Tensor | int] = []
        for axis in self._spec.tensor(str(node.attr)).axes:
            first = packed[_PACKED[axis.name]] if axis.name in _PACKED else None
            found.append(0 if first is None else first[index["b"]])
        return found

    def interval(self, node: Expr, operands: tuple[Any, ...], ranges: IndexRange) -> Interval:
        """The interval of a leaf over a box of indices; `operands` are the intervals of a read's indices."""
        if node.op == "var":
            return ranges[str(node.attr)]
        if node.op == "read" and self._dependence.on(node, ROW, COLUMN):
            return self.whole(node)
        points = {name: interval.lo for name, interval in ranges.items()}
        value = exactly(self._point(node, tuple(operand.lo for operand in operands), points))
        if isinstance(value, FloatInterval):  # a number given for a parameter need not be an f32
            value = FloatInterval(self._numbers.f32_down(value.lo), self._numbers.f32_up(value.hi), value.nan)
        return value

    def whole(self, node: Expr) -> Interval:
        """The interval of every element of a read's capture; of an empty one, which no row reads, one value."""
        value = self.binding.values[str(node.attr)].reshape(-1)
        if value.numel() == 0:
            value = torch.zeros(1, dtype=value.dtype, device=value.device)
        return hull(value.to(self.values.dtype(node.type)), 0)


def exactly(value: Tensor) -> Interval:
    """The interval of known values."""
    if value.dtype is torch.bool:
        return Truth(value, ~value)
    if value.dtype.is_floating_point:
        value = value.to(torch.float64)
        return FloatInterval(value, value, torch.isnan(value))
    value = value.to(torch.int64)
    return IntInterval(value, value)


def hull(values: Tensor, dim: int) -> Interval:
    """The interval of the elements along `dim`."""
    if values.dtype is torch.bool:
        return Truth(values.any(dim), ~values.all(dim))
    if values.dtype.is_floating_point:
        nan = torch.isnan(values)
        low, high = values.masked_fill(nan, torch.inf).amin(dim), values.masked_fill(nan, -torch.inf).amax(dim)
        return FloatInterval(torch.minimum(low, high), torch.maximum(low, high), nan.any(dim))
    return IntInterval(values.amin(dim).to(torch.int64), values.amax(dim).to(torch.int64))
