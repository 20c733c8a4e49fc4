"""Conditions as unions of clauses: a range of columns, a range of rows, and what is left over.

A clause means, for one batch entry, head, row and column,

    each guard and each leftover is true,
    max(row_low)    <= q_idx  < min(row_high)
    max(column_low) <= kv_idx < min(column_high)

where an empty list of bounds is no bound, and a `Clauses` value means that at least one of its clauses holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from attn_dsl.expr import Expr

MAX_CLAUSES = 16  # of one union; a mask that needs more is not taken apart
MAX_CONDITIONS = 16  # bounds or conditions of one kind in one clause; likewise


class TooLarge(Exception):
    """A mask needs more than `MAX_CLAUSES` column ranges, or one of more than `MAX_CONDITIONS` bounds."""


@dataclass(frozen=True)
class Clause:
    """One alternative. Bounds are ints free of kv_idx, row bounds also of q_idx and q_pos."""

    column_low: tuple[Expr, ...] = ()  # inclusive
    column_high: tuple[Expr, ...] = ()  # exclusive
    row_low: tuple[Expr, ...] = ()  # inclusive
    row_high: tuple[Expr, ...] = ()  # exclusive
    guard: tuple[Expr, ...] = ()  # bools free of kv_idx that are no row range
    leftover: tuple[Expr, ...] = ()  # bools of kv_idx that are no column range

    def both(self, other: Clause) -> Clause:
        """The clause that holds where both hold."""
        return Clause(*(_merged(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)))

    def implies(self, other: Clause) -> bool:
        """True if every condition of `other` is one of this clause's."""
        return all(set(getattr(other, f.name)) <= set(getattr(self, f.name)) for f in fields(self))


Clauses = tuple[Clause, ...]
ALWAYS: Clauses = (Clause(),)
NEVER: Clauses = ()


def either(parts: Iterable[Clauses]) -> Clauses:
    """The union, without clauses that another one contains."""
    result: list[Clause] = []
    for clause in (clause for part in parts for clause in part):
        if any(clause.implies(other) for other in result):
            continue
        result = [other for other in result if not other.implies(clause)]
        result.append(clause)
        if len(result) > MAX_CLAUSES:
            raise TooLarge(f"it needs more than {MAX_CLAUSES} column ranges")
    return tuple(result)


def both(parts: Iterable[Clauses]) -> Clauses:
    """The intersection, multiplied out."""
    result = ALWAYS
    for part in parts:
        result = either([(x.both(y),) for x in result for y in part])
    return result


def _merged(x: tuple[Expr, ...], y: tuple[Expr, ...]) -> tuple[Expr, ...]:
    together = (*x, *(node for node in y if node not in x))
    if len(together) > MAX_CONDITIONS:
        raise TooLarge(f"a range of it needs more than {MAX_CONDITIONS} bounds or conditions")
    return together
