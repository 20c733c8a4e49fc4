"""The three identities of a spec: what it computes, how it is called, and how it is to be compiled."""

from __future__ import annotations

import hashlib

from ..expr import Expr, ExprBuilder
from ..expr.node import children_first
from .model import AttentionSpec, Axis, Lengths, Paging
from .names import STANDARD_AXES


def meaning_key(spec: AttentionSpec) -> str:
    """Equal only for specs that compute the same function of their inputs, whatever these are called.

    Captures, parameters and axes of captures are numbered by first use; functions, lets, comments and the order of
    definitions are gone by the time a spec is typed. So `score * a[h] + c[h]` and `score * c[h] + a[h]` have one
    meaning: which of the two is given as `a` is in the plan key.
    """
    return _digest(_Meaning(spec).facts)


def interface_key(spec: AttentionSpec) -> str:
    """Equal for specs that are called alike: names, dtypes, axes and order of tensors, parameters and outputs."""
    tensors = [(t.name, t.dtype.spelling, [str(axis) for axis in t.axes], t.role.value) for t in spec.tensors]
    outputs = [
        None if out is None else (out.name, out.dtype.spelling, [str(axis) for axis in out.axes])
        for out in (spec.output, spec.lse)
    ]
    params = [(p.name, p.type.value, p.per, p.low, p.high, p.default) for p in spec.params]
    geometry = [spec.lengths_q, spec.lengths_k, spec.paging, spec.views]
    return _digest(tensors, outputs, params, geometry, spec.fixed_axes)


def plan_key(spec: AttentionSpec) -> str:
    """Equal for specs that compile to the same kernels: one function of inputs of the same names, packing, schedule."""
    meaning = _Meaning(spec)
    return _digest(meaning.facts, list(meaning.numbers), interface_key(spec), spec.pack_gqa, spec.schedule)


class _Meaning:
    """`facts`: everything that decides what a spec computes, with numbers for the names its author chose."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.numbers: dict[tuple[str, str], str] = {}  # (kind, name) -> number, by first use
        self.facts: list[object] = []
        self._spec = spec
        self._build = ExprBuilder()
        roots = self._renamed(spec.roots)
        self.facts += [
            [root.digest.hex() for root in roots],
            spec.align.kind.value,
            (spec.sink is None, spec.descale_v is None),
            [self._lengths(spec.lengths_q), self._lengths(spec.lengths_k), self._paging(spec.paging)],
            [(name, spec.tensor(name).dtype.spelling, sorted(map(str, spec.tensor(name).axes))) for name in "qkv"],
            [(view.name, self._tensor(view.base), view.slices) for view in spec.views],
            spec.output.dtype.spelling,
            spec.lse_base,
            [(name, extent) for name, extent in spec.fixed_axes if name in STANDARD_AXES],
        ]

    def _renamed(self, roots: tuple[Expr, ...]) -> list[Expr]:
        renamed: dict[Expr, Expr] = {}
        for node in children_first(roots):
            args = tuple(renamed[argument] for argument in node.args)
            if node.op == "param":
                renamed[node] = self._build.param(self._param(str(node.attr)), node.type)
            elif node.op == "read":
                renamed[node] = self._build.read(self._tensor(str(node.attr)), args, node.type)
            elif node.op == "size":
                renamed[node] = self._build.size(self._axis(str(node.attr)))
            else:
                renamed[node] = Expr(node.op, args, node.attr, node.type)
        return [renamed[root] for root in roots]

    def _number(self, kind: str, name: str) -> tuple[str, bool]:
        """The number of a name, and whether it is new."""
        new = (kind, name) not in self.numbers
        return self.numbers.setdefault((kind, name), f"{kind} {len(self.numbers)}"), new

    def _param(self, name: str) -> str:
        number, new = self._number("param", name)
        if new:
            param = self._spec.param(name)
            self.facts.append((number, param.type.value, param.per, param.low, param.high))
        return number

    def _tensor(self, name: str) -> str:
        if name in ("k", "v"):  # the base of a view
            return name
        number, new = self._number("tensor", name)
        if new:
            tensor = self._spec.tensor(name)
            self.facts.append((number, tensor.dtype.spelling, [self._extent(axis) for axis in tensor.axes]))
        return number

    def _axis(self, name: str) -> str:
        if name in STANDARD_AXES:
            return name
        number, new = self._number("axis", name)
        if new:
            self.facts.append((number, self._spec.fixed(name)))
        return number

    def _extent(self, axis: Axis) -> str:
        if axis.name is not None:
            return self._axis(axis.name)
        assert axis.extent is not None
        return self._renamed((axis.extent,))[0].digest.hex()

    def _lengths(self, lengths: Lengths) -> list[str | None]:
        return [self._geometry(name) for name in (lengths.cu_seqlens, lengths.used, lengths.left_pad)]

    def _paging(self, paging: Paging | None) -> list[str | None] | None:
        if paging is None:
            return None
        return [self._geometry(name) for name in (paging.table, paging.indptr, paging.indices)]

    def _geometry(self, name: str | None) -> str | None:
        return None if name is None else self._tensor(name)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
