"""From the column form of a mask to the part of a plan that finds tiles and masks elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attn_dsl.expr import Expr, children_first
from attn_dsl.lowering.forward.plan import Bound, MaskPlan, PiecePlan
from attn_dsl.lowering.tiles import Piece, TileAnalysis

MAX_PIECES = 8  # ranges of one form that a kernel compares tiles with
MAX_PIECE_NODES = 400  # distinct nodes below the bounds of one form

EVERYTHING = PiecePlan((), (), (), (), (), (), ())


def mask_plan(analysis: TileAnalysis, mask: Expr, rewritten: Callable[[Expr], Expr]) -> MaskPlan:
    """The plan of `mask`; `rewritten` puts compile-time values into the expressions of the analysis."""
    if mask.is_const and mask.attr is True:
        return MaskPlan("none", mask, (EVERYTHING,), ())
    seen, hidden = (
        [_piece(piece, rewritten) for piece in form.pieces] for form in (analysis.columns.seen, analysis.columns.hidden)
    )
    exact = analysis.columns.seen.is_ranges and _small(seen)
    return MaskPlan("ranges" if exact else "elements", mask, _kept(seen), _kept(hidden))


def _piece(piece: Piece, rewritten: Callable[[Expr], Expr]) -> PiecePlan:
    def each(nodes: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple(map(rewritten, nodes))

    low, high = (
        tuple(Bound(rewritten(bound.expr), bound.direction.value) for bound in bounds)
        for bounds in (piece.low, piece.high)
    )
    conditions = (each(piece.guard), each(piece.leftover), each(piece.widths))
    return PiecePlan(low, high, each(piece.row_low), each(piece.row_high), *conditions)


def _nodes(piece: PiecePlan) -> tuple[Expr, ...]:
    bounds = [bound.expr for bound in (*piece.low, *piece.high)]
    return (*bounds, *piece.row_low, *piece.row_high, *piece.guard, *piece.widths)


def _small(pieces: list[PiecePlan]) -> bool:
    nodes = sum(1 for _ in children_first([node for piece in pieces for node in _nodes(piece)]))
    return len(pieces) <= MAX_PIECES and nodes <= MAX_PIECE_NODES


def _kept(pieces: list[PiecePlan]) -> tuple[PiecePlan, ...]:
    """`pieces`, or one piece of everything if there are too many."""
    return tuple(pieces) if _small(pieces) else (EVERYTHING,)
