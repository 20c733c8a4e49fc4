"""One helper function of a Triton kernel, read statement by statement as what it computes for one pair."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..diagnostics import ConversionError, Source, Span, did_you_mean
from ..expr import BOOL, INT, Expr
from . import triton_functions
from .arithmetic import Arithmetic
from .refusal import Refusal
from .sheet import Capture, Sheet
from .tracer import look

_MAX_ROUNDS = 4_096  # of one unrolled loop
_TILES = "inside a helper every value belongs to one pair; give what this computes as an argument"


@dataclass(frozen=True)
class Function:
    """The tree of a function, and where its names lead."""

    node: ast.FunctionDef
    source: Source
    beside: Mapping[str, ast.FunctionDef]  # other functions of the same text
    names: Mapping[str, Any]  # globals of the function, if it is an object of this process

    @staticmethod
    def parse(source: Source, names: Mapping[str, Any], called: str | None = None) -> Function:
        """The `def` of a text that is called `called`, else the first. Raises ConversionError (E402) without it."""
        try:
            tree = ast.parse(source.text)
        except SyntaxError as error:
            raise ConversionError.of("E402", f"the text of the function is no Python: {error.msg}") from error
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        if not found:
            raise ConversionError.of("E402", "the text holds no function", hint="give a def, not a lambda")
        beside = {node.name: node for node in found}
        if called is not None and called not in beside:
            message = f"the text holds no function '{called}'"
            raise ConversionError.of("E402", message, hint=did_you_mean(called, beside))
        return Function(found[0] if called is None else beside[called], source, beside, names)

    def arguments(self) -> Iterator[ast.arg]:
        yield from (*self.node.args.posonlyargs, *self.node.args.args, *self.node.args.kwonlyargs)

    def span(self, node: Any) -> Span | None:
        """Where a part of the function stands."""
        line = getattr(node, "lineno", None)
        if line is None:
            return None
        starts = [0]
        for text in self.source.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(text))
        end = node.end_lineno if node.end_lineno == line else None
        start = starts[line - 1] + node.col_offset
        stop = starts[line] - 1 if end is None else starts[line - 1] + node.end_col_offset
        return Span(self.source, start, max(stop, start + 1))


class _Return(Exception):
    """The function gives its value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True)
class _Address:
    """A pointer: elements `offset` of a captured tensor."""

    capture: Capture
    offset: Expr


class Helper:
    """Reads functions; `place` is where it is, for errors."""

    def __init__(
        self,
        sheet: Sheet,
        arithmetic: Arithmetic,
        function: Function,
        number: Callable[[str, int | float], Expr],
    ) -> None:
        self.sheet = sheet
        self._number_of = number  # a named number of the module
        self.a = arithmetic
        self.place: Span | None = None
        self._functions = triton_functions.functions(arithmetic)
        self._function = function
        self._open: list[str] = []

    def call(self, function: Function, given: Mapping[str, Any]) -> Any:
        """What `function` returns for these arguments."""
        if function.node.name in self._open:
            raise Refusal(f"'{function.node.name}' calls itself", "the language has no recursion")
        saved, self._function = self._function, function
        self._open.append(function.node.name)
        scope = dict(given)
        try:
            self._block(function.node.body, scope)
        except _Return as result:
            return result.value
        finally:
            self._open.pop()
            self._function = saved
        raise Refusal(f"'{function.node.name}' returns nothing")

    # -- statements -------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt], scope: dict[str, Any]) -> None:
        for statement in body:
            self.place = self._function.span(statement)
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> None:
        match node:
            case ast.Return(value=value) if value is not None:
                raise _Return(self.value(value, scope))
            case ast.Assign(targets=targets, value=value):
                found = self.value(value, scope)
                for target in targets:
                    self._bind(target, found, scope)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind(target, self.value(value, scope), scope)
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
                left = self._name(name, scope)
                scope[name] = self._binary(operator, left, self.value(value, scope))
            case ast.If(test=test, body=body, orelse=other):
                self._block(body if self._known(test, scope) else other, scope)
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as rounds, body=body, orelse=[]):
                for number in self._range(rounds, scope):
                    scope[name] = self.a.node(number)
                    self._block(body, scope)
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                return
            case _:
                raise Refusal(f"the statement '{ast.unparse(node).splitlines()[0]}' has no place in an expression")

    def _bind(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for part, each in zip(target.elts, value, strict=True):
                self._bind(part, each, scope)
        else:
            raise Refusal(f"'{ast.unparse(target)}' cannot be assigned to")

    def _known(self, test: ast.expr, scope: dict[str, Any]) -> bool:
        """The value of a condition that Triton knows when it compiles."""
        return bool(self._static(self.a.cast(self.value(test, scope), BOOL), "`if`"))

    def _static(self, value: Expr, what: str) -> Any:
        if not value.is_const:
            look(value, what, "choose with tl.where")
        return value.attr

    def _range(self, call: ast.Call, scope: dict[str, Any]) -> range:
        name = self._dotted(call.func)
        if name is None or name.split(".")[-1] not in ("range", "static_range"):
            raise Refusal(f"a loop over '{ast.unparse(call)}' cannot be unrolled", "loop over tl.static_range(n)")
        ends = [self._static(self.a.node(self.value(end, scope)), "the range of a loop") for end in call.args]
        rounds = range(*ends)
        if len(rounds) > _MAX_ROUNDS:
            raise Refusal(f"this loop has {len(rounds)} rounds; at most {_MAX_ROUNDS} are unrolled")
        return rounds

    # -- expressions ------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        """The meaning of an expression: a typed node, a tuple, an address, or the name of a dtype."""
        self.place = self._function.span(node) or self.place
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return self.a.node(number)
            case ast.Constant(value=str() as text):
                return text
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self.value(part, scope) for part in parts)
            case ast.BinOp(left=left, op=operator, right=right):
                return self._binary(operator, self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.a.apply("neg", self._number(operand, scope))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.a.number(self._number(operand, scope))
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self.a.invert(self._number(operand, scope))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.a.logical("not", self._number(operand, scope))
            case ast.BoolOp(op=operator, values=values):
                name = "and" if isinstance(operator, ast.And) else "or"
                result = self.a.cast(self._number(values[0], scope), BOOL)
                for each in values[1:]:
                    result = self.a.logical(name, result, self._number(each, scope))
                return result
            case ast.Compare(left=left, ops=operators, comparators=others):
                return self._comparison(left, operators, others, scope)
            case ast.IfExp(test=test, body=yes, orelse=no):
                condition = self.a.cast(self._number(test, scope), BOOL)
                if condition.is_const:
                    return self.value(yes if condition.attr else no, scope)
                return self.a.where(condition, self._number(yes, scope), self._number(no, scope))
            case ast.Subscript(value=base, slice=index):
                return self._subscript(base, index, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.Attribute():
                return self._attribute(node)
        raise Refusal(f"'{ast.unparse(node)}' has no spelling in the language")

    def _number(self, node: ast.expr, scope: dict[str, Any]) -> Expr:
        return self.a.node(self.value(node, scope))

    def _name(self, name: str, scope: Mapping[str, Any]) -> Any:
        if name in scope:
            return scope[name]
        found = self._function.names.get(name)
        found = getattr(found, "value", found)  # of tl.constexpr
        if isinstance(found, bool | int | float):
            return self.a.node(found) if isinstance(found, bool) else self._number_of(name, found)
        raise Refusal(f"'{name}' is no argument, no local value and no number of the module")

    def _binary(self, operator: ast.operator, left: Any, right: Any) -> Any:
        for pointer, offset in ((left, right), (right, left)):
            if isinstance(pointer, Capture | _Address) and isinstance(operator, ast.Add):
                return self._address(pointer, self.a.node(offset))
        return triton_functions.binary(self.a, operator, self.a.node(left), self.a.node(right))

    def _comparison(
        self, left: ast.expr, operators: Sequence[ast.cmpop], others: Sequence[ast.expr], scope: dict[str, Any]
    ) -> Expr:
        values = [self._number(each, scope) for each in (left, *others)]
        links = [
            triton_functions.compare(self.a, operator, *pair)
            for operator, pair in zip(operators, pairwise(values), strict=True)
        ]
        return self.sheet.build.all_of(links)

    def _subscript(self, base: ast.expr, index: ast.expr, scope: dict[str, Any]) -> Any:
        value = self.value(base, scope)
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        only_axes = all(
            (isinstance(part, ast.Constant) and part.value is None)
            or (isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None)
            for part in parts
        )
        if isinstance(value, Expr) and only_axes:
            return value
        if isinstance(value, tuple):
            place = self._static(self.a.node(self.value(index, scope)), "the index of a tuple")
            if not -len(value) <= place < len(value):
                raise Refusal(f"a tuple of {len(value)} has no element {place}")
            return value[place]
        raise Refusal(f"'{ast.unparse(index)}' cuts a tile", _TILES)

    # -- calls and memory -------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        written = self._dotted(node.func)
        is_method = isinstance(node.func, ast.Attribute) and (written is None or written.split(".")[0] in scope)
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            raise Refusal("a call with * or ** has no spelling in the language")
        args = [self.value(argument, scope) for argument in node.args]
        named = {str(keyword.arg): self.value(keyword.value, scope) for keyword in node.keywords}
        if is_method:
            assert isinstance(node.func, ast.Attribute)
            args.insert(0, self.value(node.func.value, scope))
            name = node.func.attr
        else:
            assert written is not None
            other = self._other(written)
            if other is not None:
                return self._inlined(other, args, named)
            name = written.split(".")[-1]
        self.place = self._function.span(node)
        if name == "load":
            return self._load(*args, **named)
        if name == "float" and args and isinstance(args[0], str):
            return self.a.node(float(args[0]))
        meaning = self._functions.get(name)
        if meaning is None:
            raise Refusal(f"'{written or name}' has no spelling in the language", _TILES)
        try:
            return meaning(*args, **named)
        except TypeError as error:
            raise Refusal(f"'{name}' is called with arguments that have no meaning here") from error

    def _inlined(self, function: Function, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        parameters = [argument.arg for argument in function.arguments()]
        if len(args) > len(parameters) or set(named) - set(parameters):
            raise Refusal(f"'{function.node.name}' takes {', '.join(parameters)}")
        given = {**dict(zip(parameters, args, strict=False)), **named}
        defaults = function.node.args.defaults
        for name, default in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
            if name not in given:
                given[name] = self.value(default, {})
        missing = [name for name in parameters if name not in given]
        if missing:
            raise Refusal(f"'{function.node.name}' is called without '{missing[0]}'")
        return self.call(function, given)

    def _other(self, name: str) -> Function | None:
        """Another helper that is called by its name."""
        if name in self._function.beside:
            here = self._function
            return Function(here.beside[name], here.source, here.beside, here.names)
        found = self._function.names.get(name)
        found = getattr(found, "fn", found)
        if isinstance(found, types.FunctionType):
            from .triton import function_of

            return function_of(found)
        return None

    def _load(self, pointer: Any, mask: Any = True, other: Any = 0, **_: Any) -> Expr:
        if not isinstance(pointer, Capture | _Address):
            raise Refusal("tl.load reads what an argument points to", "give the tensor in tensors=")
        address = self._address(pointer, self.a.node(0))
        capture = address.capture
        element = self.sheet.build.read(capture.name, (address.offset,), capture.dtype.value_type)
        return self.a.where(mask, element, self.a.cast(other, element.type))

    def _address(self, pointer: Any, offset: Expr) -> _Address:
        if offset.type is not INT:
            raise Refusal("an offset of a pointer is an int")
        if isinstance(pointer, Capture):
            return _Address(pointer, offset)
        return _Address(pointer.capture, self.a.apply("add", pointer.offset, offset))

    def _attribute(self, node: ast.Attribute) -> Any:
        """`tl.float32` and its like, by name; numbers such as `math.pi`."""
        if node.attr in triton_functions.CONSTANTS:
            return self.a.node(triton_functions.CONSTANTS[node.attr])
        return node.attr

    def _dotted(self, node: ast.expr) -> str | None:
        """`tl.math.exp` as text; None for what is computed."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None
