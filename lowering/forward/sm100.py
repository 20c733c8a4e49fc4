"""Selection of a forward plan for Blackwell (SM100), and what a spec may not ask of that target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from attn_dsl.diagnostics import Diagnostic, PlanError, UnsupportedError
from attn_dsl.lowering.forward import sm90, sm100_mla
from attn_dsl.lowering.forward.paging import makes_boxes
from attn_dsl.lowering.forward.plan import ELEMENT_BYTES, ForwardPlan, ShapeClass
from attn_dsl.lowering.forward.pressure import score_columns
from attn_dsl.lowering.forward.rules import MAX_SHARED
from attn_dsl.lowering.forward.sm100_mla_plan import MlaPlan
from attn_dsl.lowering.forward.sm100_plan import PAIRS, ROWS, Sm100Plan
from attn_dsl.lowering.forward.sm100_rules import (
    ARCHITECTURES,
    KEYS,
    MAX_PACK,
    PACKS,
    QUERY_TILES,
    check,
)
from attn_dsl.spec.model import AttentionSpec

__all__ = ["Sm100Plan", "check", "pack_of", "page_size_of", "refusals", "select"]

TARGET = "sm100"
FAST_EXP2 = ("sm_103a",)  # 32 exponentials per cycle and multiprocessor instead of 16
HONOURED = ("tile_q", "tile_k", "stages", "order", "exp2_share", "splits")
KEYS_PER_TILE = KEYS[-1]
WIDENED_KEYS = 64  # of a tile of wide heads, whose bytes lie in shared memory too
MAX_TILES_IN_FLIGHT = 4  # of K and of V
THRESHOLD = 8.0  # in base 2; weights up to 2^8 are as precise as weights up to 1, and far from the end of f16
WIDE = 128  # elements: wider heads go through shared memory in parts, of 64 or 128 elements
NARROW_PART = 64


@dataclass(frozen=True)
class TileShape:
    """One row of the tile table."""

    max_dim: int  # elements of q and k, padded
    max_dim_v: int  # elements of v, padded
    query_tiles: int  # of 128 rows


# Two outputs of more than 128 columns do not fit tensor memory beside two slots of scores.
TABLE = (TileShape(192, WIDE, 2), TileShape(256, 256, 1))
# Registers per thread of softmax, of correction, and of the warps that load, multiply and store; with two query tiles,
# also where correction copies Q and O row by row; with one.
TWO_TILES, TWO_TILES_BY_ROWS, ONE_TILE = (184, 80, 64), (176, 96, 64), (240, 136, 128)

WIDENING = (208, 104, 96)  # likewise, of one query tile, where eight warps are not of softmax or correction


def refusals(spec: AttentionSpec) -> tuple[Diagnostic, ...]:
    """What `spec` asks for that this target cannot do and that is no row of the table of capabilities (E281)."""
    if sm100_mla.absorbs(spec):
        own = (sm90.refusal(TARGET, *problem) for problem in sm100_mla.problems_of(spec))
        return (*sm90.operand_refusals(spec, TARGET), *_packing(spec), *_order(spec), *own)
    return (*sm90.operand_refusals(spec, TARGET), *sm90.dim_refusals(spec, TARGET), *_packing(spec), *_schedule(spec))


def _packing(spec: AttentionSpec) -> Iterator[Diagnostic]:
    if spec.pack_gqa == "on" and sm90.differs_by_head(spec):
        message = "'pack gqa on', but the mask differs from head to head, so heads do not visit the same keys"
        yield sm90.refusal(TARGET, message, "'pack gqa auto' leaves the choice to the compiler")
    heads, kv_heads = spec.fixed("heads"), spec.fixed(spec.kv_heads_axis)
    if heads and kv_heads:
        yield from _cannot_pack(spec, heads // kv_heads)


def _order(spec: AttentionSpec) -> Iterator[Diagnostic]:
    for key, value in spec.schedule:
        if key == "order" and value not in sm90.ORDERS:
            yield sm90.refusal(TARGET, f"there is no order '{value}'", f"orders: {', '.join(sm90.ORDERS)}")


def _schedule(spec: AttentionSpec) -> Iterator[Diagnostic]:
    yield from _order(spec)
    for key, value in spec.schedule:
        if key not in HONOURED:
            yield sm90.refusal(TARGET, f"a schedule cannot set {key}", f"it can set {', '.join(HONOURED)}")
        elif key == "tile_q" and int(value) not in [ROWS * tiles for tiles in QUERY_TILES]:
            nearest = min((ROWS * tiles for tiles in QUERY_TILES), key=lambda rows: abs(rows - int(value)))
            message = f"tile_q is {value}; a thread block has 1 or 2 tiles of {ROWS} rows"
            yield sm90.refusal(TARGET, message, f"the nearest is {nearest}")
        elif key == "tile_q" and int(value) != ROWS and spec.tensor("k").dtype in sm90.NARROW:
            message = f"tile_q is {value}; keys and values are widened for one tile of {ROWS} rows"
            yield sm90.refusal(TARGET, message, f"the nearest is {ROWS}")


@lru_cache(maxsize=1024)
def page_size_of(spec: AttentionSpec, shape: ShapeClass, page_size: int) -> int:
    """`page_size` if TMA can copy full tiles out of pages of it, else 0; as `sm90.page_size_of`.

    Raises UnsupportedError (E281) if keys come in boxes only, where V is a part of K, and it makes none.
    """
    if sm100_mla.absorbs(spec):
        return sm100_mla.page_size_of(shape, page_size)
    if spec.lengths_k.left_pad is not None or spec.tensor("k").dtype in sm90.NARROW:
        return 0
    order = tuple((key, value) for key, value in spec.schedule if key == "order")
    plan = _plan(spec, sm90.plan_of(replace(spec, schedule=order), shape), ARCHITECTURES[0])
    return page_size if makes_boxes(plan.tile_k, page_size) else 0


def pack_of(spec: AttentionSpec, group: int) -> int:
    """How many of the `group` query heads of a K/V head share a tile: all, up to 16 or if the rows of a tile divide by
    them. Tiles of keys are then visited once for all of them. A mask that differs from head to head keeps them apart.

    Raises UnsupportedError (E281) if the spec asks for packing and the group is of another size.
    """
    if refused := tuple(_cannot_pack(spec, group)):
        raise UnsupportedError(refused)
    if spec.pack_gqa == "off" or sm90.differs_by_head(spec):
        return 1
    if sm100_mla.absorbs(spec):
        return sm100_mla.pack_of(group)
    return group if _packs(group) else 1


def _packs(group: int) -> bool:
    return group in PACKS


def _cannot_pack(spec: AttentionSpec, group: int) -> Iterator[Diagnostic]:
    if sm100_mla.absorbs(spec):
        yield from (sm90.refusal(TARGET, *problem) for problem in sm100_mla.cannot_pack(spec, group))
        return
    if spec.pack_gqa == "on" and not _packs(group):
        message = f"'pack gqa on' with {group} query heads for one of k and v; a tile takes up to {MAX_PACK}"
        nearest = min(PACKS, key=lambda pack: abs(pack - group))
        hint = f"the nearest is {nearest}; 'pack gqa auto' leaves the choice to the compiler"
        yield sm90.refusal(TARGET, f"{message}, or a divisor of {ROWS}", hint)


def select(spec: AttentionSpec, shape: ShapeClass, arch: str = ARCHITECTURES[0]) -> Sm100Plan:
    """The plan for `spec` with the head dimensions and parameter forms of `shape`, for one of `ARCHITECTURES`.

    Raises:
        UnsupportedError: the spec asks for what the target cannot do (E281).
        PlanError: the plan breaks its rules (E290 to E298).
    """
    refused = refusals(spec)
    if refused:
        raise UnsupportedError(refused)
    order = tuple((key, value) for key, value in spec.schedule if key == "order")
    plan = _plan(spec, sm90.plan_of(replace(spec, schedule=order), shape), arch)
    if sm100_mla.absorbs(spec):
        plan = sm100_mla.plan_of(plan)
    problems = broken(plan)
    if problems:
        raise PlanError(problems)
    return plan


def broken(plan: Sm100Plan) -> tuple[Diagnostic, ...]:
    """The rules that `plan`, of either kind, breaks."""
    return sm100_mla.check(plan) if isinstance(plan, MlaPlan) else check(plan)


def _plan(spec: AttentionSpec, shared: ForwardPlan, arch: str) -> Sm100Plan:
    """`shared`, with what this target decides in its own way."""
    hints = {key: int(value) for key, value in spec.schedule if key != "order"}
    dim, dim_v = shared.dim_padded, shared.dim_v_padded
    if max(dim, dim_v) > WIDE:
        dim, dim_v = (-(-extent // NARROW_PART) * NARROW_PART for extent in (dim, dim_v))
    tiles = next((row for row in TABLE if dim <= row.max_dim and dim_v <= row.max_dim_v), TABLE[-1])
    # few queries have their keys in parts, or widened: the next scores are then made while a tile becomes weights
    few = shared.partial or shared.widens
    query_tiles = hints["tile_q"] // ROWS if "tile_q" in hints else 1 if few else tiles.query_tiles
    by_rows = ROWS % shared.pack != 0
    registers = ONE_TILE if query_tiles == 1 else TWO_TILES_BY_ROWS if by_rows else TWO_TILES
    if shared.widens:
        registers = WIDENING
    softmax, correction, other = registers
    wide_part = WIDE if dim % WIDE == 0 and dim_v % WIDE == 0 else NARROW_PART
    share = hints.get("exp2_share")
    values = {field.name: getattr(shared, field.name) for field in fields(ForwardPlan)}
    values |= {
        "target": TARGET,
        "tile_q": query_tiles * ROWS,
        "tile_k": hints.get("tile_k", WIDENED_KEYS if shared.widens and max(dim, dim_v) > WIDE else KEYS_PER_TILE),
        "dim_padded": dim,
        "dim_v_padded": dim_v,
        "consumers": query_tiles,
        "registers_producer": other,
        "registers_consumer": softmax,
        "pack": shared.pack,
    }
    plan = Sm100Plan(
        **values,
        arch=arch,
        query_tiles=query_tiles,
        part=wide_part if max(dim, dim_v) > WIDE else WIDE,
        registers_correction=correction,
        threshold=THRESHOLD,
        score_columns=score_columns(shared),
        exp2_on_fma=_exp2_on_fma(shared, arch) if share is None else round(share * PAIRS / 100),
    )
    return replace(plan, stages=_stages(plan, hints.get("stages")))


def _exp2_on_fma(plan: ForwardPlan, arch: str) -> int:
    """Where no mask and no score takes ALU time, the FMA units have more time for exponentials; a special function
    unit that is twice as fast needs no help."""
    if arch in FAST_EXP2:
        return 0
    return 3 if plan.mask.kind == "none" and plan.fold_scale else 2


def _stages(plan: Sm100Plan, tiles: int | None) -> int:
    """Parts in flight: of `tiles` tiles of K and V, or as many as fit."""
    parts = plan.k_parts + plan.v_parts
    if tiles is not None:
        return tiles * parts
    most = MAX_TILES_IN_FLIGHT * parts
    left = MAX_SHARED - replace(plan, stages=0).shared_bytes
    bytes_ = plan.part_elements * ELEMENT_BYTES[plan.dtype]
    fitting = left // bytes_
    return min(fitting, most)
