"""How an int expression changes from one query row to the next.

If a bound rises or falls with the row, its smallest and largest values over a query tile stand at the tile's first
and last row: a kernel evaluates it twice as a scalar. Interval arithmetic over the tile then gives exactly these
two values, because every rule below is one under which it loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attn_dsl.expr import Expr, children_first
from attn_dsl.expr.interval import Interval, IntInterval
from attn_dsl.lowering.tiles.dependence import ROW, Dependence


class Direction(Enum):
    """What a value does as q_idx grows by one, everything else fixed."""

    FIXED = "fixed"  # the same for every row
    RISING = "rising"  # never smaller
    FALLING = "falling"  # never larger
    UNKNOWN = "unknown"  # neither is proved

    def flipped(self) -> Direction:
        return {Direction.RISING: Direction.FALLING, Direction.FALLING: Direction.RISING}.get(self, self)

    def joined(self, other: Direction) -> Direction:
        """The direction of a function that rises with both operands."""
        if Direction.FIXED in (self, other):
            return other if self is Direction.FIXED else self
        return self if self is other else Direction.UNKNOWN


def direction_of(root: Expr, dependence: Dependence, intervals: Mapping[Expr, Interval]) -> Direction:
    """The direction of `root`; `intervals` has the range of every node below it."""
    known: dict[Expr, Direction] = {}
    for node in children_first([root]):
        known[node] = _direction(node, [known[a] for a in node.args], dependence, intervals)
    return known[root]


def _direction(
    node: Expr, operands: list[Direction], dependence: Dependence, intervals: Mapping[Expr, Interval]
) -> Direction:
    if not dependence.on(node, ROW):
        return Direction.FIXED
    if node.op == "var":
        return Direction.RISING
    if node.op in ("add", "min", "max"):
        return operands[0].joined(operands[1])
    if node.op == "sub":
        return operands[0].joined(operands[1].flipped())
    if node.op in ("neg", "bitnot"):
        return operands[0].flipped()
    if node.op in ("floordiv", "shl", "shr"):
        # a shift count is never negative, a divisor never 0
        return _scaled(operands[0], operands[1], intervals[node.args[1]])
    if node.op == "mul":
        for value, factor in ((0, 1), (1, 0)):
            if operands[factor] is Direction.FIXED:
                return _scaled(operands[value], operands[factor], intervals[node.args[factor]])
    if node.op == "select" and operands[0] is Direction.FIXED:
        return operands[1].joined(operands[2])
    return Direction.UNKNOWN


def _scaled(value: Direction, factor: Direction, interval: Interval) -> Direction:
    """A value multiplied, shifted or divided by a factor that is the same for every row."""
    if factor is not Direction.FIXED or not isinstance(interval, IntInterval):
        return Direction.UNKNOWN
    if interval.lo >= 0:
        return value
    return value.flipped() if interval.hi <= 0 else Direction.UNKNOWN
