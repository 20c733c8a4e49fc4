"""The meaning of a spec as text: its typed expressions printed, shared parts under names of their own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ..expr import Expr, ExprBuilder
from ..expr.text import shared_texts
from ..spec import AttentionSpec
from ..spec.model import AlignKind, Param


@dataclass(frozen=True)
class Formula:
    """The expressions of a spec as lines of the language, after every function and `let` has been expanded."""

    mask: str
    score: str
    scale: str
    sink: str | None
    descale_v: str | None
    q_pos: str
    where: tuple[tuple[str, str], ...]  # parts used more than once, each before its first use in a later one


def formula(spec: AttentionSpec) -> Formula:
    """The formula of `spec`."""
    roots = [spec.mask, spec.score, spec.scale, _position(spec)]
    optional = [spec.sink, spec.descale_v]
    roots += [root for root in optional if root is not None]
    taken = {tensor.name for tensor in spec.tensors} | {param.name for param in spec.params}
    taken |= {axis.name for tensor in spec.tensors for axis in tensor.axes if axis.name is not None}
    names = (name for number in itertools.count(1) if (name := f"t{number}") not in taken)
    texts, where = shared_texts(roots, names)
    mask, score, scale, q_pos, *others = texts
    left = iter(others)
    sink, descale_v = (None if root is None else next(left) for root in optional)
    return Formula(mask, score, scale, sink, descale_v, q_pos, where)


def _position(spec: AttentionSpec) -> Expr:
    """What `q_pos` stands for."""
    build = ExprBuilder()
    row = build.var("q_idx")
    if spec.align.kind is AlignKind.BOTTOM_RIGHT:
        return build.op("sub", build.op("add", row, build.var("seq_k")), build.var("seq_q"))
    return row if spec.align.offset is None else build.op("add", row, spec.align.offset)


def param_range(param: Param) -> str:
    """A parameter's range as the language writes it, empty if it has none."""
    if param.low is None and param.high is None:
        return ""
    low = "" if param.low is None else str(param.low)
    return f"{low}.." if param.high is None else f"{low}..={param.high}"
