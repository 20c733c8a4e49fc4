"""What the SM100 kernel executes, beside flash-attn-4's, on the virtual device: no GPU is needed.

Same shapes, same emulator. Instructions are warp-instructions of PTX, without `mov` (ptxas removes most of them), for
each visited tile of 128 rows and 128 keys; visited tiles follow from the MMA FLOPs. Loops are those of the machine
code: the shortest way round that runs all of a role's characteristic instructions, in instructions of one warp, for one
tile of keys.

    python benchmarks/sm100_budget.py [--length 1024] [--cases causal,full] [--dims 128,64] [--classes]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import sass

import attn_dsl
from attn_dsl import emulator
from attn_dsl.emulator import LaunchReport, RecordedLaunch
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM100, Kernels

TILE = 128  # rows and keys of a tile
HEAD = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
"""
MASKS = {"causal": "mask = kv_idx <= q_pos", "full": ""}
# warps of a role: 0-7 softmax, 8-11 correction, 12 mma in both kernels; 13 load and 14 epilogue or the other way round
ROLES = {"softmax": range(8), "correction": range(8, 12), "mma": range(12, 13), "load, epilogue, idle": range(13, 16)}
LOOPS: dict[str, Callable[[sass.Instruction], bool]] = {
    "softmax": lambda i: i.opcode.startswith("MUFU.EX2"),
    "correction": lambda i: i.opcode.startswith("STTM"),
    "mma": lambda i: i.opcode.startswith("UTCHMMA"),
    "load": lambda i: i.opcode.startswith("UTMALDG"),
}


@dataclass(frozen=True)
class Run:
    """One launch, and its code."""

    report: LaunchReport
    launch: RecordedLaunch
    dim: int

    @property
    def tiles(self) -> float:
        """Visited tiles: each is a product with K and one with V."""
        return self.report.engines["mma_flop"] / (2 * 2 * TILE * TILE * self.dim)

    def counts(self, warps: range) -> Counter[str]:
        """Instructions of some warps by class, without moves."""
        total: Counter[str] = Counter()
        for warp in warps:
            if warp < len(self.report.roles):
                total.update(self.report.roles[warp])
        del total["move"]
        return total

    def loops(self) -> dict[str, sass.Loop]:
        """The steady loop of each role: of those with the most characteristic instructions, the shortest."""
        code = sass.parse(sass.disassemble(self.launch.image))
        found = {}
        for role, wanted in LOOPS.items():
            loops = [loop for loop in sass.loops(code, wanted) if not (role == "correction" and _exponentials(loop))]
            if loops:
                most = max(sum(map(wanted, loop.path)) for loop in loops)
                # a loop whose exponentials are partly polynomials has fewer special functions
                full = [loop for loop in loops if sum(map(wanted, loop.path)) >= 0.6 * most]
                found[role] = min(full, key=lambda loop: len(loop.path))
        return found


def _exponentials(loop: sass.Loop) -> bool:
    return any(map(LOOPS["softmax"], loop.path))


def ours(case: str, length: int, dim: int) -> Run:
    spec = attn_dsl.parse(HEAD + MASKS[case], name=case)
    extents = {"batch": 1, "seq_q": length, "seq_k": length, "heads": 2, "kv_heads": 2, "dim": dim, "dim_v": dim}
    inputs = random_inputs(spec, extents, seed=1)
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    with emulator.device("sm_100a", record=True) as gpu:
        Kernels(spec, SM100).launch(call, None, None)
    return Run(gpu.reports[-1], gpu.launches[-1], dim)


def theirs(case: str, length: int, dim: int) -> Run:
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        gpu = stack.enter_context(emulator.device("sm_100a", findings="collect", record=True))
        from flash_attn.cute import flash_attn_func

        make = torch.Generator().manual_seed(1)
        q, k, v = (torch.randn(1, length, 2, dim, generator=make).bfloat16() for _ in range(3))
        flash_attn_func(q, k, v, causal=case == "causal")
    return Run(gpu.reports[-1], gpu.launches[-1], dim)


def rows(mine: Run, other: Run, classes: bool) -> Iterator[tuple[str, float, float]]:
    """(what, ours, flash-attn-4's)."""
    runs = (mine, other)

    def pair(what: str, value: Callable[[Run], float]) -> tuple[str, float, float]:
        return what, value(mine), value(other)

    yield pair("visited 128x128 tiles", lambda run: run.tiles)
    yield pair("MMA FLOPs, millions", lambda run: run.report.engines["mma_flop"] / 1e6)
    yield pair("bytes of shared memory of a thread block", lambda run: run.report.smem_bytes)
    yield pair("bytes by TMA loads, thousands", lambda run: run.report.engines["tma_load"] / 1e3)
    yield pair("instructions a tile", lambda run: run.counts(range(16)).total() / run.tiles)
    for role, warps in ROLES.items():
        yield pair(f"- {role}", lambda run, warps=warps: run.counts(warps).total() / run.tiles)
        if classes:
            names = sorted({name for run in runs for name, count in run.counts(warps).items() if count})
            for name in names:
                yield pair(f"  - {name}", lambda run, warps=warps, name=name: run.counts(warps)[name] / run.tiles)
    yield pair("exponentials by the special function unit a tile", lambda run: run.counts(range(16))["ex2"] / run.tiles)
    loops = [run.loops() for run in runs]
    for role in LOOPS:
        lengths = [len(found[role].path) if role in found else 0 for found in loops]
        yield f"machine code of the {role} loop", lengths[0], lengths[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=1024, help="queries and keys")
    parser.add_argument("--cases", default="causal,full")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--classes", action="store_true", help="classes of instructions of each role too")
    options = parser.parse_args()
    for case in options.cases.split(","):
        for dim in map(int, options.dims.split(",")):
            print(f"\n### {case}, head dimension {dim}, bf16, batch 1, 2 heads, {options.length} queries and keys\n")
            print("| | ours | flash-attn-4 | ratio |\n|---|---|---|---|")
            mine, other = ours(case, options.length, dim), theirs(case, options.length, dim)
            for what, a, b in rows(mine, other, options.classes):
                print(f"| {what} | {a:,.1f} | {b:,.1f} | {f'{a / b:.2f}' if b else '-'} |".replace(".0 |", " |"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
