"""The words of a PTX text, and a cursor over them (PTX ISA 9.1, "Syntax": identifiers, constants, directives)."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from typing import TypeAlias

from ..diagnostics import Source
from .errors import PtxError
from .syntax import Number

Token: TypeAlias = tuple[str, str, int]  # kind, text, character offset

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<word>[%$A-Za-z_][\w$]*(?:::\w+)*(?:\.\w+(?:::\w+)*)*)
    | (?P<number>0[fF][0-9A-Fa-f]{8}|0[dD][0-9A-Fa-f]{16}|0[xX][0-9A-Fa-f]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    | (?P<directive>\.\w+(?:::\w+)*)
    | (?P<string>"[^"\n]*")
    | (?P<mark>[{}()\[\],;:|@!+\-<>=])
    | (?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)
_END = "end"


class Tokens:
    """A cursor. What is not where it should be is a PtxError (E300) with its place."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens: list[Token] = [
            (kind, match.group(), match.start()) for match in _TOKEN.finditer(source.text) if (kind := match.lastgroup)
        ]
        self.tokens.append((_END, "", len(source.text)))
        self.at = 0
        self._line_ends = [match.start() for match in re.finditer("\n", source.text)]

    def fail(self, message: str, hint: str | None = None, token: Token | None = None) -> PtxError:
        _, text, start = token or self.tokens[self.at]
        return PtxError.at("E300", message, self.source, start, start + max(1, len(text)), hint)

    def peek(self) -> str:
        return self.tokens[self.at][1]

    def take(self) -> str:
        token = self.tokens[self.at]
        if token[0] == _END:
            raise self.fail("the text ends in the middle of a statement")
        self.at += 1
        return token[1]

    def accept(self, text: str) -> bool:
        if self.tokens[self.at][1] == text and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(f"expected '{text}', found '{self.peek() or 'the end of the text'}'")

    def until(self, text: str) -> None:
        """Skip to behind the next `text`."""
        while not self.accept(text):
            self.take()

    def word(self, what: str) -> str:
        if self.tokens[self.at][0] != "word":
            raise self.fail(f"expected {what}, found '{self.peek() or 'the end of the text'}'")
        return self.take()

    def integer(self) -> int:
        negative = self.accept("-")
        number = self.number()
        if number.float_bits:
            raise self.fail("expected an integer", token=self.tokens[self.at - 1])
        return -number.value if negative else number.value

    def number(self) -> Number:
        kind, text, _ = self.tokens[self.at]
        if kind != "number":
            raise self.fail(f"expected a number, found '{text or 'the end of the text'}'")
        self.at += 1
        return number_value(text)

    def line(self, position: int) -> int:
        """The line of a character offset, from 1."""
        return bisect_right(self._line_ends, position - 1) + 1


def number_value(text: str) -> Number:
    """The value of a PTX literal: `0f3F800000`, `0x1F`, `017`, `0b11`, `12U`, `1.5`."""
    prefix = text[:2].lower()
    if prefix == "0f":
        return Number(int(text[2:], 16), 32)
    if prefix == "0d":
        return Number(int(text[2:], 16), 64)
    if "." in text or ("e" in text.lower() and prefix != "0x"):
        return Number(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    digits = text.rstrip("U")
    if prefix in ("0x", "0b"):
        return Number(int(digits, 0))
    return Number(int(digits, 8) if len(digits) > 1 and digits[0] == "0" else int(digits))
