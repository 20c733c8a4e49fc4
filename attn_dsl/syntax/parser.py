"""Text to syntax tree. Every problem of a file is found in one run: a statement that fails does not stop the next."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..diagnostics import MAX_FINDINGS, AttnSyntaxError, Diagnostic, Diagnostics, Source, Span
from . import tree
from .automaton import Unexpected
from .build import Problem, Sub
from .grammar import Grammar, grammar
from .messages import unexpected
from .scanner import Line, scan
from .source import check_text
from .tokens import Token


def parse_source(source: Source) -> tree.File:
    """The syntax tree of a text.

    Raises:
        AttnSyntaxError: with every problem of the text in its order (E201 to E207), at most `MAX_FINDINGS`.
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
        if not line.broken and not parser.full:
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
    report = Diagnostics()
    for problem in sorted(problems, key=lambda problem: problem.span.start if problem.span else 0):
        report.add(problem)
    return report.items


class _Parser:
    """Feeds the LALR parser and turns its refusals into diagnostics."""

    def __init__(self, compiled: Grammar, problems: list[Diagnostic]) -> None:
        self.grammar = compiled
        self.problems = problems
        self._cut_short: Token | None = None  # the start of a statement that stopped at the end of its line

    @property
    def full(self) -> bool:
        """Whether there are more problems than anybody reads."""
        return len(self.problems) >= MAX_FINDINGS

    def statement(self, line: Line) -> Any:
        """The statement of a line; None if it has a problem, which is then told."""
        tokens = line.tokens
        if self._cut_short and self._continues(self._cut_short, tokens):
            return None  # its problem is told already
        node, failed_at = self._parse(tokens, "statement")
        self._cut_short = tokens[0] if failed_at == len(tokens) else None
        if failed_at is not None:
            self._entries_after(tokens, failed_at)
        return node

    def _continues(self, start: Token, tokens: list[Token]) -> bool:
        """Whether a line looks like the rest of the statement before it: indented, and no statement of its own."""
        declares = tokens[0].type == "NAME" and len(tokens) > 1 and tokens[1].text in (":", ",")
        known = tokens[0].text in self.grammar.statement_words or declares
        return not known and tokens[0].span.column > start.span.column

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
            return None, next(place for place, token in enumerate(tokens) if token.end > problem.start)
        return (node.node if isinstance(node, Sub) else node), None

    def _entries_after(self, tokens: list[Token], failed_at: int) -> None:
        """Look for further problems in the entries of a block after the one that failed."""
        brace = next((place for place, token in enumerate(tokens[:failed_at]) if token.text == "{"), None)
        if brace is None:
            return
        # what an entry lacked at the end of its line may stand in the next line
        told = failed_at + 1 if failed_at < len(tokens) and tokens[failed_at].type == "NEWLINE" else failed_at
        for begin, entry in _entries(tokens, brace + 1):
            if begin > told and entry and not self.full:
                kind = "let" if entry[0].text == "let" else "expression"
                _, stopped_at = self._parse(entry, kind if tokens[0].text == "def" else "setting")
                end = begin + len(entry)
                if stopped_at == len(entry) and tokens[end].type == "NEWLINE":
                    told = end + 1


def _entries(tokens: list[Token], start: int) -> Iterator[tuple[int, list[Token]]]:
    """The entries of the block that `start` is inside of, each with the place of its first token."""
    depth, begin = 0, start
    for place in range(start, len(tokens)):
        text = tokens[place].text
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        if depth < 0 or (depth == 0 and tokens[place].type in ("COMMA", "NEWLINE")):
            yield begin, tokens[begin:place]
            begin = place + 1
        if depth < 0:
            return
