"""Terms of a score that depend on the distance of query and key, evaluated once for each distance of a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutlass import Int32

from attn_dsl.expr import Expr
from attn_dsl.kernels.common.algebra import larger, smaller
from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.leaves import COLUMN, Place, Scope, needs_inside
from attn_dsl.lowering.forward import ForwardPlan


@dataclass(frozen=True, eq=False)
class Distances:
    """The values of `plan.distances` at the elements of a fragment whose first column stands at `start` (Int32)."""

    plan: ForwardPlan
    scope: Scope
    fragment: Fragment
    start: Any
    _values: dict[int, Mapping[Expr, Any]] = field(default_factory=dict, repr=False)

    def at(self, place: int, j: int) -> Mapping[Expr, Any]:
        """The terms at row `place` and column `j`: node of the logit -> value. Nothing if rows do not share any."""
        steps, terms = self.fragment.steps, self.plan.distances
        if steps is None or not terms:
            return {}
        key = steps[place] - self.fragment.offset(j)
        if key not in self._values:
            distance = self.fragment.rows[0] - self.start + Int32(key)
            roots = [term.of_distance for term in terms]
            if needs_inside(roots, COLUMN):
                # any distance between two rows of the sequences is one that expressions are proved for
                distance = smaller(larger(distance, Int32(1) - self.scope.seq_k), self.scope.seq_q - Int32(1))
            values = self.scope.evaluate(roots, column=Place(distance))
            self._values[key] = {term.node: value for term, value in zip(terms, values, strict=True)}
        return self._values[key]
