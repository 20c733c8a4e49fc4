"""The rules that only a plan for Blackwell keeps; those of every target are in `rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.lowering.forward.rules import EVERY_TARGET, MAX_REGISTERS
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, QUERY_TILES, ROWS, SLOT, Sm100Plan

KEYS = (32, 64, 96, 128)  # of a tile: whole loads of 32 columns, at most one slot
WORKING_REGISTERS = 32  # of a softmax thread, besides its scores


def check(plan: Sm100Plan) -> tuple[Diagnostic, ...]:
    """What is wrong with `plan`, as errors E290 to E296; nothing if it can be built."""
    found = [problem for every in EVERY_TARGET for problem in every(plan)]
    return (*found, *(problem for rule in RULES for problem in rule(plan)))


def _tiles(plan: Sm100Plan) -> Iterator[Diagnostic]:
    rows = QUERY_TILES * ROWS
    if plan.tile_q != rows:
        message = f"tile_q is {plan.tile_q}; a thread block has {QUERY_TILES} tiles of {ROWS} queries"
        yield Diagnostic("E291", message, hint=f"the nearest is {rows}")
    if plan.tile_k not in KEYS:
        nearest = min(KEYS, key=lambda keys: abs(keys - plan.tile_k))
        message = f"tile_k is {plan.tile_k}; a tile has {', '.join(map(str, KEYS))} keys"
        yield Diagnostic("E291", message, hint=f"the nearest is {nearest}")
    if plan.stages < 2:
        message = f"stages is {plan.stages}; the next tile of K loads while this one is used"
        yield Diagnostic("E291", message, hint="the nearest is 2")


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
    used = QUERY_TILES * (SLOT + plan.dim_v_padded)
    if used > COLUMNS:
        regions = ", ".join(f"{name} {first}..{first + count - 1}" for name, first, count in plan.tmem_map)
        message = f"{used} columns of tensor memory ({regions}); a thread block has {COLUMNS}"
        yield Diagnostic("E296", message, hint=f"dim_v is at most {COLUMNS // QUERY_TILES - SLOT}")


RULES: tuple[Callable[[Sm100Plan], Iterator[Diagnostic]], ...] = (_tiles, _registers, _tensor_memory)
