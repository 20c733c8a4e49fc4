"""Values of an expression's leaves in a kernel, and the evaluation of expressions by what they depend on.

What depends on neither row nor column is computed once per work tile, what depends on the row alone once per row,
what depends on the column alone once per column. Values live as long as the straight-line code they were made in: the
body of a dynamic branch or loop starts with `scope.fresh()`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from cutlass import Float32, Int32, Numeric

from attn_dsl.expr import FLOAT, Expr, children_first
from attn_dsl.expr.evaluate import method_name
from attn_dsl.kernels.common.algebra import CuteAlgebra, here, larger, narrowed, saturated, smaller, widened
from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.pairs import Pair, each
from attn_dsl.lowering.forward import CaptureArgument, ForwardPlan
from attn_dsl.lowering.forward.distances import DISTANCE
from attn_dsl.lowering.forward.logits import BASE, REFERENCE, STEP

ROW, COLUMN, SCORE = "row", "column", "score"
NOTHING: frozenset[str] = frozenset()
MOST_KEPT = 4  # reads that a loop over tiles keeps in registers, for each row of a fragment
_VARIABLES = {
    "q_idx": frozenset({ROW}),
    "q_pos": frozenset({ROW}),
    REFERENCE: frozenset({ROW}),
    "kv_idx": frozenset({COLUMN}),
    STEP: frozenset({COLUMN}),
    DISTANCE: frozenset({COLUMN}),  # evaluated at a place of its own
    "score": frozenset({SCORE}),
}
_PER = {"heads": "h", "kv_heads": "kv_h", "batch": "b"}


@dataclass(frozen=True, eq=False)
class Arguments:
    """The kernel's arguments that a plan names, in the plan's order."""

    plan: ForwardPlan
    captures: tuple[Any, ...]  # cute.Tensor, strides in 64 bits
    params: tuple[Any, ...]  # Int32, Float32, or a cute.Tensor of rank 1
    sizes: tuple[Any, ...]  # Int32
    geometry: tuple[Any, ...] = ()  # cute.Tensor, i32 of rank 1

    def capture(self, name: str) -> tuple[Any, CaptureArgument]:
        """The tensor, and what the plan says of it."""
        place = next(i for i, capture in enumerate(self.plan.captures) if capture.name == name)
        return self.captures[place], self.plan.captures[place]

    def size(self, axis: str) -> Any:
        return self.sizes[self.plan.sizes.index(axis)]

    def lengths(self, name: str) -> Any:
        """The geometry tensor of that name."""
        return self.geometry[self.plan.geometry.index(name)]


@dataclass(eq=False)
class Place:
    """One row or one column, and what is known there."""

    index: Any  # Int32, or a Pair: q_idx or kv_idx, inside the sequence wherever an expression reads or divides by it
    head: Any = None  # Int32: the row's query head, where rows of several heads share a tile
    reference: Any = None  # Float32, of a row: what its weights are taken against
    base: Any = None  # Int32, of a column: the thread's first one in the tile; None: `index` itself
    step: Any = 0  # int, or a Pair: index - base
    values: dict[Any, Any] = field(default_factory=dict)

    def part(self, name: str) -> Any:
        """A column's `kv_idx`, or one of the two parts it is the sum of."""
        if name == STEP:
            return each(Int32, self.step)
        return self.index if name == "kv_idx" or self.base is None else self.base


def dependences(
    nodes: Iterable[Expr],
    by_row: frozenset[str] = NOTHING,
    by_column: frozenset[str] = NOTHING,
    known: Container[Expr] = (),
) -> dict[Expr, frozenset[str]]:
    """What each node below `nodes` changes with inside a tile.

    `by_row` and `by_column` are further leaves that change with the row and with the column; nodes of `known` change
    with both, and what is below them is left out.
    """
    found: dict[Expr, frozenset[str]] = {}
    for node in children_first(nodes, known):
        if node in known:
            found[node] = frozenset({ROW, COLUMN})
            continue
        own = _VARIABLES.get(str(node.attr), NOTHING) if node.op == "var" else NOTHING
        if node.op in ("var", "param") and node.attr in by_row:
            own = frozenset({ROW})
        elif node.op == "var" and node.attr in by_column:
            own = frozenset({COLUMN})
        found[node] = own.union(*(found[argument] for argument in node.args))
    return found


def needs_inside(roots: Iterable[Expr], name: str) -> bool:
    """Whether a node that has no value everywhere (a read, a division, a shift) depends on `name`, ROW or COLUMN."""
    found = dependences(roots)
    return any(name in found[node] for node in found if node.op in ("read", "floordiv", "mod", "shl", "shr"))


@dataclass(frozen=True, eq=False)
class Scope:
    """Evaluates a plan's expressions for one work tile: a batch entry, a head, their lengths (all Int32)."""

    plan: ForwardPlan
    arguments: Arguments
    b: Any
    h: Any
    kv_h: Any
    seq_q: Any
    seq_k: Any
    packed_q: Any = None  # where packed captures of the queries begin; None: no captures are packed
    packed_k: Any = None  # likewise of the keys
    _values: dict[Any, Any] = field(default_factory=dict, repr=False)
    _kept: Mapping[Expr, Any] = field(default_factory=dict, repr=False)  # values of the code around
    _kept_of_rows: tuple[Mapping[Expr, Any], ...] = ()  # likewise, of each row of a fragment

    def fresh(self) -> Scope:
        """The same scope with nothing computed yet but what it keeps."""
        return replace(self, _values=dict(self._kept))

    def keeping(self, fragment: Fragment, *roots: Expr) -> Scope:
        """The same scope that keeps what `roots` read, as far as it is the same for all keys, in the code below.

        In a loop over tiles of keys it would be read in every turn, since compilers move no read over a barrier, and
        where its latency is not hidden: behind the wait for the tensor cores.
        """
        depends = dependences(roots, self._by_row, frozenset({BASE}))
        steady = [node for node in depends if node.op in ("read", "param") and depends[node] <= {ROW}][:MOST_KEPT]
        inside = self.fresh()
        rows = inside.rows(fragment)
        for row in rows:
            inside.evaluate(steady, row=row)
        kept = {node: inside._values[node] for node in steady if not depends[node]}
        of_rows = tuple({node: row.values[node] for node in steady if depends[node]} for row in rows)
        return replace(self, _kept=kept, _kept_of_rows=of_rows)

    def here(self) -> Scope:
        """As `fresh`, with indices and numbers that only the code below knows (`algebra.here`)."""
        params = tuple(here(value) if isinstance(value, Numeric) else value for value in self.arguments.params)
        arguments = replace(self.arguments, params=params, sizes=tuple(map(here, self.arguments.sizes)))
        indices = {name: here(getattr(self, name)) for name in ("b", "h", "kv_h", "seq_q", "seq_k")}
        return replace(self.fresh(), arguments=arguments, **indices)

    def uniform(self, *roots: Expr) -> list[Any]:
        """Values that depend on neither row nor column."""
        return self.evaluate(roots)

    def at_row(self, q_idx: Any, *roots: Expr) -> list[Any]:
        """Values at a row of the sequence."""
        return self.evaluate(roots, row=Place(q_idx))

    def row(self, q_idx: Any, head: Any = None) -> Place:
        """The row q_idx, or the last of the sequence if q_idx lies past it, of query head `head` (None: of `h`)."""
        return Place(smaller(q_idx, self.seq_q - Int32(1)), head)

    def rows(self, fragment: Fragment) -> list[Place]:
        """The rows of a fragment."""
        heads = fragment.heads or [None for _ in fragment.rows]
        rows = [self.row(q_idx, head) for q_idx, head in zip(fragment.rows, heads, strict=True)]
        for row, kept in zip(rows, self._kept_of_rows, strict=False):
            row.values.update(kept)
        return rows

    def column(self, base: Any, step: int, *, clamp: bool) -> Place:
        """The column base + step; with `clamp` the last of the sequence if it lies past it."""
        kv_idx = base + Int32(step)
        if clamp:
            return Place(smaller(kv_idx, larger(self.seq_k - Int32(1), Int32(0))))
        return Place(kv_idx, base=base, step=step)

    def column_pair(self, base: Any, step: int, *, clamp: bool) -> Place:
        """The columns base + step and base + step + 1, as `column` makes each."""
        low, high = (self.column(base, at, clamp=clamp) for at in (step, step + 1))
        return Place(Pair(low.index, high.index), base=low.base, step=Pair(low.step, high.step))

    def evaluate(
        self,
        roots: Iterable[Expr],
        row: Place | None = None,
        column: Place | None = None,
        score: Any = None,
        known: Mapping[Expr, Any] = MappingProxyType({}),
    ) -> list[Any]:
        """The values of `roots` at a row, a column and a score, as far as they depend on them.

        `known` holds values of nodes at this row and column. With a pair of columns `score` is a Pair, and so is what
        depends on either.
        """
        algebra = CuteAlgebra(self.plan.wide)
        wanted = list(roots)
        here: dict[Any, Any] = dict(known)
        whole = column is not None and column.base is None
        depends = dependences(wanted, self._by_row, frozenset({BASE}) if whole else NOTHING, known)

        def kept(node: Expr) -> dict[Any, Any]:
            on = depends[node]
            if not on:
                return self._values
            if on == {ROW}:
                assert row is not None
                return row.values
            if on == {COLUMN}:
                assert column is not None
                return column.values
            return here

        for node in depends:
            values = kept(node)
            if node in values:
                continue
            operands = tuple(kept(argument)[argument] for argument in node.args)
            if node.op == "const":
                values[node] = algebra.const(node)
            elif node.op in ("var", "size", "param", "read"):
                values[node] = self._leaf(node, operands, row, column, score)
            elif node.op == "add" and node.type is FLOAT and (product := _product(node, depends)) is not None:
                x, y = (kept(factor)[factor] for factor in product.args)
                rest = operands[0] if product is node.args[1] else operands[1]
                values[node] = each(algebra.fma, x, y, rest, packed="fma")
            elif node in self.plan.exact:
                values[node] = each(algebra.exact_div, *operands)
            elif node.op == "div" and not node.args[0].is_const and depends[node.args[1]] < depends[node]:
                inverse = _inverse(algebra, node.args[1], kept(node.args[1]))
                values[node] = each(algebra.mul, operands[0], inverse, packed="mul")
            else:
                values[node] = self._operator(algebra, node, operands)
        return [kept(root)[root] for root in wanted]

    def _operator(self, algebra: CuteAlgebra, node: Expr, operands: tuple[Any, ...]) -> Any:
        wide = self.plan.wide
        name = f"unsigned_{node.op}" if node in self.plan.unsigned else method_name(node.op)

        def value(*given: Any) -> Any:
            return narrowed(node, getattr(algebra, name)(*widened(node, given, wide)), wide)

        return each(value, *operands, packed=node.op if node.type is FLOAT else "")

    @property
    def _by_row(self) -> frozenset[str]:
        """The leaves that change with the query head, if rows of several heads share a tile."""
        if self.plan.pack == 1:
            return NOTHING
        return frozenset({"h"}) | {param.name for param in self.plan.params if param.per == "heads"}

    def _leaf(self, node: Expr, operands: tuple[Any, ...], row: Place | None, column: Place | None, score: Any) -> Any:
        name = str(node.attr)
        if node.op == "size":
            return self.arguments.size(name)
        if node.op == "param":
            return self._param(name, row)
        if node.op == "read":
            return each(lambda *indices: self._element(name, indices), *operands)
        if name in ("q_idx", "q_pos"):
            assert row is not None
            return row.index if name == "q_idx" else row.index + self.uniform(self.plan.shift)[0]
        if name == REFERENCE:
            assert row is not None
            return row.reference
        if name in ("kv_idx", BASE, STEP, DISTANCE):
            assert column is not None
            return column.part(name)
        return score if name == "score" else self._index(name, row)

    def _index(self, name: str, row: Place | None) -> Any:
        """The value of `b`, `h`, `kv_h`, `seq_q` or `seq_k`."""
        if name == "h" and self.plan.pack > 1:
            assert row is not None
            return row.head
        return getattr(self, name)

    def _param(self, name: str, row: Place | None) -> Any:
        place = next(i for i, param in enumerate(self.plan.params) if param.name == name)
        param, given = self.plan.params[place], self.arguments.params[place]
        if param.form == "number":
            return given
        index = Int32(0) if param.form == "scalar_tensor" else self._index(_PER[str(param.per)], row)
        return saturated(given[index], param.low, param.high)

    def _element(self, name: str, indices: tuple[Any, ...]) -> Any:
        tensor, capture = self.arguments.capture(name)
        places = list(indices)
        for axis, side in capture.packed:
            start = self.packed_q if side == "q" else self.packed_k
            # lengths are as the device finds them: not even wrong ones may lead out of the tensor
            places[axis] = smaller(start + places[axis], tensor.shape[axis] - Int32(1))
        value = tensor[tuple(places)]
        if capture.dtype == "bool":
            return value != type(value)(0)
        return Int32(value) if capture.dtype in ("i32", "i8", "u8") else value.to(Float32)


def _product(node: Expr, depends: dict[Expr, frozenset[str]]) -> Expr | None:
    """The operand of a float sum that is a product made at the same place, so that one instruction does both."""
    for argument in node.args:
        if argument.op == "mul" and depends[argument] == depends[node]:
            return argument
    return None


def _inverse(algebra: CuteAlgebra, divisor: Expr, values: dict[Any, Any]) -> Any:
    """1 / divisor, kept beside the divisor's value."""
    key = ("inverse", divisor)
    if key not in values:
        values[key] = each(algebra.inverse, values[divisor])
    return values[key]
