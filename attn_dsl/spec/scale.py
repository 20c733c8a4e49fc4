"""The factor of q.k at one call, as a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..expr import INT, Expr, evaluate
from ..expr.scalars import ScalarAlgebra
from .model import AttentionSpec


def scale_value(spec: AttentionSpec, params: Mapping[str, Any], extents: Mapping[str, int]) -> float:
    """`scale` at these parameters, defaults filled in, and axis extents. A tensor of one element is read here."""
    defaults = {param.name: param.default for param in spec.params}

    def leaf(node: Expr, _: tuple[Any, ...]) -> Any:
        name = str(node.attr)
        if node.op == "size":
            return extents[name]
        value = params.get(name, defaults.get(name))
        return int(value) if node.type is INT else float(value)

    return float(evaluate([spec.scale], ScalarAlgebra(), leaf)[0])
