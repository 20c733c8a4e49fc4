"""Tensor declarations: dtypes, axes, views, and whether q, k, v, o and lse have one of their layouts."""

from __future__ import annotations

from dataclasses import replace

from ..diagnostics import Diagnostics, Span, did_you_mean
from ..expr import FLOAT, INT, Expr
from ..expr.node import children_first
from ..syntax import tree
from .model import MAX_EXTENT, Axis, DType, Output, Role, Slice, Tensor, View, largest_extent, smallest_extent
from .modules import Module, place
from .names import DTYPES, OUTPUTS, STANDARD_AXES, is_taken
from .typer import Typer

_QUERY = ({"batch", "seq_q"}, {"total_q"})
_STORAGE = ({"batch", "seq_k"}, {"total_k"}, {"pages", "page_size"})


class TensorReader:
    """Turns the declarations of a spec file into tensors and views."""

    def __init__(self, report: Diagnostics, typer: Typer, module: Module) -> None:
        self.report = report
        self.typer = typer
        self.module = module
        self.tensors: dict[str, Tensor] = {}  # inputs, roles of captures still provisional
        self.views: dict[str, View] = {}
        self.outputs: dict[str, Tensor] = {}
        self.spans: dict[str, Span] = {}

    def declare(self, node: tree.TensorDecl) -> None:
        """Every name of one declaration."""
        dtype = self._dtype(node.type.dtype)
        axes = [self._axis(axis) for axis in node.type.axes]
        known = [axis for axis in axes if axis is not None]
        for name in node.names:
            if not self._is_new(name):
                continue
            self.spans[name.name] = name.span
            if dtype is None or len(known) != len(axes):
                continue
            self._distinct(known, node)
            role = {"q": Role.QUERY, "k": Role.KEY, "v": Role.VALUE}.get(name.name, Role.CAPTURE)
            home = self.outputs if name.name in OUTPUTS else self.tensors
            home[name.name] = Tensor(name.name, dtype, tuple(known), role)

    def _is_new(self, name: tree.Name) -> bool:
        taken = is_taken(name.name)
        if taken and taken != "a tensor of every spec":
            self.report.error("E221", f"'{name.name}' is {taken} and cannot name a tensor", name.span)
        elif name.name in self.spans:
            first = place(self.spans[name.name])
            self.report.error("E221", f"'{name.name}' is declared twice; first at {first}", name.span)
        elif name.name in self.module.names or name.name in self.typer.spec.params:
            self.report.error("E221", f"'{name.name}' is defined twice", name.span)
        else:
            return True
        return False

    def _dtype(self, node: tree.Name) -> DType | None:
        if node.name in DTYPES:
            return DTYPES[node.name]
        found = self.module.find(node.name)
        if found is not None and isinstance(found[1], tree.Const):
            value = self.typer.definition(found[0], found[1].name.name)
            if isinstance(value, DType):
                return value
            if value is None:
                return None
            self.report.error("E235", f"'{node.name}' is a constant, but no dtype", node.span)
            return None
        known = [*DTYPES, *self.module.own]
        self.report.error(
            "E235", f"'{node.name}' is no dtype", node.span, did_you_mean(node.name, known) or _dtype_list()
        )
        return None

    def _axis(self, node: tree.Expression) -> Axis | None:
        if isinstance(node, tree.Name) and self._is_axis_name(node):
            self.typer.spec.axes.add(node.name)
            return Axis(node.name)
        for name in _names(node):  # an axis may be named in an expression before or without a tensor of its own
            if name in STANDARD_AXES:
                self.typer.spec.axes.add(name)
        extent = self.typer.expression(node, self.module)
        if extent is None:
            return None
        extent = _rename(self.typer, extent)
        if extent.type is not INT or any(
            leaf.op not in ("const", "size", "add", "sub", "mul") for leaf in children_first([extent])
        ):
            self.report.error("E249", "an axis is a name, or sums and products of constants and axis names", node.span)
            return None
        if extent.is_const and isinstance(extent.attr, int) and not 1 <= extent.attr <= MAX_EXTENT:
            message = f"an axis has an extent of 1 to {MAX_EXTENT}; given {extent.attr}"
            hint = f"the nearest is {min(max(extent.attr, 1), MAX_EXTENT)}"
            self.report.error("E249", message, node.span, hint)
            return None
        return Axis(None, extent)

    def _is_axis_name(self, node: tree.Name) -> bool:
        name = node.name
        if name not in STANDARD_AXES and (name in self.module.names or name in self.typer.spec.params):
            return False
        taken = is_taken(name)
        if taken and taken != "an axis name" and name not in ("seq_q", "seq_k"):
            self.report.error("E221", f"'{name}' is {taken} and cannot name an axis", node.span)
        return True

    def _distinct(self, axes: list[Axis], node: tree.TensorDecl) -> None:
        names = [axis.name for axis in axes if axis.name is not None]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            self.report.error(
                "E242", f"axis '{twice}' appears twice", node.type.span, "give the second one a name of its own"
            )

    # -- views ------------------------------------------------------------------------------------------------------

    def view(self, node: tree.ViewDecl) -> None:
        """`view v = k[:, :, :, 0..512]`."""
        name = node.name.name
        if name not in ("k", "v"):
            self.report.error("E247", f"only k and v can be views; '{name}' is neither", node.name.span)
            return
        if name in self.spans:
            self.report.error("E221", f"'{name}' is declared twice; first at {place(self.spans[name])}", node.name.span)
            return
        base = self.tensors.get(node.base.name)
        self.spans[name] = node.name.span
        if base is None or base.role is Role.QUERY:
            hint = did_you_mean(node.base.name, [t for t in self.tensors if t != "q"])
            self.report.error("E247", f"'{node.base.name}' is no tensor a view can cut from", node.base.span, hint)
            return
        if len(node.slices) != len(base.axes):
            message = f"'{base.name}' has {len(base.axes)} axes; the view gives {len(node.slices)}"
            self.report.error("E247", message, node.span, "write ':' for an axis that is kept")
            return
        slices: list[Slice] = []
        axes: list[Axis] = []
        for axis, written in zip(base.axes, node.slices, strict=True):
            part = self._slice(axis, written)
            if part is None:
                return
            slices.append(part)
            if part.kind == "keep":
                axes.append(axis)
            elif part.kind == "range":
                inner = "dim" if name == "k" else "dim_v"
                axes.append(Axis(inner))
                self.typer.spec.axes.add(inner)
                self.fix(inner, part.stop - part.start, written.span)
        role = Role.KEY if name == "k" else Role.VALUE
        self.views[name] = View(name, base.name, tuple(slices), Tensor(name, base.dtype, tuple(axes), role))
        if base.role is Role.CAPTURE:
            self.tensors[base.name] = replace(base, role=Role.POOL)

    def fix(self, axis: str, extent: int, span: Span) -> None:
        """Makes the extent of `axis` a compile-time constant."""
        known = self.typer.spec.fixed.get(axis)
        if known is not None and known != extent:
            self.report.error("E249", f"axis '{axis}' has extent {known} and {extent}", span)
        low, high = smallest_extent(axis), largest_extent(axis)
        if not low <= extent <= high:
            hint = f"the nearest is {min(max(extent, low), high)}"
            self.report.error("E249", f"axis '{axis}' has an extent of {low} to {high}; given {extent}", span, hint)
            return
        self.typer.spec.fixed[axis] = extent

    def _slice(self, axis: Axis, node: tree.WholeAxis | tree.Range | tree.Expression) -> Slice | None:
        if isinstance(node, tree.WholeAxis):
            return Slice("keep")
        ends = (node.start, node.stop) if isinstance(node, tree.Range) else (node,)
        values: list[int] = []
        for end in ends:
            value = None if end is None else self.typer.constant(end, self.module, "the bound of a view")
            if end is not None and value is None:
                return None
            if not isinstance(value, int) or isinstance(value, bool):
                self.report.error("E247", "the bounds of a view are ints, and a range has both", node.span)
                return None
            values.append(value)
        start = values[0]
        stop = (
            start + 1 if len(values) == 1 else values[1] + (1 if isinstance(node, tree.Range) and node.inclusive else 0)
        )
        extent = self._known_extent(axis)
        if start < 0 or stop <= start or (extent is not None and stop > extent):
            which = f"element {start}" if len(values) == 1 else f"{start}..{stop}"
            where = "this axis" if axis.name is None else f"axis '{axis.name}'"
            inside = "" if extent is None else f" of extent {extent}"
            self.report.error("E247", f"{which} is not inside {where}{inside}", node.span)
            return None
        return Slice("select", start) if len(values) == 1 else Slice("range", start, stop)

    def _known_extent(self, axis: Axis) -> int | None:
        if axis.name is not None:
            return self.typer.spec.fixed.get(axis.name)
        if axis.extent is None or not axis.extent.is_const:
            return None
        return int(axis.extent.attr or 0)

    # -- layouts ----------------------------------------------------------------------------------------------------

    def operand(self, name: str) -> Tensor | None:
        """q, k or v as declared or viewed."""
        return self.views[name].tensor if name in self.views else self.tensors.get(name)

    def check_layouts(self, file_span: Span) -> bool:
        """Reports whatever keeps q, k, v, o and lse from being one attention; True if nothing does."""
        missing = [name for name in ("q", "k", "v") if name not in self.spans]
        if missing:
            which = missing[0] if len(missing) < 3 else "q, k or v"
            rows = "seq_q" if missing[0] == "q" else "seq_k"
            hint = f"add a line such as '{missing[0]}: bf16[batch, {rows}, heads, dim]'"
            self.report.error("E240", f"no tensor {which} is declared", file_span, hint)
        q, k, v = (self.operand(name) for name in ("q", "k", "v"))
        sound = not missing and all(tensor is not None for tensor in (q, k, v))
        if q is not None:
            sound &= self._layout(q, [{*rows, "heads", "dim"} for rows in _QUERY])
        if k is not None:
            sound &= self._layout(k, [{*rows, heads, "dim"} for rows in _STORAGE for heads in ("kv_heads", "heads")])
        if k is not None and v is not None and sound:
            stored: set[str | None] = {axis.name for axis in k.axes} - {"dim"}
            sound &= self._layout(v, [{*stored, "dim_v"}, {*stored, "dim"}], " to go with k")
        if sound and q is not None and v is not None:
            inner = "dim_v" if v.axis_index("dim_v") is not None else "dim"
            of_q: set[str | None] = {axis.name for axis in q.axes} - {"dim"}
            for name, wanted in (("o", {*of_q, inner}), ("lse", of_q)):
                if name in self.outputs:
                    sound &= self._layout(self.outputs[name], [wanted], " to go with q")
        return sound

    def _layout(self, tensor: Tensor, layouts: list[set[str | None]], why: str = "") -> bool:
        names = [axis.name for axis in tensor.axes]
        if tensor.dtype.value_type is not FLOAT:
            floats = ", ".join(str(dtype) for dtype in DType if dtype.value_type is FLOAT)
            message = f"'{tensor.name}' has a float dtype; given {tensor.dtype}"
            self.report.error("E241", message, self.spans[tensor.name], f"float dtypes: {floats}")
            return False
        if tensor.name == "lse" and tensor.dtype is not DType.F32:
            self.report.error("E241", f"'lse' is f32; given {tensor.dtype}", self.spans[tensor.name])
            return False
        if len(set(names)) == len(names) and set(names) in layouts:
            return True
        given = ", ".join(str(axis) for axis in tensor.axes)
        closest = max(layouts, key=lambda layout: (len(layout & set(names)), -len(layout)))
        wanted = ", ".join(axis for axis in STANDARD_AXES if axis in closest)
        message = f"'{tensor.name}' has axes [{given}]; a layout{why} is [{wanted}], in any order"
        self.report.error("E241", message, self.spans[tensor.name])
        return False

    def output(self) -> Output:
        """`o` as declared, or in q's dtype and axis order. Layouts must be sound."""
        declared = self.outputs.get("o")
        if declared is not None:
            return Output("o", declared.dtype, declared.axes)
        q, v = self.operand("q"), self.operand("v")
        assert q is not None
        assert v is not None
        inner = "dim_v" if v.axis_index("dim_v") is not None else "dim"
        return Output("o", q.dtype, tuple(Axis(inner) if axis.name == "dim" else axis for axis in q.axes))


def _dtype_list() -> str:
    return "dtypes: " + ", ".join(DTYPES)


def _names(node: tree.Expression) -> list[str]:
    """Names in an axis expression (a name, or + - * of two)."""
    if isinstance(node, tree.Name):
        return [node.name]
    if isinstance(node, tree.Binary):
        return _names(node.left) + _names(node.right)
    return []


def _rename(typer: Typer, extent: Expr) -> Expr:
    """`seq_q` and `seq_k` in an axis are the extents of the axes, not the lengths of a sequence."""
    rebuilt: dict[Expr, Expr] = {}
    for node in children_first([extent]):
        if node.op == "var" and node.attr in ("seq_q", "seq_k"):
            rebuilt[node] = typer.axis(str(node.attr))
        elif node.args:
            rebuilt[node] = typer.build.op(node.op, *(rebuilt[argument] for argument in node.args))
        else:
            rebuilt[node] = node
    return rebuilt[extent]
