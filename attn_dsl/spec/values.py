"""What an expression can name while it is typed: values, tensors, and what only a spec file has."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Span
from ..expr import Expr, ValueType
from .model import DType

TYPES: dict[str, ValueType] = {kind.value: kind for kind in ValueType}


@dataclass(frozen=True)
class TensorValue:
    """A tensor as an expression sees it: its name, what its elements are, one axis description per index."""

    name: str
    type: ValueType
    axes: tuple[str | None, ...]  # axis names; None for an axis without a name
    extents: tuple[Expr, ...]  # number of legal indices of each axis


Value = Expr | TensorValue | DType


class TooLarge(Exception):
    """The expansion passed a limit; it was reported."""


@dataclass
class SpecNames:
    """What only a spec file has: its tensors, parameters and axes."""

    tensors: dict[str, TensorValue] = field(default_factory=dict)
    params: dict[str, Expr] = field(default_factory=dict)
    axes: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)  # axis -> the axis it stands for (kv_heads -> heads)
    fixed: dict[str, int] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # declared, and reported: uses of them are not reported again
    closed: dict[str, str] = field(default_factory=dict)  # tensors no expression can read -> their role
