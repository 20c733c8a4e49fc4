"""Sources, spans and diagnostics: the values every stage uses to say where and what."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property


@dataclass(frozen=True)
class Source:
    """One text with the name it is shown under (a path as the user gave it, or `<text>`)."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        for position, character in enumerate(self.text):
            if character == "\n":
                starts.append(position + 1)
        return starts

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both counted from 1, of a character offset."""
        line = bisect.bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of line `line` (from 1), without its line break."""
        start = self._line_starts[line - 1]
        end = self.text.find("\n", start)
        return (self.text[start:] if end < 0 else self.text[start:end]).rstrip("\r")


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a source."""

    source: Source
    start: int  # character offset, inclusive
    end: int  # character offset, exclusive

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.position(self.start)[1]

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other` (same source)."""
        return Span(self.source, min(self.start, other.start), max(self.end, other.end))


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `message` names the value; the rule behind `code` is in `RULES`; `hint` is a way out."""

    code: str  # stable, a key of RULES
    message: str
    span: Span | None = None
    hint: str | None = None
    severity: Severity = Severity.ERROR

    def as_dict(self) -> dict[str, object]:
        """The JSON form used by `attn-dsl check --format json`."""
        place: dict[str, object] = {}
        if self.span is not None:
            end_line, end_column = self.span.source.position(self.span.end)
            place = {
                "file": self.span.source.name,
                "line": self.span.line,
                "column": self.span.column,
                "end_line": end_line,
                "end_column": end_column,
            }
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "hint": self.hint,
            **place,
        }


MAX_FINDINGS = 100  # findings of one severity that one run tells


class TooManyFindings(Exception):
    """`MAX_FINDINGS` errors are collected; a stage that checks a whole file catches this and reports those."""


class Diagnostics:
    """A collector: a stage reports everything it finds and goes on as far as it honestly can.

    With `stop` it raises `TooManyFindings` at the last error it keeps, so that a hopeless file costs no minutes.
    """

    def __init__(self, *, stop: bool = False) -> None:
        self.items: list[Diagnostic] = []
        self._seen: set[Diagnostic] = set()
        self._counts = dict.fromkeys(Severity, 0)
        self._stop = stop

    def error(self, code: str, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self.add(Diagnostic(code, message, span, hint))

    def warning(self, code: str, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self.add(Diagnostic(code, message, span, hint, Severity.WARNING))

    def note(self, code: str, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self.add(Diagnostic(code, message, span, hint, Severity.NOTE))

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep a finding once, and of each severity at most `MAX_FINDINGS`, the last of which says that more exist."""
        severity = diagnostic.severity
        if diagnostic in self._seen or self._counts[severity] == MAX_FINDINGS:
            return  # an inlined function can report the same place twice
        self._seen.add(diagnostic)
        self._counts[severity] += 1
        if self._counts[severity] < MAX_FINDINGS:
            self.items.append(diagnostic)
            return
        message = f"too many {severity.value}s: only the first {MAX_FINDINGS - 1} are told"
        self.items.append(Diagnostic(diagnostic.code, message, diagnostic.span, None, severity))
        if self._stop and severity is Severity.ERROR:
            raise TooManyFindings

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(item for item in self.items if item.severity is Severity.ERROR)
