"""Text to syntax tree. Every problem of a file is found in one run: a statement that fails does not stop the next."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..diagnostics import AttnSyntaxError, Diagnostic, Source, Span
from . import tree
from .automaton import Unexpected
from .build import Problem, Sub
from .grammar import Grammar, grammar
from .messages import unexpected
from .scanner import Line, scan
from .source import check_text
from .tokens import Token

MAX_PROBLEMS = 100  # problems that one run reports


def parse_source(source: Source) -> tree.File:
    """The syntax tree of a text.

    Raises:
        AttnSyntaxError: with every problem of the text in its order (E201 to E207), at most `MAX_PROBLEMS`.
    """
    check_text(source)
    with _collector_paused():
        return _parse(source)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Spare Python's cyclic collector the search through tokens and nodes that all stay alive: a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parse(source: Source) -> tree.File:
    compiled = grammar()
    scanned = scan(source, compiled)
    parser = _Parser(compiled, scanned.problems)
    statements = []
    for line in scanned.lines:
        if len(parser.problems) > MAX_PROBLEMS:
            break
        if not line.broken:
            statements.append(parser.statement(line))
    if parser.problems:
        raise AttnSyntaxError(_in_order(parser.problems))
    if not scanned.lines:
        start = Span(source, 0, 0)
        raise AttnSyntaxError.of(
            "E202", "the file has no statement", span=start, hint="the shortest spec declares q, k and v"
        )
    return tree.File(source, tuple(statements))


def _in_order(problems: list[Diagnostic]) -> list[Diagnostic]:
    ordered = sorted(problems, key=lambda problem: problem.span.start if problem.span else 0)
    if len(ordered) <= MAX_PROBLEMS:
        return ordered
    last = ordered[MAX_PROBLEMS - 1]
    rest = Diagnostic("E204", "too many problems: what follows here is not shown", last.span)
    return [*ordered[: MAX_PROBLEMS - 1], rest]


class _Parser:
    """Feeds the LALR parser and turns its refusals into diagnostics."""

    def __init__(self, compiled: Grammar, problems: list[Diagnostic]) -> None:
        self.grammar = compiled
        self.problems = problems

    def statement(self, line: Line) -> Any:
        tokens = line.tokens
        node, failed_at = self._parse(tokens, "statement")
        if failed_at is not None:
            self._entries_after(tokens, failed_at)
        return node

    def _parse(self, tokens: list[Token], start: str) -> tuple[Any, int | None]:
        """The node of `tokens`, or None and the index of the token where the parse ended."""
        try:
            node = self.grammar.automaton.parse(start, tokens)
        except Unexpected as stop:
            unit = "line" if start == "statement" else "entry"
            self.problems.append(unexpected(tokens, stop.index, stop.expected, self.grammar, unit))
            return None, stop.index
        except Problem as problem:
            self.problems.append(problem.diagnostic)
            return None, None
        return (node.node if isinstance(node, Sub) else node), None

    def _entries_after(self, tokens: list[Token], failed_at: int) -> None:
        """Look for further problems in the entries of a block after the one that failed."""
        start = next((i for i, token in enumerate(tokens[:failed_at]) if token.text == "{"), None)
        if start is None:
            return
        depth = 0
        entries: list[list[Token]] = [[]]
        last_failed = 0
        for index in range(start + 1, len(tokens)):
            token = tokens[index]
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if depth < 0:
                break
            if index == failed_at:
                last_failed = len(entries)
            if depth == 0 and token.type in ("COMMA", "NEWLINE"):
                entries.append([])
            else:
                entries[-1].append(token)
        if depth >= 0 or last_failed == 0:
            return
        for entry in entries[last_failed:]:
            if entry:
                self._parse(entry, self._entry_kind(tokens[0].text, entry[0].text))

    def _entry_kind(self, statement: str, word: str) -> str:
        if statement != "def":
            return "setting"
        return "let" if word == "let" else "expression"


_OPENERS = ("(", "[", "{")
_CLOSERS = (")", "]", "}")
