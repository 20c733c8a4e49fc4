"""The one expression language: typed nodes, the table of operators, the one evaluator, and its algebras."""

from .evaluate import Algebra, evaluate
from .node import Expr, ExprBuilder, children_first
from .operators import OPERATORS, Operator
from .types import BOOL, FLOAT, INT, ValueType

__all__ = [
    "BOOL",
    "FLOAT",
    "INT",
    "OPERATORS",
    "Algebra",
    "Expr",
    "ExprBuilder",
    "Operator",
    "ValueType",
    "children_first",
    "evaluate",
]
