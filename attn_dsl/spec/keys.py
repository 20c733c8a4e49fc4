"""The three identities of a spec: what it computes, how it is called, and how it is to be compiled."""

from __future__ import annotations

import hashlib

from ..expr import Expr, ExprBuilder
from ..expr.node import children_first
from .model import AttentionSpec, Axis


def meaning_key(spec: AttentionSpec) -> str:
    """Equal for specs that compute the same function of their inputs, whatever their names.

    Captures and parameters are numbered by first use; functions, lets, comments and the order of definitions are
    gone by the time a spec is typed.
    """
    build = ExprBuilder()
    names: dict[tuple[str, str], str] = {}
    facts: list[str] = []

    def number(kind: str, name: str) -> str:
        if (kind, name) not in names:
            names[kind, name] = f"{kind}{len(names)}"
            if kind == "param":
                param = spec.param(name)
                facts.append(f"{names[kind, name]}:{param.type}|{param.per}|{param.low}|{param.high}")
            else:
                tensor = spec.tensor(name)
                axes = [_axis_meaning(axis) for axis in tensor.axes]
                facts.append(f"{names[kind, name]}:{tensor.dtype}{axes}")
        return names[kind, name]

    renamed: dict[Expr, Expr] = {}
    for node in children_first(spec.roots):
        args = tuple(renamed[argument] for argument in node.args)
        if node.op == "param":
            renamed[node] = build.param(number("param", str(node.attr)), node.type)
        elif node.op == "read":
            renamed[node] = build.read(number("tensor", str(node.attr)), args, node.type)
        elif node.op == "size":
            renamed[node] = build.size(_size_meaning(str(node.attr)))
        else:
            renamed[node] = Expr(node.op, args, node.attr, node.type)
    geometry = [
        [name is not None for name in (side.cu_seqlens, side.used, side.left_pad)]
        for side in (spec.lengths_q, spec.lengths_k)
    ]
    paging = None if spec.paging is None else spec.paging.table is not None
    operands = [(name, spec.tensor(name).dtype.spelling, sorted(map(str, spec.tensor(name).axes))) for name in "qkv"]
    views = [(view.name, spec.tensor(view.base).role.value, view.slices) for view in spec.views]
    return _digest(
        *(renamed[root].digest.hex() for root in spec.roots),
        spec.align.kind.value,
        spec.sink is None,
        geometry,
        paging,
        operands,
        views,
        spec.output.dtype.spelling,
        spec.lse_base,
        spec.fixed_axes,
        facts,
    )


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
    """Equal for specs that compile to the same kernels: meaning, interface, packing and schedule."""
    return _digest(meaning_key(spec), interface_key(spec), spec.pack_gqa, spec.schedule)


_STANDARD = ("batch", "seq_q", "seq_k", "total_q", "total_k", "heads", "kv_heads", "dim", "dim_v", "page_size", "pages")


def _size_meaning(axis: str) -> str:
    return axis if axis in _STANDARD else "axis"


def _axis_meaning(axis: Axis) -> str:
    if axis.name is not None:
        return axis.name if axis.name in _STANDARD else "axis"
    return str(axis)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
