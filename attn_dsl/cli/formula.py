"""The meaning of a spec as text: its typed expressions printed, shared parts under names of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..expr import Expr, ExprBuilder, children_first
from ..expr.node import LEAVES
from ..expr.text import to_text
from ..spec import AttentionSpec
from ..spec.model import AlignKind, Param

_WORTH_A_NAME = 3  # nodes below a shared part that make naming it shorter than repeating it


@dataclass(frozen=True)
class Formula:
    """The expressions of a spec as lines of the language, after every function and `let` has been expanded."""

    mask: str
    score: str
    scale: str
    sink: str | None
    q_pos: str
    where: tuple[tuple[str, str], ...]  # parts used more than once, each before its first use in a later one


def formula(spec: AttentionSpec) -> Formula:
    """The formula of `spec`."""
    roots = [spec.mask, spec.score, spec.scale, _position(spec)]
    roots += [] if spec.sink is None else [spec.sink]
    taken = {tensor.name for tensor in spec.tensors} | {param.name for param in spec.params}
    taken |= {axis.name for tensor in spec.tensors for axis in tensor.axes if axis.name is not None}
    texts, where = _texts(roots, taken)
    mask, score, scale, q_pos, *sink = texts
    return Formula(mask, score, scale, sink[0] if sink else None, q_pos, where)


def _position(spec: AttentionSpec) -> Expr:
    """What `q_pos` stands for."""
    build = ExprBuilder()
    row = build.var("q_idx")
    if spec.align.kind is AlignKind.BOTTOM_RIGHT:
        return build.op("sub", build.op("add", row, build.var("seq_k")), build.var("seq_q"))
    return row if spec.align.offset is None else build.op("add", row, spec.align.offset)


def _texts(roots: list[Expr], taken: set[str]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """The roots as text, and the definitions of the names that stand for their shared parts."""
    nodes = list(children_first(roots))
    uses = Counter(argument for node in nodes for argument in node.args)
    size: dict[Expr, int] = {}
    names = (name for number in range(1, len(nodes) + 1) if (name := f"t{number}") not in taken)
    replaced: dict[Expr, Expr] = {}
    where: list[tuple[str, str]] = []
    for node in nodes:
        size[node] = 1 + sum(size[argument] for argument in node.args)
        args = tuple(replaced[argument] for argument in node.args)
        replaced[node] = node if args == node.args else Expr(node.op, args, node.attr, node.type)
        if uses[node] > 1 and size[node] > _WORTH_A_NAME and node.op not in LEAVES:
            name = next(names)
            where.append((name, to_text(replaced[node])))
            replaced[node] = Expr("var", (), name, node.type)
            size[node] = 1
    return [to_text(replaced[root]) for root in roots], tuple(where)


def param_range(param: Param) -> str:
    """A parameter's range as the language writes it, empty if it has none."""
    if param.low is None and param.high is None:
        return ""
    low = "" if param.low is None else str(param.low)
    return f"{low}.." if param.high is None else f"{low}..={param.high}"
