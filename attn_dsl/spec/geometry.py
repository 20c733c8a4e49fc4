"""Alignment, lengths and paging: the statements that say where the rows of a sequence lie."""

from __future__ import annotations

from dataclasses import replace

from ..diagnostics import Diagnostics, Span, did_you_mean
from ..expr import INT, Expr
from ..syntax import tree
from .model import MAX_SEQUENCE, Align, AlignKind, DType, Lengths, Paging, Role, Tensor
from .tensors import TensorReader
from .typer import Typer

_LENGTH_KEYS = {"q": ("cu_seqlens", "used"), "k": ("cu_seqlens", "used", "left_pad")}
_PAGING_FORMS = (("table",), ("indptr", "indices"))


class GeometryReader:
    """Reads `align`, `lengths` and `paged`, and marks the tensors they name as geometry."""

    def __init__(self, report: Diagnostics, typer: Typer, tensors: TensorReader) -> None:
        self.report = report
        self.typer = typer
        self.tensors = tensors

    def _settings(
        self, settings: tuple[tree.Setting, ...], keys: tuple[str, ...], what: str, span: Span
    ) -> dict[str, tree.Name]:
        """Key to tensor name; unknown, repeated and non-name entries are reported."""
        if not settings:
            self.report.error("E252", f"{what} has no settings", span, f"keys: {', '.join(keys)}")
        found: dict[str, tree.Name] = {}
        for setting in settings:
            key = setting.key.name
            if key not in keys:
                hint = did_you_mean(key, keys) or f"keys: {', '.join(keys)}"
                self.report.error("E252", f"{what} has no setting '{key}'", setting.key.span, hint)
            elif key in found:
                self.report.error("E252", f"{what} sets '{key}' twice", setting.key.span)
            elif not isinstance(setting.value, tree.Name):
                self.report.error("E252", f"'{key}' of {what} is the name of a tensor", setting.value.span)
            else:
                found[key] = setting.value
        return found

    def _geometry(self, name: tree.Name, axes: tuple[Expr | None, ...], form: str, what: str) -> str | None:
        """The geometry tensor `name` if it is i32 with these axis extents (None: any); its role becomes geometry."""
        tensor = self.tensors.tensors.get(name.name)
        if tensor is None:
            if name.name not in self.tensors.spans:
                candidates = [t.name for t in self.tensors.tensors.values() if t.role is Role.CAPTURE]
                hint = did_you_mean(name.name, candidates) or f"declare it: {name.name}: i32[{form}]"
                self.report.error("E248", f"{what} names '{name.name}', which is no tensor", name.span, hint)
            return None
        fits = tensor.dtype is DType.I32 and len(tensor.axes) == len(axes)
        if fits:
            for axis, wanted in zip(tensor.axes, axes, strict=True):
                extent = axis.extent if axis.name is None else self.typer.axis(axis.name)
                fits &= wanted is None or extent == wanted
        if not fits or tensor.role in (Role.QUERY, Role.KEY, Role.VALUE, Role.POOL):
            given = f"{tensor.dtype}[{', '.join(str(axis) for axis in tensor.axes)}]"
            self.report.error("E248", f"{what} is i32[{form}]; '{tensor.name}' is {given}", name.span)
            return None
        self.tensors.tensors[name.name] = replace(tensor, role=Role.GEOMETRY)
        return name.name

    def lengths(self, node: tree.LengthsDecl) -> Lengths:
        """One `lengths` block."""
        side = node.side.name
        if side not in _LENGTH_KEYS:
            self.report.error("E252", f"'lengths {side}' is neither 'lengths q' nor 'lengths k'", node.side.span)
            return Lengths()
        found = self._settings(node.settings, _LENGTH_KEYS[side], f"'lengths {side}'", node.span)
        batch = self.typer.axis("batch")
        ends = self.typer.build.op("add", batch, self.typer.build.const(1))
        read = {
            key: self._geometry(name, (ends,), "batch + 1", f"'{key}'")
            if key == "cu_seqlens"
            else self._geometry(name, (batch,), "batch", f"'{key}'")
            for key, name in found.items()
        }
        return Lengths(**read)

    def check_lengths(self, side: str, tensor: Tensor, lengths: Lengths, span: Span, *, paged: bool) -> None:
        """Whether the lengths of one side fit the layout of its tensor."""
        packed = tensor.axis_index(f"total_{side}") is not None
        name = tensor.name
        if packed and lengths.cu_seqlens is None:
            hint = f"add 'lengths {side} {{ cu_seqlens = ... }}'"
            self.report.error("E248", f"'{name}' is packed along total_{side} and has no cu_seqlens", span, hint)
        if not packed and lengths.cu_seqlens is not None:
            hint = f"give '{name}' an axis total_{side}, or use 'used' instead of 'cu_seqlens'"
            self.report.error("E248", f"'{name}' has no axis total_{side} for its cu_seqlens", span, hint)
        if paged and lengths.used is None:
            hint = "add 'lengths k { used = ... }': the table says where pages are, not how many rows count"
            self.report.error("E248", "paged keys have no lengths", span, hint)

    def paging(self, node: tree.PagedDecl | None, key: Tensor, span: Span) -> Paging | None:
        """The `paged` block, which is there exactly if k lies in pages."""
        paged = key.axis_index("pages") is not None
        if node is None:
            if paged:
                hint = "add 'paged { table = page_table }' with page_table: i32[batch, max_pages]"
                self.report.error("E248", "k lies in pages and nothing says which page is where", span, hint)
            return None
        if not paged:
            message = "k has no axes pages and page_size, so there is nothing to page"
            self.report.error("E248", message, node.span)
            return None
        found = self._settings(node.settings, ("table", "indptr", "indices"), "'paged'", node.span)
        if not node.settings:
            return None
        if tuple(sorted(found)) not in [tuple(sorted(form)) for form in _PAGING_FORMS]:
            self.report.error("E252", "'paged' has either a table, or indptr and indices", node.span)
            return None
        batch = self.typer.axis("batch")
        ends = self.typer.build.op("add", batch, self.typer.build.const(1))
        shapes = {
            "table": ((batch, None), "batch, max_pages"),
            "indptr": ((ends,), "batch + 1"),
            "indices": ((None,), "num_pages"),
        }
        return Paging(**{key_: self._geometry(name, *shapes[key_], f"'{key_}'") for key_, name in found.items()})

    def align(self, node: tree.AlignDecl | None) -> Align:
        """The `align` statement; bottom right without one."""
        if node is None:
            return Align()
        kinds = {kind.value: kind for kind in AlignKind}
        kind = kinds.get(node.kind.name)
        if kind is None:
            hint = did_you_mean(node.kind.name, kinds)
            self.report.error("E252", f"'{node.kind.name}' is no alignment", node.kind.span, hint)
            return Align()
        if (kind is AlignKind.OFFSET) != (node.offset is not None):
            form = "offset(e)" if kind is AlignKind.OFFSET else kind.value
            self.report.error("E252", f"this alignment is written 'align {form}'", node.span)
            return Align()
        if node.offset is None:
            return Align(kind)
        offset = self.typer.expression(node.offset, self.tensors.module)
        if offset is None:
            return Align()
        if offset.type is not INT:
            self.report.error("E230", f"the offset of a query is an int; given {offset.type}", node.offset.span)
            return Align()
        build = self.typer.build
        inside = build.clamp(offset, build.const(-MAX_SEQUENCE), build.const(MAX_SEQUENCE - 1))
        return Align(kind, inside)
