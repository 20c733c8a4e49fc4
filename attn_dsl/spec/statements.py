"""The statements of one file by kind."""

from __future__ import annotations

from typing import TypeVar

from ..diagnostics import Diagnostics, Span
from ..syntax import tree

_Node = TypeVar("_Node", bound=tree.Node)


class Statements:
    """Finds the statements of a kind; a second one where there may be one is reported."""

    def __init__(self, file: tree.File, report: Diagnostics) -> None:
        self._file = file
        self._report = report

    @property
    def start(self) -> Span:
        """Where a problem of the whole file is shown."""
        if self._file.statements:
            return self._file.statements[0].span
        return Span(self._file.source, 0, min(1, len(self._file.source.text)))

    def of(self, kind: type[_Node]) -> list[_Node]:
        """Every statement of a kind, in order."""
        return [statement for statement in self._file.statements if isinstance(statement, kind)]

    def one(self, kind: type[_Node], what: str) -> _Node | None:
        """The statement of a kind that may appear once (E250)."""
        found = self.of(kind)
        for again in found[1:]:
            self._report.error("E250", f"a second {what}; the first is on line {found[0].span.line}", again.span)
        return found[0] if found else None
