"""What a node depends on, and rewriting nodes: the tools with which a mask is taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attn_dsl.expr import Expr, ExprBuilder, children_first
from attn_dsl.expr.node import LEAVES
from attn_dsl.spec.model import AlignKind, AttentionSpec

# What a value can change with. "length" is a sequence's own seq_q and seq_k, which batch entries may share.
ROW, COLUMN, BATCH, HEAD, KV_HEAD, LENGTH = "row", "column", "batch", "head", "kv_head", "length"
_VARIABLES = {
    "q_idx": frozenset({ROW}),
    "kv_idx": frozenset({COLUMN}),
    "b": frozenset({BATCH}),
    "h": frozenset({HEAD, KV_HEAD}),
    "kv_h": frozenset({KV_HEAD}),
    "seq_q": frozenset({LENGTH}),
    "seq_k": frozenset({LENGTH}),
}
_PER = {"heads": frozenset({HEAD, KV_HEAD}), "kv_heads": frozenset({KV_HEAD}), "batch": frozenset({BATCH})}
NOTHING: frozenset[str] = frozenset()


class Dependence:
    """The dependences of every node of one spec."""

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._known: dict[Expr, frozenset[str]] = {}

    def of(self, root: Expr) -> frozenset[str]:
        if root not in self._known:
            for node in children_first([root]):
                if node not in self._known:
                    own = self._leaf(node) if node.op in LEAVES else NOTHING
                    self._known[node] = own.union(*(self._known[argument] for argument in node.args))
        return self._known[root]

    def on(self, node: Expr, *names: str) -> bool:
        """Whether `node` changes with any of `names`."""
        return not self.of(node).isdisjoint(names)

    def _leaf(self, node: Expr) -> frozenset[str]:
        name = str(node.attr)
        if node.op == "var":
            if name != "q_pos":
                return _VARIABLES.get(name, NOTHING)
            align = self._spec.align
            shift = self.of(align.offset) if align.offset is not None else NOTHING
            return frozenset({ROW}) | shift | ({LENGTH} if align.kind is AlignKind.BOTTOM_RIGHT else NOTHING)
        if node.op == "param":
            return _PER.get(self._spec.param(name).per or "", NOTHING)
        if node.op == "read":
            packed = any(axis.name in ("total_q", "total_k") for axis in self._spec.tensor(name).axes)
            return frozenset({BATCH}) if packed else NOTHING
        return NOTHING


def substitute(build: ExprBuilder, root: Expr, replaced: Mapping[Expr, Expr]) -> Expr:
    """`root` with every node of `replaced` exchanged; outer nodes win over the nodes below them."""
    return rewrite(build, [root], replaced)[0]


def rewrite(build: ExprBuilder, roots: Iterable[Expr], replaced: Mapping[Expr, Expr]) -> list[Expr]:
    new: dict[Expr, Expr] = dict(replaced)
    wanted = list(roots)
    for node in children_first(wanted):
        if node not in new:
            operands = tuple(new[argument] for argument in node.args)
            if operands == node.args:
                new[node] = node
            elif node.op == "read":
                new[node] = build.read(str(node.attr), operands, node.type)
            else:
                new[node] = build.op(node.op, *operands)
    return [new[root] for root in wanted]


def position_shift(spec: AttentionSpec, build: ExprBuilder) -> Expr:
    """q_pos - q_idx, an expression free of row and column."""
    if spec.align.kind is AlignKind.TOP_LEFT:
        return build.const(0)
    if spec.align.kind is AlignKind.OFFSET:
        assert spec.align.offset is not None
        return spec.align.offset
    return build.op("sub", build.var("seq_k"), build.var("seq_q"))
