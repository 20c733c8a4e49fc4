"""The grammar as objects: the LALR parser, and the words and token patterns that the scanner and the messages use.

All of it is read from `attn.lark`, once per process and on first use.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from .automaton import Automaton

STARTS = (
    "statement",
    "setting",
    "let",
    "expression",
)  # the last three: entries of a block, parsed alone after an error
_lock = threading.Lock()


@dataclass(frozen=True)
class Grammar:
    """`attn.lark`, compiled. `spelling` gives the text of every token type that has only one."""

    automaton: Automaton
    pattern: re.Pattern[str]  # one token of any kind; `lastgroup` is its type, or "SYMBOL", or "OTHER"
    words: dict[str, str]  # reserved word -> token type
    symbols: dict[str, str]  # operator or punctuation -> token type
    spelling: dict[str, str]  # token type -> its only text
    statement_words: frozenset[str]  # reserved words that start a statement


def grammar() -> Grammar:
    """The compiled grammar, built on first use (a tenth of a second) and shared by all threads."""
    with _lock:
        return _build()


@lru_cache(maxsize=1)
def _build() -> Grammar:
    from lark import Lark
    from lark.lexer import Lexer, PatternStr

    from .build import TreeBuilder

    class Tokens(Lexer):
        """Tells lark that tokens come from the scanner, so that it builds no lexer of its own."""

        def __init__(self, lexer_conf: Any) -> None:
            pass

        def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Any]:
            raise NotImplementedError("the scanner feeds the parser")

    lark = Lark(
        files(__package__).joinpath("attn.lark").read_text("utf-8"),
        parser="lalr",
        lexer=Tokens,
        start=list(STARTS),
        transformer=TreeBuilder(),  # called at reduce time: no recursion over the user's nesting
        keep_all_tokens=True,  # a construct's span is that of its first to its last token
        maybe_placeholders=True,
    )
    fixed = {t.pattern.value: t.name for t in lark.terminals if isinstance(t.pattern, PatternStr)}
    words = {text: name for text, name in fixed.items() if text.isidentifier()}
    symbols = {text: name for text, name in fixed.items() if text not in words}
    shapes = {t.name: t.pattern.value for t in lark.terminals if not isinstance(t.pattern, PatternStr)}
    parts = [f"(?P<{name}>{shapes[name]})" for name in ("SPACE", "COMMENT", "NAME", "FLOAT", "INT", "NEWLINE")]
    longest_first = sorted(symbols, key=len, reverse=True)
    parts.append(f"(?P<SYMBOL>{'|'.join(re.escape(text) for text in longest_first)})")
    parts.append(r"(?P<OTHER>[0-9][A-Za-z0-9_]*(?:\.[0-9][A-Za-z0-9_]*)*|.)")
    automaton = Automaton(lark, STARTS)
    starts = automaton.first("statement")
    return Grammar(
        automaton=automaton,
        pattern=re.compile("|".join(parts), re.DOTALL),
        words=words,
        symbols=symbols,
        spelling={name: text for text, name in fixed.items()},
        statement_words=frozenset(text for text, name in words.items() if name in starts),
    )
