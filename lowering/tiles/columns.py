"""The column form of a mask: for each query row, the keys it sees as a union of half-open column ranges.

`seen` says which columns a row sees, `hidden` which it does not: the same mask negated and solved again. A tile that
no range of `seen` touches is empty, a tile that no range of `hidden` touches is full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from attn_dsl.expr import BOOL, Expr, ExprBuilder, children_first
from attn_dsl.expr.interval import Interval, IntInterval
from attn_dsl.lowering.tiles.clauses import Clause, Clauses, TooLarge, both, either
from attn_dsl.lowering.tiles.dependence import COLUMN, ROW, Dependence, substitute
from attn_dsl.lowering.tiles.direction import Direction, direction_of
from attn_dsl.lowering.tiles.polynomial import normal
from attn_dsl.lowering.tiles.solid import is_solid
from attn_dsl.lowering.tiles.solver import Solver

MAX_DEPTH = 80  # nesting of a mask that is taken apart
MAX_NODES = 2_000  # distinct nodes of such a mask
MAX_SPLITS = 3  # row conditions inside numbers that are split into cases


@dataclass(frozen=True)
class Bound:
    """One bound of a range: an int expression of the row, and how it changes from row to row."""

    expr: Expr
    direction: Direction


@dataclass(frozen=True)
class Piece:
    """The columns max(low) <= kv_idx < min(high), of rows max(row_low) <= q_idx < min(row_high), under conditions.

    A row outside the row range, or one whose guard is false, has no column in this piece. No bound: the axis's own.
    """

    low: tuple[Bound, ...]  # inclusive
    high: tuple[Bound, ...]  # exclusive
    row_low: tuple[Expr, ...]  # inclusive; the same for all rows
    row_high: tuple[Expr, ...]  # exclusive; the same for all rows
    guard: tuple[Expr, ...]  # bools of the row
    leftover: tuple[Expr, ...]  # bools of row and column: true for some columns of the range only
    widths: tuple[Expr, ...]  # high - low where it is the same for every row: a range is empty if one is not positive
    is_solid: bool  # proved: between the smallest low and the largest high of neighbouring rows there is no gap

    @property
    def is_range(self) -> bool:
        """Whether every column of the range is meant."""
        return not self.leftover


@dataclass(frozen=True)
class ColumnForm:
    """A union of pieces that means exactly the mask (`seen`) or its negation (`hidden`)."""

    pieces: tuple[Piece, ...]

    @property
    def is_ranges(self) -> bool:
        return all(piece.is_range for piece in self.pieces)

    @property
    def is_exact(self) -> bool:
        """Whether the tiles that the pieces touch are proved to be the tiles that the mask touches."""
        return all(piece.is_range and piece.is_solid for piece in self.pieces)


@dataclass(frozen=True)
class Columns:
    """Both forms of one mask. `whole` says why the mask was not taken apart, and is None if it was."""

    seen: ColumnForm
    hidden: ColumnForm
    whole: str | None


def columns_of(
    mask: Expr, build: ExprBuilder, dependence: Dependence, ranges: Callable[[Expr], Interval], shift: Expr
) -> Columns:
    """The column forms of `mask`. `ranges` bounds leaves, `shift` is q_pos - q_idx."""
    reason = _too_large(mask)
    solver = Solver(build, dependence, ranges, shift)
    if reason is None:
        try:
            cases = _cases(mask, solver)
            seen, hidden = (
                either(both([_conditions(solver, case), solver.solve(part, wanted)]) for case, part in cases)
                for wanted in (True, False)
            )
            return Columns(_form(seen, solver), _form(hidden, solver), None)
        except TooLarge as too_large:
            reason = str(too_large)
    opposite = build.op("not", mask)
    forms = [_form((Clause(leftover=(condition,)),), solver) for condition in (mask, opposite)]
    return Columns(forms[0], forms[1], reason)


def _too_large(mask: Expr) -> str | None:
    depth: dict[Expr, int] = {}
    for node in children_first([mask]):
        # a chain of one of these is taken apart in one step
        chain = node.op if node.op in ("and", "or", "min", "max") else None
        depth[node] = max((depth[a] + (a.op != chain) for a in node.args), default=0)
    if len(depth) > MAX_NODES:
        return f"it has more than {MAX_NODES} nodes"
    return f"it nests deeper than {MAX_DEPTH}" if depth[mask] > MAX_DEPTH else None


Case = tuple[tuple[tuple[Expr, bool], ...], Expr]  # conditions with their values, and the mask under them


def _cases(mask: Expr, solver: Solver) -> list[Case]:
    """The mask for each outcome of the row ranges that choose between numbers: each case has simpler bounds."""
    cases: list[Case] = [((), mask)]
    for _ in range(MAX_SPLITS):
        for place, (conditions, part) in enumerate(cases):
            choice = _choice(part, solver)
            if choice is not None:
                build = solver.build
                yes, no = (substitute(build, part, {choice: build.const(outcome)}) for outcome in (True, False))
                cases[place : place + 1] = [((*conditions, (choice, True)), yes), ((*conditions, (choice, False)), no)]
                break
    return cases


def _choice(mask: Expr, solver: Solver) -> Expr | None:
    """A condition, true on ranges of rows, by which `mask` chooses between numbers."""
    for node in children_first([mask]):
        if node.op != "select" or node.type is BOOL:
            continue
        condition = node.args[0]
        if solver.dependence.on(condition, ROW) and not solver.dependence.on(condition, COLUMN):
            outcomes = (solver.solve(condition, outcome) for outcome in (True, False))
            if not any(clause.guard for clauses in outcomes for clause in clauses):
                return condition
    return None


def _conditions(solver: Solver, conditions: tuple[tuple[Expr, bool], ...]) -> Clauses:
    return both(solver.solve(condition, outcome) for condition, outcome in conditions)


def _form(clauses: Clauses, solver: Solver) -> ColumnForm:
    pieces = [_piece(clause, solver) for clause in clauses]
    return ColumnForm(tuple(piece for piece in pieces if piece is not None))


def _piece(clause: Clause, solver: Solver) -> Piece | None:
    """The clause with only its tightest bounds; None if it is proved empty."""
    lows, highs = _tightest(clause.column_low, solver, 1), _tightest(clause.column_high, solver, -1)
    row_low, row_high = _tightest(clause.row_low, solver, 1), _tightest(clause.row_high, solver, -1)
    for low, high in (*product(lows, highs), *product(row_low, row_high)):
        if _range(solver, high, low).hi <= 0:
            return None
    low_bounds, high_bounds = _bounds(lows, solver), _bounds(highs, solver)
    widths = [
        _difference(solver, high.expr, low.expr)
        for low, high in product(low_bounds, high_bounds)
        if Direction.FIXED not in (low.direction, high.direction)
    ]
    fixed = tuple(width for width in widths if not solver.dependence.on(width, ROW))
    testable = tuple(width for width in fixed if solver.fits(width))
    solid = (
        testable == fixed
        and not any(solver.dependence.on(guard, ROW) for guard in clause.guard)
        and is_solid(
            solver, *([(bound.expr, bound.direction) for bound in bounds] for bounds in (low_bounds, high_bounds))
        )
    )
    return Piece(low_bounds, high_bounds, row_low, row_high, clause.guard, clause.leftover, testable, solid)


def _bounds(expressions: tuple[Expr, ...], solver: Solver) -> tuple[Bound, ...]:
    return tuple(Bound(e, direction_of(e, solver.dependence, solver.intervals(e))) for e in expressions)


def _tightest(bounds: tuple[Expr, ...], solver: Solver, sign: int) -> tuple[Expr, ...]:
    """`bounds` without those that another one makes needless; `sign` is 1 where the largest counts."""
    kept: list[Expr] = []
    for bound in bounds:
        if any(_wins(solver, other, bound, sign) for other in kept):
            continue
        kept = [other for other in kept if not _wins(solver, bound, other, sign)]
        kept.append(bound)
    return tuple(kept)


def _wins(solver: Solver, x: Expr, y: Expr, sign: int) -> bool:
    """Whether x is proved to be at least y (`sign` 1) or at most y (`sign` -1)."""
    difference = _range(solver, x, y)
    return bool(difference.lo >= 0 if sign > 0 else difference.hi <= 0)


def _difference(solver: Solver, x: Expr, y: Expr) -> Expr:
    return normal(solver.build, solver.build.op("sub", x, y))


def _range(solver: Solver, x: Expr, y: Expr) -> IntInterval:
    """The range of x - y."""
    difference = _difference(solver, x, y)
    interval = solver.intervals(difference)[difference]
    assert isinstance(interval, IntInterval)
    return interval
