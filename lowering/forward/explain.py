"""A forward plan in words: what `attn-dsl explain --target` prints of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.expr import Expr
from attn_dsl.lowering.forward import sm100
from attn_dsl.lowering.forward.paging import box_rows
from attn_dsl.lowering.forward.plan import WARPGROUP, ForwardPlan, ParamArgument, PiecePlan
from attn_dsl.lowering.forward.rules import MAX_REGISTERS, MAX_SHARED, argument_bytes, check, consumer_registers
from attn_dsl.lowering.forward.sm100_mla_plan import HALVES, PART, MlaPlan
from attn_dsl.lowering.forward.sm100_mla_plan import ROWS as MLA_ROWS
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, NARROW_TILES, PAIRS, ROWS, Sm100Plan
from attn_dsl.lowering.tiles import report

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
    """Every decision of `plan`, or the rules it breaks."""
    return "\n".join(_lines(plan))


def _lines(plan: ForwardPlan) -> Iterator[str]:
    padded = "" if plan.dim == plan.dim_padded and plan.dim_v == plan.dim_v_padded else ", padded with zeros"
    yield f"{plan.name} on {plan.target}: {plan.dtype}, dim {plan.dim}, dim_v {plan.dim_v}{padded}; o in {plan.o_dtype}"
    if broken := _broken(plan):
        yield from (f"broken: {problem.code}: {problem.message}" for problem in broken)
        return
    yield f"tiles: {plan.tile_q} rows x {plan.tile_k} keys, {plan.order.replace('_', ' ')}{_packed(plan)}"
    yield from _sm100(plan) if isinstance(plan, Sm100Plan) else _sm90(plan)
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
    if plan.descale_v is not None:
        yield f"factor of v: {_short(plan.descale_v)}, multiplies the output once"
    wide = ", ".join(sorted({_short(node) for node in plan.wide}))
    yield f"64-bit ints: {wide or 'none'}"
    captures = [f"{capture.name} ({capture.dtype}, rank {capture.rank})" for capture in plan.captures]
    params = [f"{param.name} ({form_of(param)})" for param in plan.params]
    extents = [f"extent of {axis}" for axis in plan.sizes]
    geometry = [f"{name} (i32)" for name in plan.geometry]
    given = ", ".join([*captures, *params, *extents, *geometry])
    yield f"arguments: {given or 'none'}; {argument_bytes(plan):,} bytes"
    yield "one kernel serves all lengths, batch sizes, heads, strides and values"


def _packed(plan: ForwardPlan) -> str:
    return "" if plan.pack == 1 else f"; the rows of {plan.pack} query heads of a K/V head share a tile"


def _broken(plan: ForwardPlan) -> tuple[Diagnostic, ...]:
    return sm100.broken(plan) if isinstance(plan, Sm100Plan) else check(plan)


def _sm90(plan: ForwardPlan) -> Iterator[str]:
    needed = consumer_registers(plan.tile_k, plan.dim_v_padded)
    yield (
        f"warps: 1 producer warpgroup with {plan.registers_producer} registers a thread, {plan.consumers} consumer "
        f"warpgroups with {plan.registers_consumer} (about {needed} needed); {plan.threads} threads"
    )
    rows = plan.tile_q // plan.consumers
    yield f"rings: {plan.stages} tiles of K and of V in flight; a warpgroup of {WARPGROUP} consumers has {rows} rows"
    yield from _pages(plan, "the whole producer warpgroup")
    if plan.widens:
        ahead = plan.narrow_stages
        yield f"k and v are {plan.kv_dtype}: the producers copy {ahead} tiles of bytes ahead and widen them"


def _pages(plan: ForwardPlan, who: str) -> Iterator[str]:
    if plan.page_size:
        box = box_rows(plan.tile_k, plan.page_size)
        yield f"pages: of {plan.page_size} rows, in boxes of {box} by TMA; the tile in which a sequence ends row by row"
    elif plan.paging is not None:
        yield f"pages: of any size, row by row by {who}, 16 bytes a lane"


def _sm100(plan: Sm100Plan) -> Iterator[str]:
    yield from _mla_tiles(plan) if isinstance(plan, MlaPlan) else _sm100_tiles(plan)
    yield f"warps, {plan.threads} threads:"
    for role in plan.roles:
        last = role.first + role.warps - 1
        where = f"warp {role.first}" if role.warps == 1 else f"warps {role.first} to {last}"
        yield f"  {where}: {role.name}, {role.registers} registers a thread"
    total = sum(role.threads * role.registers for role in plan.roles)
    yield f"registers: {total:,} of {MAX_REGISTERS:,}"
    yield from _mla_ring(plan) if isinstance(plan, MlaPlan) else _sm100_ring(plan)
    used = max(first + count for _, first, count in plan.tmem_map)
    columns = ", ".join(f"{name} {first} to {first + count - 1}" for name, first, count in plan.tmem_map)
    yield f"tensor memory: {used} of {COLUMNS} columns: {columns}"
    yield f"barriers, {plan.barriers} mbarriers:"
    for edge in plan.edges:
        who = " and ".join(f"{count} of {role}" for role, count in plan.arrivals(edge).items())
        arrivals = "1 arrival" if edge.count == 1 else f"{edge.count} arrivals"
        yield f"  {edge.name} x {edge.slots}, {arrivals} ({who}) to {' and '.join(edge.consumers)}: {edge.says}"
    if plan.threshold:
        yield f"the output is rescaled once scores rise {plan.threshold:g} in base 2 above a row's reference"
    else:
        yield "the output is rescaled whenever a row's largest score rises"
    yield f"exponentials: {plan.exp2_on_fma} pairs of {PAIRS} by a polynomial on FMA units, the others by ex2"
    if not plan.fold_scale:
        yield f"scores are computed {plan.score_columns} columns at a time"


def _sm100_tiles(plan: Sm100Plan) -> Iterator[str]:
    one = plan.query_tiles == 1
    uses = "which has both slots of scores in turn" if one else "each with its slot of scores, which take turns"
    by = "by TMA" if plan.by_tma else "row by row: a tile ends between two heads"
    yield f"query tiles: {plan.query_tiles} of {ROWS} rows, {uses}; rows of Q and O go {by}"


def _sm100_ring(plan: Sm100Plan) -> Iterator[str]:
    widths = " and ".join(f"{part} elements of {name}" for name, part in (("K", plan.k_part), ("V", plan.v_part)))
    ahead = "; keys run one tile ahead of values" if plan.keys_ahead else ""
    yield f"ring: {plan.stages} parts in flight, rows of {widths} each{ahead}"
    yield from _pages(plan, f"{plan.load_warps} warps")
    if plan.widens:
        who = f"{plan.load_warps} warps copy {NARROW_TILES} tiles of bytes ahead and widen them"
        yield f"k and v are {plan.kv_dtype}: {who}"


def _mla_tiles(plan: MlaPlan) -> Iterator[str]:
    yield (
        f"v is the first {plan.dim_v} elements of rows of k: a tile of keys is loaded once and read by both products, "
        f"and {HALVES} halves of o share columns of tensor memory, in lanes of their own"
    )
    if plan.cluster > 1:
        yield (
            f"cluster: {plan.cluster} thread blocks of {MLA_ROWS} rows, heads of the same queries; each loads its part "
            "of every tile of keys for all"
        )


def _mla_ring(plan: MlaPlan) -> Iterator[str]:
    groups = ", ".join(f"{group.name} of {group.parts * PART}" for group in plan.groups)
    yield f"ring: {plan.stages} tiles of keys in flight; elements of a row in groups with own barriers: {groups}"


def form_of(param: ParamArgument) -> str:
    """In which form a parameter comes."""
    return param.dtype if param.form == "number" else f"{param.dtype} tensor{f'[{param.per}]' if param.per else ''}"


def _pieces(pieces: tuple[PiecePlan, ...]) -> Iterator[str]:
    for piece in pieces:
        widths = " and ".join(f"{_short(width)} > 0" for width in piece.widths)
        yield f"  {report.piece_text(piece, MAX_TEXT)}{f', none unless {widths}' if widths else ''}"
        for bound in dict.fromkeys((*piece.low, *piece.high)):
            yield f"    {_short(bound.expr)}: {_AT[bound.direction]}"
    if not pieces:
        yield "  none"


def _short(node: Expr) -> str:
    return report.short(node, MAX_TEXT)
