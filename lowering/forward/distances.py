"""Terms of a score that depend on the distance of query and key alone.

Rows of one thread meet the same distances again: with rows 8 apart, the scores of a row repeat those of the other one 8
columns on. A term of the distance that is worth it, a table entry or a bucket, is therefore evaluated once for each
distance that a thread meets, 34 times instead of 64 for 128 keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_dsl.expr import INT, Expr, ExprBuilder, children_first
from attn_dsl.lowering.tiles.dependence import rewrite
from attn_dsl.lowering.tiles.polynomial import combined, expression, polynomial

DISTANCE = "distance"  # a leaf: q_idx - kv_idx
_CHEAP = ("const", "var", "size", "param", "add", "sub", "neg", "mul", "to_float")
_CHANGING = ("q_idx", "q_pos", "kv_idx", "score", "kv_base", "kv_step")


@dataclass(frozen=True)
class DistanceTerm:
    """One term."""

    node: Expr  # as it stands in the logit
    of_distance: Expr  # the same over the leaf `distance` and what no row and no column changes


def distance_terms(build: ExprBuilder, logit: Expr, shift: Expr) -> tuple[DistanceTerm, ...]:
    """The largest terms of `logit` that are worth sharing; `shift` is q_pos - q_idx."""
    changes: dict[Expr, bool] = {}
    known: dict[Expr, Expr] = {}  # node -> itself over the distance
    for node in children_first([logit]):
        own = node.op == "var" and node.attr in _CHANGING
        changes[node] = own or any(changes[argument] for argument in node.args)
        if not changes[node]:
            known[node] = node
        elif (difference := _of_difference(build, node, shift, changes)) is not None:
            known[node] = difference
        elif node.args and all(argument in known for argument in node.args):
            (known[node],) = rewrite(build, [node], {argument: known[argument] for argument in node.args})
    found: list[DistanceTerm] = []
    inside = [logit]
    while inside:
        node = inside.pop()
        if node not in known:
            inside.extend(dict.fromkeys(node.args))
        elif changes[node] and any(part.op not in _CHEAP for part in children_first([node])):
            found.append(DistanceTerm(node, known[node]))
    return tuple(dict.fromkeys(found))


def _of_difference(build: ExprBuilder, node: Expr, shift: Expr, changes: dict[Expr, bool]) -> Expr | None:
    """`node`, an int, over the distance, if row and column are in it as their difference only."""
    if node.type is not INT:
        return None
    terms = dict(polynomial(node))
    of_row, of_position, of_column = (terms.pop((build.var(name),), 0) for name in ("q_idx", "q_pos", "kv_idx"))
    factor = of_row + of_position
    if not factor or factor != -of_column or any(changes[atom] for monomial in terms for atom in monomial):
        return None
    terms = dict(combined(terms, {(build.var(DISTANCE),): factor}))
    terms = dict(combined(terms, polynomial(shift), of_position))
    return expression(build, terms)
