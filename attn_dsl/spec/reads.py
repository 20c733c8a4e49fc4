"""Reads of captures: one int index per axis, each proved inside its axis or clamped to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..diagnostics import Span
from ..expr import INT, Expr
from ..syntax import tree
from .modules import Module
from .names import INDEX_AXES, LENGTHS, TYPED_AXES
from .values import TensorValue, Value

if TYPE_CHECKING:
    from .typer import Typer


class ReadTyper:
    """The part of the typer that reads tensors."""

    def __init__(self, typer: Typer) -> None:
        self._typer = typer

    def read(self, node: tree.Read, module: Module, scope: Mapping[str, Value]) -> Expr | None:
        tensor = self._typer.value(node.tensor, module, scope)
        indices = [self._typer.expression(index, module, scope) for index in node.indices]
        if tensor is None:
            return None
        if not isinstance(tensor, TensorValue):
            self._typer.fail("E244", f"'{node.tensor.name}' is no tensor and has no elements", node.span)
            return None
        if len(indices) != len(tensor.axes):
            wanted = ", ".join(axis or "_" for axis in tensor.axes)
            self._typer.fail("E244", f"'{tensor.name}' has axes [{wanted}]; given {len(indices)} indices", node.span)
            return None
        clamped: list[Expr] = []
        for index, axis, extent, written in zip(indices, tensor.axes, tensor.extents, node.indices, strict=True):
            if index is None:
                return None
            if index.type is not INT:
                self._typer.fail("E230", f"an index is an int; given {index.type}", written.span, "use floor(x)")
                return None
            if not self._own_axis(index, axis, tensor, written.span):
                return None
            clamped.append(self._inside(index, extent, tensor.name, written.span))
        return self._typer.build.read(tensor.name, tuple(clamped), tensor.type)

    def _own_axis(self, index: Expr, axis: str | None, tensor: TensorValue, span: Span) -> bool:
        if index.op != "var" or axis not in TYPED_AXES or index.attr in LENGTHS:
            return True
        name = str(index.attr)
        allowed = {self._typer.spec.aliases.get(own, own) for own in INDEX_AXES.get(name, ())}
        if self._typer.spec.aliases.get(axis, axis) in allowed:
            return True
        right = next((i for i, own in INDEX_AXES.items() if axis in own), None)
        hint = f"'{axis}' is indexed by {right}" + (" or q_pos" if right == "kv_idx" else "")
        self._typer.fail(
            "E245", f"'{name}' indexes {INDEX_AXES[name][0]}, and this axis of '{tensor.name}' is {axis}", span, hint
        )
        return False

    def _inside(self, index: Expr, extent: Expr, tensor: str, span: Span) -> Expr:
        if self._typer.inside(index, extent):
            return index
        self._typer.reads.append((index, extent, self._typer.call_site or span, tensor))
        last = self._typer.build.op("sub", extent, self._typer.build.const(1))
        return self._typer.made(self._typer.build.clamp(index, self._typer.build.const(0), last), span)
