"""A forward plan in words: what `attn-dsl explain --target` prints of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from attn_dsl.expr import Expr
from attn_dsl.expr.text import to_text
from attn_dsl.lowering.forward.plan import WARPGROUP, ForwardPlan, ParamArgument, PiecePlan
from attn_dsl.lowering.forward.rules import MAX_SHARED, argument_bytes, check, consumer_registers

MAX_TEXT = 160  # characters of an expression

_KINDS = {
    "none": "every key inside the sequence is seen: only the last tile is cut",
    "ranges": "column ranges: partial tiles are masked by 32-bit keep words, a word per row and 32 columns of a thread",
    "elements": "more than column ranges: partial tiles evaluate it at every element",
}
_AT = {
    "fixed": "the same for all rows",
    "rising": "rises with the row: needed at a tile's first or last row",
    "falling": "falls with the row: needed at a tile's first or last row",
    "unknown": "of no known direction: needed at every row",
}


def explain(plan: ForwardPlan) -> str:
    """Every decision of `plan`, and the rules it breaks."""
    return "\n".join(_lines(plan))


def _lines(plan: ForwardPlan) -> Iterator[str]:
    padded = "" if plan.dim == plan.dim_padded and plan.dim_v == plan.dim_v_padded else ", padded with zeros"
    yield f"{plan.name} on {plan.target}: {plan.dtype}, dim {plan.dim}, dim_v {plan.dim_v}{padded}; o in {plan.o_dtype}"
    yield f"tiles: {plan.tile_q} rows x {plan.tile_k} keys, {plan.order.replace('_', ' ')}"
    yield (
        f"warps: 1 producer warpgroup with {plan.registers_producer} registers a thread, {plan.consumers} consumer "
        f"warpgroups with {plan.registers_consumer} (about {consumer_registers(plan)} needed); {plan.threads} threads"
    )
    rows = plan.tile_q // plan.consumers
    yield f"rings: {plan.stages} tiles of K and of V in flight; a warpgroup of {WARPGROUP} consumers has {rows} rows"
    regions = ", ".join(f"{name} {size:,}" for name, size in plan.shared_map)
    yield f"shared memory: {plan.shared_bytes:,} of {MAX_SHARED:,} bytes: {regions}"
    yield f"mask: {_KINDS[plan.mask.kind]}"
    yield "a tile of keys is visited where a row sees"
    yield from _pieces(plan.mask.seen)
    yield "and runs no mask code if it ends inside the sequence and no row does not see"
    yield from _pieces(plan.mask.hidden)
    if plan.fold_scale:
        yield f"score: the dot product; its scale, {_short(plan.scale)}, is part of the exponential"
    else:
        yield f"score: {_short(plan.score)}, at scale {_short(plan.scale)}"
        yield f"computed as, from the plain dot product, in base 2: {_short(plan.logit)}"
    if plan.sink is not None:
        yield f"sink: {_short(plan.sink)}, joins the denominator once"
    wide = ", ".join(sorted({_short(node) for node in plan.wide}))
    yield f"64-bit ints: {wide or 'none'}"
    captures = [f"{capture.name} ({capture.dtype}, rank {capture.rank})" for capture in plan.captures]
    params = [f"{param.name} ({_form(param)})" for param in plan.params]
    extents = [f"extent of {axis}" for axis in plan.sizes]
    yield f"arguments: {', '.join([*captures, *params, *extents]) or 'none'}; {argument_bytes(plan):,} bytes"
    yield "one kernel serves all lengths, batch sizes, heads, strides and values"
    for problem in check(plan):
        yield f"broken: {problem.code}: {problem.message}"


def _form(param: ParamArgument) -> str:
    return param.dtype if param.form == "number" else f"{param.dtype} tensor{f'[{param.per}]' if param.per else ''}"


def _pieces(pieces: tuple[PiecePlan, ...]) -> Iterator[str]:
    for piece in pieces:
        yield f"  {piece_text(piece)}"
        for bound in dict.fromkeys((*piece.low, *piece.high)):
            yield f"    {_short(bound.expr)}: {_AT[bound.direction]}"
    if not pieces:
        yield "  none"


def piece_text(piece: PiecePlan) -> str:
    """One piece, as `low <= kv_idx < high, for rows ..., if ...`."""
    text = _between([b.expr for b in piece.low], "kv_idx", [b.expr for b in piece.high])
    if piece.leftover:
        text += f", some of them by {' and '.join(map(_short, piece.leftover))}"
    if piece.row_low or piece.row_high:
        text += f", for rows {_between(list(piece.row_low), 'q_idx', list(piece.row_high))}"
    if piece.guard:
        text += f", if {' and '.join(map(_short, piece.guard))}"
    if piece.widths:
        text += f", none unless {' and '.join(f'{_short(width)} > 0' for width in piece.widths)}"
    return text


def _between(low: list[Expr], name: str, high: list[Expr]) -> str:
    def chosen(bounds: list[Expr], function: str) -> str:
        texts = [_short(bound) for bound in bounds]
        return texts[0] if len(texts) == 1 else f"{function}({', '.join(texts)})"

    start = f"{chosen(low, 'max')} <= " if low else ""
    stop = f" < {chosen(high, 'min')}" if high else ""
    return f"{start}{name}{stop}" if start or stop else f"every {name}"


def _short(node: Expr) -> str:
    text = to_text(node)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
