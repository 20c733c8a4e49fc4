"""Selection of a forward plan for Hopper (SM90), and what a spec may not ask of that target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from attn_dsl.diagnostics import Diagnostic, PlanError, UnsupportedError
from attn_dsl.expr import Expr, ExprBuilder, children_first
from attn_dsl.expr.interval import FloatInterval, Interval, IntInterval, static_intervals
from attn_dsl.expr.operators import I32_MAX, I32_MIN
from attn_dsl.lowering.forward.distances import DISTANCE, distance_terms
from attn_dsl.lowering.forward.logits import BASE, STEP, exact_divisions, logit
from attn_dsl.lowering.forward.masks import mask_plan
from attn_dsl.lowering.forward.paging import makes_boxes
from attn_dsl.lowering.forward.plan import (
    CaptureArgument,
    ForwardPlan,
    MaskPlan,
    PiecePlan,
    ShapeClass,
    piece_expressions,
)
from attn_dsl.lowering.forward.rules import (
    COPY_BYTES,
    DIM_STEP,
    MAX_DIM,
    MAX_KEYS,
    ROWS,
    check,
    consumer_registers,
    dim_step,
    nearest_dim,
)
from attn_dsl.lowering.tiles import analyze
from attn_dsl.lowering.tiles.dependence import HEAD, Dependence, rewrite
from attn_dsl.spec.model import MAX_SEQUENCE, AttentionSpec, DType, Role, Tensor, View
from attn_dsl.spec.proofs import Ranges

TARGET = "sm90"
OPERANDS = (DType.F16, DType.BF16)
NARROW = (DType.E4M3, DType.E5M2)  # of k and v beside q of 16 bits
CAPTURES = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U8, DType.BOOL)
WITH_PAGING = (TARGET, "sm100")  # targets whose templates know pages
WIDENING = (TARGET, "sm100")  # targets whose templates widen keys and values of 8 bits
WAY_OUT = "target='reference' runs every spec"


@dataclass(frozen=True)
class TileShape:
    """One row of the tile table."""

    max_dim: int  # elements of q and k, padded
    max_dim_v: int  # elements of v, padded
    tile_q: int  # rows
    tile_k: int  # keys
    stages: int
    registers_producer: int  # per thread
    registers_consumer: int  # per thread
    kinds: tuple[str, ...]  # of kernels that have it, of `KINDS`


# What a kernel does for each element of a tile, and so how many registers it needs besides its accumulators.
KINDS = (
    "plain",  # nothing: scores are dot products, masks are ranges
    "window",  # likewise, and every row sees a number of keys that is one for all rows
    "short window",  # likewise, and the mask says that there are up to `SHORT`
    "computed",  # scores are computed from what a thread holds
    "read",  # scores read tensors key by key, or masks are evaluated, or producers find addresses, or keys are split
    "both",  # scores are computed and masks evaluated
)
SHORT = 512  # keys
# Three warpgroups fill the tensor cores best: while one multiplies, the softmax of two others hides one another's
# latencies. Their registers leave scores of 80 keys at most beside an output of 128 columns. Of narrow heads three
# blocks of one warpgroup share a multiprocessor, of short windows, which visit few tiles, two: one starts or ends while
# another multiplies. Where two warpgroups remain, keys of 256 columns leave shared memory for two tiles of 64.
TABLE = (
    TileShape(64, 64, 64, 96, 2, 24, 136, ("plain", "window", "short window")),
    TileShape(128, 128, 64, 80, 2, 24, 232, ("short window",)),
    TileShape(128, 128, 192, 64, 2, 32, 160, ("plain",)),
    TileShape(128, 128, 192, 80, 2, 32, 160, ("window", "computed")),
    TileShape(192, 128, 128, 64, 2, 24, 240, ("both",)),
    TileShape(192, 128, 128, 128, 2, 24, 240, KINDS),
    TileShape(256, 256, 128, 64, 2, 24, 240, KINDS),
)
# Producers that widen keys and values need registers and shared memory of their own. Two blocks of one warpgroup share
# a multiprocessor: few queries of a K/V head fill no more rows, and there are twice as many threads that widen.
WIDENING_TABLE = (
    TileShape(64, 64, 64, 96, 2, 104, 152, KINDS),
    TileShape(128, 128, 64, 48, 2, 104, 152, KINDS),
    TileShape(256, 256, 64, 64, 2, 96, 240, KINDS),
)
REGISTERS = {1: (24, 232), 2: (24, 240), 3: (32, 160)}  # consumers -> per producer and consumer thread
PAGED_REGISTERS = {1: (96, 240), 2: (40, 232), 3: (56, 152)}  # likewise where producers work out addresses
WIDENING_REGISTERS = {1: (96, 240), 2: (80, 208), 3: (56, 152)}
HONOURED = ("tile_q", "tile_k", "stages", "order", "splits")
ORDERS = {"auto": None, "linear": "in_order", "longest_first": "longest_first"}


def refusals(spec: AttentionSpec) -> tuple[Diagnostic, ...]:
    """What `spec` asks for that this target cannot do and that is no row of the table of capabilities (E281)."""
    return (*operand_refusals(spec, TARGET), *dim_refusals(spec, TARGET), *_schedule_refusals(spec))


def refusal(target: str, message: str, hint: str = WAY_OUT) -> Diagnostic:
    """E281: `target` cannot do what `message` says."""
    return Diagnostic("E281", f"target '{target}': {message}", hint=hint)


def operand_refusals(spec: AttentionSpec, target: str) -> Iterator[Diagnostic]:
    """What is wrong with the tensors of `spec` on a target of 16-bit operands."""

    def refuse(message: str, hint: str = WAY_OUT) -> Diagnostic:
        return refusal(target, message, hint)

    if spec.paging is not None and target not in WITH_PAGING:
        yield refuse("k and v lie in pages")
    q, k, v = dtypes = [spec.tensor(name).dtype for name in ("q", "k", "v")]
    for name, dtype in zip(("q", "k", "v"), dtypes, strict=True):
        fitting = (*OPERANDS, *NARROW) if name != "q" and target in WIDENING else OPERANDS
        if dtype not in fitting:
            yield refuse(f"'{name}' is {dtype}; it is one of {', '.join(map(str, fitting))}")
    if k is not v or (k is not q and k not in NARROW):
        alike = "k and v have one dtype, that of q or one of 8 bits" if target in WIDENING else "they have one dtype"
        yield refuse(f"q, k and v are {', '.join(map(str, dtypes))}; {alike}", "declare them alike")
    if spec.output.dtype not in OPERANDS:
        yield refuse(f"'o' is {spec.output.dtype}; o is f16 or bf16", "leave o undeclared: it gets the dtype of q")
    for tensor in spec.tensors:
        if tensor.role is Role.CAPTURE and tensor.dtype not in CAPTURES:
            known = ", ".join(map(str, CAPTURES))
            yield refuse(f"'{tensor.name}' is {tensor.dtype}; a captured tensor is one of {known}")
    for view in spec.views:
        yield from _unaligned(view, target)


def _unaligned(view: View, target: str) -> Iterator[Diagnostic]:
    """Rows of K and V are copied from addresses that are multiples of 16 bytes, and tensors of a call start at one."""
    size = view.tensor.dtype.bytes
    step = COPY_BYTES // size
    for part in view.slices:
        if part.kind == "range" and part.start % step:
            into = f"starts {part.start * size} bytes into a row of {view.base}, at element {part.start}"
            rule = f"rows of k and v start at a multiple of {COPY_BYTES} bytes"
            nearest = round(part.start / step) * step
            yield refusal(target, f"view {view.name} {into}; {rule}", f"the nearest is element {nearest}")


def dim_refusals(spec: AttentionSpec, target: str) -> Iterator[Diagnostic]:
    """Which head dimensions `target` does not have."""
    step = dim_step(spec)
    of = " of k and v of 8 bits" if step != DIM_STEP else ""
    for axis in ("dim", "dim_v"):
        extent = spec.fixed(axis)
        if extent is not None and (extent % step or extent > MAX_DIM[target]):
            message = f"{axis} is {extent}; head dimensions{of} are multiples of {step}, at most {MAX_DIM[target]}"
            yield refusal(target, message, f"the nearest is {nearest_dim(extent, target, step)}")


def _schedule_refusals(spec: AttentionSpec) -> Iterator[Diagnostic]:
    def refuse(message: str, hint: str) -> Diagnostic:
        return refusal(TARGET, message, hint)

    if spec.pack_gqa == "on" and differs_by_head(spec):
        message = "'pack gqa on' puts query heads into one tile, and the mask differs from head to head"
        yield refuse(message, "'pack gqa auto' leaves the choice to the compiler")
    for key, value in spec.schedule:
        if key not in HONOURED:
            yield refuse(f"a schedule cannot set {key}", f"it can set {', '.join(HONOURED)}")
        elif key == "order" and value not in ORDERS:
            yield refuse(f"there is no order '{value}'", f"orders: {', '.join(ORDERS)}")
        elif key == "tile_q" and (int(value) % ROWS or int(value) // ROWS not in REGISTERS):
            nearest = min((ROWS * n for n in REGISTERS), key=lambda rows: abs(rows - int(value)))
            yield refuse(f"tile_q is {value}; tiles have 64, 128 or 192 rows", f"the nearest is {nearest}")


def select(spec: AttentionSpec, shape: ShapeClass) -> ForwardPlan:
    """The plan for `spec` with the head dimensions and parameter forms of `shape`.

    Raises:
        UnsupportedError: the spec asks for what the target cannot do (E281).
        PlanError: the plan breaks its rules (E290 to E297).
    """
    refused = refusals(spec)
    if refused:
        raise UnsupportedError(refused)
    plan = plan_of(spec, shape)
    problems = check(plan)
    if problems:
        raise PlanError(problems)
    return plan


class _Expressions:
    """The spec's expressions with compile-time extents put in, and the range of every leaf."""

    def __init__(self, spec: AttentionSpec, shape: ShapeClass, build: ExprBuilder) -> None:
        extents = {**dict(spec.fixed_axes), "dim": shape.dim, "dim_v": shape.dim_v}
        dtypes = {tensor.name: tensor.dtype for tensor in spec.tensors}
        self._build = build
        self._extents = {build.size(axis): build.const(extent) for axis, extent in extents.items()}
        self._ranges = Ranges(extents, spec.params, dtypes, spec.align.kind)

    def ranges(self, leaf: Expr) -> Interval:
        """The range of a leaf; the parts of kv_idx may pass the last key by a tile."""
        if leaf.op == "var" and leaf.attr == DISTANCE:
            return IntInterval(1 - MAX_SEQUENCE, MAX_SEQUENCE - 1)
        if leaf.op == "var" and leaf.attr in (BASE, STEP):
            return IntInterval(0, MAX_SEQUENCE + MAX_KEYS if leaf.attr == BASE else MAX_KEYS)
        return self._ranges.leaf(leaf)

    def __call__(self, root: Expr) -> Expr:
        return rewrite(self._build, [root], self._extents)[0]


def plan_of(spec: AttentionSpec, shape: ShapeClass) -> ForwardPlan:
    """The plan before its rules are checked. Other targets take from it what does not depend on the target."""
    analysis = analyze(spec)
    known = _Expressions(spec, shape, analysis.build)
    mask = mask_plan(analysis, known(spec.mask), known)
    score, scale, shift = (known(root) for root in (spec.score, spec.scale, analysis.shift))
    sink, descale_v = (None if root is None else known(root) for root in (spec.sink, spec.descale_v))
    base_2 = logit(analysis.build, score, scale)
    distances = distance_terms(analysis.build, base_2, shift) if shape.pack == 1 else ()
    over_distance = [term.of_distance for term in distances]
    roots = [
        mask.mask,
        base_2,
        *over_distance,
        scale,
        shift,
        *(root for root in (sink, descale_v) if root is not None),
        *piece_expressions(mask),
    ]
    nodes = list(children_first(roots))
    names = {kind: {str(node.attr) for node in nodes if node.op == kind} for kind in ("read", "param", "size")}
    ranges = static_intervals(roots, known.ranges)
    padded = [-(-extent // 16) * 16 for extent in (shape.dim, shape.dim_v)]
    fold_scale = score.op == "var" and _is_positive(scale, known)
    tiles = _tiles(spec, padded, _kind(spec, shape, mask, None if fold_scale else base_2))
    return ForwardPlan(
        target=TARGET,
        name=spec.name,
        dtype=str(spec.tensor("q").dtype),
        kv_dtype=str(spec.tensor("k").dtype),
        o_dtype=str(spec.output.dtype),
        dim=shape.dim,
        dim_v=shape.dim_v,
        dim_padded=padded[0],
        dim_v_padded=padded[1],
        tile_q=tiles.tile_q,
        tile_k=tiles.tile_k,
        pack=shape.pack,
        stages=tiles.stages,
        consumers=tiles.tile_q // ROWS,
        registers_producer=tiles.registers_producer,
        registers_consumer=tiles.registers_consumer,
        order=_order(spec, mask),
        fold_scale=fold_scale,
        mask=mask,
        score=score,
        logit=base_2,
        distances=distances,
        scale=scale,
        sink=sink,
        descale_v=descale_v,
        shift=shift,
        lse_base=spec.lse_base,
        q_axes=_axes(spec, "q"),
        k_axes=_axes(spec, "k"),
        v_axes=_axes(spec, "v"),
        o_axes=tuple(str(axis) for axis in spec.output.axes),
        lse_axes=_lse_axes(spec),
        captures=tuple(
            CaptureArgument(tensor.name, str(tensor.dtype), len(tensor.axes), _packed(tensor))
            for tensor in spec.tensors
            if tensor.name in names["read"]
        ),
        params=tuple(param for param in shape.params if param.name in names["param"]),
        sizes=tuple(sorted(names["size"])),
        lengths_q=spec.lengths_q,
        lengths_k=spec.lengths_k,
        paging=spec.paging,
        page_size=shape.page_size,
        partial=shape.partial,
        wide=frozenset(
            node
            for node, interval in ranges.items()
            if isinstance(interval, IntInterval) and not (interval.lo >= I32_MIN and interval.hi <= I32_MAX)
        ),
        unsigned=frozenset(
            node
            for node in nodes
            if node.op in ("floordiv", "mod") and all(_is_natural(ranges[operand]) for operand in node.args)
        ),
        exact=exact_divisions(nodes),
    )


@lru_cache(maxsize=1024)
def page_size_of(spec: AttentionSpec, shape: ShapeClass, page_size: int) -> int:
    """`page_size` if TMA can copy full tiles out of pages of it, else 0.

    What is widened is copied row by row. Slots count from the first page on, so rows to skip in front move tiles away
    from the edges of pages.
    """
    if spec.lengths_k.left_pad is not None or spec.tensor("k").dtype in NARROW:
        return 0
    return page_size if makes_boxes(plan_of(spec, shape).tile_k, page_size) else 0


def pack_of(spec: AttentionSpec, group: int) -> int:
    """How many of the `group` query heads of a K/V head share a tile: all, or one.

    Tiles of keys are then visited once for all of them. A mask that differs from head to head keeps them apart.
    """
    return group if spec.pack_gqa != "off" and not differs_by_head(spec) else 1


def differs_by_head(spec: AttentionSpec) -> bool:
    """Whether the mask differs from head to head, so that heads do not visit the same tiles of keys."""
    return Dependence(spec).on(spec.mask, HEAD)


def _kind(spec: AttentionSpec, shape: ShapeClass, mask: MaskPlan, logit: Expr | None) -> str:
    """The row of `KINDS` of a kernel; `logit` is None if scores are dot products times the scale."""
    evaluated, computed = mask.kind == "elements", logit is not None
    if evaluated and computed:
        return "both"
    if evaluated or spec.paging is not None or shape.partial or (logit is not None and _reads_by_key(logit)):
        return "read"
    if computed:
        return "computed"
    if not all(_is_window(piece) for piece in mask.seen):
        return "plain"
    return "short window" if all(_is_short(piece) for piece in mask.seen) else "window"


def _reads_by_key(root: Expr) -> bool:
    reads = [node for node in children_first([root]) if node.op == "read"]
    by_key = ("kv_idx", BASE, STEP)
    return any(node.op == "var" and node.attr in by_key for node in children_first(reads))


def _tiles(spec: AttentionSpec, padded: Sequence[int], kind: str) -> TileShape:
    """The first row of the table that has room for heads of `padded` (dim, dim_v), with what the schedule sets."""
    dim, dim_v = padded
    widens, paged = spec.tensor("k").dtype in NARROW, spec.paging is not None
    table = WIDENING_TABLE if widens else TABLE
    hints = {key: int(value) for key, value in spec.schedule if key in HONOURED and key != "order"}
    fitting = [row for row in table if dim <= row.max_dim and dim_v <= row.max_dim_v and kind in row.kinds]

    def misfit(row: TileShape) -> tuple[bool, bool]:
        needed = consumer_registers(hints.get("tile_k", row.tile_k), dim_v)
        return row.tile_q != hints.get("tile_q", row.tile_q), needed > row.registers_consumer

    fitting.sort(key=misfit)  # what fits alike keeps its order
    tiles = next(iter(fitting), table[-1])
    if "tile_q" in hints or (paged and not widens):
        consumers = hints.get("tile_q", tiles.tile_q) // ROWS
        registers = WIDENING_REGISTERS if widens else PAGED_REGISTERS if paged else REGISTERS
        producer, consumer = registers[consumers]
        tiles = replace(tiles, registers_producer=producer, registers_consumer=consumer)
    return replace(
        tiles,
        tile_q=hints.get("tile_q", tiles.tile_q),
        tile_k=hints.get("tile_k", tiles.tile_k),
        stages=hints.get("stages", tiles.stages),
    )


def _is_window(piece: PiecePlan) -> bool:
    """Whether between any two bounds of a piece there lies one number of keys for all rows."""
    pairs = len(piece.low) * len(piece.high)
    return pairs > 0 and len(piece.widths) == pairs


def _is_short(piece: PiecePlan) -> bool:
    """Whether two bounds of a piece have at most `SHORT` keys between them, whatever parameters are."""
    return any(width.is_const and int(width.attr or 0) <= SHORT for width in piece.widths)


def _order(spec: AttentionSpec, mask: MaskPlan) -> str:
    hint = ORDERS[str(dict(spec.schedule).get("order", "auto"))]
    if hint is not None:
        return hint
    if len(mask.seen) != 1 or mask.seen[0].low:
        return "in_order"
    return "longest_first" if any(bound.direction == "rising" for bound in mask.seen[0].high) else "in_order"


def _is_positive(scale: Expr, known: _Expressions) -> bool:
    interval = static_intervals([scale], known.ranges)[scale]
    assert isinstance(interval, FloatInterval)
    return bool(interval.lo > 0 and not interval.nan)


def _is_natural(interval: Interval) -> bool:
    return isinstance(interval, IntInterval) and bool(interval.lo >= 0)


def _axes(spec: AttentionSpec, name: str) -> tuple[str, ...]:
    return tuple(str(axis) for axis in spec.tensor(name).axes)


def _packed(tensor: Tensor) -> tuple[tuple[int, str], ...]:
    """Which axes hold the rows of all sequences, and of which side."""
    sides = {"total_q": "q", "total_k": "k"}
    return tuple((place, sides[str(axis)]) for place, axis in enumerate(tensor.axes) if str(axis) in sides)


def _lse_axes(spec: AttentionSpec) -> tuple[str, ...]:
    """As declared, else batch, heads, seq_q, or heads, total_q."""
    if spec.lse is not None:
        return tuple(str(axis) for axis in spec.lse.axes)
    return ("heads", "total_q") if spec.lengths_q.cu_seqlens is not None else ("batch", "heads", "seq_q")
