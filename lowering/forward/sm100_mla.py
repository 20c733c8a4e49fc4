"""When a spec for Blackwell (SM100) gets the plan of absorbed latent attention, and the rules of that plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from math import gcd

from attn_dsl.diagnostics import Diagnostic, UnsupportedError
from attn_dsl.lowering.forward.fields import choices, in_stages, number_of
from attn_dsl.lowering.forward.paging import makes_boxes
from attn_dsl.lowering.forward.plan import ShapeClass
from attn_dsl.lowering.forward.rules import DIM_STEP, MAX_DIM, arguments, shared_memory, sizes
from attn_dsl.lowering.forward.sm100_mla_plan import HALVES, KEYS, PART, ROWS, TILES, MlaPlan
from attn_dsl.lowering.forward.sm100_plan import Sm100Plan
from attn_dsl.lowering.forward.sm100_rules import arch, barriers, pressure, registers, softmax, tensor_memory
from attn_dsl.spec.model import AttentionSpec

Problem = tuple[str, str]  # a message and a hint
WAY_OUT = "target='reference' runs every spec"
HONOURED = ("order", "exp2_share", "splits")  # keys of a schedule
CLUSTERS = (1, 2)  # thread blocks that share keys
PACKS = tuple(pack for pack in range(1, ROWS + 1) if ROWS % pack == 0)  # heads of one thread block
VALUE_STEP = HALVES * PART  # elements of d_v: each half is made of whole parts
MAX_VALUE = 512  # elements of d_v: O has as many columns, half of them in half of the lanes of tensor memory
MAX_REST = 64  # elements of a row of K that are no value: one part


def absorbs(spec: AttentionSpec) -> bool:
    """Whether rows of V are the first elements of rows of K, and longer than any other plan takes."""
    view = next((view for view in spec.views if view.name == "v" and view.base == "k"), None)
    if view is None:
        return False
    *outer, inner = view.slices
    leads = all(part.kind == "keep" for part in outer) and inner.kind == "range" and inner.start == 0
    longest = max(spec.fixed("dim") or 0, spec.fixed(spec.dim_v_axis) or 0)
    return leads and longest > MAX_DIM["sm100"]


def pack_of(group: int) -> int:
    """How many of the `group` query heads of a K/V head share what is loaded: 128, the rows of a cluster of two thread
    blocks, or as many as divide the rows of one."""
    return 2 * ROWS if group % (2 * ROWS) == 0 else gcd(group, ROWS)


def _cluster(pack: int) -> int:
    """Thread blocks whose rows are `pack` heads of their queries."""
    return 2 if pack == 2 * ROWS else 1


def page_problem(pack: int, page_size: int) -> Problem | None:
    """Why keys cannot come in pages of `page_size` rows."""
    rows = KEYS // _cluster(pack)
    if makes_boxes(rows, page_size):
        return None
    message = f"pages have {page_size} rows; where v is a part of k they are copied in boxes of 8 rows and more"
    return message, f"the nearest is {max(8, round(page_size / 8) * 8)}"


def page_size_of(shape: ShapeClass, page_size: int) -> int:
    """`page_size`, which such a kernel is compiled for. Raises UnsupportedError (E281) if no boxes are made of it."""
    if wrong := page_problem(shape.pack, page_size):
        raise UnsupportedError.of("E281", f"target 'sm100': {wrong[0]}", hint=wrong[1])
    return page_size


def cannot_pack(spec: AttentionSpec, group: int) -> Iterator[Problem]:
    """Why `group` query heads of a K/V head cannot share a tile, if the spec asks for it."""
    if spec.pack_gqa == "on" and pack_of(group) != group:
        message = f"'pack gqa on' with {group} query heads for one of k and v; a tile takes a divisor of {ROWS}"
        nearest = min((*PACKS, 2 * ROWS), key=lambda pack: abs(pack - group))
        hint = f"the nearest is {nearest}; 'pack gqa auto' leaves the choice to the compiler"
        yield f"{message}, or {2 * ROWS}", hint


def problems_of(spec: AttentionSpec) -> Iterator[Problem]:
    """What `spec` asks for that the plan cannot do."""
    if spec.paging is not None and spec.lengths_k.left_pad is not None:
        yield "pages are copied in boxes where v is a part of k, which rows to skip in front would cut", WAY_OUT
    q, k = (spec.tensor(name).dtype for name in ("q", "k"))
    if k is not q:
        yield f"k is {k} and q {q}; where v is a part of k they have one dtype", "declare them alike"
    for axis in ("dim", spec.dim_v_axis):
        extent = spec.fixed(axis)
        if extent is not None and (wrong := _extent(axis == "dim", extent)):
            yield f"{axis} is {extent}; {wrong[0]}", wrong[1]
    dim, dim_v = spec.fixed("dim"), spec.fixed(spec.dim_v_axis)
    if dim is not None and dim_v is not None and dim - dim_v > MAX_REST:
        message = f"rows of k have {dim - dim_v} elements after those of v; there are at most {MAX_REST}"
        yield message, f"the nearest dim is {dim_v + MAX_REST}"
    for key, _ in spec.schedule:
        if key not in HONOURED:
            yield f"a schedule cannot set {key} where v is a part of k", f"it can set {', '.join(HONOURED)}"


def _extent(whole: bool, extent: int) -> tuple[str, str] | None:
    """What is wrong with an extent of a row of K (`whole`) or of V, and the nearest one."""
    if whole:
        most = MAX_VALUE + MAX_REST
        nearest = min(max(DIM_STEP, round(extent / DIM_STEP) * DIM_STEP), most)
        message = f"rows of k that hold those of v have multiples of {DIM_STEP} elements, at most {most}"
        return None if nearest == extent else (message, f"the nearest is {nearest}")
    nearest = min(max(VALUE_STEP, round(extent / VALUE_STEP) * VALUE_STEP), MAX_VALUE)
    message = f"rows of v in those of k have multiples of {VALUE_STEP} elements, at most {MAX_VALUE}"
    return None if nearest == extent else (message, f"the nearest is {nearest}")


def _padded(rest: int) -> int:
    """Elements of whole parts that hold `rest`."""
    return -(-rest // PART) * PART


def plan_of(plan: Sm100Plan) -> MlaPlan:
    """`plan`, with what this plan decides in its own way."""
    cluster = _cluster(plan.pack)
    values = {field.name: getattr(plan, field.name) for field in fields(Sm100Plan)}
    values |= {
        "tile_q": cluster * ROWS,
        "tile_k": KEYS,
        "dim_padded": plan.dim_v + _padded(plan.dim - plan.dim_v),
        "dim_v_padded": plan.dim_v,
        "stages": TILES,
        "query_tiles": 1,
        "consumers": 1,
        "part": PART,
        "score_columns": min(plan.score_columns, KEYS // 2),
    }
    return MlaPlan(**values, cluster=cluster)


def check(plan: MlaPlan) -> tuple[Diagnostic, ...]:
    """What is wrong with `plan`, as errors E290 to E298; nothing if it can be built."""
    return in_stages(
        (problem for rule in (choices("sm100"), arch) for problem in rule(plan)),
        (problem for rule in FIELDS for problem in rule(plan)),
        (problem for rule in DERIVED for problem in rule(plan)),
    )


def _dims(plan: MlaPlan) -> Iterator[Diagnostic]:
    legal = True
    for whole, name, extent in ((True, "dim", plan.dim), (False, "dim_v", plan.dim_v)):
        if wrong := _extent(whole, extent):
            legal = False
            yield Diagnostic("E290", f"{name} is {extent}; {wrong[0]}", hint=wrong[1])
    if legal and not 0 <= plan.dim - plan.dim_v <= MAX_REST:
        message = f"dim is {plan.dim} and dim_v {plan.dim_v}; they differ by 0 to {MAX_REST}"
        nearest = plan.dim_v + min(max(plan.dim - plan.dim_v, 0), MAX_REST)
        yield Diagnostic("E290", message, hint=f"the nearest dim is {nearest}")
    elif legal:
        padded = plan.dim_v + _padded(plan.dim - plan.dim_v)
        says = f"rows of k are padded to a multiple of {PART} elements"
        yield from number_of("dim_padded", plan.dim_padded, (padded,), says, "E290")
        yield from number_of("dim_v_padded", plan.dim_v_padded, (plan.dim_v,), "rows of v are in rows of k", "E290")


def _tiles(plan: MlaPlan) -> Iterator[Diagnostic]:
    yield from number_of("cluster", plan.cluster, CLUSTERS, "1 or 2 thread blocks share keys", "E291")
    if plan.cluster in CLUSTERS:
        says = f"each of {plan.cluster} thread blocks has {ROWS} rows"
        yield from number_of("tile_q", plan.tile_q, (plan.cluster * ROWS,), says, "E291")
        says = "whole queries fill the rows of a tile" if plan.cluster == 1 else "a query fills the rows of a cluster"
        yield from number_of("pack", plan.pack, (2 * ROWS,) if plan.cluster == 2 else PACKS, says, "E291")
    if plan.page_size and (wrong := page_problem(plan.pack, plan.page_size)):
        yield Diagnostic("E291", f"page_size is {plan.page_size}; {wrong[0]}", hint=wrong[1])
    for name, value, only, says in (
        ("query_tiles", plan.query_tiles, 1, f"a thread block has one tile of {ROWS} rows"),
        ("consumers", plan.consumers, 1, "one warpgroup has all rows"),
        ("tile_k", plan.tile_k, KEYS, f"a thread holds half of the {KEYS} scores of a row"),
        ("stages", plan.stages, TILES, "the scores of one tile are made before the output of the one before it"),
        ("part", plan.part, PART, "boxes of keys are one row of the 128-byte swizzle wide"),
    ):
        yield from number_of(name, value, (only,), says, "E291")


FIELDS: tuple[Callable[[MlaPlan], Iterator[Diagnostic]], ...] = (_dims, arguments, sizes, _tiles, softmax, pressure)
DERIVED: tuple[Callable[[MlaPlan], Iterator[Diagnostic]], ...] = (shared_memory, registers, tensor_memory, barriers)
