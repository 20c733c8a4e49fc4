"""Scores on a fragment: from dot products to logits in base 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutlass import Int32

from attn_dsl.kernels.common.distances import Distances
from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.leaves import COLUMN, Scope, needs_inside
from attn_dsl.kernels.common.pairs import Pair
from attn_dsl.lowering.forward import ForwardPlan
from attn_dsl.lowering.forward.logits import above_reference


def score_scores(
    plan: ForwardPlan,
    scope: Scope,
    fragment: Fragment,
    scores: Any,
    tile: Any,
    *,
    inside: bool = False,
    pairs: bool = False,
    references: Any = None,
) -> None:
    """Replaces the dot products of key tile `tile` (Int32) by score(scale * dot product) * log2(e), less the row's
    entry of `references` (f32) if they are given.

    `scores` is f32 (rows, columns), a row per entry of `fragment.rows`; `inside` says that the tile ends inside the
    sequence, `pairs` that the device computes two floats at a time. With `plan.fold_scale` nothing is done: the softmax
    multiplies by scale * log2(e).
    """
    if plan.fold_scale:
        return
    clamp = not inside and needs_inside([plan.logit], COLUMN)
    root, rows = plan.logit, scope.rows(fragment)
    if references is not None:
        root = above_reference(root)
        rows = [replace(row, reference=references[place]) for place, row in enumerate(rows)]
    start = tile * Int32(plan.tile_k) + fragment.base
    if pairs:
        for j in range(0, fragment.count, 2):
            column = scope.column_pair(start, fragment.offset(j), clamp=clamp)
            for place, row in enumerate(rows):
                both = Pair(scores[place, j], scores[place, j + 1])
                (value,) = scope.evaluate([root], row=row, column=column, score=both)
                both = value if isinstance(value, Pair) else Pair(value, value)
                scores[place, j], scores[place, j + 1] = both.low, both.high
        return
    distances = Distances(plan, scope, fragment, start)
    for j in range(fragment.count):
        column = scope.column(start, fragment.offset(j), clamp=clamp)
        for place, row in enumerate(rows):
            known = distances.at(place, j)
            (scores[place, j],) = scope.evaluate([root], row, column, scores[place, j], known)
