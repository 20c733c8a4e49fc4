"""Tree expressions to typed nodes: names resolved, types checked, functions and reductions expanded.

A part that is wrong is reported once and becomes `None`; everything around it is still checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostics, Span, did_you_mean
from ..expr import BOOL, FLOAT, INT, OPERATORS, Expr, ExprBuilder
from ..expr.node import Constant
from ..expr.operators import I64_MAX, I64_MIN
from ..syntax import tree
from .calls import CallTyper
from .model import UNBOUNDED, DType
from .modules import Module, place
from .names import (
    DTYPES,
    FOREIGN,
    FUNCTIONS,
    INDEX_NAMES,
    LIBRARY_AXES,
    MAX_DEPTH,
    MAX_NODES,
    MAX_STEPS,
    OPERANDS,
    OUTPUTS,
    STANDARD_AXES,
)
from .reads import ReadTyper
from .values import TYPES, SpecNames, TensorValue, TooLarge, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

_BINARY = {
    "or": "or",
    "and": "and",
    "|": "bitor",
    "^": "bitxor",
    "&": "bitand",
    "<<": "shl",
    ">>": "shr",
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floordiv",
    "%": "mod",
}
_COMPARE = {
    "<": ("lt", False),
    "<=": ("le", False),
    ">": ("lt", True),
    ">=": ("le", True),
    "==": ("eq", False),
    "!=": ("ne", False),
}
_UNARY = {"-": "neg", "~": "bitnot", "not": "not"}


class Typer:
    """Types expressions of one spec and of the libraries it imports, into one builder."""

    def __init__(self, report: Diagnostics, builder: ExprBuilder, spec: SpecNames, root: Module) -> None:
        self.report = report
        self.build = builder
        self.spec = spec
        self.root = root
        self.origins: dict[Expr, Span] = {}  # where a node was first written, in the outermost file
        self.reads: list[tuple[Expr, Expr, Span, str]] = []  # index, extent, place, tensor: for the bounds proofs
        self.score = builder.var("score")  # what the word stands for
        self.overrides: dict[str, Constant | DType] = {}
        self.inside: Callable[[Expr, Expr], bool] = lambda index, extent: False
        self._globals: dict[tuple[int, str], Value | None] = {}
        self.open: list[tuple[int, str]] = []  # definitions being typed, to find cycles
        self.calls = CallTyper(self)
        self.readers = ReadTyper(self)
        self.call_site: Span | None = None
        self._failed: set[tuple[str, Span]] = set()
        self._steps = 0
        self._depth = 0
        self.opaque = False  # a function's body is checked by itself, with arguments without a value

    # -- entry points -----------------------------------------------------------------------------------------------

    def expression(
        self, node: tree.Expression, module: Module, scope: Mapping[str, Value] | None = None
    ) -> Expr | None:
        """The typed value of `node`, or None if something in it was reported."""
        value = self.value(node, module, scope or {})
        if isinstance(value, TensorValue):
            self.report.error(
                "E244", f"tensor '{value.name}' is used without indices", node.span, f"write {value.name}[...]"
            )
            return None
        if isinstance(value, DType):
            self.report.error("E230", f"'{value}' is a dtype, not a value", node.span)
            return None
        return value

    def constant(self, node: tree.Expression, module: Module, what: str) -> Constant | None:
        """The compile-time value of `node`, or None if it has none (reported)."""
        value = self.expression(node, module)
        if value is None:
            return None
        if not value.is_const:
            self.report.error("E234", f"{what} must be known at compile time", node.span, "use literals and constants")
            return None
        assert isinstance(value.attr, bool | int | float)
        return value.attr

    def definition(self, module: Module, name: str) -> Value | None:
        """The value of a `const` or `let` of `module`; functions are typed by `function`."""
        key = (id(module), name)
        if key in self._globals:
            return self._globals[key]
        node = module.own[name]
        assert not isinstance(node, tree.Function)
        if key in self.open:
            self.report.error("E222", f"'{name}' is defined by itself", node.name.span)
            return None
        self.open.append(key)
        try:
            with self.nested(node.name.span, 2):
                value = self._const(node, module) if isinstance(node, tree.Const) else self._let(node, module)
        finally:
            self.open.pop()
        self._globals[key] = value
        return value

    def function(self, node: tree.Function, module: Module) -> None:
        """Checks the body of a function by itself, with opaque arguments."""
        scope: dict[str, Value] = {}
        for param in node.params:
            kind = self.calls.param_type(param)
            if kind is None:
                return
            name = param.name.name
            if isinstance(param.type, tree.TensorType):
                unknown = tuple(self.build.size(f"{name}.{axis}") for axis in range(len(param.type.axes)))
                scope[name] = TensorValue(name, kind, (None,) * len(unknown), unknown)
            else:
                scope[name] = self.build.param(f"${name}", kind)
        self.open.append((id(module), node.name.name))
        try:
            with self.unproved():
                self.opaque = True
                self.calls.body(node, module, scope)
        finally:
            self.opaque = False
            self.open.pop()

    @contextmanager
    def unproved(self) -> Iterator[None]:
        """Types what is not part of the spec's value: nothing in it is put to the proofs."""
        saved = self.reads, self.origins
        self.reads, self.origins = [], {}
        try:
            yield
        finally:
            self.reads, self.origins = saved

    # -- bookkeeping ------------------------------------------------------------------------------------------------

    @contextmanager
    def nested(self, span: Span, levels: int = 1) -> Iterator[None]:
        """One level deeper; the typer recurses, so the depth is bounded well inside Python's stack."""
        self._depth += levels
        if self._depth > MAX_DEPTH:
            self._too_large("E263", f"operators, calls and definitions nest more than {MAX_DEPTH} deep here", span)
        try:
            yield
        finally:
            self._depth -= levels

    def step(self, span: Span) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            self._too_large("E263", f"expanding functions and reductions takes more than {MAX_STEPS} steps", span)
        if self.build.count > 2 * MAX_NODES:
            self._too_large("E263", f"the spec has more than {MAX_NODES} expression nodes", span)

    def _too_large(self, code: str, message: str, span: Span) -> None:
        self.report.error(code, message, self.call_site or span, "make reductions shorter or nest fewer calls")
        raise TooLarge

    def made(self, value: Expr, span: Span) -> Expr:
        self.origins.setdefault(value, self.call_site or span)
        return value

    def fail(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        where = f" (called from {place(self.call_site)})" if self.call_site and self.call_site != span else ""
        if (code, span) not in self._failed:  # a function's body is typed for each call, and once by itself
            self._failed.add((code, span))
            self.report.error(code, message + where, span, hint)

    # -- definitions ------------------------------------------------------------------------------------------------

    def _let(self, node: tree.Let, module: Module) -> Expr | None:
        saved, self.call_site = self.call_site, None if module is self.root else self.call_site
        try:
            return self.expression(node.value, module)
        finally:
            self.call_site = saved

    def _const(self, node: tree.Const, module: Module) -> DType | Expr | None:
        kind = node.type.name
        override = self.overrides.get(node.name.name) if module is self.root else None
        if kind == "dtype":
            if override is not None:
                if isinstance(override, DType):
                    return override
                self._bad_override(node, override, "a dtype")
                return None
            if isinstance(node.value, tree.Name) and node.value.name in DTYPES:
                return DTYPES[node.value.name]
            self.report.error(
                "E232", f"'{node.name.name}' is no dtype", node.value.span, f"dtypes: {', '.join(DTYPES)}"
            )
            return None
        if kind not in TYPES:
            hint = did_you_mean(kind, [*TYPES, "dtype"])
            self.report.error("E235", f"'{kind}' is no type of a constant", node.type.span, hint)
            return None
        if override is not None:
            if not isinstance(override, bool | int | float):
                self._bad_override(node, override, kind)
                return None
            if isinstance(override, int) and not I64_MIN <= override <= I64_MAX:
                self.report.error("E223", f"the value given for constant '{node.name.name}' exceeds 64 bits", node.span)
                return None
            if not math.isfinite(override):
                self._bad_override(node, override, f"a finite {kind}")
                return None
            value: Expr | None = self.build.const(override)
        else:
            given = self.constant(node.value, module, f"constant '{node.name.name}'")
            value = None if given is None else self.build.const(given)
        if value is None:
            return None
        wanted = TYPES[kind]
        if wanted is FLOAT:
            value = self.build.as_float(value)
        if value.type is not wanted:
            if override is not None:
                self._bad_override(node, override, kind)
            else:
                message = f"'{node.name.name}' is declared {kind}, its value is {value.type}"
                self.report.error("E232", message, node.value.span)
            return None
        return value

    def _bad_override(self, node: tree.Const, given: object, wanted: str) -> None:
        self.report.error(
            "E223", f"constant '{node.name.name}' is {wanted}; given {given!s} ({type(given).__name__})", node.span
        )

    # -- values -----------------------------------------------------------------------------------------------------

    def value(self, node: tree.Expression, module: Module, scope: Mapping[str, Value]) -> Value | None:
        self.step(node.span)
        with self.nested(node.span):
            if isinstance(node, tree.Literal):
                return self.made(self.build.const(node.value), node.span)
            if isinstance(node, tree.Name):
                return self._name(node, module, scope)
            value: Expr | None
            if isinstance(node, tree.Unary):
                value = self._operator(_UNARY[node.operator], (node.operand,), node.operator, node, module, scope)
            elif isinstance(node, tree.Binary):
                value = self._operator(
                    _BINARY[node.operator], (node.left, node.right), node.operator, node, module, scope
                )
            elif isinstance(node, tree.Comparison):
                value = self._comparison(node, module, scope)
            elif isinstance(node, tree.Conditional):
                value = self._conditional(node, module, scope)
            elif isinstance(node, tree.Call):
                value = self.calls.call(node, module, scope)
            elif isinstance(node, tree.Read):
                value = self.readers.read(node, module, scope)
            else:
                value = self.calls.reduction(node, module, scope)
            return value if value is None else self.made(value, node.span)

    def _name(self, node: tree.Name, module: Module, scope: Mapping[str, Value]) -> Value | None:
        name = node.name
        if name in scope:
            return scope[name]
        if name == "unbounded":
            return self.build.const(UNBOUNDED)
        if name in INDEX_NAMES:
            alias = "h" if name == "kv_h" and self.spec.aliases.get("kv_heads") == "heads" else name
            return self.made(self.score if alias == "score" else self.build.var(alias), node.span)
        found = module.find(name)
        if found is not None:
            home, definition = found
            if isinstance(definition, tree.Function):
                self.fail("E231", f"'{name}' is a function", node.span, f"call it: {name}(...)")
                return None
            return self._imported(home, definition.name.name, node.span)
        if module is self.root:
            if name in self.spec.params:
                return self.made(self.spec.params[name], node.span)
            if name in self.spec.tensors:
                return self.spec.tensors[name]
        if module is self.root and name in self.spec.broken:
            return None
        if name in (self.spec.axes if module is self.root else LIBRARY_AXES) or name in self.spec.aliases:
            return self.made(self.axis(name), node.span)
        if module is self.root and self.spec.closed.get(name) in ("geometry", "pool"):
            role = "lengths and page lists" if self.spec.closed[name] == "geometry" else "storage of k and v"
            self.fail("E251", f"an expression cannot read '{name}': {role} are no captures", node.span)
        elif name in OPERANDS or name in OUTPUTS:
            message = (
                f"an expression cannot read {name}: masks and scores depend on positions and captures, not on q, k, v"
            )
            self.fail("E251", message, node.span)
        elif name in FUNCTIONS:
            self.fail("E231", f"'{name}' is a function", node.span, f"call it: {name}(...)")
        elif name in STANDARD_AXES:
            self.fail("E220", f"no tensor of this spec has an axis '{name}'", node.span)
        elif name in DTYPES:
            return DTYPES[name]
        else:
            self.unknown(name, node.span, module, scope)
        return None

    def axis(self, name: str) -> Expr:
        """The extent of an axis: a constant if it is fixed."""
        name = self.spec.aliases.get(name, name)
        fixed = self.spec.fixed.get(name)
        return self.build.size(name) if fixed is None else self.build.const(fixed)

    def _imported(self, home: Module, name: str, span: Span) -> Value | None:
        saved = self.call_site
        if home is not self.root and self.call_site is None:
            self.call_site = span
        try:
            return self.definition(home, name)
        finally:
            self.call_site = saved

    def unknown(self, name: str, span: Span, module: Module, scope: Mapping[str, Value]) -> None:
        if name in module.broken:
            return
        if name in FOREIGN:
            self.fail("E251", f"'{name}' is not part of the language: {FOREIGN[name]}", span)
            return
        known = {*scope, *module.names, *INDEX_NAMES, *FUNCTIONS}
        if module is self.root:
            known |= set(self.spec.params) | set(self.spec.tensors) | self.spec.axes
        hint = did_you_mean(name, known)
        self.fail("E220", f"'{name}' is not defined", span, hint if hint and hint.startswith("did") else None)

    def _operator(
        self,
        op: str,
        operands: tuple[tree.Expression, ...],
        symbol: str,
        node: tree.Expression,
        module: Module,
        scope: Mapping[str, Value],
    ) -> Expr | None:
        values = [self.expression(operand, module, scope) for operand in operands]
        ready = [value for value in values if value is not None]
        return self.apply(op, ready, symbol, node.span) if len(ready) == len(values) else None

    def apply(self, op: str, values: list[Expr], symbol: str, span: Span) -> Expr | None:
        """Operator `op` with promotion of ints where floats are wanted; types that do not fit are reported."""
        operator = OPERATORS[op]
        types = tuple(value.type for value in values)
        if operator.result(types) is None and INT in types:
            promoted = [self.build.as_float(value) for value in values]
            if operator.result(tuple(value.type for value in promoted)) is not None:
                values = promoted
        if operator.result(tuple(value.type for value in values)) is None:
            wanted = " or ".join(
                sorted({", ".join(str(kind) for kind in given) for given, _ in operator.signatures}, reverse=True)
            )
            hint = "use 'and', 'or', 'not' for truth values" if op.startswith("bit") and BOOL in types else None
            given = ", ".join(str(kind) for kind in types)
            self.fail("E230", f"'{symbol}' takes {wanted}; given {given}", span, hint)
            return None
        return self.made(self.build.op(op, *values), span)

    def _comparison(self, node: tree.Comparison, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        values = [self.expression(operand, module, scope) for operand in node.operands]
        links: list[Expr | None] = []
        for symbol, left, right in zip(node.operators, values, values[1:], strict=False):
            if left is None or right is None:
                links.append(None)
                continue
            op, swapped = _COMPARE[symbol]
            links.append(self.apply(op, [right, left] if swapped else [left, right], symbol, node.span))
        if any(link is None for link in links):
            return None
        return self.build.all_of(link for link in links if link is not None)

    def _conditional(self, node: tree.Conditional, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        condition = self.expression(node.condition, module, scope)
        yes, no = self.expression(node.yes, module, scope), self.expression(node.no, module, scope)
        if condition is None or yes is None or no is None:
            return None
        if {yes.type, no.type} == {INT, FLOAT}:
            yes, no = self.build.as_float(yes), self.build.as_float(no)
        if condition.type is not BOOL or yes.type is not no.type:
            given = f"{yes.type} if {condition.type} else {no.type}"
            message = f"'x if c else y' takes a bool c and x, y of one type; given {given}"
            self.fail("E230", message, node.span)
            return None
        return self.build.op("select", condition, yes, no)
