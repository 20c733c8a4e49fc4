"""A spec that is being converted: its expressions and what they name, written as `.attn` text and read back.

The text is the result; the spec is what the checker makes of it, so nothing holds for a converted spec that would not
hold for one written by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from torch import Tensor

from ..diagnostics import Source
from ..expr import FLOAT, INT, Expr, ExprBuilder, ValueType, children_first
from ..expr.interval import Interval, IntInterval
from ..expr.operators import I32_MAX
from ..expr.text import shared_texts
from ..spec import AttentionSpec, DType, resolve
from ..spec.model import AlignKind
from ..spec.names import UNARY_FUNCTIONS, is_taken
from ..spec.proofs import Ranges
from ..syntax import format_file, parse_source
from ..syntax.grammar import grammar

_INFINITY = float("inf")
_INFINITE = {_INFINITY: "-log(0.0)", -_INFINITY: "log(0.0)"}  # the language has no literal for them
_OWN = {"batch": "b", "heads": "h", "seq_q": "q_idx", "seq_k": "kv_idx"}  # axis -> the index that reads it


@dataclass
class Capture:
    """A tensor that expressions read."""

    name: str
    dtype: DType
    tensor: Tensor | None  # None: the call gives it, and only its name and rank are known
    axes: list[str]  # axis names; provisional until `Sheet.name_axes`


@dataclass(frozen=True)
class Scalar:
    """A number with a name: a constant of the spec, or a run-time parameter."""

    name: str
    value: int | float
    is_param: bool
    tensor: Tensor | None = None  # what it is the value of now, for a parameter that was a tensor of one element

    @property
    def type(self) -> ValueType:
        return INT if isinstance(self.value, int) else FLOAT


@dataclass(frozen=True)
class Converted:
    """A spec made from functions of another tool.

    `attn_dsl.compile(converted.spec)(q, k, v, **converted.captures)` computes what the functions describe.
    """

    spec: AttentionSpec
    text: str  # the spec as an `.attn` file
    captures: Mapping[
        str, Tensor
    ]  # the tensors the functions read, in the dtypes that `text` declares, also for params
    notes: tuple[str, ...] = ()  # what was assumed or changed on the way, one sentence each

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the text, then the spec."""
        return f"<pre>{escape(self.text)}</pre>{self.spec._repr_html_() or ''}"

    def save(self, path: str | Path) -> None:
        """Writes `text` to a file."""
        Path(path).write_text(self.text, encoding="utf-8")


@dataclass
class Sheet:
    """What the conversion has found so far."""

    build: ExprBuilder = field(default_factory=ExprBuilder)
    captures: dict[str, Capture] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # an ordered set

    def free_name(self, wanted: str) -> str:
        """`wanted`, or something like it that the language lets a spec define and this one does not use."""
        base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in wanted) or "value"
        if base[0].isdigit():
            base = f"_{base}"
        spellings = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
        return next(name for name in spellings if not self._is_used(name))

    def _is_used(self, name: str) -> bool:
        axes = {axis for capture in self.captures.values() for axis in capture.axes}
        used = name in self.captures or name in self.scalars or name in axes
        return used or is_taken(name) is not None or name in grammar().words

    def scalar(self, name: str, value: int | float, *, is_param: bool = False, tensor: Tensor | None = None) -> Expr:
        """The leaf of a named number; equal numbers of one name are one."""
        known = self.scalars.get(name)
        if known is None or (type(known.value), known.value, known.is_param) != (type(value), value, is_param):
            name = self.free_name(name)
            self.scalars[name] = Scalar(name, value, is_param, tensor)
        return self.build.param(name, self.scalars[name].type)

    def leaf_interval(self, node: Expr) -> Interval:
        """What a leaf can be, for proofs of signs: a named number keeps its sign when it is changed."""
        if node.op == "param" and node.type is INT:
            value = self.scalars[str(node.attr)].value
            return IntInterval(1 if value >= 1 else 0, I32_MAX) if value >= 0 else IntInterval(-I32_MAX, I32_MAX)
        dtypes = {capture.name: capture.dtype for capture in self.captures.values()}
        return Ranges({}, (), dtypes, AlignKind.TOP_LEFT).leaf(node)

    # -- from expressions to text -----------------------------------------------------------------------------------

    def finish(
        self,
        mask: Expr,
        score: Expr,
        *,
        title: str,
        dtype: DType,
        scale: float | None,
        extents: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        align: AlignKind = AlignKind.TOP_LEFT,
    ) -> Converted:
        """The spec of a mask and a score. `extents`: known axis extents, against which captured axes are held;
        `fixed`: those that the spec is made for.

        Raises AttnSyntaxError, SpecError: the text breaks a rule of the language.
        """
        roots = [mask, score]
        if align is AlignKind.TOP_LEFT:
            roots = self._name_axes(roots, extents)
        text = self._text(roots, title, dtype, scale, align, fixed or {})
        used = {str(node.attr) for node in children_first(roots) if node.op == "read"}
        captures = {
            name: capture.tensor
            for name, capture in self.captures.items()
            if name in used and capture.tensor is not None
        }
        spec = resolve(parse_source(Source("<converted>", text)), name="converted")
        numbers = {param.name: self.scalars[param.name].tensor for param in spec.params}
        captures |= {name: tensor for name, tensor in numbers.items() if tensor is not None}
        return Converted(spec, text, captures, tuple(self.notes))

    def masked_by_score(self, mask: Expr, score: Expr) -> tuple[Expr, Expr]:
        """A score that is -inf where a condition fails, as a mask: so that tiles nobody sees are skipped."""
        seen, rest = _visible(self.build, score)
        return self.build.op("and", mask, seen), rest

    def _name_axes(self, roots: list[Expr], extents: Mapping[str, int]) -> list[Expr]:
        """Axes of captures by the indices that read them, and `q_pos` for `q_idx` where it reads keys.

        With the queries aligned at the top left both are one number.
        """
        indices: dict[tuple[str, int], set[Expr]] = {}
        for node in children_first(roots):
            if node.op == "read":
                for place, index in enumerate(node.args):
                    indices.setdefault((str(node.attr), place), set()).add(index)
        for (name, place), found in indices.items():
            capture = self.captures[name]
            axis = _axis_of(found)
            extent = None if capture.tensor is None else capture.tensor.shape[place]
            if axis is not None and axis not in capture.axes and extents.get(axis, extent) == extent:
                capture.axes[place] = axis
                if axis not in extents:
                    self.notes[f"axis {place} of {name} is taken to be {axis}, for {_OWN[axis]} reads it"] = None
        return [self._read_by_position(root) for root in roots]

    def _read_by_position(self, root: Expr) -> Expr:
        replaced: dict[Expr, Expr] = {}
        q_idx, q_pos = self.build.var("q_idx"), self.build.var("q_pos")
        for node in children_first([root]):
            args = tuple(replaced[argument] for argument in node.args)
            if node.op == "read":
                axes = self.captures[str(node.attr)].axes
                args = tuple(
                    q_pos if index == q_idx and axis == "seq_k" else index
                    for index, axis in zip(args, axes, strict=True)
                )
            replaced[node] = node if args == node.args else Expr(node.op, args, node.attr, node.type)
        return replaced[root]

    def _text(
        self,
        roots: list[Expr],
        title: str,
        dtype: DType,
        scale: float | None,
        align: AlignKind,
        fixed: Mapping[str, int],
    ) -> str:
        reached = {str(node.attr) for node in children_first(roots) if node.op in ("read", "param")}
        names = (name for number in itertools.count(1) if not self._is_used(name := f"t{number}"))
        (mask, score), shared = shared_texts([_spelled(root) for root in roots], names)
        lines = [f"# {line}" for line in title.splitlines()]
        lines += [f"q: {dtype}[batch, heads, seq_q, dim]", f"k, v: {dtype}[batch, kv_heads, seq_k, dim]"]
        lines += [
            f"{capture.name}: {capture.dtype}[{', '.join(capture.axes)}]"
            for capture in self.captures.values()
            if capture.name in reached
        ]
        lines += [_declaration(scalar) for scalar in self.scalars.values() if scalar.name in reached]
        lines += [f"axis {name} = {extent}" for name, extent in fixed.items()]
        lines += ["", f"align {align.value}"]
        lines += [f"let {name} = {text}" for name, text in shared]
        lines += [] if scale is None else [f"scale = {scale!r}"]
        lines += [] if mask == "true" else [f"mask = {mask}"]
        lines += [] if score == "score" else [f"score = {score}"]
        return format_file(parse_source(Source("<converted>", "\n".join(lines) + "\n")))


def _declaration(scalar: Scalar) -> str:
    if not scalar.is_param:
        return f"const {scalar.name}: {scalar.type} = {scalar.value!r}"
    low = " in 1.." if isinstance(scalar.value, int) and scalar.value >= 1 else ""
    return f"param {scalar.name}: {scalar.type}{low} = {scalar.value!r}"


def _axis_of(indices: Iterable[Expr]) -> str | None:
    """The axis that these indices read as they stand: keys, if both queries and keys do."""
    names = {str(index.attr) if index.op == "var" else "" for index in indices}
    if names == {"q_idx", "kv_idx"}:
        return "seq_k"
    axes = [axis for axis, index in _OWN.items() if names == {index}]
    return axes[0] if axes else None


def _visible(build: ExprBuilder, score: Expr) -> tuple[Expr, Expr]:
    """Where a score is not written as -inf, and the score there."""
    true = build.const(True)
    if score.op == "select":
        condition, yes, no = score.args
        if no.is_const and no.attr == -_INFINITY:
            seen, rest = _visible(build, yes)
            return build.op("and", condition, seen), rest
        if yes.is_const and yes.attr == -_INFINITY:
            seen, rest = _visible(build, no)
            return build.op("and", build.op("not", condition), seen), rest
        (seen_yes, rest_yes), (seen_no, rest_no) = _visible(build, yes), _visible(build, no)
        if seen_yes != true or seen_no != true:
            return build.op("select", condition, seen_yes, seen_no), build.op("select", condition, rest_yes, rest_no)
    if score.op == "add":
        (seen_x, x), (seen_y, y) = (_visible(build, part) for part in score.args)
        if seen_x != true or seen_y != true:
            return build.op("and", seen_x, seen_y), _sum(build, x, y)
    return true, score


def _sum(build: ExprBuilder, x: Expr, y: Expr) -> Expr:
    """x + y without a zero: what is left of a term that was 0 or -inf."""
    if y.is_const and y.attr == 0.0:
        return x
    return y if x.is_const and x.attr == 0.0 else build.op("add", x, y)


def _spelled(root: Expr) -> Expr:
    """`root` as a person writes it: without promotions that the language makes by itself, infinities as expressions.

    The result is for printing only: operands of an operator may differ in type.
    """
    replaced: dict[Expr, Expr] = {}
    for node in children_first([root]):
        args = tuple(replaced[argument] for argument in node.args)
        if _promotes(node):
            args = tuple(argument.args[0] if argument.op == "to_float" else argument for argument in args)
        if node.is_const and node.type is FLOAT and node.attr in _INFINITE:
            replaced[node] = Expr("var", (), f"({_INFINITE[node.attr]})", FLOAT)
        else:
            replaced[node] = node if args == node.args else Expr(node.op, args, node.attr, node.type)
    return replaced[root]


def _promotes(node: Expr) -> bool:
    """Whether ints among the operands of this operator are promoted if they stand there as they are."""
    if node.op == "div" or node.op in UNARY_FUNCTIONS:
        return True
    numbers = [argument for argument in node.args if argument.type is FLOAT]
    return len(numbers) > 1 and any(argument.op != "to_float" for argument in numbers)
