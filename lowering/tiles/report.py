"""A tile analysis in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from attn_dsl.expr import BOOL, Expr, children_first
from attn_dsl.expr.text import to_text
from attn_dsl.lowering.tiles.columns import ColumnForm
from attn_dsl.lowering.tiles.dependence import COLUMN, ROW

if TYPE_CHECKING:
    from attn_dsl.lowering.tiles.analysis import TileAnalysis

MAX_LINE = 200  # characters of one line; longer expressions are cut
MAX_PIECES = 8  # pieces of one form that are listed


def describe(analysis: TileAnalysis) -> str:
    """The column ranges of the mask and of its negation, what is no range, and what is read per tile."""
    columns = analysis.columns
    lines = [f"mask: {short(analysis.spec.mask)}"]
    if columns.whole is not None:
        lines.append(f"not taken apart: {columns.whole}; every tile is tested by interval arithmetic")
    else:
        lines += ["a row sees the keys", *_form(columns.seen), "and does not see the keys", *_form(columns.hidden)]
    lines += [str(step) for step in table_steps(analysis)]
    lines.append(f"tiles: {_verdict(analysis)}")
    return "\n".join(line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3]}..." for line in lines)


def _verdict(analysis: TileAnalysis) -> str:
    if analysis.is_exact:
        return "exact (proved): no empty tile is visited, no full tile is called partial"
    if analysis.is_ranges:
        return "sound, by ranges: a tile between the ranges of two rows may be visited in vain"
    return "sound, by ranges and then tile by tile: the mask is more than column ranges"


def _form(form: ColumnForm) -> Iterator[str]:
    for piece in form.pieces[:MAX_PIECES]:
        yield f"  {piece_text(piece)}"
    if not form.pieces:
        yield "  none"
    if len(form.pieces) > MAX_PIECES:
        yield f"  and {len(form.pieces) - MAX_PIECES} more ranges"


class Limit(Protocol):
    """A bound of a range; this one and the next are what pieces of an analysis and of a plan share."""

    @property
    def expr(self) -> Expr: ...


class Range(Protocol):
    @property
    def low(self) -> Sequence[Limit]: ...
    @property
    def high(self) -> Sequence[Limit]: ...
    @property
    def row_low(self) -> Sequence[Expr]: ...
    @property
    def row_high(self) -> Sequence[Expr]: ...
    @property
    def guard(self) -> Sequence[Expr]: ...
    @property
    def leftover(self) -> Sequence[Expr]: ...


def piece_text(piece: Range, limit: int = MAX_LINE // 2) -> str:
    """One piece, as `low <= kv_idx < high, for rows ..., if ...`; expressions are cut after `limit` characters."""

    def every(nodes: Sequence[Expr]) -> str:
        return " and ".join(short(node, limit) for node in nodes)

    text = _between([b.expr for b in piece.low], "kv_idx", [b.expr for b in piece.high], limit)
    if piece.leftover:
        text += f", of them those with {every(piece.leftover)}"
    if piece.row_low or piece.row_high:
        text += f", for rows {_between(piece.row_low, 'q_idx', piece.row_high, limit)}"
    if piece.guard:
        text += f", if {every(piece.guard)}"
    return text


def _between(low: Sequence[Expr], name: str, high: Sequence[Expr], limit: int) -> str:
    def chosen(bounds: Sequence[Expr], function: str) -> str:
        texts = [short(bound, limit) for bound in bounds]
        return texts[0] if len(texts) == 1 else f"{function}({', '.join(texts)})"

    start = f"{chosen(low, 'max')} <= " if low else ""
    stop = f" < {chosen(high, 'min')}" if high else ""
    return f"{start}{name}{stop}" if start or stop else f"every {name}"


def short(node: Expr, limit: int = MAX_LINE // 2) -> str:
    """An expression as text of at most `limit` characters."""
    text = to_text(node)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


@dataclass(frozen=True)
class TableStep:
    """A capture that is read to find the tiles, on the device it lives on, before the kernel starts."""

    tensor: str
    over: str  # "rows", "keys", "rows and keys" (each by itself), or "pairs" (rows with keys)
    what: str  # what is kept of it

    def __str__(self) -> str:
        return f"table {self.tensor}: {self.what}"


def table_steps(analysis: TileAnalysis) -> Iterator[TableStep]:
    """One step per capture whose elements the mask chooses by row or by key."""
    on = analysis.dependence.on
    reads: dict[str, list[Expr]] = {}
    for node in children_first([analysis.spec.mask]):
        if node.op == "read" and on(node, ROW, COLUMN):
            reads.setdefault(str(node.attr), []).append(node)
    for name, nodes in reads.items():
        if any(on(node, ROW) and on(node, COLUMN) for node in nodes):
            sums = "sums over its prefixes, which tell whether any or all of a tile's elements are true"
            whole = "its smallest and its largest element"
            yield TableStep(name, "pairs", sums if nodes[0].type is BOOL else whole)
        else:
            sides = [word for side, word in ((ROW, "rows"), (COLUMN, "keys")) if any(on(n, side) for n in nodes)]
            over = " and ".join(sides)
            yield TableStep(name, over, f"smallest and largest value of each tile of {' and of '.join(sides)}")
