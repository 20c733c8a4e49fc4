"""The predicted time of a recorded launch: a few thread blocks are simulated, the grid follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..diagnostics import UnsupportedError
from ..emulator import RecordedLaunch
from ..runtime.cubin import resources
from .blocks import ThreadBlock, costs, thread_blocks
from .follow import Follower, Program
from .grid import Grid
from .machine_code import Instruction, of_cubin
from .simulate import UNTIMED, Multiprocessor, Outcome
from .tables import Table

SAMPLES = 24  # thread blocks that are executed; the others are like their neighbours in the grid
SIMULATED = 3  # of them, by how much they execute
ROUNDS = 3  # blocks that one place of a multiprocessor runs in a row
LIMIT = 400_000  # instructions of one simulation
WARP_REGISTERS = 256  # granularity of a warp's allocation (CUDA occupancy calculator, compute capability 9.0 and 10.0)
RESERVED_SHARED = 1024  # bytes of shared memory that the system takes of each thread block
MAX_WARPS, MAX_BLOCKS = 64, 32  # of a multiprocessor


@dataclass(frozen=True)
class Sampled:
    """What of a launch is simulated: it can be kept and simulated again with other tables."""

    code: tuple[Instruction, ...]
    blocks: tuple[ThreadBlock, ...]  # those that are simulated, by their work; without costs
    work: dict[int, int]  # of all executed thread blocks: steps of PTX, by place in the grid
    grid: int  # thread blocks
    resident: int  # thread blocks that fit a multiprocessor
    unique_bytes: int  # of global memory behind the launch's pointers

    @property
    def foreign(self) -> float:
        """The share of simulated instructions whose PTX was not executed: see follow.py."""
        walks = [walk for block in self.blocks for walk in block.warps]
        return sum(walk.foreign for walk in walks) / max(1, sum(len(walk.places) for walk in walks))


@dataclass(frozen=True)
class Prediction:
    """Of one launch. Every number is the model's."""

    cycles: float
    microseconds: float
    clock_mhz: float
    bound: str  # the unit that is busy most
    busy: dict[str, float]  # share of the time, by unit
    waits: dict[str, dict[str, float]]  # by role: reason -> share of the role's time
    resident: int
    waves: float
    foreign: float  # share of simulated instructions whose PTX was not executed: see follow.py
    error: float  # relative, the largest of the kernels that were measured
    outcome: Outcome  # of the longest simulated thread block

    @property
    def range(self) -> tuple[float, float]:
        """Microseconds: what was measured lay between these, by the largest error either way."""
        return self.microseconds / (1 + self.error), self.microseconds / (1 - self.error)


def occupancy(registers: int, threads: int, shared: int, table: Table) -> int:
    """Thread blocks that fit a multiprocessor; `registers` of a thread, `shared` bytes of a block."""
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // WARP_REGISTERS) * WARP_REGISTERS
    return int(
        min(
            table["register_file"] // (per_warp * warps),
            table["shared_memory"] // (shared + RESERVED_SHARED),
            MAX_WARPS // warps,
            MAX_BLOCKS,
        )
    )


def sample(launch: RecordedLaunch, table: Table, unique_bytes: int) -> Sampled:
    """Executes some thread blocks of a launch and follows them through its machine code.

    Raises UnsupportedError (E281) for a launch that the model has no events for, E282 without a disassembler.
    """
    config = launch.config
    if config.cluster != (1, 1, 1):
        raise UnsupportedError.of("E281", f"clusters of {config.cluster} thread blocks are not timed")
    if unknown := sorted(set(launch.decoded.handlers) & UNTIMED):
        raise UnsupportedError.of("E281", f"{launch.decoded.name}: not timed: {', '.join(unknown)}")
    grid = config.grid[0] * config.grid[1] * config.grid[2]
    threads = config.block[0] * config.block[1] * config.block[2]
    program = launch.decoded
    resident = occupancy(resources(launch.image).registers, threads, program.static_smem + config.dyn_smem, table)
    stride = max(1, grid // SAMPLES)
    # not one place of each stretch: a period of the grid would be met at the same phase
    only = tuple(sorted({min(grid - 1, i * stride + (i * 7919) % stride) for i in range(min(grid, SAMPLES))}))
    report = launch.replay(path=True, only=only, checks=False, threads=1)
    code = of_cubin(launch.image, launch.kernel)
    if not any(instruction.line for instruction in code):  # no event would be found in it, and no loop
        message = f"{program.name}: its machine code does not say which PTX line an instruction comes from"
        raise UnsupportedError.of("E281", message, hint="record it on a device with lines=True")
    follower = Follower(code, Program.of(program))
    work: dict[int, int] = {}
    for path in report.paths:
        work[path.cta] = work.get(path.cta, 0) + path.length
    order = sorted(work, key=lambda cta: work[cta])
    chosen = dict.fromkeys(order[round(i * (len(order) - 1) / (SIMULATED - 1))] for i in range(SIMULATED))
    distinct = {work[cta]: cta for cta in chosen}  # blocks of the same work need one simulation
    blocks = thread_blocks(follower, [path for path in report.paths if path.cta in distinct.values()], ())
    blocks.sort(key=lambda block: work[block.cta])
    lost = [text for block in blocks for walk in block.warps for text in walk.lost]
    if lost:  # a simulation without them would be of another program
        raise UnsupportedError.of("E281", f"{program.name}: {len(lost)} events are not in the machine code: {lost[0]}")
    return Sampled(code, tuple(blocks), work, grid, resident, unique_bytes)


def predict(sampled: Sampled, table: Table, *, spans: bool = False) -> Prediction:
    """The time of a sampled launch on the machine of a table."""
    code = costs(sampled.code, table)
    blocks = [replace(block, code=code) for block in sampled.blocks]
    work = [sampled.work[block.cta] for block in blocks]
    bytes_of = list(zip(work, (float(block.loaded) for block in blocks), strict=True))
    loaded = statistics.mean(_between(bytes_of, steps) for steps in sampled.work.values()) * sampled.grid
    fresh = min(1.0, sampled.unique_bytes / loaded) if loaded else 0.0
    hbm = table["memory.hbm_gb_s"] * 1e3 / table["clock_mhz"] / table["sms"]  # bytes a cycle and multiprocessor
    supply = 1 / max(1 / table["memory.l2"], fresh / hbm)
    resident = min(sampled.resident, -(-sampled.grid // int(table["sms"])))
    alone = [_alone(block, table, supply, spans and resident == 1) for block in blocks]
    points = [(steps, cycles) for steps, (cycles, _) in zip(work, alone, strict=True)]
    of_cta = {cta: _between(points, steps) for cta, steps in sampled.work.items()}
    longest, outcome = alone[-1]
    slower = 1.0
    if resident > 1:
        each, outcome = _together(blocks[-1], resident, longest, table, supply, spans)
        slower = each / longest
    cycles = Grid(of_cta, sampled.grid, int(table["sms"]), resident, slower).cycles()
    busy = _shares(outcome)
    seconds = cycles / (table["clock_mhz"] * 1e6) + table["launch_us"] * 1e-6
    return Prediction(
        cycles,
        seconds * 1e6,
        table["clock_mhz"],
        max(busy, key=lambda unit: busy[unit]),
        busy,
        _waits(outcome),
        resident,
        sampled.grid / (table["sms"] * resident),
        sampled.foreign,
        table.errors.get("largest", 0.5),
        outcome,
    )


def _alone(block: ThreadBlock, table: Table, supply: float, spans: bool) -> tuple[float, Outcome]:
    """Cycles of a block that has a multiprocessor for itself."""
    outcome = Multiprocessor(table, supply, spans=spans, limit=LIMIT).run([[block]])
    # a block that is cut short goes on at the rate it had
    return outcome.cycles * (1.0 if outcome.whole else block.instructions / outcome.issued), outcome


def _together(
    block: ThreadBlock, resident: int, alone: float, table: Table, supply: float, spans: bool
) -> tuple[float, Outcome]:
    """Cycles of such a block when others like it are resident, at other points of their run."""
    machine = Multiprocessor(table, supply, spans=spans, limit=ROUNDS * resident * LIMIT)
    outcome = machine.run([[block] * ROUNDS] * resident, stagger=alone / resident)
    if not outcome.whole:
        return outcome.cycles / ROUNDS * (block.instructions * ROUNDS * resident / outcome.issued), outcome
    full = (alone / resident * (resident - 1), max(start for start, _ in outcome.block_times[-resident:]))
    steady = [end - start for start, end in outcome.block_times if start >= full[0] and start <= full[1]]
    return statistics.mean(steady), outcome


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """Linear between the two neighbours."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1 and x1 > x0:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


_COPIES = {"memory": 1, "tma": 1, "memory traffic": 1}  # of a unit in a multiprocessor; the others: one a sub-partition


def _shares(outcome: Outcome) -> dict[str, float]:
    issue = outcome.issued / 4
    found = {unit: cycles / _COPIES.get(unit, 4) for unit, cycles in outcome.busy.items()}
    found["issue"] = issue
    return {unit: cycles / outcome.cycles for unit, cycles in found.items() if cycles}


def _waits(outcome: Outcome) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (role, reason), cycles in outcome.waits.items():
        found.setdefault(role, {})[reason] = cycles / outcome.alive[role] if outcome.alive[role] else 0.0
    return found
