"""The Pygments lexer of `.attn` files, an entry point of the distribution: `pygmentize file.attn` finds it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

from pygments.lexer import Lexer
from pygments.token import Comment, Error, Name, Number, Operator, Punctuation, Text, Whitespace, string_to_tokentype

from ..syntax.grammar import grammar
from .words import words

_PUNCTUATION = frozenset("()[]{},:")


class AttnLexer(Lexer):  # type: ignore[misc]  # pygments has no types
    """Runs the language's own scanner pattern, so that a token ends here where it ends for the parser."""

    name = "attn"
    aliases: ClassVar[list[str]] = ["attn", "attn-dsl"]
    filenames: ClassVar[list[str]] = ["*.attn"]
    mimetypes: ClassVar[list[str]] = ["text/x-attn"]

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]:
        """(offset, token type, text) of everything in `text`, nothing left out."""
        position = 0
        for match in grammar().pattern.finditer(text):
            if match.start() > position:
                yield position, Text, text[position : match.start()]
            yield match.start(), _type(match.lastgroup or "OTHER", match.group(), text, match), match.group()
            position = match.end()
        if position < len(text):
            yield position, Text, text[position:]


def _type(kind: str, value: str, text: str, match: re.Match[str]) -> object:
    if kind == "NAME":
        found = _by_word().get(value)
        if found is not None:
            return found
        follows = text[match.end() :].lstrip(" \t")[:1]
        return Name.Function if follows == "(" else Name
    if kind == "SYMBOL":
        return Punctuation if value in _PUNCTUATION else Operator
    return {
        "SPACE": Whitespace,
        "NEWLINE": Whitespace,
        "COMMENT": Comment.Single,
        "FLOAT": Number.Float,
        "INT": Number.Integer,
    }.get(kind, Error)


@cache
def _by_word() -> dict[str, object]:
    return {word: string_to_tokentype(each.pygments) for each in words() for word in each.words}
