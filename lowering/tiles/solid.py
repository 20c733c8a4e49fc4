"""Proofs that a piece has no gaps, so that what a tile touches is known from its first and last row.

Over the rows of a tile a piece's columns run from the smallest low to the largest high. If every column between is
really in the range of some row, no tile is visited in vain. This holds in two cases:

- one row has both the smallest low and the largest high: only one end moves, or the ends move apart;
- the ends move the same way, no row's range is empty (or all are, which one test tells), and the next row's range
  starts no later than where this row's range ends.

Bounds that are the same for all rows cut every range alike and leave no gap.
"""

from __future__ import annotations

from itertools import product

from attn_dsl.expr import Expr, ExprBuilder
from attn_dsl.expr.affine import Bounds, proves_nonnegative
from attn_dsl.lowering.tiles.dependence import ROW, substitute
from attn_dsl.lowering.tiles.direction import Direction
from attn_dsl.lowering.tiles.polynomial import expression, polynomial, without_quotients
from attn_dsl.lowering.tiles.solver import Solver

MovingBound = tuple[Expr, Direction]


def is_solid(solver: Solver, low: list[MovingBound], high: list[MovingBound]) -> bool:
    """Whether the ranges max(low) <= kv_idx < min(high) of neighbouring rows leave no gap."""
    moving_low, moving_high = ([b for b in bounds if b[1] is not Direction.FIXED] for bounds in (low, high))
    ways_low, ways_high = ({way for _, way in bounds} for bounds in (moving_low, moving_high))
    if Direction.UNKNOWN in ways_low | ways_high or len(ways_low) > 1 or len(ways_high) > 1:
        return False
    if ways_low != ways_high or not ways_low:
        return True  # one end stands still, or they move apart
    return all(_slides(solver, x, y, way is Direction.RISING) for (x, way), (y, _) in product(moving_low, moving_high))


def _slides(solver: Solver, low: Expr, high: Expr, rising: bool) -> bool:
    """Whether low < high in every row (or in none) and the range of the next row touches this one's."""
    b = solver.build
    next_low, next_high = _next_row(b, low), _next_row(b, high)
    width = _simplified(b, high, low)
    same_in_every_row = not solver.dependence.on(width, ROW)
    if not same_in_every_row and not _proved(solver, b.op("sub", width, b.const(1))):
        return False
    # rising: next low <= this high; falling: this low <= next high
    touch = _simplified(b, high, next_low) if rising else _simplified(b, next_high, low)
    if _proved(solver, touch):
        return True
    # a range at least 1 wide touches the next if an end moves by at most 1
    one = b.const(1)
    steps = [(low, next_low), (high, next_high)]
    return any(
        _proved(solver, b.op("sub", one, _simplified(b, after, before) if rising else _simplified(b, before, after)))
        for before, after in steps
    )


def _next_row(build: ExprBuilder, value: Expr) -> Expr:
    rows = [build.var("q_idx"), build.var("q_pos")]
    return substitute(build, value, {row: build.op("add", row, build.const(1)) for row in rows})


def _simplified(build: ExprBuilder, x: Expr, y: Expr) -> Expr:
    """x - y, multiplied out, with quotients written as remainders."""
    return expression(build, without_quotients(build, polynomial(build.op("sub", x, y))))


def _proved(solver: Solver, value: Expr) -> bool:
    value = expression(solver.build, polynomial(value))
    return proves_nonnegative(value, solver.intervals(value), lambda leaf: _known(solver, leaf))


def _known(solver: Solver, leaf: Expr) -> Bounds:
    """Where a query row stands; the ranges of leaves by number are in the intervals."""
    b = solver.build
    if leaf != b.var("q_pos"):
        return Bounds()
    position = b.op("add", b.var("q_idx"), solver.shift)
    return Bounds((position,), (position,))
