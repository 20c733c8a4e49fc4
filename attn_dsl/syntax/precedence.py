"""Binding strengths of the operators as they are written, taken from the operator table of the expression language."""

from __future__ import annotations

from ..expr.operators import CALL, COMPARE, OPERATORS

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")  # the table has no `>` and `>=`: they are `<` and `<=` turned around
_WRITTEN = [row for row in OPERATORS.values() if row.precedence < CALL and row.name != "select"]
INFIX = {row.spelling: row.precedence for row in _WRITTEN if len(row.signatures[0][0]) == 2} | dict.fromkeys(
    COMPARISONS, COMPARE
)
PREFIX = {row.spelling: row.precedence for row in _WRITTEN if len(row.signatures[0][0]) == 1}
