"""Text to logical lines: tokens with their places, line breaks by context, brackets that match.

Everything the grammar cannot say well is found here: foreign characters, brackets that stay open or close
the wrong partner, nesting that is too deep. A line with such a problem is marked and not parsed, so that one
mistake gives one message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..diagnostics import MAX_FINDINGS, Diagnostic, Source, Span
from .grammar import Grammar
from .messages import FOREIGN_CHARACTERS
from .tokens import MAX_NESTING, Token, shown

MAX_STATEMENTS = 1_000  # of one file
_CLOSERS = {")": "(", "]": "[", "}": "{"}
_DEFINES = re.compile(r"[ \t]*=(?!=)")


@dataclass
class Line:
    """The tokens of one statement, and whether a problem in it is already reported."""

    tokens: list[Token] = field(default_factory=list)
    broken: bool = False


@dataclass
class Scan:
    """What a text consists of."""

    lines: list[Line] = field(default_factory=list)
    comments: list[Span] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)


def scan(source: Source, grammar: Grammar) -> Scan:
    """The logical lines and comments of a text."""
    return _Scanner(source, grammar).run()


class _Scanner:
    def __init__(self, source: Source, grammar: Grammar) -> None:
        self.source = source
        self.grammar = grammar
        self.result = Scan()
        self.line = Line()
        self.open: list[Token] = []  # at most MAX_NESTING brackets
        self.excess = 0  # open brackets beyond those: only counted
        self.too_deep = False  # E206 is told in this line, and no other problem of its brackets

    def run(self) -> Scan:
        text, source, grammar = self.source.text, self.source, self.grammar
        words, symbols = grammar.words, grammar.symbols
        at_line_start = True
        for match in grammar.pattern.finditer(text, 1 if text.startswith("\ufeff") else 0):
            kind = match.lastgroup
            if kind == "SPACE":
                continue
            if kind == "NEWLINE":
                at_line_start = True
                self._line_break(match.start())
                if len(self.result.problems) > MAX_FINDINGS or len(self.result.lines) > MAX_STATEMENTS:
                    break
                continue
            if kind == "COMMENT":
                self.result.comments.append(Span(source, *match.span()))
                continue
            value = match.group()
            if kind == "NAME":
                kind = words.get(value, kind)
                if at_line_start and self.open and value in grammar.statement_words:
                    self._new_statement_inside_brackets(value, match.end())
                token = Token(kind, value, match.start(), source)
            elif kind == "SYMBOL":
                token = Token(symbols[value], value, match.start(), source)
                if value in "([{":
                    self._opening(token)
                elif value in _CLOSERS:
                    self._closing(token)
                elif value == "," and self.open and self._last_is_break():
                    self.line.tokens.pop()
            elif kind == "OTHER":
                token = Token("OTHER", value, match.start(), source)
                self._foreign(token)
            else:
                token = Token(str(kind), value, match.start(), source)
            at_line_start = False
            self.line.tokens.append(token)
        else:
            self._unclosed(self.open)
            self._finish()
        self._too_many()
        return self.result

    def _too_many(self) -> None:
        for line in self.result.lines[MAX_STATEMENTS : MAX_STATEMENTS + 1]:
            message = f"this is the {MAX_STATEMENTS + 1:,}st statement; a file has at most {MAX_STATEMENTS:,}"
            hint = "definitions can move to library files and be imported"
            span = line.tokens[0].span.to(line.tokens[-1].span)
            self.result.problems.append(Diagnostic("E208", message, span, hint))
        del self.result.lines[MAX_STATEMENTS:]

    def _problem(self, code: str, message: str, token: Token, hint: str | None = None) -> None:
        self.result.problems.append(Diagnostic(code, message, token.span, hint))
        self.line.broken = True

    def _finish(self) -> None:
        if self.line.tokens:
            self.result.lines.append(self.line)
        self.line = Line()
        self.open.clear()
        self.excess = 0
        self.too_deep = False

    def _last_is_break(self) -> bool:
        return bool(self.line.tokens) and self.line.tokens[-1].type == "NEWLINE"

    def _line_break(self, offset: int) -> None:
        if not self.open:
            self._finish()
        elif self.open[-1].text == "{" and self.line.tokens[-1].type not in ("NEWLINE", "COMMA", "LBRACE"):
            self.line.tokens.append(Token("NEWLINE", "\n", offset, self.source))

    def _opening(self, token: Token) -> None:
        if len(self.open) < MAX_NESTING:
            self.open.append(token)
            return
        self.excess += 1
        self.too_deep = True
        if not self.line.broken:
            message = f"this is bracket {MAX_NESTING + 1} inside another; brackets nest at most {MAX_NESTING} deep"
            self._problem("E206", message, token, "name a part of the expression with 'let'")

    def _closing(self, token: Token) -> None:
        partner = _CLOSERS[token.text]
        if token.text == "}" and self._last_is_break():
            self.line.tokens.pop()
        if self.excess:
            self.excess -= 1
        elif not self.open:
            if not self.line.broken:
                self._problem("E204", f"'{token.text}' closes nothing: no '{partner}' is open", token)
        elif all(bracket.text != partner for bracket in self.open):
            self._unclosed([self.open.pop()], f": '{token.text}' in line {token.span.line} is no partner of it")
        else:
            while self.open[-1].text != partner:
                self._unclosed([self.open.pop()], f" before '{token.text}' in line {token.span.line}")
            self.open.pop()

    def _unclosed(self, brackets: list[Token], where: str = "") -> None:
        if self.too_deep:
            return
        for bracket in brackets:
            closer = next(closer for closer, opener in _CLOSERS.items() if opener == bracket.text)
            self._problem("E205", f"'{bracket.text}' is not closed{where}", bracket, f"add '{closer}'")

    def _new_statement_inside_brackets(self, word: str, end: int) -> None:
        """A line that can only be a new statement shows that the brackets before it were forgotten."""
        if word == "let" and any(bracket.text == "{" for bracket in self.open):
            while self.open[-1].text != "{":  # a local name in a function's body
                self._unclosed([self.open.pop()], " before 'let'")
            return
        if word == "score" and not _DEFINES.match(self.source.text, end):
            return  # the value `score`
        self._unclosed(self.open, f" before the statement '{word}'")
        self._finish()

    def _foreign(self, token: Token) -> None:
        if self.line.broken:
            return
        if token.text[0].isdigit():
            self._problem(
                "E203", f"{shown(token.text)} is no number", token, "numbers look like 12, 0x1f, 0b101, 0.5, 1e-6"
            )
        else:
            self._problem("E203", f"{shown(token.text)} means nothing here", token, FOREIGN_CHARACTERS.get(token.text))
