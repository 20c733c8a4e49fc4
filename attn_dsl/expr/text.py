"""The text algebra: an expression in the language's own spelling, with as few parentheses as it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from .evaluate import evaluate
from .node import LEAVES, Expr, children_first
from .operators import CALL, OPERATORS, TERNARY, UNARY

Piece = tuple[str, int]  # text and the binding strength of its outermost operator
_WORTH_A_NAME = 3  # nodes below a shared part that make naming it shorter than repeating it
MAX_TEXT = 20_000  # characters; a shared expression can be exponentially longer than its nodes
_ELIDED = "..."


def to_text(node: Expr) -> str:
    """`node` as one line of the language; parts past `MAX_TEXT` characters are shown as `...`."""
    text: str = evaluate([node], TextAlgebra(), _leaf)[0][0]
    return text


def shared_texts(roots: Sequence[Expr], names: Iterator[str]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """The roots as text, and name and text of each part they use more than once, every name before its first use."""
    nodes = list(children_first(roots))
    uses = Counter(argument for node in nodes for argument in node.args)
    size: dict[Expr, int] = {}
    replaced: dict[Expr, Expr] = {}
    where: list[tuple[str, str]] = []
    for node in nodes:
        size[node] = 1 + sum(size[argument] for argument in node.args)
        args = tuple(replaced[argument] for argument in node.args)
        replaced[node] = node if args == node.args else Expr(node.op, args, node.attr, node.type)
        if uses[node] > 1 and size[node] > _WORTH_A_NAME and node.op not in LEAVES:
            name = next(names)
            where.append((name, to_text(replaced[node])))
            replaced[node] = Expr("var", (), name, node.type)
            size[node] = 1
    return [to_text(replaced[root]) for root in roots], tuple(where)


def _leaf(node: Expr, indices: tuple[Any, ...]) -> Piece:
    name = str(node.attr)
    return (_short(f"{name}[{', '.join(text for text, _ in indices)}]") if node.op == "read" else name), CALL


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else _ELIDED


class TextAlgebra:
    """Values are pieces of text; the methods come from the spellings in `OPERATORS`."""

    def const(self, node: Expr) -> Piece:
        value = node.attr
        if isinstance(value, bool):
            return ("true" if value else "false"), CALL
        text = repr(value)
        return text, UNARY if text.startswith("-") else CALL

    def select(self, condition: Piece, yes: Piece, no: Piece) -> Piece:
        left, middle, right = (_wrap(yes, TERNARY + 1), _wrap(condition, TERNARY + 1), _wrap(no, TERNARY))
        return _short(f"{left} if {middle} else {right}"), TERNARY

    def __getattr__(self, name: str) -> Any:
        try:
            operator = OPERATORS[name.rstrip("_")]
        except KeyError:
            raise AttributeError(name) from None
        spelling, strength = operator.spelling, operator.precedence

        def function(*operands: Piece) -> Piece:
            return _short(f"{spelling}({', '.join(text for text, _ in operands)})"), CALL

        def prefix(operand: Piece) -> Piece:
            gap = " " if spelling.isalpha() else ""
            return _short(f"{spelling}{gap}{_wrap(operand, strength)}"), strength

        def infix(left: Piece, right: Piece) -> Piece:
            # comparisons do not nest; the other infix operators associate to the left
            keep_left = (
                strength + 1
                if operator.signatures[0][1].value == "bool" and spelling not in ("and", "or")
                else strength
            )
            return _short(f"{_wrap(left, keep_left)} {spelling} {_wrap(right, strength + 1)}"), strength

        if strength == CALL:
            return function
        return prefix if len(operator.signatures[0][0]) == 1 else infix


def _wrap(piece: Piece, needed: int) -> str:
    text, strength = piece
    return text if strength >= needed else f"({text})"
