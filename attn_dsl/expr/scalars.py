"""The scalar algebra: Python values, each operator straight from its definition in `OPERATORS`."""

from __future__ import annotations

from typing import Any

from .node import Expr
from .operators import OPERATORS


class ScalarAlgebra:
    """Values are Python bools, ints (exact) and floats (double precision)."""

    def const(self, node: Expr) -> Any:
        return node.attr

    def __getattr__(self, name: str) -> Any:
        try:
            return OPERATORS[name.removesuffix("_")].define
        except KeyError:
            raise AttributeError(name) from None
