"""Pieces of text that know how to fold: on one line while they fit, else one item of a bracket per line.

Comments are placed here too. A comment belongs between two items of whatever folds around it: behind the item it
follows on its line, else on a line of its own before the next item. A piece with a comment inside folds.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..diagnostics import Source, Span

WIDTH = 100  # columns; a line is longer only if it has no bracket to fold
INDENT = 4  # columns


@dataclass(frozen=True)
class Piece:
    """A text without a place to fold."""

    flat: str  # the piece on one line
    span: Span  # what it was in the source


@dataclass(frozen=True)
class Row(Piece):
    """Pieces side by side."""

    parts: tuple[Piece, ...]


@dataclass(frozen=True)
class Item:
    """One item of a fold: `lead` stands before it (an operator), `tail` behind it (a comma)."""

    piece: Piece
    lead: str = ""
    tail: str = ""


@dataclass(frozen=True)
class Fold(Piece):
    """Items between brackets. Without brackets of its own (`opener` empty) it gets round ones where it must fold."""

    opener: str
    items: tuple[Item, ...]
    closer: str
    always: bool = False  # folds even if it fits
    block: bool = False  # line breaks between items stand for their commas, and blank lines stay


def row(span: Span, *parts: Piece | str) -> Piece:
    """Parts side by side; a string is a part that does not fold."""
    pieces = tuple(Piece(part, span) if isinstance(part, str) else part for part in parts)
    return Row("".join(piece.flat for piece in pieces), span, pieces)


def fold(
    span: Span, opener: str, items: Sequence[Item], closer: str, *, always: bool = False, block: bool = False
) -> Fold:
    """Items between brackets; see `Fold`."""
    gap = " " if opener.endswith("{") and items else ""
    return Fold(f"{opener}{gap}{_flat(items)}{gap}{closer}", span, opener, tuple(items), closer, always, block)


def _flat(items: Sequence[Item]) -> str:
    return " ".join(item.lead + item.piece.flat + item.tail for item in items)


def listed(pieces: Sequence[Piece]) -> list[Item]:
    """Items with a comma behind each but the last."""
    return [Item(piece, tail="," if place < len(pieces) - 1 else "") for place, piece in enumerate(pieces)]


@dataclass
class Writer:
    """Writes pieces as lines, with the comments of a source where they belong."""

    source: Source
    comments: list[Span]
    _written: set[int] = field(default_factory=set)  # starts of the comments that have a place
    _hoisted: set[int] = field(default_factory=set)  # starts of those that have none: they go above the statement

    def __post_init__(self) -> None:
        self._starts = [comment.start for comment in self.comments]

    def file(self, pieces: Sequence[Piece]) -> str:
        lines = self._items([Item(piece) for piece in pieces], 0, len(self.source.text), 0, blanks=True, hoist=True)
        return "\n".join(line.rstrip() for line in lines) + "\n" if lines else ""

    def _inside(self, start: int, end: int) -> list[Span]:
        """The comments between two offsets that are not hoisted."""
        found = self.comments[bisect.bisect_left(self._starts, start) : bisect.bisect_left(self._starts, end)]
        return [comment for comment in found if comment.start not in self._hoisted] if self._hoisted else found

    def _piece(self, piece: Piece, indent: int, column: int, after: int, *, bracketed: bool) -> str:
        """`piece` from `column` on, with `after` characters to follow it; lines after the first start at `indent`.

        `bracketed`: round or square brackets are open around it, so it may fold without brackets of its own.
        """
        fits = column + len(piece.flat) + after <= WIDTH
        if isinstance(piece, Row) and (not fits or self._must_fold(piece)):
            return self._row(piece, indent, column, after)
        if not isinstance(piece, Fold) or not piece.items or (fits and not self._must_fold(piece)):
            return piece.flat
        if not piece.opener and bracketed:
            return "\n".join(self._fold_lines(piece, indent))[indent:]
        opener, closer = (piece.opener, piece.closer) if piece.opener else ("(", ")")
        inside = " " * (indent + INDENT) + _flat(piece.items)
        one_line = len(inside) <= WIDTH and not self._must_fold(piece) and not piece.block
        lines = [inside] if one_line else self._fold_lines(piece, indent + INDENT)
        return "\n".join([opener, *lines, " " * indent + closer])

    def _must_fold(self, piece: Piece) -> bool:
        if isinstance(piece, Fold) and piece.always:
            return True
        if self._inside(piece.span.start, piece.span.end):
            return True
        return isinstance(piece, Row) and any(isinstance(part, Fold) and part.always for part in piece.parts)

    def _row(self, piece: Row, indent: int, column: int, after: int) -> str:
        written = ""
        for place, part in enumerate(piece.parts):
            before, _, line = written.rpartition("\n")
            at = len(line) + (0 if before else column)
            rest, folds = _first_line(piece.parts[place + 1 :])
            written += self._piece(part, indent, at, rest if folds else rest + after, bracketed=False)
        return written

    def _fold_lines(self, piece: Fold, indent: int) -> list[str]:
        items = [replace(item, tail="") for item in piece.items] if piece.block else piece.items
        return self._items(items, piece.span.start, piece.span.end, indent, blanks=piece.block)

    def _items(
        self, items: Sequence[Item], start: int, end: int, indent: int, *, blanks: bool, hoist: bool = False
    ) -> list[str]:
        """The lines of `items`, which lie between two offsets of the source, comments and blank lines included."""
        margin = " " * indent
        entries: list[_Entry] = []
        position = start
        for item in items:
            span = item.piece.span
            position = self._comments_before(span.start, position, entries, margin, blanks)
            blank = blanks and bool(entries) and self._blank_between(position, span.start)
            lead = margin + item.lead
            written = self._piece(item.piece, indent, len(lead), len(item.tail), bracketed=not blanks)
            if hoist:
                lost = [c for c in self._inside(span.start, span.end) if c.start not in self._written]
                if lost:
                    self._hoisted.update(comment.start for comment in lost)
                    entries += [
                        _Entry([self._text(comment)], blank and not place) for place, comment in enumerate(lost)
                    ]
                    blank = False
                    written = self._piece(item.piece, indent, len(lead), len(item.tail), bracketed=False)
            entries.append(_Entry(f"{lead}{written}{item.tail}".split("\n"), blank))
            position = max(position, span.end)
        self._comments_before(end, position, entries, margin, blanks)
        _align(entries)
        return [line for entry in entries for line in ([""] if entry.blank_before else []) + entry.lines]

    def _comments_before(self, stop: int, position: int, entries: list[_Entry], margin: str, blanks: bool) -> int:
        """Add the comments between two offsets; the offset behind the last of them."""
        for comment in self._inside(position, stop):
            self._written.add(comment.start)
            between = self.source.text[position : comment.start]
            if entries and "\n" not in between:
                entries[-1].comment = self._text(comment)
            else:
                blank = blanks and bool(entries) and self._blank_between(position, comment.start)
                entries.append(_Entry([margin + self._text(comment)], blank, is_comment=True))
            position = comment.end
        return position

    def _text(self, comment: Span) -> str:
        return self.source.text[comment.start : comment.end].rstrip()

    def _blank_between(self, start: int, end: int) -> bool:
        return self.source.text.count("\n", start, end) > 1


def _first_line(parts: Sequence[Piece]) -> tuple[int, bool]:
    """How many columns of `parts` have to stay on a line, and whether a fold ends it."""
    columns = 0
    for part in parts:
        if isinstance(part, Fold) and part.items:
            return columns + len(part.opener or "("), True
        inside, folds = _first_line(part.parts) if isinstance(part, Row) else (len(part.flat), False)
        columns += inside
        if folds:
            return columns, True
    return columns, False


@dataclass
class _Entry:
    """The lines of one item or of one comment on lines of its own."""

    lines: list[str]
    blank_before: bool
    comment: str | None = None  # behind the last line
    is_comment: bool = False


def _align(entries: list[_Entry]) -> None:
    """Put the comments behind neighbouring one-line entries into one column."""
    group: list[_Entry] = []
    for entry in [*entries, _Entry([], True, is_comment=True)]:
        if entry.blank_before or entry.is_comment or len(entry.lines) > 1:
            column = max((len(member.lines[-1]) for member in group), default=0)
            for member in group:
                member.lines[-1] = f"{member.lines[-1]:<{column}}  {member.comment}"
            group = []
        if entry.comment is not None:
            if len(entry.lines) == 1:
                group.append(entry)
            else:
                entry.lines[-1] += f"  {entry.comment}"
