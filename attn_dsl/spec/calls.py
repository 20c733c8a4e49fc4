"""Calls and reductions: builtins applied, functions and reductions expanded in place, each expansion once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..diagnostics import did_you_mean
from ..expr import BOOL, FLOAT, INT, Expr, ValueType
from ..syntax import tree
from .model import DType
from .modules import Module
from .names import FUNCTIONS, INDEX_NAMES, MAX_TERMS, UNARY_FUNCTIONS, is_taken
from .values import TYPES, TensorValue, Value

if TYPE_CHECKING:
    from .typer import Typer

_REDUCE = {"sum": "add", "any": "or", "all": "and", "min": "min", "max": "max"}


class CallTyper:
    """The part of the typer that expands; equal calls with equal arguments are expanded once."""

    def __init__(self, typer: Typer) -> None:
        self.typer = typer
        self._calls: dict[tuple[object, ...], Expr | None] = {}

    # -- calls ------------------------------------------------------------------------------------------------------

    def call(self, node: tree.Call, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        name = node.function.name
        found = module.find(name)
        if found is not None and name not in scope:
            home, definition = found
            if isinstance(definition, tree.Function):
                return self._expand(node, home, definition, module, scope)
        if name in FUNCTIONS and found is None:
            return self._builtin(node, module, scope)
        for argument in node.arguments:
            self.typer.value(argument.value, module, scope)
        if found is not None or name in scope or name in self.typer.spec.params or name in INDEX_NAMES:
            hint = f"read a tensor with [ ]: {name}[...]" if name in self.typer.spec.tensors else None
            self.typer.fail("E231", f"'{name}' is no function", node.function.span, hint)
        elif name in self.typer.spec.tensors:
            self.typer.fail("E231", f"'{name}' is a tensor", node.function.span, f"read it with [ ]: {name}[...]")
        else:
            self.typer.unknown(name, node.function.span, module, scope)
        return None

    def _builtin(self, node: tree.Call, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        name = node.function.name
        values = [self.typer.expression(argument.value, module, scope) for argument in node.arguments]
        named = next((argument for argument in node.arguments if argument.name), None)
        if named is not None:
            self.typer.fail("E231", f"'{name}' takes its arguments by position", named.span)
            return None
        count = len(values)
        wanted = {"clamp": count == 3, "min": count >= 2, "max": count >= 2}.get(name, count == 1)
        if not wanted:
            form = {"clamp": "clamp(x, low, high)", "min": "min(x, y, ...)", "max": "max(x, y, ...)"}.get(
                name, f"{name}(x)"
            )
            self.typer.fail("E231", f"'{name}' is called as {form}; given {count} arguments", node.span)
            return None
        ready = [value for value in values if value is not None]
        if len(ready) != count:
            return None
        if name == "clamp":
            low = self.typer.apply("min", [ready[0], ready[2]], name, node.span)
            return None if low is None else self.typer.apply("max", [low, ready[1]], name, node.span)
        if name in ("min", "max"):
            result: Expr | None = ready[0]
            for value in ready[1:]:
                result = None if result is None else self.typer.apply(name, [result, value], name, node.span)
            return result
        if name == "float":
            if ready[0].type is BOOL:
                self.typer.fail("E230", "'float' takes int; given bool", node.span, "write 1.0 if x else 0.0")
                return None
            return self.typer.build.as_float(ready[0])
        if name == "floor" and ready[0].type is INT:
            return ready[0]
        if name in UNARY_FUNCTIONS and ready[0].type is INT:
            ready[0] = self.typer.build.as_float(ready[0])
        return self.typer.apply(name, ready, name, node.span)

    def _expand(
        self, node: tree.Call, home: Module, function: tree.Function, module: Module, scope: Mapping[str, Value]
    ) -> Expr | None:
        bound = self._arguments(node, function, module, scope)
        if bound is None:
            return None
        key = (
            id(home),
            function.name.name,
            *(value if isinstance(value, Expr) else value.name for value in bound.values()),
        )
        if key in self._calls:
            return self._calls[key]
        name = (id(home), function.name.name)
        if name in self.typer.open:
            self.typer.fail("E222", f"'{function.name.name}' calls itself", node.span, "use a reduction over a range")
            return None
        saved = self.typer.call_site
        if home is not self.typer.root or saved is not None:
            self.typer.call_site = saved or node.span
        else:
            self.typer.call_site = node.span
        self.typer.open.append(name)
        try:
            with self.typer.nested(node.span, 2):
                result = self.body(function, home, bound)
        finally:
            self.typer.open.pop()
            self.typer.call_site = saved
        self._calls[key] = result
        return result

    def _arguments(
        self, node: tree.Call, function: tree.Function, module: Module, scope: Mapping[str, Value]
    ) -> dict[str, Expr | TensorValue] | None:
        name = function.name.name
        params = {param.name.name: param for param in function.params}
        form = f"{name}({', '.join(params)})"
        given: dict[str, tree.Argument] = {}
        positional = list(params)
        sound = True
        for place_, argument in enumerate(node.arguments):
            target = argument.name
            if target is None:
                if place_ >= len(positional):
                    self.typer.fail(
                        "E231", f"'{name}' is called as {form}; given {len(node.arguments)} arguments", node.span
                    )
                    return None
                target = positional[place_]
            elif target not in params:
                self.typer.fail(
                    "E231", f"'{name}' has no parameter '{target}'", argument.span, did_you_mean(target, params)
                )
                sound = False
                continue
            if target in given:
                self.typer.fail("E231", f"'{name}' gets '{target}' twice", argument.span)
                sound = False
            given[target] = argument
        missing = [param for param in params if param not in given]
        if missing and sound:
            self.typer.fail("E231", f"'{name}' is called as {form}; '{missing[0]}' is missing", node.span)
            sound = False
        bound: dict[str, Expr | TensorValue] = {}
        for target, argument in given.items():
            value = self._argument(params[target], argument, name, module, scope)
            if value is None:
                sound = False
            else:
                bound[target] = value
        return {target: bound[target] for target in params} if sound else None

    def _argument(
        self,
        param: tree.FunctionParam,
        argument: tree.Argument,
        function: str,
        module: Module,
        scope: Mapping[str, Value],
    ) -> Expr | TensorValue | None:
        wanted = self.param_type(param)
        value = self.typer.value(argument.value, module, scope)
        if value is None or wanted is None:
            return None
        label = f"'{param.name.name}' of '{function}'"
        span = argument.span
        if isinstance(param.type, tree.TensorType):
            rank = len(param.type.axes)
            if not isinstance(value, TensorValue) or value.type is not wanted or len(value.axes) != rank:
                given = (
                    f"{value.type}[{', '.join('_' * len(value.axes))}]" if isinstance(value, TensorValue) else "a value"
                )
                self.typer.fail("E231", f"{label} is {wanted}[{', '.join('_' * rank)}]; given {given}", span)
                return None
            return value
        if isinstance(value, TensorValue):
            self.typer.fail(
                "E231", f"{label} is {wanted}; given the tensor '{value.name}'", span, f"read it: {value.name}[...]"
            )
            return None
        if isinstance(value, DType):
            self.typer.fail("E231", f"{label} is {wanted}; given a dtype", span)
            return None
        if wanted is FLOAT:
            value = self.typer.build.as_float(value)
        if value.type is not wanted:
            self.typer.fail("E231", f"{label} is {wanted}; given {value.type}", span)
            return None
        return value

    def param_type(self, param: tree.FunctionParam) -> ValueType | None:
        name = param.type.dtype if isinstance(param.type, tree.TensorType) else param.type
        kind = TYPES.get(name.name)
        if kind is None:
            hint = did_you_mean(name.name, TYPES)
            self.typer.report.error("E235", f"'{name.name}' is no type of a function's parameter", name.span, hint)
        return kind

    def body(self, function: tree.Function, home: Module, bound: Mapping[str, Value]) -> Expr | None:
        scope = dict(bound)
        for let in function.lets:
            value = self.typer.value(let.value, home, scope)
            if value is None:
                return None
            scope[let.name.name] = value
        result = self.typer.expression(function.value, home, scope)
        wanted = TYPES.get(function.result.name)
        if wanted is None:
            hint = did_you_mean(function.result.name, TYPES)
            self.typer.report.error(
                "E235", f"'{function.result.name}' is no type of a result", function.result.span, hint
            )
            return None
        if result is None:
            return None
        if wanted is FLOAT:
            result = self.typer.build.as_float(result)
        if result.type is not wanted:
            message = f"'{function.name.name}' is declared {wanted}, its value is {result.type}"
            self.typer.report.error("E232", message, function.value.span)
            return None
        return result

    # -- reductions -------------------------------------------------------------------------------------------------

    def reduction(self, node: tree.Reduction, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        if node.kind not in _REDUCE:
            hint = did_you_mean(node.kind, _REDUCE)
            self.typer.fail("E220", f"'{node.kind}' is no reduction over a range", node.span, hint)
            return None
        bounds = self._bounds(node, module, scope)
        if bounds is None:
            return None
        start, stop = bounds
        if stop - start > MAX_TERMS:
            self.typer.fail(
                "E263", f"this reduction has {stop - start} terms; at most {MAX_TERMS} are expanded", node.span
            )
            return None
        taken = is_taken(node.variable.name)
        if taken:
            message = f"'{node.variable.name}' is {taken} and cannot count a reduction"
            self.typer.report.error("E221", message, node.variable.span)
            return None
        op = _REDUCE[node.kind]
        result: Expr | None = None
        if stop <= start:  # no term counts, and what is written is checked all the same
            with self.typer.unproved():
                if self._term(node, start, module, scope) is None:
                    return None
        for index in range(start, stop):
            term = self._term(node, index, module, scope)
            if term is None:
                return None
            result = term if result is None else self.typer.apply(op, [result, term], node.kind, node.span)
            if result is None:
                return None
        if result is not None:
            return result
        if node.kind in ("min", "max"):
            self.typer.fail("E264", f"'{node.kind}' over an empty range has no value", node.range.span)
            return None
        return self.typer.build.const({"sum": 0, "any": False, "all": True}[node.kind])

    def _term(self, node: tree.Reduction, index: int, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        term = self.typer.expression(node.body, module, {**scope, node.variable.name: self.typer.build.const(index)})
        if term is not None and (term.type is BOOL) != (node.kind in ("any", "all")):
            wanted = "bool" if node.kind in ("any", "all") else "int or float"
            self.typer.fail("E230", f"'{node.kind}' takes {wanted} terms; given {term.type}", node.body.span)
            return None
        return term

    def _bounds(self, node: tree.Reduction, module: Module, scope: Mapping[str, Value]) -> tuple[int, int] | None:
        ends: list[int] = []
        for end in (node.range.start, node.range.stop):
            value = None if end is None else self.typer.expression(end, module, scope)
            if end is not None and value is None:
                return None
            if value is None or not value.is_const or value.type is not INT:
                if self.typer.opaque and value is not None and value.type is INT:
                    return 0, 1  # one term shows the types
                span = node.range.span if end is None else end.span
                self.typer.fail(
                    "E234", "the range of a reduction has two ends of type int, known at compile time", span
                )
                return None
            assert isinstance(value.attr, int)
            ends.append(value.attr)
        return ends[0], ends[1] + (1 if node.range.inclusive else 0)
