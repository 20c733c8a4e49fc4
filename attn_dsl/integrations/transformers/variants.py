"""A spec as a layer needs it: with the dtypes of the model's tensors, and with padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...diagnostics import ConversionError
from ...expr import Expr, ExprBuilder, children_first
from ...spec.model import AlignKind, AttentionSpec, Axis, DType, Role, Tensor

PADDING = "attention_mask"  # the capture that holds the real slots of each sequence, bool[batch, seq_k]
POSITIONS = ("q_pos", "q_idx", "kv_idx", "seq_q", "seq_k")


def check_dense(spec: AttentionSpec) -> None:
    """Refuses what is not a matter of a layer: storage and positions of their own (E410)."""
    lengths = any((*vars(side).values(),) != (None,) * 3 for side in (spec.lengths_q, spec.lengths_k))
    reasons = {
        "lengths": lengths,
        "paging": spec.paging is not None,
        "views": bool(spec.views),
        "'align offset'": spec.align.kind is AlignKind.OFFSET,
    }
    for what, found in reasons.items():
        if found:
            message = f"spec '{spec.name}' has {what}, and transformers hands dense tensors over"
            hint = f"leave it out: padding and caches are the model's ({PADDING} is added to the mask where needed)"
            raise ConversionError.of("E410", message, hint=hint)


def with_dtypes(spec: AttentionSpec, dtypes: Mapping[str, DType]) -> AttentionSpec:
    """`spec` with other element types of some tensors; o has that of q."""
    tensors = tuple(replace(tensor, dtype=dtypes.get(tensor.name, tensor.dtype)) for tensor in spec.tensors)
    output = replace(spec.output, dtype=dtypes.get("q", spec.output.dtype))
    return replace(spec, tensors=tensors, output=output, origin=None)


def with_padding(spec: AttentionSpec) -> AttentionSpec:
    """`spec` whose mask also holds `attention_mask[b, kv_idx]`."""
    build = ExprBuilder()
    real = build.read(PADDING, (build.var("b"), build.var("kv_idx")), DType.BOOL.value_type)
    capture = Tensor(PADDING, DType.BOOL, (Axis("batch"), Axis("seq_k")), Role.CAPTURE)
    return replace(spec, tensors=(*spec.tensors, capture), mask=build.op("and", spec.mask, real), origin=None)


def variables(*roots: Expr) -> set[str]:
    """The index names that expressions use."""
    return {str(node.attr) for node in children_first(roots) if node.op == "var"}


def sees_only_distances(root: Expr) -> bool:
    """Whether positions stand in an expression only as differences of a query's and a key's."""
    build = ExprBuilder()
    replaced: dict[Expr, Expr] = {}
    for node in children_first([root]):
        pair = {argument.attr for argument in node.args if argument.op == "var"}
        if node.op == "sub" and pair in ({"q_pos", "kv_idx"}, {"q_idx", "kv_idx"}):
            replaced[node] = build.param("distance", node.type)
            continue
        replaced[node] = Expr(node.op, tuple(replaced[each] for each in node.args), node.attr, node.type)
    return not variables(replaced[root]) & set(POSITIONS)
