"""The rules a forward plan keeps, each stated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.expr import Expr, children_first
from attn_dsl.lowering.forward.fields import between, choices, in_stages, number_of
from attn_dsl.lowering.forward.plan import NARROW_STEP, WARPGROUP, CaptureArgument, ForwardPlan
from attn_dsl.lowering.forward.pressure import MOST_MASK_NODES
from attn_dsl.spec.model import AttentionSpec

COPY_BYTES = 16  # what TMA and cp.async copy starts at multiples of (PTX ISA, tensor maps; cp.async)
DIM_STEP = 8  # elements: 16 bytes, the unit of TMA rows (PTX ISA, tensor maps: strides are multiples of 16 bytes)
MAX_DIM = {"sm90": 256, "sm100": 256}  # elements, of each target's template
ROWS = 64  # of one wgmma (PTX ISA, wgmma.mma_async shapes)
KEYS_STEP = 16  # keys: the k of one wgmma of 16-bit elements
MAX_KEYS = 256  # the largest n of one wgmma
CONSUMERS = (1, 2, 3)  # warpgroups: with the producer three fill the 65,536 registers of a multiprocessor
DIM_PADDED_STEP = 16  # elements: the k of one matrix product of 16-bit operands, and what its n is a multiple of
MAX_SHARED = 232_448  # bytes one thread block may have (CUDA C++ Programming Guide, compute capability 9.0)
MAX_REGISTERS = 65_536  # of one multiprocessor
REGISTER_COUNTS = range(24, 257, 8)  # of a thread (PTX ISA, setmaxnreg)
WORKING_REGISTERS = 32  # per consumer thread, besides accumulators and weights
ARGUMENT_BYTES = 2_048  # of captures, parameters and extents; a kernel has 4,096 bytes of arguments
MAX_SCORE_NODES = {"sm90": 200, "sm100": 400}  # sm90 writes a score out for each of a thread's 128 elements
MAX_MASK_NODES = {"sm90": 4_000, "sm100": MOST_MASK_NODES}  # distinct nodes of a mask


def check(plan: ForwardPlan) -> tuple[Diagnostic, ...]:
    """What is wrong with `plan`, as errors E290 to E297; nothing if it can be built."""
    return in_stages(
        choices("sm90")(plan),
        (problem for rule in FIELDS for problem in rule(plan)),
        (problem for rule in DERIVED for problem in rule(plan)),
    )


def dim_step(spec: AttentionSpec) -> int:
    """What head dimensions are multiples of: rows of K and V are copied 16 bytes at a time."""
    return NARROW_STEP if spec.tensor("k").dtype.bytes == 1 else DIM_STEP


def nearest_dim(dim: int, target: str, step: int = DIM_STEP) -> int:
    """The multiple of `step` nearest to `dim` among the head dimensions of `target`."""
    return min(max(step, round(dim / step) * step), MAX_DIM[target])


def _dims(plan: ForwardPlan) -> Iterator[Diagnostic]:
    most, step = MAX_DIM[plan.target], DIM_PADDED_STEP
    for name, value, padded in (("dim", plan.dim, plan.dim_padded), ("dim_v", plan.dim_v, plan.dim_v_padded)):
        if value % DIM_STEP or not DIM_STEP <= value <= most:
            message = f"{name} is {value}; {plan.target} has multiples of {DIM_STEP} from {DIM_STEP} to {most}"
            yield Diagnostic("E290", message, hint=f"the nearest is {nearest_dim(value, plan.target)}")
            continue
        least = -(-value // step) * step
        says = f"rows of {value} elements are padded to a multiple of {step}, at most {most}"
        yield from number_of(f"{name}_padded", padded, range(least, most + 1, step), says, "E290")


def _narrow(plan: ForwardPlan) -> Iterator[Diagnostic]:
    """Keys and values of 8 bits are copied 16 bytes at a time."""
    for name, value in (("dim", plan.dim), ("dim_v", plan.dim_v)):
        if plan.widens and value % NARROW_STEP:
            message = f"{name} is {value}; k and v of 8 bits have multiples of {NARROW_STEP}"
            yield Diagnostic("E290", message, hint=f"the nearest above is {-(-value // NARROW_STEP) * NARROW_STEP}")


def _tiles(plan: ForwardPlan) -> Iterator[Diagnostic]:
    legal = tuple(ROWS * count for count in CONSUMERS)
    says = f"a tile has {ROWS} rows per consumer warpgroup: {', '.join(map(str, legal))}"
    yield from number_of("tile_q", plan.tile_q, legal, says, "E291")
    if plan.tile_q in legal:
        says = f"each has {ROWS} of the {plan.tile_q} rows of a tile"
        yield from number_of("consumers", plan.consumers, (plan.tile_q // ROWS,), says, "E291")
    says = f"a tile has a multiple of {KEYS_STEP} keys, at most {MAX_KEYS}"
    yield from number_of("tile_k", plan.tile_k, range(KEYS_STEP, MAX_KEYS + 1, KEYS_STEP), says, "E291")
    if plan.stages < 2:
        message = f"stages is {plan.stages}; the next tile of K loads while this one is used"
        yield Diagnostic("E291", message, hint="the nearest is 2")
    says = "query heads of one K/V head share a tile"
    yield from between("pack", plan.pack, 1, math.inf, says, "E291")


def shared_memory(plan: ForwardPlan) -> Iterator[Diagnostic]:
    """Shared memory fits one thread block."""
    if plan.shared_bytes > MAX_SHARED:
        regions = ", ".join(f"{name} {size:,}" for name, size in plan.shared_map)
        message = f"{plan.shared_bytes:,} bytes of shared memory ({regions}); a thread block has {MAX_SHARED:,}"
        yield Diagnostic("E292", message, hint="take fewer stages or a smaller tile")


def consumer_registers(tile_k: int, dim_v: int) -> int:
    """Registers a consumer thread needs: its part of scores, 16-bit weights and output, and working space."""
    per_thread = ROWS * tile_k // WARPGROUP
    return per_thread + per_thread // 2 + ROWS * dim_v // WARPGROUP + WORKING_REGISTERS


def _registers(plan: ForwardPlan) -> Iterator[Diagnostic]:
    for name, value in (("producer", plan.registers_producer), ("consumer", plan.registers_consumer)):
        yield from register_count(name, value)
    total = WARPGROUP * (plan.registers_producer + plan.consumers * plan.registers_consumer)
    if total > MAX_REGISTERS:
        yield Diagnostic("E293", f"{total:,} registers; a multiprocessor has {MAX_REGISTERS:,}")
    needed = consumer_registers(plan.tile_k, plan.dim_v_padded)
    if needed > plan.registers_consumer:
        message = f"a consumer thread needs about {needed} registers for its tile and has {plan.registers_consumer}"
        yield Diagnostic("E293", message, hint="take a smaller tile_k or tile_q")


def register_count(role: str, count: int) -> Iterator[Diagnostic]:
    """Registers of a thread of `role` are what setmaxnreg takes (PTX ISA, setmaxnreg)."""
    if count not in REGISTER_COUNTS:
        message = f"{count} registers per {role} thread; setmaxnreg takes multiples of 8 in 24..=256"
        nearest = min(REGISTER_COUNTS, key=lambda legal: abs(legal - count))
        yield Diagnostic("E293", message, hint=f"the nearest is {nearest}")


def _capture_bytes(capture: CaptureArgument) -> int:
    return 8 + 12 * capture.rank


def argument_bytes(plan: ForwardPlan) -> int:
    """Bytes of the arguments a spec adds: of a tensor a pointer, extents and 64-bit strides, of a number 4."""
    captures = sum(map(_capture_bytes, plan.captures))
    params = sum(4 if param.form == "number" else 8 + 12 for param in plan.params)
    return captures + params + 4 * len(plan.sizes) + (8 + 12) * len(plan.geometry)


def _fitting(plan: ForwardPlan, size: int) -> int:
    """How many of the captures fit beside all other arguments, of `size` bytes with them."""
    room = ARGUMENT_BYTES - size + sum(map(_capture_bytes, plan.captures))
    used = accumulate(map(_capture_bytes, plan.captures))
    return sum(total <= room for total in used)


def arguments(plan: ForwardPlan) -> Iterator[Diagnostic]:
    """What expressions name are arguments, and those fit a kernel."""
    given = {
        "read": {capture.name for capture in plan.captures},
        "param": {param.name for param in plan.params},
        "size": set(plan.sizes),
    }
    named = {(node.op, str(node.attr)) for node in children_first(plan.expressions) if node.op in given}
    for kind, name in sorted(named):
        if name not in given[kind]:
            yield Diagnostic("E294", f"'{name}' is named by an expression and is no argument of the plan")
    size = argument_bytes(plan)
    if size > ARGUMENT_BYTES:
        message = (
            f"{len(plan.captures)} captures and {len(plan.params)} parameters take {size:,} bytes of arguments; "
            f"there are {ARGUMENT_BYTES:,}"
        )
        hint = f"stack tensors of one dtype along a new axis; the first {_fitting(plan, size)} captures fit"
        yield Diagnostic("E294", message, hint=hint)


def sizes(plan: ForwardPlan) -> Iterator[Diagnostic]:
    """Expressions are small enough to be written out; what is computed once for a row may be as large as a mask."""
    most = MAX_MASK_NODES[plan.target]
    for name, root, limit in (
        ("mask", plan.mask.mask, most),
        ("score", plan.score, MAX_SCORE_NODES[plan.target]),
        ("scale", plan.scale, most),
        ("sink", plan.sink, most),
        ("factor of v", plan.descale_v, most),
        ("distance of q_pos from q_idx", plan.shift, most),
    ):
        nodes = 0 if root is None else _count(root)
        if nodes > limit:
            message = f"the {name} has {nodes:,} distinct nodes; a kernel evaluates at most {limit:,}"
            hint = "take it as a parameter" if name == "scale" else "read it from a captured tensor"
            yield Diagnostic("E295", message, hint=hint)


def _count(root: Expr) -> int:
    return sum(1 for _ in children_first([root]))


Rules = tuple[Callable[[ForwardPlan], Iterator[Diagnostic]], ...]
EVERY_TARGET: Rules = (_dims, _narrow, arguments, sizes)
FIELDS: Rules = (*EVERY_TARGET, _tiles)
DERIVED: Rules = (shared_memory, _registers)
