"""What the SM100 kernel of absorbed latent attention executes and moves, on the virtual device: no GPU is needed.

Bytes are those of TMA loads, beside the least there can be, queries and keys once, and flash-attn-4's (`qv=`) for the
same call. Instructions are warp-instructions of PTX without `mov`, by role, for each tile of 64 rows and 64 keys; loops
are those of the machine code, in instructions of one warp for one tile.

    python benchmarks/sm100_mla.py [--keys 1024] [--peer]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import sass

import attn_dsl
from attn_dsl import emulator
from attn_dsl.emulator import LaunchReport, RecordedLaunch
from attn_dsl.lowering.forward.sm100_mla_plan import KEYS, ROWS
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM100, Kernels

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "deepseek_mla_absorbed.attn"
DIM, DIM_V = 576, 512
CASES = ((1, 16), (4, 16), (16, 16), (1, 64), (1, 128), (4, 128))  # queries, heads
ROLES = {"softmax": range(4), "correction": range(4, 8), "mma": range(8, 9), "load": range(9, 10)}
LOOPS = {"softmax": "MUFU.EX2", "mma": "UTCHMMA", "load": "UTMALDG"}  # what marks the loop of a role


def ours(queries: int, heads: int, keys: int) -> tuple[LaunchReport, RecordedLaunch]:
    spec = attn_dsl.load(EXAMPLE)
    extents = {"batch": 1, "seq_q": queries, "seq_k": keys, "heads": heads}
    call = bind(spec, (), {**random_inputs(spec, extents, seed=1).tensors}, False)
    with emulator.device("sm_100a", record=True) as gpu:
        Kernels(spec, SM100).launch(call, None, None)
    return gpu.reports[0], gpu.launches[0]


def theirs(queries: int, heads: int, keys: int) -> LaunchReport:
    make = torch.Generator().manual_seed(1)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make).bfloat16()

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        gpu = stack.enter_context(emulator.device("sm_100a", findings="collect"))
        from flash_attn.cute import flash_attn_func

        q, qv = tensor(1, queries, heads, DIM - DIM_V), tensor(1, queries, heads, DIM_V)
        k, v = tensor(1, keys, 1, DIM - DIM_V), tensor(1, keys, 1, DIM_V)
        flash_attn_func(q, k, v, qv=qv, causal=True, softmax_scale=192**-0.5)
    return gpu.reports[0]


def tiles(report: LaunchReport) -> float:
    """Pairs of 64 rows and 64 keys that were multiplied."""
    return report.engines["mma_flop"] / (2 * ROWS * KEYS * (DIM + DIM_V))


def instructions(report: LaunchReport, role: str) -> int:
    total: Counter[str] = Counter()
    for warp in ROLES[role]:
        total.update(report.roles[warp])
    del total["move"]
    return total.total()


def loops(launch: RecordedLaunch) -> dict[str, int]:
    """Instructions of the steady loop of each role: the shortest with the most of what marks it."""
    code, found = sass.parse(sass.disassemble(launch.image)), {}
    for role, marks in LOOPS.items():

        def marked(instruction: sass.Instruction, marks: str = marks) -> bool:
            return instruction.opcode.startswith(marks)

        paths = [loop.path for loop in sass.loops(code, marked)]
        most = max(sum(map(marked, path)) for path in paths)
        found[role] = min(len(path) for path in paths if sum(map(marked, path)) >= 0.6 * most)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1024)
    parser.add_argument("--peer", action="store_true", help="bytes of flash-attn-4 too")
    options = parser.parse_args()
    print("| queries x heads | thread blocks | 64 x 64 tiles | bytes | least | ratio | flash-attn-4 | ", end="")
    print(" | ".join(ROLES) + " |\n" + "|---" * (7 + len(ROLES)) + "|")
    for queries, heads in CASES:
        report, launch = ours(queries, heads, options.keys)
        moved, least = report.engines["tma_load"], 2 * DIM * (queries * heads + options.keys)
        peer = f"{theirs(queries, heads, options.keys).engines['tma_load']:,}" if options.peer else "-"
        grid = launch.config.grid
        counts = [f"{instructions(report, role) / tiles(report):,.0f}" for role in ROLES]
        values = (
            f"{queries} x {heads}",
            grid[0] * grid[1] * grid[2],
            f"{tiles(report):.0f}",
            f"{moved:,}",
            f"{least:,}",
        )
        print("| " + " | ".join([*map(str, values), f"{moved / least:.2f}", peer, *counts]) + " |", flush=True)
    print("\nLoops of the machine code: " + ", ".join(f"{role} {length}" for role, length in loops(launch).items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
