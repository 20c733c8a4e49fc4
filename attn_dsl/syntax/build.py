"""The callbacks of the LALR parser: each turns the parts of one rule of `attn.lark` into a tree node.

They run at reduce time, children first, so nothing here recurses over the user's nesting. Expressions travel as
(node, depth) pairs; the depth is what E206 limits, and it protects every later stage that walks a tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ..diagnostics import Diagnostic, Span
from ..expr.operators import I64_MAX
from . import tree
from .precedence import COMPARISONS, INFIX, PREFIX
from .tokens import MAX_NESTING, Token, shown

Parts = list[Any]  # tokens, finished nodes, (node, depth) pairs, and None for an absent optional part


class Problem(Exception):
    """A problem that ends the parse of its statement; never leaves the package."""

    def __init__(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.diagnostic = Diagnostic(code, message, span, hint)
        self.start = span.start  # character offset


class Sub(NamedTuple):
    """A finished expression, range or slice, and how deep its operators, calls and reads nest."""

    node: Any  # tree.Expression | tree.Range | tree.WholeAxis
    depth: int


def _span(parts: Parts) -> Span:
    """From the first to the last part that is there."""
    first = next(part for part in parts if part is not None)
    last = next(part for part in reversed(parts) if part is not None)
    left, right = _place(first), _place(last)
    return Span(left.source, left.start, right.end)


def _place(part: Any) -> Any:
    if isinstance(part, Token):
        return part
    return part.node.span if isinstance(part, Sub) else part.span


def _node(part: Sub | None) -> Any:
    return None if part is None else part.node


def _expressions(parts: Parts) -> tuple[Any, ...]:
    return tuple(part.node for part in parts if isinstance(part, Sub))


def _of(kind: type, parts: Parts) -> tuple[Any, ...]:
    return tuple(part for part in parts if isinstance(part, kind))


def _deeper(node: Any, depths: Iterable[int]) -> Sub:
    depth = 1 + max(depths, default=0)
    if depth > MAX_NESTING:
        message = f"operators and calls nest more than {MAX_NESTING} deep here"
        raise Problem(
            "E206", message, node.span, "name parts with 'let', or write a long chain as 'sum(i in 0..n: ...)'"
        )
    return Sub(node, depth)


class TreeBuilder:
    """One method per rule or alias of the grammar."""

    # -- statements

    def import_(self, parts: Parts) -> tree.Import:
        relative, path = parts[1]
        return tree.Import(relative, path, _of(tree.ImportedName, parts), span=_span(parts))

    def module(self, parts: Parts) -> tuple[bool, tuple[str, ...]]:
        return parts[0].type == "DOT", tuple(part.text for part in parts if part.type == "NAME")

    def imported(self, parts: Parts) -> tree.ImportedName:
        name, _, alias = parts
        return tree.ImportedName(name.text, (alias or name).text, span=_span(parts))

    def constant(self, parts: Parts) -> tree.Const:
        return tree.Const(parts[1], parts[3], parts[5].node, span=_span(parts))

    def fix_axis(self, parts: Parts) -> tree.FixAxis:
        return tree.FixAxis(parts[1], parts[3].node, span=_span(parts))

    def let(self, parts: Parts) -> tree.Let:
        return tree.Let(parts[1], parts[3].node, span=_span(parts))

    def function(self, parts: Parts) -> tree.Function:
        last = parts[-1]
        lets, value, braces = ((), last.node, False) if isinstance(last, Sub) else (last.lets, last.value, True)
        result = parts[-2] if braces else parts[-3]
        params = _of(tree.FunctionParam, parts)
        return tree.Function(parts[1], params, result, lets, value, braces, span=_span(parts))

    def parameter(self, parts: Parts) -> tree.FunctionParam:
        return tree.FunctionParam(parts[0], parts[2], span=_span(parts))

    def body(self, parts: Parts) -> _Body:
        return _Body(_of(tree.Let, parts), _expressions(parts)[0], _span(parts))

    def tensor(self, parts: Parts) -> tree.TensorDecl:
        return tree.TensorDecl(_of(tree.Name, parts), parts[-1], span=_span(parts))

    def tensor_type(self, parts: Parts) -> tree.TensorType:
        return tree.TensorType(parts[0], _expressions(parts), span=_span(parts))

    def view(self, parts: Parts) -> tree.ViewDecl:
        slices = tuple(part.node for part in parts[5:] if isinstance(part, Sub))
        return tree.ViewDecl(parts[1], parts[3], slices, span=_span(parts))

    def whole_axis(self, parts: Parts) -> Sub:
        return Sub(tree.WholeAxis(span=_span(parts)), 0)

    def param(self, parts: Parts) -> tree.Param:
        _, name, _, kind, _, per, _, _, limits, _, default = parts
        return tree.Param(name, kind, per, _node(limits), _node(default), span=_span(parts))

    def align(self, parts: Parts) -> tree.AlignDecl:
        return tree.AlignDecl(parts[1], _node(parts[3]), span=_span(parts))

    def lengths(self, parts: Parts) -> tree.LengthsDecl:
        return tree.LengthsDecl(parts[1], _of(tree.Setting, parts), span=_span(parts))

    def paged(self, parts: Parts) -> tree.PagedDecl:
        return tree.PagedDecl(_of(tree.Setting, parts), span=_span(parts))

    def schedule(self, parts: Parts) -> tree.ScheduleDecl:
        return tree.ScheduleDecl(_of(tree.Setting, parts), span=_span(parts))

    def setting(self, parts: Parts) -> tree.Setting:
        return tree.Setting(parts[0], parts[2].node, span=_span(parts))

    def pack(self, parts: Parts) -> tree.PackDecl:
        return tree.PackDecl(parts[1], parts[2], span=_span(parts))

    def clause(self, parts: Parts) -> tree.Clause:
        return tree.Clause(parts[0].text, parts[2].node, span=_span(parts))

    def descale(self, parts: Parts) -> tree.Descale:
        return tree.Descale(parts[1], parts[3].node, span=_span(parts))

    def lse_base(self, parts: Parts) -> tree.LseBase:
        return tree.LseBase(parts[2].node, span=_span(parts))

    # -- expressions

    def name(self, parts: Parts) -> tree.Name:
        return tree.Name(parts[0].text, span=parts[0].span)

    def value(self, parts: Parts) -> Sub:
        part = parts[0]
        return Sub(part if isinstance(part, tree.Name) else tree.Name(part.text, span=part.span), 0)

    def truth(self, parts: Parts) -> Sub:
        return Sub(tree.Literal(parts[0].text == "true", span=parts[0].span), 0)

    def integer(self, parts: Parts) -> Sub:
        token = parts[0]
        digits = token.text.replace("_", "").lower()
        base = {"0x": 16, "0b": 2}.get(digits[:2], 10)
        digits = (digits[2:] if base != 10 else digits).lstrip("0")
        value = int(digits or "0", base) if len(digits) <= 64 else I64_MAX + 1
        if value > I64_MAX:
            hint = "'unbounded' is larger than any distance"
            raise Problem(
                "E207", f"{shown(token.text)} does not fit 64 bits (2^63 - 1 is the largest)", token.span, hint
            )
        return Sub(tree.Literal(value, span=token.span), 0)

    def float(self, parts: Parts) -> Sub:
        token = parts[0]
        value = float(token.text)
        if math.isinf(value):
            raise Problem("E207", f"{shown(token.text)} is too large for a float", token.span)
        return Sub(tree.Literal(value, span=token.span), 0)

    def parentheses(self, parts: Parts) -> Sub:
        node, depth = parts[1]
        return Sub(replace(node, span=_span(parts)), depth)

    def conditional(self, parts: Parts) -> Sub:
        yes, condition, no = parts[0], parts[2], parts[4]
        node = tree.Conditional(yes.node, condition.node, no.node, span=_span(parts))
        return _deeper(node, (yes.depth, condition.depth, no.depth))

    def call(self, parts: Parts) -> Sub:
        arguments, depths = [], []
        for part in parts[2:]:
            if isinstance(part, Sub):
                arguments.append(tree.Argument(None, part.node, span=part.node.span))
                depths.append(part.depth)
            elif isinstance(part, _Named):
                arguments.append(part.argument)
                depths.append(part.depth)
        return _deeper(tree.Call(parts[0], tuple(arguments), span=_span(parts)), depths)

    def named(self, parts: Parts) -> _Named:
        return _Named(tree.Argument(parts[0].name, parts[2].node, span=_span(parts)), parts[2].depth)

    def read(self, parts: Parts) -> Sub:
        indices = [part for part in parts if isinstance(part, Sub)]
        node = tree.Read(parts[0], tuple(index.node for index in indices), span=_span(parts))
        return _deeper(node, (index.depth for index in indices))

    def reduction(self, parts: Parts) -> Sub:
        kind, variable, limits, body = parts[0], parts[2], parts[4], parts[6]
        node = tree.Reduction(kind.name, variable, limits.node, body.node, span=_span(parts))
        return _deeper(node, (limits.depth, body.depth))

    def range(self, parts: Parts) -> Sub:
        start = parts[0] if isinstance(parts[0], Sub) else None
        stop = parts[-1] if isinstance(parts[-1], Sub) else None
        dots = next(part for part in parts if isinstance(part, Token))
        node = tree.Range(_node(start), _node(stop), dots.text == "..=", span=_span(parts))
        return Sub(node, max(end.depth for end in (start, stop) if end is not None))

    ends = range

    def operation(self, parts: Parts) -> Sub:
        return _group(iter(parts))


class _Body(NamedTuple):
    lets: tuple[tree.Let, ...]
    value: Any  # tree.Expression
    span: Span


class _Named(NamedTuple):
    argument: tree.Argument
    depth: int


def _group(parts: Iterator[Token | Sub]) -> Sub:
    """A flat sequence of operands and operators, grouped by the operator table."""
    operands: list[Sub] = []
    waiting: list[tuple[Token, int, bool]] = []  # operators without their right operand yet: strength, is prefix
    wants_operand = True
    for part in parts:
        if isinstance(part, Sub):
            operands.append(part)
            wants_operand = False
        elif wants_operand:
            strength = PREFIX[part.text]
            if waiting and waiting[-1][1] > strength:
                message = f"'{part.text}' binds looser than '{waiting[-1][0].text}' before it"
                raise Problem("E204", message, part.span, f"write '({part.text} ...)'")
            waiting.append((part, strength, True))
        else:
            strength = INFIX[part.text]
            while waiting and _goes_first(waiting[-1], strength):
                _apply(waiting, operands)
            waiting.append((part, strength, False))
            wants_operand = True
    while waiting:
        _apply(waiting, operands)
    return operands[0]


def _goes_first(operator: tuple[Token, int, bool], strength: int) -> bool:
    """Whether a waiting operator takes its operands before one of `strength`: comparisons wait and form a chain."""
    token, own, _ = operator
    return own > strength or (own == strength and token.text not in COMPARISONS)


def _apply(waiting: list[tuple[Token, int, bool]], operands: list[Sub]) -> None:
    """Replace the last waiting operator and its operands by their node."""
    token, strength, prefix = waiting.pop()
    right = operands.pop()
    if prefix:
        node: Any = tree.Unary(token.text, right.node, span=Span(token.source, token.start, right.node.span.end))
        operands.append(_deeper(node, (right.depth,)))
    elif token.text not in COMPARISONS:
        left = operands.pop()
        node = tree.Binary(token.text, left.node, right.node, span=left.node.span.to(right.node.span))
        operands.append(_deeper(node, (left.depth, right.depth)))
    else:
        operators, chain = [token.text], [right, operands.pop()]
        while waiting and waiting[-1][1] == strength:
            operators.append(waiting.pop()[0].text)
            chain.append(operands.pop())
        operators.reverse()
        chain.reverse()
        span = chain[0].node.span.to(right.node.span)
        node = tree.Comparison(tuple(operators), tuple(sub.node for sub in chain), span=span)
        # a chain of n comparisons means n of them joined by `and`
        operands.append(_deeper(node, (*(sub.depth for sub in chain), len(operators) - 1)))
