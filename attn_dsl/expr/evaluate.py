"""The one evaluator: an expression, an algebra, a value for each leaf; every shared node is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from .node import Expr, children_first

Value = TypeVar("Value")


class Algebra(Protocol):
    """What values an expression has. One method per row of `OPERATORS`; Python keywords get a trailing underscore.

    Algebras of this package: `torch_values.TorchAlgebra`, `interval.IntervalAlgebra`, `text.TextAlgebra`.
    """

    def const(self, node: Expr) -> Any:
        """The value of a constant."""


def method_name(operator: str) -> str:
    """The algebra's method for an operator: its name, with an underscore behind Python's keywords."""
    return f"{operator}_" if operator in ("and", "or", "not") else operator


def evaluate(roots: Iterable[Expr], algebra: Algebra, leaf: Callable[[Expr, tuple[Any, ...]], Any]) -> list[Any]:
    """The values of `roots`, in order.

    `leaf(node, indices)` gives the value of a `var`, `size`, `param` or `read` node; `indices` holds the values
    of a `read`'s index operands and is empty for the others.
    """
    values: dict[Expr, Any] = {}
    wanted = list(roots)
    for node in children_first(wanted):
        operands = tuple(values[argument] for argument in node.args)
        if node.op == "const":
            values[node] = algebra.const(node)
        elif node.op in ("var", "size", "param", "read"):
            values[node] = leaf(node, operands)
        else:
            values[node] = getattr(algebra, method_name(node.op))(*operands)
    return [values[root] for root in wanted]
