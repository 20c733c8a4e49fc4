"""Run-time parameters: their types, ranges and defaults."""

from __future__ import annotations

import math

from ..diagnostics import Diagnostics, Span, did_you_mean
from ..expr import FLOAT, INT
from ..expr.operators import I32_MAX, I32_MIN
from ..syntax import tree
from .model import Param
from .modules import Module, place
from .names import PARAM_AXES, is_taken
from .typer import Typer
from .values import TYPES

Number = int | float


class ParamReader:
    """Turns `param` statements into parameters."""

    def __init__(self, report: Diagnostics, typer: Typer, module: Module) -> None:
        self.report = report
        self.typer = typer
        self.module = module
        self.params: dict[str, Param] = {}
        self.spans: dict[str, Span] = {}

    def declare(self, node: tree.Param) -> None:
        """The name and type, so that expressions can use it; ranges and defaults come with `finish`."""
        name = node.name.name
        taken = is_taken(name)
        if taken:
            self.report.error("E221", f"'{name}' is {taken} and cannot name a parameter", node.name.span)
            return
        if name in self.spans or name in self.module.names:
            where = f"; first at {place(self.spans[name])}" if name in self.spans else ""
            self.report.error("E221", f"'{name}' is defined twice{where}", node.name.span)
            return
        self.spans[name] = node.name.span
        kind = TYPES.get(node.type.name)
        if kind not in (INT, FLOAT):
            hint = did_you_mean(node.type.name, ["int", "float"])
            self.report.error("E235", f"a parameter is int or float; given '{node.type.name}'", node.type.span, hint)
            kind = INT
        if node.per is not None and node.per.name not in PARAM_AXES:
            hint = did_you_mean(node.per.name, PARAM_AXES)
            self.report.error(
                "E235", f"a parameter varies with {', '.join(PARAM_AXES)}; given '{node.per.name}'", node.per.span, hint
            )
        assert kind is not None
        self.typer.spec.params[name] = self.typer.build.param(name, kind)
        per = node.per.name if node.per is not None and node.per.name in PARAM_AXES else None
        if per is not None:
            self.typer.spec.axes.add(per)
        self.params[name] = Param(name, kind, per, None, None, None)

    def finish(self, node: tree.Param) -> None:
        """Range and default."""
        name = node.name.name
        known = self.params.get(name)
        if known is None or self.spans[name] is not node.name.span:
            return
        low, high = self._range(node, known)
        default = None if node.default is None else self._number(node.default, known, "the default")
        if default is not None:
            self._check_default(node.default, default, low, high)
        per = known.per
        if per == "kv_heads":
            per = self.typer.spec.aliases.get(per, per)
        self.params[name] = Param(name, known.type, per, low, high, default)

    def _range(self, node: tree.Param, param: Param) -> tuple[Number | None, Number | None]:
        if node.range is None:
            return None, None
        low = None if node.range.start is None else self._number(node.range.start, param, "a range's end")
        high = None if node.range.stop is None else self._number(node.range.stop, param, "a range's end")
        if high is not None and not node.range.inclusive:
            if param.type is FLOAT:
                self.report.error(
                    "E254", "a range of floats is written with '..='", node.range.span, "a..=b includes b"
                )
            else:
                high -= 1
        if low is not None and high is not None and low > high:
            self.report.error("E254", f"no value lies in this range of '{param.name}'", node.range.span)
            return None, None
        return low, high

    def _number(self, node: tree.Expression, param: Param, what: str) -> Number | None:
        value = self.typer.constant(node, self.module, f"{what} of '{param.name}'")
        if value is None:
            return None
        if isinstance(value, bool) or (param.type is INT and isinstance(value, float)):
            self.report.error("E254", f"'{param.name}' is {param.type}, {what} is {value}", node.span)
            return None
        if param.type is INT:
            if not I32_MIN <= value <= I32_MAX:
                self.report.error("E254", f"{what} of '{param.name}' is {value}; an int parameter fits i32", node.span)
                return None
            return value
        if not math.isfinite(value):
            self.report.error("E254", f"{what} of '{param.name}' is {value}; it must be finite", node.span)
            return None
        return float(value)

    def _check_default(
        self, node: tree.Expression | None, default: Number, low: Number | None, high: Number | None
    ) -> None:
        if (low is not None and default < low) or (high is not None and default > high):
            between = f"{'' if low is None else low}..{'' if high is None else f'={high}'}"
            self.report.error(
                "E254", f"the default {default} lies outside the range {between}", node.span if node else None
            )
