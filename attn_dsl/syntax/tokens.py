"""A token, and how messages quote the user's text."""

from __future__ import annotations

from ..diagnostics import Source, Span

MAX_NESTING = 100  # levels of brackets, and of operators and calls in one expression
END = "$END"  # the type that stands for the end of the tokens
_MAX_QUOTE = 40  # characters of the user's text that a message repeats


class Token:
    """One token: its terminal in `attn.lark`, its text and its place."""

    __slots__ = ("end", "source", "start", "text", "type")

    def __init__(self, type: str, text: str, start: int, source: Source) -> None:
        self.type = type
        self.text = text
        self.start = start  # character offset
        self.end = start + len(text)  # character offset, exclusive
        self.source = source

    @property
    def span(self) -> Span:
        return Span(self.source, self.start, self.end)


def shown(text: str) -> str:
    """A piece of the user's text as a message quotes it: short and printable."""
    short = text if len(text) <= _MAX_QUOTE else text[: _MAX_QUOTE - 3] + "..."
    return "'" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in short) + "'"
