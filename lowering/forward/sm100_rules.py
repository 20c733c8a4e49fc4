"""The rules that only a plan for Blackwell keeps; those of every target are in `rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.lowering.forward.fields import between, choices, in_stages, number_of, one_of
from attn_dsl.lowering.forward.pressure import (
    MOST_MASK_UNIFORM,
    MOST_SCORE_READS,
    SCORE_COLUMNS,
    mask_uniform,
    score_reads,
)
from attn_dsl.lowering.forward.rules import EVERY_TARGET, MAX_REGISTERS, register_count, shared_memory
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, PAIRS, ROWS, SLOT, SLOTS, Sm100Plan

ARCHITECTURES = ("sm_100a", "sm_103a")  # B200 and B300: one template, compiled for either
QUERY_TILES = (1, 2)  # of a thread block
KEYS = (32, 64, 96, 128)  # of a tile: whole loads of 32 columns, at most one slot
PARTS = (64, 128)  # elements: one or two rows of the 128-byte swizzle
MAX_PACK = 16  # query heads, where rows of Q and O are found one by one
PACKS = tuple(pack for pack in range(1, ROWS + 1) if pack <= MAX_PACK or ROWS % pack == 0)
MAX_THRESHOLD = 15.0  # in base 2: a weight of 2^16 is infinite in f16
WORKING_REGISTERS = 32  # of a softmax thread, besides its scores


def check(plan: Sm100Plan) -> tuple[Diagnostic, ...]:
    """What is wrong with `plan`, as errors E290 to E298; nothing if it can be built."""
    return in_stages(
        (problem for rule in (choices("sm100"), arch) for problem in rule(plan)),
        (problem for rule in FIELDS for problem in rule(plan)),
        _rings(plan),
        (problem for rule in DERIVED for problem in rule(plan)),
    )


def arch(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """The template is compiled for an architecture that it was made for."""
    yield from one_of("arch", plan.arch, ARCHITECTURES, "the template is compiled for a Blackwell GPU", "E297")


def _tiles(plan: Sm100Plan) -> Iterator[Diagnostic]:
    yield from number_of("query_tiles", plan.query_tiles, QUERY_TILES, "a thread block has 1 or 2", "E291")
    if plan.query_tiles in QUERY_TILES:
        count = plan.query_tiles
        says = f"{count} query tiles have {ROWS} rows each"
        yield from number_of("tile_q", plan.tile_q, (count * ROWS,), says, "E291")
        says = f"each of {count} query tiles has a warpgroup"
        yield from number_of("consumers", plan.consumers, (count,), says, "E291")
    if plan.widens:
        says = "the warps that widen keys and values run one tile of keys ahead"
        yield from number_of("query_tiles", plan.query_tiles, (1,), says, "E291")
    yield from number_of("tile_k", plan.tile_k, KEYS, f"a tile has {', '.join(map(str, KEYS))} keys", "E291")
    yield from number_of(
        "pack", plan.pack, PACKS, f"up to {MAX_PACK} heads share a tile, or a divisor of {ROWS}", "E291"
    )
    yield from number_of("part", plan.part, PARTS, "rows of K and V come in parts of 64 or 128 elements", "E291")


def softmax(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """How a thread of softmax computes."""
    says = "a thread computes a power of two of its scores at a time"
    yield from number_of("score_columns", plan.score_columns, SCORE_COLUMNS, says, "E297")
    says = f"it counts pairs out of {PAIRS}"
    yield from between("exp2_on_fma", plan.exp2_on_fma, 0, PAIRS, says, "E297")
    says = "weights reach 2 to the power of it, and are finite in f16"
    yield from between("threshold", plan.threshold, 0.0, MAX_THRESHOLD, says, "E297", whole=False)


def pressure(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """Masks and scores leave the registers of a softmax thread to its scores."""
    if plan.mask.kind == "elements" and (count := mask_uniform(plan)) > MOST_MASK_UNIFORM:
        message = f"the mask uses {count} values that are the same for all rows; a kernel takes {MOST_MASK_UNIFORM}"
        yield Diagnostic("E295", message, hint="read them from a captured tensor by the row or the key")
    if (reads := score_reads(plan)) > MOST_SCORE_READS:
        message = f"the score reads tensors at {reads} places of a row or a key; a kernel reads at most"
        yield Diagnostic("E295", f"{message} {MOST_SCORE_READS}", hint="add the tensors up before the call")


def _rings(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """Parts of rows are whole, and the ring holds those that are in use at once."""
    for name, padded, part in (("K", plan.dim_padded, plan.k_part), ("V", plan.dim_v_padded, plan.v_part)):
        if padded % part:
            message = f"part is {plan.part}; a row of {name} has {padded} elements, which parts of {part} do not fill"
            nearest = next((legal for legal in PARTS if padded % legal == 0), None)
            step = f"the nearest is {nearest}" if nearest else f"pad rows to a multiple of {PARTS[0]}"
            yield Diagnostic("E291", message, hint=step)
    least = plan.k_parts + plan.v_parts
    if plan.stages < least:
        message = f"stages is {plan.stages}; values of one tile and keys of the next take {least} parts"
        yield Diagnostic("E291", message, hint=f"the nearest is {least}")


def registers(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """Registers of all roles fit, and those of softmax hold its scores."""
    for count in dict.fromkeys(role.registers for role in plan.roles):
        names = dict.fromkeys(role.name for role in plan.roles if role.registers == count)
        yield from register_count(" or ".join(names), count)
    total = sum(role.threads * role.registers for role in plan.roles)
    if total > MAX_REGISTERS:
        yield Diagnostic("E293", f"{total:,} registers; a multiprocessor has {MAX_REGISTERS:,}")
    needed = plan.thread_keys + WORKING_REGISTERS
    if needed > plan.registers_consumer:
        message = f"a softmax thread needs about {needed} registers for its row and has {plan.registers_consumer}"
        yield Diagnostic("E293", message, hint="take a smaller tile_k")


def tensor_memory(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """Regions of tensor memory fit, and none lies on another but weights on their own scores."""
    regions = ", ".join(f"{name} {first}..{first + count - 1}" for name, first, count in plan.tmem_map)
    used = max(first + count for _, first, count in plan.tmem_map)
    if used > COLUMNS:
        message = f"{used} columns of tensor memory ({regions}); a thread block has {COLUMNS}"
        most = (COLUMNS - SLOTS * SLOT) // plan.query_tiles
        yield Diagnostic("E296", message, hint=f"dim_v is at most {most}")
    for place, (name, first, count) in enumerate(plan.tmem_map):
        for other, start, length in plan.tmem_map[:place]:
            own = name[0] == "p" and other == f"s{name[1:]}"
            if first < start + length and start < first + count and not own:
                yield Diagnostic("E296", f"{name} lies on {other} in tensor memory ({regions})")


def barriers(plan: Sm100Plan) -> Iterator[Diagnostic]:
    """Of every edge, arrivals are what its mbarriers count, and somebody waits for them."""
    roles = {role.name for role in plan.roles}
    for edge in plan.edges:
        strangers = [name for name in (*(role for role, _ in edge.producers), *edge.consumers) if name not in roles]
        for name in strangers:
            yield Diagnostic("E298", f"barrier '{edge.name}' has the role '{name}', which the plan has not")
        if strangers:
            continue
        if edge.slots < 1 or not edge.consumers:
            yield Diagnostic(
                "E298", f"barrier '{edge.name}' has {edge.slots} slots and {len(edge.consumers)} roles wait"
            )
        arrivals = plan.arrivals(edge)
        total = sum(arrivals.values())
        if total != edge.count:
            said = " and ".join(f"{count} of {role}" for role, count in arrivals.items()) or "nobody's"
            fate = "it never completes" if total < edge.count else "it completes early"
            message = f"barrier '{edge.name}' counts {edge.count} arrivals and gets {total} ({said}): {fate}"
            yield Diagnostic("E298", message, hint=f"the nearest count is {total}")
    names = [edge.name for edge in plan.edges]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Diagnostic("E298", f"two barriers have the name '{name}'")


Rules = tuple[Callable[[Sm100Plan], Iterator[Diagnostic]], ...]
FIELDS: Rules = (*EVERY_TARGET, _tiles, softmax, pressure)
DERIVED: Rules = (shared_memory, registers, tensor_memory, barriers)
