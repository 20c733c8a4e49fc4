"""A syntax tree to a typed spec: declarations, definitions, clauses, proofs. Every problem of a file in one run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Diagnostics, Span, SpecError, TooManyFindings, did_you_mean
from ..expr import Expr, ExprBuilder, children_first
from ..expr.node import Constant
from ..syntax import tree
from .clauses import ClauseReader
from .geometry import GeometryReader
from .model import AlignKind, AttentionSpec, DType, Lengths, Origin, Output, Role, largest_extent
from .modules import Loader, Module
from .names import CALL_OPTION, DTYPES, LIBRARY_AXES, MAX_NODES, is_taken
from .params import ParamReader
from .proofs import Ranges, index_prover, never_true, prove
from .settings import SettingsReader
from .statements import Statements
from .tensors import TensorReader
from .typer import Typer
from .usage import reached_names
from .values import SpecNames, TensorValue, TooLarge

Override = Constant | str | DType


_NO_USE = "remove it, or use it in a clause"


@dataclass(frozen=True)
class Checked:
    """What the checker says of one file: the spec (None for a library, or with errors) and every diagnostic."""

    spec: AttentionSpec | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity.value == "error")


def check(
    file: tree.File, *, name: str = "spec", folder: Path | None = None, constants: Mapping[str, Override] | None = None
) -> Checked:
    """Checks a parsed file, spec or library. `folder` is where its relative imports start; `constants` replace
    constants and fix axes. Never raises for what it finds in the file."""
    report = Diagnostics(stop=True)
    spec = None
    with suppress(TooManyFindings):
        spec = _Resolver(report, file, name, folder, constants or {}).run()
    return Checked(None if report.errors else spec, tuple(report.items))


def resolve(
    file: tree.File, *, name: str = "spec", folder: Path | None = None, constants: Mapping[str, Override] | None = None
) -> AttentionSpec:
    """The typed spec of a parsed file; SpecError with every error of the file otherwise."""
    checked = check(file, name=name, folder=folder, constants=constants)
    if checked.errors:
        raise SpecError(checked.errors)
    if checked.spec is None:
        span = Statements(file, Diagnostics()).start
        raise SpecError.of("E240", "the file is a library: it declares no q, k and v", span=span)
    return checked.spec


class _Resolver:
    def __init__(
        self, report: Diagnostics, file: tree.File, name: str, folder: Path | None, constants: Mapping[str, Override]
    ) -> None:
        self.file = file
        self.name = name
        self.constants = {name: _plain(value) for name, value in constants.items()}
        self.report = report
        self.loader = Loader(self.report)
        self.module: Module = self.loader.module(file, folder)
        self.build = ExprBuilder()
        self.names = SpecNames()
        self.typer = Typer(self.report, self.build, self.names, self.module)
        self.tensors = TensorReader(self.report, self.typer, self.module)
        self.params = ParamReader(self.report, self.typer, self.module)
        self.geometry = GeometryReader(self.report, self.typer, self.tensors)
        self.statements = Statements(file, self.report)
        self.start = self.statements.start
        self.clauses = ClauseReader(self.report, self.typer, self.statements, self.params.params, self.tensors.tensors)
        self.settings = SettingsReader(self.report, self.typer, self.statements)

    def run(self) -> AttentionSpec | None:
        try:
            return self._run()
        except TooLarge:
            return None

    def _run(self) -> AttentionSpec | None:
        self._overrides()
        if self._is_library():
            self.names.axes |= set(LIBRARY_AXES)
            self._lets()
            self._functions()
            return None
        self._axes()
        for node in self.statements.of(tree.Param):
            self.params.declare(node)
        for declaration in self.statements.of(tree.TensorDecl):
            self.tensors.declare(declaration)
        for view in self.statements.of(tree.ViewDecl):
            self.tensors.view(view)
        laid_out = self.tensors.check_layouts(self.start)
        self._aliases()
        self._heads_divide()
        for node in self.statements.of(tree.Param):
            self.params.finish(node)
        lengths = self._lengths(laid_out)
        key = self.tensors.operand("k")
        paged = self.statements.one(tree.PagedDecl, "'paged'")
        paging = self.geometry.paging(paged, key, self.tensors.spans["k"]) if laid_out and key else None
        self._captures()
        alignments = self.statements.of(tree.AlignDecl)
        kind = _align_kind(alignments[0]) if alignments else AlignKind.BOTTOM_RIGHT
        dtypes = {tensor.name: tensor.dtype for tensor in self.tensors.tensors.values()}
        ranges = Ranges(self.names.fixed, self.params.params.values(), dtypes, kind)
        self.typer.inside = index_prover(ranges, self.build, self.typer.axis, kind, self._rows())
        align = self.geometry.align(self.statements.one(tree.AlignDecl, "'align'"))
        descales = self.clauses.descales()
        for name in ("q", "k"):
            if name in descales:
                self.typer.score = self.build.op("mul", self.typer.score, descales[name])
        self._lets()
        clauses = self.clauses.read()
        self._functions()
        pack, lse_base = self.settings.pack(), self.settings.lse_base()
        score = clauses["score"] = clauses["score"] or self.typer.score
        roots = [value for value in (*clauses.values(), align.offset, descales.get("v")) if value is not None]
        if align.offset is not None:
            self.clauses.check_leaves("align", align.offset, alignments[0].span)
        wide = prove(self.report, ranges, self.typer.origins, self.typer.reads, roots)
        self._uses()
        count = sum(1 for _ in children_first(roots))
        if count > MAX_NODES:
            self.report.error("E263", f"the spec has {count} expression nodes; at most {MAX_NODES}", self.start)
        if not laid_out or self.report.errors:
            return None
        mask = clauses["mask"] or self.build.const(True)
        if never_true(mask, ranges):
            self.report.warning(
                "W265", "the mask is false for every pair: every row is empty", self.clauses.span("mask")
            )
        declared = self.tensors.outputs.get("lse")
        return AttentionSpec(
            name=self.name,
            tensors=tuple(self.tensors.tensors.values()),
            views=tuple(self.tensors.views.values()),
            params=tuple(self.params.params.values()),
            constants=self._constants(),
            fixed_axes=tuple(sorted(self.names.fixed.items())),
            mask=mask,
            score=score,
            scale=clauses["scale"] or self.clauses.default_scale(),
            sink=clauses["sink"],
            align=align,
            lengths_q=lengths["q"],
            lengths_k=lengths["k"],
            paging=paging,
            output=self.tensors.output(),
            lse=None if declared is None else Output("lse", declared.dtype, declared.axes),
            lse_base=lse_base,
            pack_gqa=pack,
            schedule=self.settings.schedule(),
            wide=wide,
            descale_v=descales.get("v"),
            origin=Origin(self.file, self.module.folder, tuple(self.constants.items())),
        )

    # -- declarations -----------------------------------------------------------------------------------------------

    def _is_library(self) -> bool:
        library = tree.Import | tree.Const | tree.Let | tree.Function
        return all(isinstance(statement, library) for statement in self.file.statements)

    def _overrides(self) -> None:
        """Constants given to compile(): of the spec file, or extents of axes."""
        for name, value in self.constants.items():
            node = self.module.own.get(name)
            if isinstance(node, tree.Const):
                if isinstance(value, str):
                    dtype = DTYPES.get(value)
                    if dtype is None:
                        self.report.error("E223", f"'{value}' is no dtype", node.span, did_you_mean(value, DTYPES))
                        continue
                    self.typer.overrides[name] = dtype
                elif value is None:
                    self.report.error("E223", f"constant '{name}' is given None", node.span, "leave it away")
                else:
                    self.typer.overrides[name] = value

    def _axes(self) -> None:
        for node in self.statements.of(tree.FixAxis):
            name = node.name.name
            value = self.typer.constant(node.value, self.module, f"the extent of axis '{name}'")
            given = self.constants.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                self.report.error("E249", f"the extent of axis '{name}' is an int; given {value}", node.value.span)
            elif isinstance(value, int):
                if name in self.names.fixed:
                    self.report.error("E250", f"axis '{name}' is fixed twice", node.span)
                elif given is None:
                    self.tensors.fix(name, value, node.span)
            self.names.spans[name] = node.span
        for name, given in self.constants.items():
            if name in self.typer.overrides or isinstance(self.module.own.get(name), tree.Const):
                continue
            if isinstance(given, int) and not isinstance(given, bool) and self._declares_axis(name):
                self.tensors.fix(name, given, self.names.spans.get(name, self.start))
            elif self._declares_axis(name):
                self.report.error("E223", f"the extent of axis '{name}' is an int; given {given!s}", self.start)
            else:
                known = [n for n, d in self.module.own.items() if isinstance(d, tree.Const)]
                given_at_calls = any(node.name.name == name for node in self.statements.of(tree.Param))
                hint = f"give parameter '{name}' at each call" if given_at_calls else did_you_mean(name, known)
                self.report.error("E223", f"'{name}' is no constant and no axis of this spec", self.start, hint)

    def _declares_axis(self, name: str) -> bool:
        return any(
            isinstance(axis, tree.Name) and axis.name == name
            for declaration in self.statements.of(tree.TensorDecl)
            for axis in declaration.type.axes
        )

    def _aliases(self) -> None:
        """Axes that other axes stand for: without kv_heads every query head has its own K/V head."""
        key, value = self.tensors.operand("k"), self.tensors.operand("v")
        if key is not None and key.axis_index("kv_heads") is None:
            self.names.aliases["kv_heads"] = "heads"
        if value is not None and value.axis_index("dim_v") is None:
            self.names.aliases["dim_v"] = "dim"
        for axis, node in ((node.name.name, node) for node in self.statements.of(tree.FixAxis)):
            if axis not in self.names.axes:
                hint = did_you_mean(axis, self.names.axes)
                self.report.error("E220", f"no tensor has an axis '{axis}'", node.name.span, hint)

    def _heads_divide(self) -> None:
        heads, kv_heads = (self.names.fixed.get(axis) for axis in ("heads", "kv_heads"))
        if heads is not None and kv_heads is not None and heads % kv_heads:
            message = f"{heads} heads do not divide into {kv_heads} K/V heads"
            legal = range(kv_heads, largest_extent("heads") + 1, kv_heads)
            hint = f"the nearest number of heads is {min(legal, key=lambda count: abs(count - heads))}"
            self.report.error("E243", message, self.names.spans.get("kv_heads", self.start), hint)

    def _lengths(self, laid_out: bool) -> dict[str, Lengths]:
        lengths = {"q": Lengths(), "k": Lengths()}
        seen: dict[str, tree.LengthsDecl] = {}
        for node in self.statements.of(tree.LengthsDecl):
            side = node.side.name
            if side in seen:
                first = seen[side].span.line
                self.report.error("E250", f"a second 'lengths {side}'; the first is on line {first}", node.span)
                continue
            seen[side] = node
            lengths[side] = self.geometry.lengths(node)
        if laid_out:
            key = self.tensors.operand("k")
            paged = key is not None and key.axis_index("pages") is not None
            for side in ("q", "k"):
                tensor = self.tensors.operand(side)
                assert tensor is not None
                span = seen[side].span if side in seen else self.tensors.spans[side]
                self.geometry.check_lengths(side, tensor, lengths[side], span, paged=paged and side == "k")
        return lengths

    def _captures(self) -> None:
        """What expressions can read: every tensor that is no operand, pool or geometry."""
        declared = [name.name for node in self.statements.of(tree.TensorDecl) for name in node.names]
        declared += [node.name.name for node in self.statements.of(tree.Param)]
        read_otherwise = {tensor.name for tensor in self.tensors.tensors.values()}
        self.names.broken = {name for name in declared if is_taken(name) in (None, CALL_OPTION)} - read_otherwise
        for tensor in self.tensors.tensors.values():
            if tensor.role is not Role.CAPTURE:
                self.names.closed[tensor.name] = tensor.role.value
                continue
            extents = tuple(self._readable(axis.name, axis.extent) for axis in tensor.axes)
            axes = tuple(axis.name for axis in tensor.axes)
            self.names.tensors[tensor.name] = TensorValue(tensor.name, tensor.dtype.value_type, axes, extents)

    def _readable(self, axis: str | None, extent: Expr | None) -> Expr:
        """How many indices an axis of a capture has: a packed axis is indexed within one sequence."""
        if axis is None:
            assert extent is not None
            return extent
        if axis in ("total_q", "total_k"):
            return self.build.var(f"seq_{axis[-1]}")
        return self.typer.axis(axis)

    def _rows(self) -> dict[str, str]:
        """The axis the rows of one sequence lie along, where q and k have one (paged keys have none)."""
        found: dict[str, str] = {}
        for side in ("q", "k"):
            tensor = self.tensors.operand(side)
            for axis in (f"seq_{side}", f"total_{side}"):
                if tensor is not None and tensor.axis_index(axis) is not None:
                    found[f"seq_{side}"] = axis
        return found

    # -- clauses ----------------------------------------------------------------------------------------------------

    def _lets(self) -> None:
        """Every const and let in the order of the files, so that a long chain of them is no deep one."""
        for module in (*self.loader.libraries, self.module):
            for name, node in module.own.items():
                if not isinstance(node, tree.Function):
                    self.typer.definition(module, name)

    def _functions(self) -> None:
        """Functions are checked by themselves too: nobody may have called them."""
        for module in (*self.loader.libraries, self.module):
            for node in module.own.values():
                if isinstance(node, tree.Function):
                    self._function_names(node)
                    self.typer.function(node, module)

    def _function_names(self, node: tree.Function) -> None:
        seen: set[str] = set()
        for name in (*(param.name for param in node.params), *(let.name for let in node.lets)):
            taken = is_taken(name.name)
            if taken:
                self.report.error("E221", f"'{name.name}' is {taken} and cannot be redefined", name.span)
            elif name.name in seen:
                self.report.error("E221", f"'{name.name}' is defined twice", name.span)
            seen.add(name.name)

    def _constants(self) -> tuple[tuple[str, Constant | DType], ...]:
        values: list[tuple[str, Constant | DType]] = []
        for name, node in self.module.own.items():
            if isinstance(node, tree.Const):
                value = self.typer.definition(self.module, name)
                if isinstance(value, DType):
                    values.append((name, value))
                elif isinstance(value, Expr) and isinstance(value.attr, bool | int | float):
                    values.append((name, value.attr))
        return tuple(values)

    def _uses(self) -> None:
        """What nothing needs would be dropped silently: an error for what a caller gives, a warning for the rest."""
        reached = reached_names(self.module)
        for tensor in self.tensors.tensors.values():
            if tensor.role is Role.CAPTURE and tensor.name not in reached:
                self._unused(f"nothing reads tensor '{tensor.name}'", self.tensors.spans[tensor.name])
        for name in self.params.params:
            if name not in reached:
                self._unused(f"nothing uses parameter '{name}'", self.params.spans[name])
        for name, node in self.module.own.items():
            constant = isinstance(node, tree.Const) and self.typer.definition(self.module, name) is not None
            if constant and name not in reached:
                self._unused(f"nothing uses constant '{name}'", node.name.span)
        if not self.report.errors:  # what is wrong may be where the use was meant to be
            self._unused_definitions(reached)

    def _unused_definitions(self, reached: set[str]) -> None:
        for name, node in self.module.own.items():
            if name not in reached:
                kind = "function" if isinstance(node, tree.Function) else "let"
                self.report.warning("W267", f"nothing uses {kind} '{name}'", node.name.span, _NO_USE)
        for statement in self.statements.of(tree.Import):
            for item in statement.names:
                if item.alias not in reached:
                    self.report.warning("W267", f"nothing uses '{item.alias}'", item.span, _NO_USE)

    def _unused(self, message: str, span: Span) -> None:
        self.report.error("E253", message, span, _NO_USE)


def _plain(value: Any) -> Override:
    """NumPy's integers as Python's; everything else as it is."""
    plain: Override = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
    return plain


def _align_kind(node: tree.AlignDecl) -> AlignKind:
    return next((kind for kind in AlignKind if kind.value == node.kind.name), AlignKind.BOTTOM_RIGHT)
