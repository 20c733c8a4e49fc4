"""The axis extents of one call, solved from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping

from ..diagnostics import Diagnostics
from ..expr import Expr, children_first, evaluate
from ..expr.scalars import ScalarAlgebra
from .model import AttentionSpec, Axis, Role, Tensor, View, largest_extent, smallest_extent

Shape = tuple[int, ...]  # extents, in elements


def solve_extents(spec: AttentionSpec, shapes: Mapping[str, Shape], problems: Diagnostics) -> dict[str, int]:
    """Axis name -> extent, for every axis that the given shapes determine.

    `shapes` holds the declared tensors that are there. What does not fit is reported to `problems`: E271 (number of
    axes, extents that disagree), E249 (limits) and E243 (groups of heads).
    """
    solver = _Solver(problems)
    for tensor in spec.tensors:
        if tensor.name in shapes:
            solver.add(tensor, tensor.name, shapes[tensor.name])
    for view in spec.views:
        cut = _cut(view, spec.tensor(view.base), shapes, problems)
        if cut is not None:
            solver.add(view.tensor, f"{view.name} (a view of {view.base})", cut)
    for name in (spec.lengths_q.cu_seqlens, spec.lengths_k.cu_seqlens, spec.paging.indptr if spec.paging else None):
        if name is not None and len(shapes.get(name, ())) == 1 and shapes[name][0] > 0:
            solver.fix("batch", shapes[name][0] - 1, f"{name} (which has batch + 1 entries)")
    if spec.kv_heads_axis == "heads" and "heads" in solver.extents:
        solver.fix("kv_heads", solver.extents["heads"], "k (whose head axis is 'heads')")
    if spec.dim_v_axis == "dim" and "dim" in solver.extents:
        solver.fix("dim_v", solver.extents["dim"], "v (whose inner axis is 'dim')")
    for name, extent in spec.fixed_axes:
        solver.fix(name, extent, "the spec, which fixes it")
    for tensor in spec.tensors:
        if len(shapes.get(tensor.name, ())) == len(tensor.axes):
            solver.check_anonymous(tensor, shapes[tensor.name])
            if "batch" not in solver.extents:
                solver.check_cumulative(tensor, shapes[tensor.name])
    check_limits(spec, solver.extents, problems)
    _check_reads(spec, shapes, solver.extents, problems)
    return solver.extents


def axis_extent(axis: Axis, extents: Mapping[str, int]) -> int | None:
    """The extent of a declared axis, or None if it depends on an axis that `extents` does not have."""
    if axis.extent is None:
        return extents.get(axis.name) if axis.name is not None else None
    if any(node.op == "size" and node.attr not in extents for node in children_first([axis.extent])):
        return None
    return int(evaluate([axis.extent], ScalarAlgebra(), lambda node, _: extents[str(node.attr)])[0])


def depends_on(axis: Axis) -> tuple[str, ...]:
    """The axis names that decide this axis's extent."""
    if axis.extent is None:
        return () if axis.name is None else (axis.name,)
    nodes: list[Expr] = list(children_first([axis.extent]))
    return tuple(str(node.attr) for node in nodes if node.op == "size")


class _Solver:
    def __init__(self, problems: Diagnostics) -> None:
        self.extents: dict[str, int] = {}
        self._given_by: dict[str, str] = {}
        self._problems = problems

    def add(self, tensor: Tensor, label: str, shape: Shape) -> None:
        axes = ", ".join(str(axis) for axis in tensor.axes)
        if len(shape) != len(tensor.axes):
            self._problems.error(
                "E271",
                f"{label} has {len(shape)} axes, expected {len(tensor.axes)}: [{axes}], given shape {list(shape)}",
            )
            return
        for axis, extent in zip(tensor.axes, shape, strict=True):
            if axis.name is not None and axis.extent is None:
                self.fix(axis.name, extent, label)

    def fix(self, name: str, extent: int, giver: str) -> None:
        known = self.extents.setdefault(name, extent)
        first = self._given_by.setdefault(name, giver)
        if known != extent:
            self._problems.error("E271", f"axis '{name}' is {known} in {first} and {extent} in {giver}")

    def check_anonymous(self, tensor: Tensor, shape: Shape) -> None:
        for place, (axis, extent) in enumerate(zip(tensor.axes, shape, strict=True)):
            if axis.extent is None:
                continue
            expected = axis_extent(axis, self.extents)
            if expected is not None and expected != extent:
                formula = "" if axis.extent.is_const else f"{axis} = "
                self._problems.error("E271", f"axis {place} of {tensor.name} is {extent}, expected {formula}{expected}")

    def check_cumulative(self, tensor: Tensor, shape: Shape) -> None:
        """Cumulative lengths begin with 0: without elements they say nothing, not even that there is no sequence."""
        if tensor.role is Role.GEOMETRY and shape == (0,) and str(tensor.axes[0]) == "batch + 1":
            self._problems.error(
                "E271",
                f"{tensor.name} has no elements, expected batch + 1",
                hint="of no sequences at all there is one element, 0",
            )


def _cut(view: View, base: Tensor, shapes: Mapping[str, Shape], problems: Diagnostics) -> Shape | None:
    """The shape of a view, or None where its base is missing or too small."""
    shape = shapes.get(view.base, ())
    if len(shape) != len(base.axes):
        return None
    cut: list[int] = []
    for place, (part, extent) in enumerate(zip(view.slices, shape, strict=True)):
        if part.kind == "keep":
            cut.append(extent)
            continue
        last = part.stop - 1 if part.kind == "range" else part.start
        if last >= extent:
            problems.error(
                "E271",
                f"axis {place} of {view.base} ({base.axes[place]}) is {extent}, too small for the view "
                f"{view.name}, which takes elements {part.start} to {last}",
            )
            return None
        if part.kind == "range":
            cut.append(part.stop - part.start)
    return tuple(cut)


def check_limits(spec: AttentionSpec, extents: Mapping[str, int], problems: Diagnostics) -> None:
    """Reports to `problems` every extent outside its limits (E249) and heads that form no groups (E243)."""
    lists = {axis.name for tensor in spec.tensors if tensor.role is Role.GEOMETRY for axis in tensor.axes}
    for name, extent in extents.items():
        low, high = 0 if name in lists else smallest_extent(name), largest_extent(name)
        if not low <= extent <= high:
            problems.error("E249", f"axis '{name}' is {extent}, expected {low} to {high}")
    heads, kv_heads = extents.get("heads", 0), extents.get("kv_heads", 1)
    if kv_heads > 0 and heads % kv_heads != 0:
        problems.error(
            "E243",
            f"heads is {heads}, which is no multiple of kv_heads = {kv_heads}",
            hint="every K/V head serves the same number of query heads",
        )


def _check_reads(
    spec: AttentionSpec, shapes: Mapping[str, Shape], extents: Mapping[str, int], problems: Diagnostics
) -> None:
    """A capture without elements has no value to read; that is fine only where no row or no pair reads it."""
    rows = extents.get("batch", 0) > 0 and extents.get("total_q", extents.get("seq_q", 0)) > 0
    keys = extents.get("pages", extents.get("total_k", extents.get("seq_k", 0))) > 0
    per_pair = {str(node.attr) for node in children_first([spec.mask, spec.score]) if node.op == "read"}
    per_row = {str(node.attr) for node in children_first(spec.roots) if node.op == "read"} - per_pair
    for name in sorted((per_row if rows else set()) | (per_pair if rows and keys else set())):
        for axis, extent in zip(spec.tensor(name).axes, shapes.get(name, ()), strict=False):
            if extent == 0 and (axis.name is None or smallest_extent(axis.name) == 0):
                problems.error("E249", f"axis '{axis}' of {name} is 0, and the spec reads {name}: expected at least 1")
