"""The rules that only a plan for Blackwell keeps; those of every target are in `rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.lowering.forward.rules import EVERY_TARGET, MAX_REGISTERS
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, PAIRS, ROWS, SLOT, SLOTS, Sm100Plan

QUERY_TILES = (1, 2)  # of a thread block
KEYS = (32, 64, 96, 128)  # of a tile: whole loads of 32 columns, at most one slot
WORKING_REGISTERS = 32  # of a softmax thread, besides its scores


def check(plan: Sm100Plan) -> tuple[Diagnostic, ...]:
    """What is wrong with `plan`, as errors E290 to E296; nothing if it can be built."""
    found = [problem for every in EVERY_TARGET for problem in every(plan)]
    return (*found, *(problem for rule in RULES for problem in rule(plan)))


def _tiles(plan: Sm100Plan) -> Iterator[Diagnostic]:
    if plan.query_tiles not in QUERY_TILES:
        nearest = min(QUERY_TILES, key=lambda tiles: abs(tiles - plan.query_tiles))
        message = f"query_tiles is {plan.query_tiles}; a thread block has 1 or 2"
        yield Diagnostic("E291", message, hint=f"the nearest is {nearest}")
    elif plan.tile_q != plan.query_tiles * ROWS:
        message = f"tile_q is {plan.tile_q}; {plan.query_tiles} query tiles have {ROWS} rows each"
        yield Diagnostic("E291", message, hint=f"the nearest is {plan.query_tiles * ROWS}")
    if plan.tile_k not in KEYS:
        nearest = min(KEYS, key=lambda keys: abs(keys - plan.tile_k))
        message = f"tile_k is {plan.tile_k}; a tile has {', '.join(map(str, KEYS))} keys"
        yield Diagnostic("E291", message, hint=f"the nearest is {nearest}")
    for name, padded, part in (("K", plan.dim_padded, plan.k_part), ("V", plan.dim_v_padded, plan.v_part)):
        if padded % part:
            message = f"part is {plan.part}; a row of {name} has {padded} elements, which parts of {part} do not fill"
            yield Diagnostic("E291", message, hint=f"the nearest is {padded}")
    least = plan.k_parts + plan.v_parts
    if plan.stages < least:
        message = f"stages is {plan.stages}; values of one tile and keys of the next take {least} parts"
        yield Diagnostic("E291", message, hint=f"the nearest is {least}")
    if not 0 <= plan.exp2_on_fma <= PAIRS:
        message = f"exp2_on_fma is {plan.exp2_on_fma}; it counts pairs out of {PAIRS}"
        yield Diagnostic("E291", message, hint=f"the nearest is {min(max(plan.exp2_on_fma, 0), PAIRS)}")


def _registers(plan: Sm100Plan) -> Iterator[Diagnostic]:
    for role in plan.roles:
        if role.registers % 8 or not 24 <= role.registers <= 256:  # PTX ISA, setmaxnreg
            message = f"{role.registers} registers per {role.name} thread; setmaxnreg takes multiples of 8 in 24..=256"
            yield Diagnostic("E293", message)
    total = sum(role.threads * role.registers for role in plan.roles)
    if total > MAX_REGISTERS:
        yield Diagnostic("E293", f"{total:,} registers; a multiprocessor has {MAX_REGISTERS:,}")
    needed = plan.tile_k + WORKING_REGISTERS
    if needed > plan.registers_consumer:
        message = f"a softmax thread needs about {needed} registers for its row and has {plan.registers_consumer}"
        yield Diagnostic("E293", message, hint="take a smaller tile_k")


def _tensor_memory(plan: Sm100Plan) -> Iterator[Diagnostic]:
    used = SLOTS * SLOT + plan.query_tiles * plan.dim_v_padded
    if used > COLUMNS:
        regions = ", ".join(f"{name} {first}..{first + count - 1}" for name, first, count in plan.tmem_map)
        message = f"{used} columns of tensor memory ({regions}); a thread block has {COLUMNS}"
        most = (COLUMNS - SLOTS * SLOT) // plan.query_tiles
        yield Diagnostic("E296", message, hint=f"dim_v is at most {most}")


RULES: tuple[Callable[[Sm100Plan], Iterator[Diagnostic]], ...] = (_tiles, _registers, _tensor_memory)
