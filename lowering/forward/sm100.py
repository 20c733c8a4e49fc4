"""Selection of a forward plan for Blackwell (SM100), and what a spec may not ask of that target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from attn_dsl.diagnostics import Diagnostic, PlanError, UnsupportedError
from attn_dsl.lowering.forward import sm90
from attn_dsl.lowering.forward.plan import ForwardPlan, ShapeClass
from attn_dsl.lowering.forward.sm100_plan import QUERY_TILES, ROWS, Sm100Plan
from attn_dsl.lowering.forward.sm100_rules import KEYS, check
from attn_dsl.spec.model import AttentionSpec

__all__ = ["Sm100Plan", "check", "pack_of", "refusals", "select"]

TARGET = "sm100"
ROWS_PER_BLOCK = QUERY_TILES * ROWS
KEYS_PER_TILE = KEYS[-1]
STAGES = 2  # of K and of V: with 128 columns of 16 bits, more do not fit
REGISTERS = (192, 80, 48)  # per thread of softmax, of correction, and of the warps that load, multiply and store
THRESHOLD = 8.0  # in base 2; weights up to 2^8 are as precise as weights up to 1, and far from the end of f16


def refusals(spec: AttentionSpec) -> tuple[Diagnostic, ...]:
    """What `spec` asks for that this target cannot do and that is no row of the table of capabilities (E281)."""
    return (*sm90.operand_refusals(spec, TARGET), *_schedule(spec))


def _schedule(spec: AttentionSpec) -> Iterator[Diagnostic]:
    if spec.pack_gqa == "on":
        yield sm90.refusal(TARGET, "'pack gqa on' is not built", "'pack gqa auto' leaves the choice to the compiler")
    for key, value in spec.schedule:
        if key not in sm90.HONOURED:
            yield sm90.refusal(TARGET, f"a schedule cannot set {key}", f"it can set {', '.join(sm90.HONOURED)}")
        elif key == "order" and value not in sm90.ORDERS:
            yield sm90.refusal(TARGET, f"there is no order '{value}'", f"orders: {', '.join(sm90.ORDERS)}")
        elif key == "tile_q" and int(value) != ROWS_PER_BLOCK:
            yield sm90.refusal(
                TARGET,
                f"tile_q is {value}; a thread block has {ROWS_PER_BLOCK} rows",
                f"the nearest is {ROWS_PER_BLOCK}",
            )


def pack_of(spec: AttentionSpec, group: int) -> int:  # noqa: ARG001 - as every target is asked
    """How many of the `group` query heads of a K/V head share a tile: here each has tiles of its own."""
    return 1


def select(spec: AttentionSpec, shape: ShapeClass) -> Sm100Plan:
    """The plan for `spec` with the head dimensions and parameter forms of `shape`.

    Raises:
        UnsupportedError: the spec asks for what the target cannot do (E281).
        PlanError: the plan breaks its rules (E290 to E296).
    """
    refused = refusals(spec)
    if refused:
        raise UnsupportedError(refused)
    hints = {key: int(value) for key, value in spec.schedule if key in ("tile_k", "stages")}
    softmax, correction, other = REGISTERS
    order = tuple((key, value) for key, value in spec.schedule if key == "order")
    shared = sm90.plan_of(replace(spec, schedule=order), shape)
    values = {field.name: getattr(shared, field.name) for field in fields(ForwardPlan)}
    values |= {
        "target": TARGET,
        "tile_q": ROWS_PER_BLOCK,
        "tile_k": hints.get("tile_k", KEYS_PER_TILE),
        "stages": hints.get("stages", STAGES),
        "consumers": QUERY_TILES,
        "registers_producer": other,
        "registers_consumer": softmax,
        "pack": 1,
    }
    plan = Sm100Plan(**values, registers_correction=correction, threshold=THRESHOLD)
    problems = check(plan)
    if problems:
        raise PlanError(problems)
    return plan
