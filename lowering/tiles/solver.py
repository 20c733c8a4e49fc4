"""Solving a condition for kv_idx, and what is left of it for q_idx.

Every step is an equivalence over the ints, so the clauses mean the mask, no more and no less. What cannot be turned
into a range stays a condition of the clause. No step knows a mask by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attn_dsl.expr import BOOL, INT, Expr, ExprBuilder
from attn_dsl.expr.interval import Interval, IntInterval, Truth, static_intervals
from attn_dsl.expr.operators import I64_MAX, I64_MIN
from attn_dsl.lowering.tiles.clauses import ALWAYS, NEVER, Clause, Clauses, TooLarge, both, either
from attn_dsl.lowering.tiles.dependence import COLUMN, ROW, Dependence
from attn_dsl.lowering.tiles.polynomial import MAX_DEGREE, expression, normal, polynomial

MAX_STEPS = 2_000  # conditions low <= value <= high that are looked at for one mask


class Solver:
    """Solves conditions of one spec. `shift` is q_pos - q_idx."""

    def __init__(
        self, build: ExprBuilder, dependence: Dependence, ranges: Callable[[Expr], Interval], shift: Expr
    ) -> None:
        self.build = build
        self.dependence = dependence
        self._ranges = ranges
        self.shift = shift
        self._solved: dict[tuple[Expr, bool], Clauses] = {}
        self._placed: dict[tuple[Expr, Expr | None, Expr | None, str], Clauses] = {}
        self._steps = 0

    def intervals(self, *roots: Expr) -> Mapping[Expr, Interval]:
        return static_intervals(roots, self._ranges)

    def fits(self, *values: Expr) -> bool:
        """Whether every int on the way to `values` fits 64 bits, so that a kernel can compute them."""
        ints = (interval for interval in self.intervals(*values).values() if isinstance(interval, IntInterval))
        return all(interval.lo >= I64_MIN and interval.hi <= I64_MAX for interval in ints)

    def solve(self, condition: Expr, wanted: bool = True) -> Clauses:
        """The clauses of "`condition` is `wanted`". Raises TooLarge."""
        key = (condition, wanted)
        if key not in self._solved:
            self._solved[key] = self._solve(condition, wanted)
        return self._solved[key]

    def _solve(self, node: Expr, wanted: bool) -> Clauses:
        if node.is_const:
            return ALWAYS if node.attr is wanted else NEVER
        if not self.dependence.on(node, ROW, COLUMN):
            return self._left(node, wanted)
        if node.op == "not":
            return self.solve(node.args[0], not wanted)
        if node.op in ("and", "or"):
            join = both if (node.op == "and") is wanted else either
            return join(self.solve(operand, wanted) for operand in _operands(node))
        if node.op == "select":
            condition, yes, no = node.args
            return either(
                [
                    both([self.solve(condition), self.solve(yes, wanted)]),
                    both([self.solve(condition, False), self.solve(no, wanted)]),
                ]
            )
        if node.op in ("eq", "ne") and node.args[0].type is BOOL:
            x, y = node.args
            same = wanted is (node.op == "eq")
            return either(
                [both([self.solve(x), self.solve(y, same)]), both([self.solve(x, False), self.solve(y, not same)])]
            )
        if node.op in ("lt", "le", "eq", "ne") and node.args[0].type is INT:
            return self._comparison(node, wanted)
        return self._left(node, wanted)

    def _comparison(self, node: Expr, wanted: bool) -> Clauses:
        x, y = node.args
        if node.op in ("eq", "ne"):
            if wanted is (node.op == "eq"):
                return self._bounded(x, y, 0, 0)
            return either([self._bounded(x, y, None, -1), self._bounded(x, y, 1, None)])
        # lt: x - y <= -1, and if not wanted x - y >= 0; le likewise, one higher
        high = -1 if node.op == "lt" else 0
        return self._bounded(x, y, None, high) if wanted else self._bounded(x, y, high + 1, None)

    def _bounded(self, x: Expr, y: Expr, low: int | None, high: int | None) -> Clauses:
        """low <= x - y <= high, with one constant bound or two equal ones."""
        target = COLUMN if self.dependence.on(x, COLUMN) or self.dependence.on(y, COLUMN) else ROW
        x_moves, y_moves = self.dependence.on(x, target), self.dependence.on(y, target)
        if x_moves and not y_moves:
            return self._between(x, self._plus(y, low), self._plus(y, high), target)
        if y_moves and not x_moves:
            return self._between(y, self._minus(x, high), self._minus(x, low), target)
        terms = polynomial(self.build.op("sub", x, y))
        moving = [m for m in terms if any(self.dependence.on(factor, target) for factor in m)]
        if len(moving) == 1 and len(moving[0]) == 1:
            rest = expression(self.build, {m: k for m, k in terms.items() if m != moving[0]})
            value = expression(self.build, {moving[0]: terms[moving[0]]})
            return self._between(value, self._minus_from(low, rest), self._minus_from(high, rest), target)
        return self._unsolved(x, y, low, high)

    def _plus_const(self, value: Expr, offset: int) -> Expr:
        return self.build.op("sub" if offset < 0 else "add", value, self.build.const(abs(offset)))

    def _plus(self, value: Expr, offset: int | None) -> Expr | None:
        return None if offset is None else self._plus_const(value, offset)

    def _minus(self, value: Expr, offset: int | None) -> Expr | None:
        return None if offset is None else self._plus_const(value, -offset)

    def _minus_from(self, offset: int | None, value: Expr) -> Expr | None:
        return None if offset is None else self.build.op("sub", self.build.const(offset), value)

    # --- low <= node <= high, both free of the target; None is no bound

    def _between(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses:
        if low is None and high is None:
            return ALWAYS
        key = (node, low, high, target)
        if key not in self._placed:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise TooLarge(f"it takes more than {MAX_STEPS} steps to solve")
            self._placed[key] = self._place(node, low, high, target)
        return self._placed[key]

    def _place(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses:
        if not self.dependence.on(node, target):
            parts = [] if low is None else [self.solve(self.build.op("le", low, node))]
            parts += [] if high is None else [self.solve(self.build.op("le", node, high))]
            return both(parts)
        rule = getattr(self, f"_between_{node.op}", None)
        solved: Clauses | None = rule(node, low, high, target) if rule is not None else None
        return self._unsolved_between(node, low, high) if solved is None else solved

    def _between_var(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        shift = self.shift if node.attr == "q_pos" else self.build.const(0)
        first = None if low is None else normal(self.build, self.build.op("sub", low, shift))
        after = None
        if high is not None:
            after = normal(self.build, self.build.op("sub", self.build.op("add", high, self.build.const(1)), shift))
        bounds = [bound for bound in (first, after) if bound is not None]
        if not self.fits(*bounds):
            return None
        lows, highs = tuple(b for b in (first,) if b is not None), tuple(b for b in (after,) if b is not None)
        if target == COLUMN:
            return (Clause(column_low=lows, column_high=highs),)
        return (Clause(row_low=lows, row_high=highs),)

    def _between_add(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        b = self.build
        for moving, fixed in (node.args, node.args[::-1]):
            if not self.dependence.on(fixed, target):
                bounds = [None if bound is None else b.op("sub", bound, fixed) for bound in (low, high)]
                return self._between(moving, bounds[0], bounds[1], target)
        return self._between_sum(node, low, high, target)

    def _between_sub(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        b = self.build
        x, y = node.args
        if not self.dependence.on(y, target):
            bounds = [None if bound is None else b.op("add", bound, y) for bound in (low, high)]
            return self._between(x, bounds[0], bounds[1], target)
        if not self.dependence.on(x, target):
            bounds = [None if bound is None else b.op("sub", x, bound) for bound in (high, low)]
            return self._between(y, bounds[0], bounds[1], target)
        return self._between_sum(node, low, high, target)

    def _between_sum(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        """Several moving parts that may add up to one, as in (q_idx - kv_idx) + 2 * kv_idx."""
        terms = polynomial(node)
        moving = [m for m in terms if any(self.dependence.on(factor, target) for factor in m)]
        if len(moving) != 1 or len(moving[0]) > MAX_DEGREE:
            return None
        value = expression(self.build, {moving[0]: terms[moving[0]]})
        if value == node:
            return None
        rest = expression(self.build, {m: k for m, k in terms.items() if m != moving[0]})
        bounds = [None if bound is None else self.build.op("sub", bound, rest) for bound in (low, high)]
        return self._between(value, bounds[0], bounds[1], target)

    def _between_neg(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        bounds = [None if bound is None else self.build.op("neg", bound) for bound in (high, low)]
        return self._between(node.args[0], bounds[0], bounds[1], target)

    def _between_bitnot(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        bounds = [None if bound is None else self.build.op("bitnot", bound) for bound in (high, low)]
        return self._between(node.args[0], bounds[0], bounds[1], target)

    def _between_mul(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        b = self.build
        for moving, factor in (node.args, node.args[::-1]):
            if self.dependence.on(factor, target):
                continue
            if self._sign(factor) < 0:
                opposite = b.op("neg", factor)
                return self._between(b.op("mul", moving, opposite), *self._negated(high, low), target)
            if self._sign(factor) > 0:
                # smallest and largest x with low <= x * factor <= high
                at_least = None if low is None else b.op("neg", b.op("floordiv", b.op("neg", low), factor))
                at_most = None if high is None else b.op("floordiv", high, factor)
                return self._between(moving, at_least, at_most, target)
        return None

    def _between_floordiv(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        b = self.build
        x, divisor = node.args
        if self.dependence.on(divisor, target) or self._sign(divisor) == 0:
            return None
        if self._sign(divisor) < 0:
            return self._between(b.op("floordiv", b.op("neg", x), b.op("neg", divisor)), low, high, target)
        at_least = None if low is None else b.op("mul", low, divisor)
        at_most = None
        if high is not None:
            at_most = b.op("sub", b.op("add", b.op("mul", high, divisor), divisor), b.const(1))
        return self._between(x, at_least, at_most, target)

    def _between_shr(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        power = self._power_of_two(node.args[1])
        return (
            None if power is None else self._between(self.build.op("floordiv", node.args[0], power), low, high, target)
        )

    def _between_shl(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        power = self._power_of_two(node.args[1])
        if power is None:
            return None
        return self._between(self.build.op("mul", node.args[0], power), low, high, target)

    def _between_abs(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        x = node.args[0]
        inner = ALWAYS if high is None else self._between(x, self.build.op("neg", high), high, target)
        if low is None:
            return inner
        beyond = [self._between(x, low, None, target), self._between(x, None, self.build.op("neg", low), target)]
        return both([inner, either(beyond)])

    def _between_min(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        above = both(self._between(operand, low, None, target) for operand in _operands(node))
        if high is None:
            return above
        return both([above, either(self._between(operand, None, high, target) for operand in _operands(node))])

    def _between_max(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        below = both(self._between(operand, None, high, target) for operand in _operands(node))
        if low is None:
            return below
        return both([below, either(self._between(operand, low, None, target) for operand in _operands(node))])

    def _between_select(self, node: Expr, low: Expr | None, high: Expr | None, target: str) -> Clauses | None:
        condition, yes, no = node.args
        return either(
            [
                both([self.solve(condition), self._between(yes, low, high, target)]),
                both([self.solve(condition, False), self._between(no, low, high, target)]),
            ]
        )

    # --- what stays a condition

    def _unsolved_between(self, node: Expr, low: Expr | None, high: Expr | None) -> Clauses:
        b = self.build
        low, high = (None if bound is None else normal(b, bound) for bound in (low, high))
        if low is not None and low == high:
            return self._left(b.op("eq", node, low), True)
        parts = [] if low is None else [self._left(b.op("le", low, node), True)]
        parts += [] if high is None else [self._left(b.op("le", node, high), True)]
        return both(parts)

    def _unsolved(self, x: Expr, y: Expr, low: int | None, high: int | None) -> Clauses:
        b = self.build
        if low is not None and low == high:
            return self._left(b.op("eq", x, self._plus_const(y, low)), True)
        parts = [] if low is None else [self._left(b.op("le", self._plus_const(y, low), x), True)]
        parts += [] if high is None else [self._left(b.op("le", x, self._plus_const(y, high)), True)]
        return both(parts)

    def _left(self, condition: Expr, wanted: bool) -> Clauses:
        node = condition if wanted else self.build.op("not", condition)
        value = self.intervals(node)[node]
        assert isinstance(value, Truth)
        if not value.may_be_true:
            return NEVER
        if not value.may_be_false:
            return ALWAYS
        return (Clause(leftover=(node,)),) if self.dependence.on(node, COLUMN) else (Clause(guard=(node,)),)

    # --- signs

    def _sign(self, node: Expr) -> int:
        """1 or -1 if `node` is proved positive or negative, else 0."""
        interval = self.intervals(node)[node]
        assert isinstance(interval, IntInterval)
        return 1 if interval.lo > 0 else -1 if interval.hi < 0 else 0

    def _negated(self, low: Expr | None, high: Expr | None) -> tuple[Expr | None, Expr | None]:
        first, second = (None if bound is None else self.build.op("neg", bound) for bound in (low, high))
        return first, second

    def _power_of_two(self, count: Expr) -> Expr | None:
        known = count.is_const and isinstance(count.attr, int) and 0 <= count.attr < 63
        return self.build.const(1 << int(count.attr or 0)) if known else None


def _operands(node: Expr) -> list[Expr]:
    """The operands of a chain of one associative operator, left to right."""
    found: list[Expr] = []
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current.op == node.op:
            waiting.extend(reversed(current.args))
        else:
            found.append(current)
    return found
