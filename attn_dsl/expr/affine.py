"""Proofs that an index lies in its axis, where the axis has no known extent: bounds that are sums of symbols.

Interval arithmetic bounds numbers by numbers, so it cannot see that `kv_idx - q_idx + seq_q - 1` stays below
`seq_q + seq_k - 1`. Here a claim is a linear form, `sum of integer * atom + constant >= 0`; an atom is a leaf or an
expression that is not linear. Atoms are eliminated one by one, each replaced by the bound that makes the form
smallest (`kv_idx <= seq_k - 1`), until a number is left. A failed proof says nothing; a proof is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .interval import Interval, IntInterval
from .node import LEAVES, Expr, children_first
from .number_backend import SATURATION

MAX_NODES = 120  # distinct nodes of one index; larger ones are not proved
MAX_STEPS = 500  # eliminations of one proof
MAX_TERMS = 24  # atoms of one form


@dataclass(frozen=True)
class Bounds:
    """What is known of a leaf: it is at least each of `lower` and at most each of `upper`.

    Bounds are linear in leaves that stand further from the data: `q_idx` by `seq_q`, `seq_q` by its axis.
    """

    lower: tuple[Expr, ...] = ()
    upper: tuple[Expr, ...] = ()


def proves_inside(
    index: Expr, extent: Expr, intervals: Mapping[Expr, Interval], bounds: Callable[[Expr], Bounds]
) -> bool:
    """True if `0 <= index < extent` for all values of the leaves.

    `intervals` are the known ranges of nodes by number (`static_intervals`), `bounds(leaf)` those by other leaves.
    """
    if any(sum(1 for _ in children_first([side])) > MAX_NODES for side in (index, extent)):
        return False
    prover = _Prover(intervals, bounds)
    low, high = prover.linear(index), prover.linear(extent)
    return prover.proves(low) and prover.proves(high.minus(low).plus(-1))


def proves_nonnegative(value: Expr, intervals: Mapping[Expr, Interval], bounds: Callable[[Expr], Bounds]) -> bool:
    """True if `value >= 0` for all values of the leaves; arguments as for `proves_inside`."""
    if sum(1 for _ in children_first([value])) > MAX_NODES:
        return False
    prover = _Prover(intervals, bounds)
    return prover.proves(prover.linear(value))


@dataclass(frozen=True)
class _Form:
    terms: Mapping[Expr, int]
    constant: int

    def plus(self, constant: int) -> _Form:
        return _Form(self.terms, self.constant + constant)

    def times(self, factor: int) -> _Form:
        return _Form({atom: k * factor for atom, k in self.terms.items() if k * factor}, self.constant * factor)

    def add(self, other: _Form) -> _Form:
        terms = dict(self.terms)
        for atom, k in other.terms.items():
            terms[atom] = terms.get(atom, 0) + k
        return _Form({atom: k for atom, k in terms.items() if k}, self.constant + other.constant)

    def minus(self, other: _Form) -> _Form:
        return self.add(other.times(-1))

    def without(self, atom: Expr) -> _Form:
        return _Form({other: k for other, k in self.terms.items() if other != atom}, self.constant)


class _Prover:
    def __init__(self, intervals: Mapping[Expr, Interval], bounds: Callable[[Expr], Bounds]) -> None:
        self._intervals = intervals
        self._bounds = bounds
        self._forms: dict[Expr, _Form] = {}
        self._ranks: dict[Expr, int] = {}
        self._steps = 0

    def linear(self, root: Expr) -> _Form:
        """`root` as a linear form over atoms."""
        if root in self._forms:
            return self._forms[root]
        for node in children_first([root]):
            if node not in self._forms:
                form = self._combined(node)
                self._forms[node] = form if len(form.terms) <= MAX_TERMS else _Form({node: 1}, 0)
        return self._forms[root]

    def _combined(self, node: Expr) -> _Form:
        operands = [self._forms[argument] for argument in node.args]
        if node.op == "const" and isinstance(node.attr, int):
            return _Form({}, int(node.attr))
        if node.op == "add":
            return operands[0].add(operands[1])
        if node.op == "sub":
            return operands[0].minus(operands[1])
        if node.op == "neg":
            return operands[0].times(-1)
        if node.op == "mul":
            for this, other in (operands, operands[::-1]):
                if not this.terms:
                    return other.times(this.constant)
        if node.op == "shl" and not operands[1].terms and 0 <= operands[1].constant < 64:
            return operands[0].times(1 << operands[1].constant)
        return _Form({node: 1}, 0)

    def proves(self, form: _Form) -> bool:
        """True if `form >= 0` can be shown."""
        if not form.terms:
            return form.constant >= 0
        self._steps += 1
        if self._steps > MAX_STEPS or len(form.terms) > MAX_TERMS:
            return False
        atom = max(form.terms, key=lambda a: (_splits(a, form.terms[a]), self._rank(a), a.digest))
        return any(
            all(self.proves(claim) for claim in claims)
            for claims in self._eliminations(form.without(atom), atom, form.terms[atom])
        )

    def _rank(self, atom: Expr) -> int:
        """Atoms of higher rank may be bounded by atoms of lower rank, never the other way round."""
        if atom not in self._ranks:
            if atom.op in LEAVES:
                known = self._bounds(atom)
                below = [leaf for bound in (*known.lower, *known.upper) for leaf in self.linear(bound).terms]
            else:
                below = [leaf for argument in atom.args for leaf in self.linear(argument).terms]
            self._ranks[atom] = 1 + max((self._rank(leaf) for leaf in below), default=0)
        return self._ranks[atom]

    def _eliminations(self, rest: _Form, atom: Expr, k: int) -> Iterator[list[_Form]]:
        """Ways to show `rest + k * atom >= 0`: each a list of claims that together imply it."""
        if atom.op in LEAVES:
            known = self._bounds(atom)
            for bound in known.lower if k > 0 else known.upper:
                yield [rest.add(self.linear(bound).times(k))]
        yield from self._eliminations_by_operator(rest, atom, k)
        interval = self._intervals.get(atom)
        if isinstance(interval, IntInterval):
            bound = interval.lo if k > 0 else interval.hi
            if abs(bound) <= SATURATION:
                yield [rest.plus(k * bound)]

    def _eliminations_by_operator(self, rest: _Form, atom: Expr, k: int) -> Iterator[list[_Form]]:
        operands = [self.linear(argument) for argument in atom.args]
        if atom.op in ("min", "max"):
            replaced = [rest.add(operand.times(k)) for operand in operands]
            if (atom.op == "min") == (k < 0):
                yield from ([claim] for claim in replaced)
            else:
                yield replaced
        elif atom.op == "select":
            yield [rest.add(self.linear(branch).times(k)) for branch in atom.args[1:]]
        elif atom.op == "abs":
            if k > 0:
                yield [rest]
            yield from ([rest.add(operands[0].times(sign * k))] for sign in (1, -1) if k > 0)
            if k < 0:
                yield [rest.add(operands[0].times(k)), rest.add(operands[0].times(-k))]
        elif atom.op in ("floordiv", "shr"):
            yield from self._eliminations_of_quotient(rest, atom, operands, k)
        elif atom.op == "mod" and self.proves(operands[1].plus(-1)):
            yield [rest] if k > 0 else [rest.add(operands[1].plus(-1).times(k))]
            if k < 0:
                yield [operands[0], rest.add(operands[0].times(k))]
        elif atom.op == "mul":
            # x * y is at least y if x is at least 1 and y at least 0
            for x, y in (operands, operands[::-1]):
                if k > 0:
                    yield [x.plus(-1), y, rest.add(y.times(k))]
        elif atom.op == "bitand":
            for mask in operands:
                if not mask.terms and mask.constant >= 0:
                    yield [rest] if k > 0 else [rest.plus(k * mask.constant)]

    def _eliminations_of_quotient(
        self, rest: _Form, atom: Expr, operands: list[_Form], k: int
    ) -> Iterator[list[_Form]]:
        x, divisor = operands
        if atom.op == "shr":
            if divisor.terms or not 0 <= divisor.constant < 64:
                return
            divisor = _Form({}, 1 << divisor.constant)
        if divisor.terms or divisor.constant < 1:
            if not self.proves(divisor.plus(-1)):
                return
        else:
            # c * (x // c) lies in [x - (c - 1), x]; an integer F is at least 0 if c * F > -c
            c = divisor.constant
            shift = (c - 1) * (1 - k) if k > 0 else c - 1
            yield [rest.times(c).add(x.times(k)).plus(shift)]
        # by a positive divisor, an x that is not negative comes no nearer to zero than zero, and no farther than x
        yield [x, rest if k > 0 else rest.add(x.times(k))]


def _splits(atom: Expr, k: int) -> bool:
    """Whether an atom is best replaced before others: by cases, in each of which the others may choose anew."""
    return atom.op == "select" or (atom.op == "min" and k > 0) or (atom.op in ("max", "abs") and k < 0)
