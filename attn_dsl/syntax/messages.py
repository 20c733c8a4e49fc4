"""What a parse that stopped says, in the words of the language: what was expected, what was found, a way out."""

from __future__ import annotations

from itertools import pairwise

from ..diagnostics import Diagnostic, Span, did_you_mean
from .grammar import Grammar
from .precedence import INFIX
from .tokens import Token, shown

# The form of each statement, by the word it starts with.
FORMS = {
    "align": "align bottom_right, align top_left, or align offset(expression)",
    "axis": "axis dim = 128",
    "const": "const name: int = 32",
    "def": "def name(x: int) -> bool = expression",
    "descale": "descale k = k_descale[b, kv_h]",
    "from": "from std.window import window, lookback as back",
    "lengths": "lengths k { used = lens }",
    "let": "let name = expression",
    "lse_base": "lse_base = 2",
    "mask": "mask = expression",
    "pack": "pack gqa auto",
    "paged": "paged { table = page_table }",
    "param": "param name: int in 1.. = 64",
    "schedule": "schedule { tile_q = 128, tile_k = 64 }",
    "scale": "scale = expression",
    "score": "score = expression",
    "sink": "sink = sinks[h]",
    "view": "view v = k[:, :, :, 0..512]",
}

# What stands for the spellings of other languages.
_FOREIGN = {
    "&&": "write 'and'",
    "||": "write 'or'",
    "**": "there is no power operator: multiply, or use exp, exp2 or sqrt",
    ":=": "write '='",
    "++": "there is no increment",
    "===": "write '=='",
    "=>": "write '>=' to compare, '->' for a function's result",
    "=<": "write '<='",
    "<>": "write '!='",
    "+=": "every name is defined once, with '='",
    "-=": "every name is defined once, with '='",
    "*=": "every name is defined once, with '='",
    "...": "a whole axis is ':', a range 'a..b'",
}
_NO_STRINGS = "there are no strings; names stand without quotes"
FOREIGN_CHARACTERS = {
    "!": "write 'not x', or 'x != y'",
    ";": "statements end at the end of their line",
    "?": "write 'x if condition else y'",
    "'": _NO_STRINGS,
    '"': _NO_STRINGS,
    "“": _NO_STRINGS,
    "\\": "a statement goes on in the next line inside ( )",
    "≤": "write '<='",
    "≥": "write '>='",
    "≠": "write '!='",
    "×": "write '*'",
    "−": "write '-'",
    "–": "write '-'",
    "∞": "write 'unbounded'",
}
_FOREIGN_WORDS = {
    "lambda": "a function is 'def name(x: int) -> bool = expression'",
    "return": "a body ends with its value: '{ let n = ..., n + 1 }'",
    "for": "repetition is 'sum(i in 0..8: expression)', or 'any', 'all', 'min', 'max'",
    "while": "repetition is 'sum(i in 0..8: expression)', or 'any', 'all', 'min', 'max'",
    "fn": "a function is 'def name(x: int) -> bool = expression'",
    "class": "a spec has no classes",
    "elif": "write 'x if a else y if b else z'",
    "then": "write 'x if condition else y'",
    "is": "write '=='",
}
_FOREIGN_STARTS = ("lambda", "return", "fn", "class")  # told at the word behind them: they could have been names

_OPERANDS = ("NAME", "INT", "FLOAT", "TRUE", "FALSE", "SCORE", "UNBOUNDED", "LPAR", "NOT", "MINUS", "TILDE")


def unexpected(
    tokens: list[Token], index: int, expected: frozenset[str], grammar: Grammar, unit: str = "line"
) -> Diagnostic:
    """The finding for `tokens[index]`; one past the end, the unit (a line, or an entry of a block) ended too early."""
    if index < len(tokens):
        token = tokens[index]
        found, span = _named(token, grammar), token.span
    else:
        end = tokens[-1].end
        found, span = f"the end of the {unit}", Span(tokens[-1].source, end, end)
    foreign = _foreign(tokens, index)
    if foreign:
        spelling, span, hint = foreign
        return Diagnostic("E204", f"{shown(spelling)} is not part of the language", span, hint)
    if index == 0 and tokens[0].text in INFIX:
        hint = "an expression goes on in the next line only inside ( )"
        return Diagnostic("E204", f"no statement starts with {shown(tokens[0].text)}", span, hint)
    if index == 1 and tokens[0].type == "NAME" and "COLON" in expected:
        return _no_statement(tokens, index, grammar)
    message = f"expected {_in_words(expected, grammar, unit)}, found {found}"
    return Diagnostic("E204", message, span, _hint(tokens, index, expected, grammar))


def _named(token: Token, grammar: Grammar) -> str:
    if token.type == "NEWLINE":
        return "a line break"
    if token.text in grammar.words:
        return f"the reserved word {shown(token.text)}"
    kind = {"NAME": "the name ", "INT": "the number ", "FLOAT": "the number "}.get(token.type, "")
    return kind + shown(token.text)


def _in_words(expected: frozenset[str], grammar: Grammar, unit: str) -> str:
    """Token types as a reader's list: kinds of things first, then signs and words."""
    left = set(expected)
    items: list[str] = []
    if {"PARAM", "MASK"} <= left:
        return "a statement"
    if {"INT", "LPAR", "MINUS"} <= left:
        items.append("an expression")
        left -= set(_OPERANDS)
    operators = {grammar.symbols.get(text) or grammar.words[text] for text in INFIX}
    if operators <= left:
        items.append("an operator")
        left -= operators | {"IF", "LPAR", "LSQB"}
    if "NAME" in left:
        items.append("a name")
    items += sorted(f"'{grammar.spelling[name]}'" for name in left if name in grammar.spelling)
    if "NEWLINE" in left:
        items.append("a line break")
    if "$END" in left:
        items.append(f"the end of the {unit}")
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


def _foreign(tokens: list[Token], index: int) -> tuple[str, Span, str] | None:
    """The spelling of another language that ends, starts or is at the token, with what to write here."""
    for first in (index - 2, index - 1, index):
        for count in (3, 2):
            run = tokens[max(first, 0) : first + count]
            touching = all(left.end == right.start for left, right in pairwise(run))
            text = "".join(token.text for token in run)
            if len(run) > 1 and touching and text in _FOREIGN:
                return text, run[0].span.to(run[-1].span), _FOREIGN[text]
    for token, known in zip(
        tokens[max(index - 1, 0) : index + 1][::-1], (_FOREIGN_WORDS, _FOREIGN_STARTS), strict=False
    ):
        if token.text in known:
            return token.text, token.span, _FOREIGN_WORDS[token.text]
    return None


def _no_statement(tokens: list[Token], index: int, grammar: Grammar) -> Diagnostic:
    """A line that starts with a name and is no tensor declaration."""
    word = tokens[0]
    message = f"no statement starts with {shown(word.text)}"
    hint = None
    if len(word.text) <= 40:
        hint = did_you_mean(word.text, grammar.statement_words)
    if hint is None and index < len(tokens) and tokens[index].text == "=":
        hint = f"a named expression is 'let {word.text[:40]} = ...'"
    return Diagnostic("E204", message, word.span, hint or "a tensor is declared as 'name: bf16[axis, axis]'")


def _hint(tokens: list[Token], index: int, expected: frozenset[str], grammar: Grammar) -> str | None:
    token = tokens[index] if index < len(tokens) else None
    text = token.text if token else ""
    before = tokens[index - 1] if index else None
    first = tokens[0].text
    wanted = {grammar.spelling[kind] for kind in expected if kind in grammar.spelling}
    wants_expression = {"INT", "LPAR", "MINUS"} <= expected
    if (text, "=" in wanted, "==" in wanted) in (("==", True, False), ("=", False, True)):
        return "'=' defines, '==' compares"
    if index == 0:
        return f"the form is: {FORMS['from']}" if text == "import" else None
    reserved = text in grammar.words and text not in INFIX and text != "import"
    if reserved and "NAME" in expected and not wants_expression:
        return f"{shown(text)} is a reserved word and names nothing else"
    if ".." in wanted or (text == ":" and "]" in wanted and "[" not in wanted):
        return "a range is 'a..b', or 'a..=b' with its end"
    if first == "def" and text == ":" and "=" in wanted:
        return "a function is written 'def name(x: int) -> bool = expression', without ':'"
    if first == "def" and "->" in wanted:
        return "say the type of the result: '-> bool', '-> int' or '-> float'"
    if text == "." and before and before.type == "INT":
        return f"a float has digits on both sides of its point: {before.text[:40]}.0"
    if text == "." and wants_expression:
        return "a float has digits on both sides of its point: 0.5"
    if text in ("", "\n") and wants_expression:
        return "an expression ends at the end of its line; inside ( ) it may go on"
    if text in ("", "=") and wanted == {"["}:
        return f"a tensor names its axes, 'name: f32[heads]'; a number of the call is 'param {first[:40]}: int'"
    if first in FORMS and not wants_expression and "==" not in wanted:
        return f"the form is: {FORMS[first]}"
    return None
