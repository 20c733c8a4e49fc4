"""Masks on a fragment of scores: what a row does not see becomes -inf."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from attn_dsl.kernels.common.algebra import choose, clamped, here, instruction, larger, smaller
from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.leaves import COLUMN, Place, Scope, needs_inside
from attn_dsl.lowering.forward import ForwardPlan, PiecePlan
from attn_dsl.lowering.forward.pressure import kept, mask_columns

WORD = 32  # columns of one keep word


def mask_scores(plan: ForwardPlan, scope: Scope, fragment: Fragment, scores: Any, tile: Any) -> None:
    """Writes -inf over every score of key tile `tile` (Int32) whose key its row does not see or that has no key.

    `scores` is f32 (rows, columns), a row per entry of `fragment.rows`.
    """
    apply_words(fragment, scores, keep_words(plan, scope, fragment, tile))


def keep_words(plan: ForwardPlan, scope: Scope, fragment: Fragment, tile: Any) -> list[list[Any]]:
    """For each row of a fragment its keep words in key tile `tile` (Int32), as `apply_words` takes them. They need no
    score, so they can be made before scores are there."""
    first = tile * Int32(plan.tile_k)
    if plan.mask.kind != "elements":
        return [row_words(plan, scope, fragment, row, first) for row in scope.rows(fragment)]
    words, rows = _element_words(plan, scope, fragment, first), len(fragment.rows)
    return [words[place::rows] for place in range(rows)]


def apply_words(fragment: Fragment, scores: Any, words: list[list[Any]]) -> None:
    """Writes -inf over every score whose bit is not set: bit j of a row's word w belongs to its column 32 w + j."""
    for place, row in enumerate(words):
        for j in range(fragment.count):
            kept = (row[j // WORD] & Int32(_bit(j % WORD))) != Int32(0)
            scores[place, j] = choose(kept, scores[place, j], Float32(-math.inf))


def row_words(plan: ForwardPlan, scope: Scope, fragment: Fragment, row: Place, first: Any) -> list[Any]:
    """Keep words of a row: bit j of word w tells whether the row sees the thread's column 32 w + j."""
    end = scope.seq_k - first
    count = -(-fragment.count // WORD)
    words = [Int32(0) for _ in range(count)]
    for piece in plan.mask.seen:
        low, high = _columns(plan, scope, piece, row, first, end)
        stop = fragment.below(high)
        start = None if low is None else fragment.below(low)
        for w in range(count):
            word = _low_bits(stop, w)
            if start is not None:
                word = word & (_low_bits(start, w) ^ Int32(-1))
            words[w] = words[w] | word
    return words


def _columns(
    plan: ForwardPlan, scope: Scope, piece: PiecePlan, row: Place, first: Any, end: Any
) -> tuple[Any | None, Any]:
    """The tile columns [low, high) that `piece` gives a row; no `low` is 0. Columns past the sequence are left out."""
    high = smaller(end, Int32(plan.tile_k))
    low = None
    for value in scope.evaluate([bound.expr for bound in piece.high], row=row):
        high = smaller(high, _tile_column(scope, value, first))
    for value in scope.evaluate([bound.expr for bound in piece.low], row=row):
        column = _tile_column(scope, value, first)
        low = column if low is None else larger(low, column)
    conditions = scope.evaluate(piece.guard, row=row)
    conditions += [row.index >= value for value in _rows(scope, piece.row_low)]
    conditions += [row.index < value for value in _rows(scope, piece.row_high)]
    for condition in conditions:
        high = choose(condition, high, Int32(0))
    return low, high


def _rows(scope: Scope, bounds: Any) -> list[Any]:
    return [clamped(value, 0, scope.seq_q) for value in scope.uniform(*bounds)]


def _tile_column(scope: Scope, value: Any, first: Any) -> Any:
    """A column of the sequence, an int of any width, as a column of the tile that begins at `first`."""
    return clamped(value, 0, scope.seq_k) - first


def _bit(place: int) -> int:
    """Bit `place` of a 32-bit word, as a signed number."""
    return 1 << place if place < WORD - 1 else -(1 << place)


def _low_bits(count: Any, word: int) -> Any:
    """Word `word` of a row whose first `count` columns are kept."""
    bits = larger(count - Int32(word * WORD), Int32(0)) if word else count
    # shl gives 0 for a shift past 31 (PTX ISA, shl), so that 32 columns and more are all kept
    return instruction("shl.b32 $0, $1, $2;", Int32, "=r,r,r", Int32(1), bits) - Int32(1)


@cute.jit
def _element_words(
    plan: cutlass.Constexpr, scope: cutlass.Constexpr, fragment: cutlass.Constexpr, first: Int32
) -> list[Any]:
    """Keep words of all rows, element by element: word w of row r at place w * rows + r.

    The code of a few columns serves all, in a loop, which also bounds how many reads of captured tensors are under way,
    and so registers.
    """
    clamp, keeps = needs_inside([plan.mask.mask], COLUMN), kept(plan, plan.mask.mask)
    size, rows = math.gcd(fragment.count, mask_columns(plan)), len(fragment.rows)
    with_key = fragment.below(scope.seq_k - first)
    words = [Int32(0) for _ in range(-(-fragment.count // WORD) * rows)]
    for w in cutlass.range(len(words) // rows, unroll=1):
        made = [Int32(0) for _ in range(rows)]
        for part in cutlass.range(smaller(Int32(fragment.count) - w * WORD, Int32(WORD)) // size, unroll=1):
            inside = scope.here() if const_expr(keeps.remakes_uniform) else scope.fresh()
            places = inside.rows(fragment)
            if const_expr(keeps.remakes_rows):
                places = [replace(row, index=here(row.index)) for row in places]
            start = first + fragment.base + w * fragment.offset(WORD) + part * fragment.offset(size)
            bits = [Int32(0) for _ in range(rows)]
            for j in cutlass.range_constexpr(size):
                column = inside.column(start, fragment.offset(j), clamp=clamp)
                for r in cutlass.range_constexpr(rows):
                    (visible,) = inside.evaluate([plan.mask.mask], row=places[r], column=column)
                    bits[r] = bits[r] | choose(visible, Int32(_bit(j)), Int32(0))
            made = [word | part_bits << part * size for word, part_bits in zip(made, bits, strict=True)]
        ended = _low_bits(clamped(with_key - w * WORD, 0, Int32(WORD)), 0)
        words = [*words[rows:], *(word & ended for word in made)]
    return words
