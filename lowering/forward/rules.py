"""The rules a forward plan keeps, each stated once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.expr import Expr, children_first
from attn_dsl.lowering.forward.plan import WARPGROUP, ForwardPlan

DIM_STEP = 8  # elements: 16 bytes, the unit of TMA rows (PTX ISA, tensor maps: strides are multiples of 16 bytes)
MAX_DIM = {"sm90": 256, "sm100": 256}  # elements, of each target's template
ROWS = 64  # of one wgmma (PTX ISA, wgmma.mma_async shapes)
KEYS_STEP = 16  # keys: the k of one wgmma of 16-bit elements
MAX_KEYS = 256  # the largest n of one wgmma
MAX_CONSUMERS = 3  # warpgroups: with the producer they fill the 65,536 registers of a multiprocessor
MAX_SHARED = 232_448  # bytes one thread block may have (CUDA C++ Programming Guide, compute capability 9.0)
MAX_REGISTERS = 65_536  # of one multiprocessor
WORKING_REGISTERS = 32  # per consumer thread, besides accumulators and weights
ARGUMENT_BYTES = 2_048  # of captures, parameters and extents; a kernel has 4,096 bytes of arguments
MAX_SCORE_NODES = {"sm90": 200, "sm100": 400}  # sm90 writes a score out for each of a thread's 128 elements
MAX_MASK_NODES = 4_000  # distinct nodes of a mask


def check(plan: ForwardPlan) -> tuple[Diagnostic, ...]:
    """What is wrong with `plan`, as errors E290 to E295; nothing if it can be built."""
    return tuple(problem for rule in RULES for problem in rule(plan))


def nearest_dim(dim: int, target: str) -> int:
    """The legal head dimension of `target` nearest to `dim`."""
    return min(max(DIM_STEP, round(dim / DIM_STEP) * DIM_STEP), MAX_DIM[target])


def _dims(plan: ForwardPlan) -> Iterator[Diagnostic]:
    most = MAX_DIM[plan.target]
    for name, value in (("dim", plan.dim), ("dim_v", plan.dim_v)):
        if value % DIM_STEP or not DIM_STEP <= value <= most:
            message = f"{name} is {value}; {plan.target} has multiples of {DIM_STEP} from {DIM_STEP} to {most}"
            yield Diagnostic("E290", message, hint=f"the nearest is {nearest_dim(value, plan.target)}")


def _tiles(plan: ForwardPlan) -> Iterator[Diagnostic]:
    if plan.tile_q != ROWS * plan.consumers or not 1 <= plan.consumers <= MAX_CONSUMERS:
        legal = ", ".join(str(ROWS * n) for n in range(1, MAX_CONSUMERS + 1))
        nearest = min(range(1, MAX_CONSUMERS + 1), key=lambda n: abs(ROWS * n - plan.tile_q)) * ROWS
        message = f"tile_q is {plan.tile_q}; a tile has {ROWS} rows per consumer warpgroup: {legal}"
        yield Diagnostic("E291", message, hint=f"the nearest is {nearest}")
    if plan.tile_k % KEYS_STEP or not KEYS_STEP <= plan.tile_k <= MAX_KEYS:
        nearest = min(max(KEYS_STEP, round(plan.tile_k / KEYS_STEP) * KEYS_STEP), MAX_KEYS)
        message = f"tile_k is {plan.tile_k}; a tile has a multiple of {KEYS_STEP} keys, at most {MAX_KEYS}"
        yield Diagnostic("E291", message, hint=f"the nearest is {nearest}")
    if plan.stages < 2:
        message = f"stages is {plan.stages}; the next tile of K loads while this one is used"
        yield Diagnostic("E291", message, hint="the nearest is 2")


def _shared_memory(plan: ForwardPlan) -> Iterator[Diagnostic]:
    if plan.shared_bytes > MAX_SHARED:
        regions = ", ".join(f"{name} {size:,}" for name, size in plan.shared_map)
        message = f"{plan.shared_bytes:,} bytes of shared memory ({regions}); a thread block has {MAX_SHARED:,}"
        yield Diagnostic("E292", message, hint="take fewer stages or a smaller tile")


def consumer_registers(plan: ForwardPlan) -> int:
    """Registers a consumer thread needs: its part of scores, 16-bit weights and output, and working space."""
    per_thread = ROWS * plan.tile_k // WARPGROUP
    return per_thread + per_thread // 2 + ROWS * plan.dim_v_padded // WARPGROUP + WORKING_REGISTERS


def _registers(plan: ForwardPlan) -> Iterator[Diagnostic]:
    for name, value in (("producer", plan.registers_producer), ("consumer", plan.registers_consumer)):
        if value % 8 or not 24 <= value <= 256:  # PTX ISA, setmaxnreg
            yield Diagnostic(
                "E293", f"{value} registers per {name} thread; setmaxnreg takes multiples of 8 in 24..=256"
            )
    total = WARPGROUP * (plan.registers_producer + plan.consumers * plan.registers_consumer)
    if total > MAX_REGISTERS:
        yield Diagnostic("E293", f"{total:,} registers; a multiprocessor has {MAX_REGISTERS:,}")
    needed = consumer_registers(plan)
    if needed > plan.registers_consumer:
        message = f"a consumer thread needs about {needed} registers for its tile and has {plan.registers_consumer}"
        yield Diagnostic("E293", message, hint="take a smaller tile_k or tile_q")


def argument_bytes(plan: ForwardPlan) -> int:
    """Bytes of the arguments a spec adds: of a tensor a pointer, extents and 64-bit strides, of a number 4."""
    captures = sum(8 + 12 * capture.rank for capture in plan.captures)
    params = sum(4 if param.form == "number" else 8 + 12 for param in plan.params)
    return captures + params + 4 * len(plan.sizes) + (8 + 12) * len(plan.geometry)


def _arguments(plan: ForwardPlan) -> Iterator[Diagnostic]:
    size = argument_bytes(plan)
    if size > ARGUMENT_BYTES:
        message = (
            f"{len(plan.captures)} captures and {len(plan.params)} parameters take {size:,} bytes of arguments; "
            f"there are {ARGUMENT_BYTES:,}"
        )
        yield Diagnostic("E294", message, hint="stack tensors of one dtype along a new axis")


def _sizes(plan: ForwardPlan) -> Iterator[Diagnostic]:
    for name, root, limit in (
        ("mask", plan.mask.mask, MAX_MASK_NODES),
        ("score", plan.score, MAX_SCORE_NODES[plan.target]),
    ):
        nodes = _count(root)
        if nodes > limit:
            message = f"the {name} has {nodes:,} distinct nodes; a kernel evaluates at most {limit:,}"
            yield Diagnostic("E295", message, hint="read it from a captured tensor")


def _count(root: Expr) -> int:
    return sum(1 for _ in children_first([root]))


EVERY_TARGET: tuple[Callable[[ForwardPlan], Iterator[Diagnostic]], ...] = (_dims, _shared_memory, _arguments, _sizes)
RULES = (_dims, _tiles, _shared_memory, _registers, _arguments, _sizes)
