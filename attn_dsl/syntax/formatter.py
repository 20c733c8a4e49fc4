"""Syntax tree to text in the one layout. Comments and single blank lines stay; the meaning never changes."""

from __future__ import annotations

from typing import Any

from ..diagnostics import Span
from ..expr.operators import CALL, COMPARE, TERNARY
from . import tree
from .grammar import grammar
from .layout import Fold, Item, Piece, Writer, fold, listed, row
from .precedence import INFIX, PREFIX
from .scanner import scan

_TIGHT = TERNARY + 1  # what the end of a range and the parts of a condition need


def format_file(file: tree.File) -> str:
    """`file` as text: `parse(format(file)) == file`, and formatting the text again changes nothing.

    Lines have at most 100 columns where a bracket allows to fold them. Numbers keep their spelling in the source.
    """
    comments = scan(file.source, grammar()).comments
    printer = _Printer(file)
    return Writer(file.source, comments).file([printer.statement(statement) for statement in file.statements])


class _Printer:
    """Tree nodes as pieces. Nesting is at most 100 deep (E206), so this may recurse."""

    def __init__(self, file: tree.File) -> None:
        self.text = file.source.text

    # -- statements

    def statement(self, node: Any) -> Piece:
        return getattr(self, f"_{type(node).__name__.lower()}")(node)  # type: ignore[no-any-return]

    def _import(self, node: tree.Import) -> Piece:
        names = ", ".join(n.name if n.name == n.alias else f"{n.name} as {n.alias}" for n in node.names)
        return Piece(f"from {'.' * node.relative}{'.'.join(node.path)} import {names}", node.span)

    def _const(self, node: tree.Const) -> Piece:
        return self._defines(node.span, f"const {node.name.name}: {node.type.name}", node.value)

    def _fixaxis(self, node: tree.FixAxis) -> Piece:
        return self._defines(node.span, f"axis {node.name.name}", node.value)

    def _let(self, node: tree.Let) -> Piece:
        return self._defines(node.span, f"let {node.name.name}", node.value)

    def _clause(self, node: tree.Clause) -> Piece:
        return self._defines(node.span, node.kind, node.value)

    def _descale(self, node: tree.Descale) -> Piece:
        return self._defines(node.span, f"descale {node.tensor.name}", node.value)

    def _lsebase(self, node: tree.LseBase) -> Piece:
        return self._defines(node.span, "lse_base", node.value)

    def _setting(self, node: tree.Setting) -> Piece:
        return self._defines(node.span, node.key.name, node.value)

    def _defines(self, span: Span, left: str, value: tree.Expression) -> Piece:
        return row(span, f"{left} = ", self.expression(value))

    def _tensordecl(self, node: tree.TensorDecl) -> Piece:
        names = ", ".join(name.name for name in node.names)
        return row(node.span, f"{names}: ", self._type(node.type))

    def _type(self, node: tree.TensorType | tree.Name) -> Piece:
        if isinstance(node, tree.Name):
            return Piece(node.name, node.span)
        return fold(node.span, f"{node.dtype.name}[", listed([self.expression(axis) for axis in node.axes]), "]")

    def _viewdecl(self, node: tree.ViewDecl) -> Piece:
        slices = fold(node.span, f"{node.base.name}[", listed([self._slice(part) for part in node.slices]), "]")
        return row(node.span, f"view {node.name.name} = ", slices)

    def _slice(self, node: Any) -> Piece:
        if isinstance(node, tree.WholeAxis):
            return Piece(":", node.span)
        return self._range(node) if isinstance(node, tree.Range) else self.expression(node)

    def _range(self, node: tree.Range) -> Piece:
        dots = "..=" if node.inclusive else ".."
        start = self.expression(node.start, _TIGHT) if node.start is not None else ""
        stop = self.expression(node.stop, _TIGHT) if node.stop is not None else ""
        return row(node.span, start, dots, stop)

    def _param(self, node: tree.Param) -> Piece:
        parts: list[Piece | str] = [f"param {node.name.name}: {node.type.name}"]
        if node.per is not None:
            parts.append(f"[{node.per.name}]")
        if node.range is not None:
            parts += [" in ", self._range(node.range)]
        if node.default is not None:
            parts += [" = ", self.expression(node.default)]
        return row(node.span, *parts)

    def _function(self, node: tree.Function) -> Piece:
        params = [row(p.span, f"{p.name.name}: ", self._type(p.type)) for p in node.params]
        inside = Span(node.span.source, node.name.span.end, node.result.span.start)
        head: list[Piece | str] = [
            f"def {node.name.name}",
            fold(inside, "(", listed(params), ")"),
            f" -> {node.result.name}",
        ]
        if not node.braces:
            return row(node.span, *head, " = ", self.expression(node.value))
        entries = [*(self._let(let) for let in node.lets), self.expression(node.value)]
        return row(
            node.span, *head, " ", self._block(Span(node.span.source, node.result.span.end, node.span.end), entries)
        )

    def _aligndecl(self, node: tree.AlignDecl) -> Piece:
        if node.offset is None:
            return Piece(f"align {node.kind.name}", node.span)
        return row(
            node.span, f"align {node.kind.name}", fold(node.span, "(", [Item(self.expression(node.offset))], ")")
        )

    def _lengthsdecl(self, node: tree.LengthsDecl) -> Piece:
        return self._settings(f"lengths {node.side.name} ", node)

    def _pageddecl(self, node: tree.PagedDecl) -> Piece:
        return self._settings("paged ", node)

    def _scheduledecl(self, node: tree.ScheduleDecl) -> Piece:
        return self._settings("schedule ", node)

    def _settings(self, head: str, node: tree.LengthsDecl | tree.PagedDecl | tree.ScheduleDecl) -> Piece:
        return row(node.span, head, self._block(node.span, [self._setting(entry) for entry in node.settings]))

    def _block(self, span: Span, entries: list[Piece]) -> Piece:
        """Entries in braces: on lines of their own if the first was on another line than its brace."""
        spread = bool(entries) and "\n" in self.text[self.text.find("{", span.start) : entries[0].span.start]
        items = [Item(entry) for entry in entries] if spread else listed(entries)
        return fold(span, "{", items, "}", always=spread, block=True)

    def _packdecl(self, node: tree.PackDecl) -> Piece:
        return Piece(f"pack {node.what.name} {node.mode.name}", node.span)

    # -- expressions

    def expression(self, node: Any, needed: int = TERNARY) -> Piece:
        """`node` where an operator around it needs operands of at least a binding strength."""
        piece, strength = self._expression(node)
        if strength >= needed:
            return piece
        items = piece.items if isinstance(piece, Fold) and not piece.opener else [Item(piece)]
        return fold(node.span, "(", items, ")")

    def _expression(self, node: Any) -> tuple[Piece, int]:
        match node:
            case tree.Literal():
                return Piece(self._number(node), node.span), CALL
            case tree.Name():
                return Piece(node.name, node.span), CALL
            case tree.Unary():
                strength = PREFIX[node.operator]
                sign = "not " if node.operator == "not" else node.operator
                return row(node.span, sign, self.expression(node.operand, strength)), strength
            case tree.Binary():
                return self._binary(node), INFIX[node.operator]
            case tree.Comparison():
                operands = [self.expression(operand, COMPARE + 1) for operand in node.operands]
                leads = ["", *(f"{operator} " for operator in node.operators)]
                return self._chain(node, leads, operands), COMPARE
            case tree.Conditional():
                return self._conditional(node), TERNARY
            case tree.Call():
                arguments = [self._argument(argument) for argument in node.arguments]
                return fold(node.span, f"{node.function.name}(", listed(arguments), ")"), CALL
            case tree.Read():
                indices = [self.expression(index) for index in node.indices]
                return fold(node.span, f"{node.tensor.name}[", listed(indices), "]"), CALL
            case tree.Reduction():
                place = node.variable.span.to(node.range.span)
                each = row(place, f"{node.variable.name} in ", self._range(node.range))
                items = [Item(each, tail=":"), Item(self.expression(node.body))]
                return fold(node.span, f"{node.kind}(", items, ")"), CALL
        raise TypeError(f"no expression: {node!r}")

    def _number(self, node: tree.Literal) -> str:
        """A literal as the source spells it, or in the shortest way if the tree has no source."""
        if isinstance(node.value, bool):
            return "true" if node.value else "false"
        written = self.text[node.span.start : node.span.end].strip("( \t\r\n)")
        digits = written.replace("_", "")
        try:
            value = int(digits, 0) if isinstance(node.value, int) else float(digits)
        except ValueError:
            return repr(node.value)
        return written if value == node.value and type(value) is type(node.value) else repr(node.value)

    def _argument(self, node: tree.Argument) -> Piece:
        value = self.expression(node.value)
        return value if node.name is None else row(node.span, f"{node.name} = ", value)

    def _binary(self, node: tree.Binary) -> Piece:
        """The operands of one strength side by side: `a + b - c` folds before each operator."""
        strength = INFIX[node.operator]
        leads: list[str] = []
        operands: list[Piece] = []
        left: Any = node
        while isinstance(left, tree.Binary) and INFIX[left.operator] == strength:
            leads.append(f"{left.operator} ")
            operands.append(self.expression(left.right, strength + 1))
            left = left.left
        operands.append(self.expression(left, strength))
        return self._chain(node, ["", *reversed(leads)], operands[::-1])

    def _conditional(self, node: tree.Conditional) -> Piece:
        leads, pieces = [""], []
        last: Any = node
        while isinstance(last, tree.Conditional):
            choice = last.yes.span.to(last.condition.span)
            yes, condition = self.expression(last.yes, _TIGHT), self.expression(last.condition, _TIGHT)
            pieces.append(row(choice, yes, " if ", condition))
            leads.append("else ")
            last = last.no
        pieces.append(self.expression(last))
        return self._chain(node, leads, pieces)

    def _chain(self, node: tree.Node, leads: list[str], pieces: list[Piece]) -> Piece:
        return fold(node.span, "", [Item(p, lead) for lead, p in zip(leads, pieces, strict=True)], "")
