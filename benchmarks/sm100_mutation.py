"""Every wait, arrival and fence of our SM100 kernel, removed one at a time: does the virtual device notice?

A mutant lacks one instruction (an mbarrier wait passes at once; an arrival, commit, fence, barrier or wait of another
kind is dropped). It runs under several schedules, strict ones, until a finding, or an output that differs from the
unchanged kernel's. A kernel has several launches: what one of them does not need, another may. What no launch needs is
listed.

    python benchmarks/sm100_mutation.py [--kernel NAME] [--seeds 6]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from emulator_mutants import Mutant, all_mutants
from emulator_mutation import Bench, Outcome

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import kernel_matrix as matrix

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.emulator import RecordedLaunch
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.binding import Call
from attn_dsl.runtime.kernels import SM100, Kernels
from attn_dsl.spec import AttentionSpec

HEAD = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
"""
CAUSAL = "mask = kv_idx <= q_pos"
CAPPED = "score = 30 * tanh(score / 30)"
RULES = ("drop", "wait passes at once")
CAUGHT = ("finding", "numbers")
LOUD = 12.0  # factor of keys: maxima rise often enough that outputs are rescaled


def _record(spec: AttentionSpec, call: Call) -> RecordedLaunch:
    call = replace(call, tensors={**call.tensors, "k": call.tensors["k"] * LOUD})
    o, lse = reference.attention(spec, call.tensors, call.params)
    o, lse = torch.zeros(o.shape, dtype=torch.bfloat16), torch.zeros(lse.shape)
    with emulator.device("sm_100a", strict=True, record=True) as gpu:
        Kernels(spec, SM100).launch(call, o, lse)
    return gpu.launches[-1]


def _plain(seq_q: int, seq_k: int, heads: int, dim: int, rest: str = "") -> Callable[[], RecordedLaunch]:
    """Causal attention; `rest` is more of the spec."""

    def record() -> RecordedLaunch:
        spec = attn_dsl.parse(f"{HEAD}{CAUSAL}\n{rest}", name="mutated")
        extents = {"batch": 1, "seq_q": seq_q, "seq_k": seq_k, "heads": heads, "kv_heads": 1, "dim": dim, "dim_v": dim}
        inputs = random_inputs(spec, extents, seed=5)
        return _record(spec, bind(spec, (), {**inputs.tensors, **inputs.params}, False))

    return record


def _example(name: str, dim: int, seq_q: int, seq_k: int) -> Callable[[], RecordedLaunch]:
    """A spec of the gallery, a head of queries for each of keys."""

    def record() -> RecordedLaunch:
        spec = matrix.load(name)
        return _record(spec, matrix.call_of(spec, matrix.Cell(name, "bf16", dim, 1), (seq_q, seq_k), seed=5))

    return record


KERNELS = {
    "causal": (  # two query tiles in turn, copies by TMA
        _plain(512, 640, 1, 128),
        _plain(200, 640, 1, 128),  # both query tiles see the last keys
    ),
    "rows": (  # rows of Q and O one by one: three heads share a tile
        _plain(190, 520, 3, 64),
        _plain(85, 40, 3, 64),  # the first query tile sees no key
        _plain(85, 2600, 3, 64),  # all of the ring comes into use again
    ),
    "one tile": (  # one query tile, two slots of scores, keys ahead of values; keys and values in two parts each
        _plain(200, 640, 1, 256),  # five parts in the ring
        _plain(200, 640, 1, 256, "schedule { stages = 1 }"),  # four
    ),
    "scores": (  # evaluated where they lie in tensor memory
        _plain(300, 640, 1, 64, CAPPED),
        _plain(200, 640, 1, 64, CAPPED),
        _plain(256, 128, 1, 64, CAPPED),
        _plain(200, 2600, 1, 64, CAPPED),
    ),
    "packed": (  # sequences by cu_seqlens: what lies past the last key is cleared
        _example("packed_varlen", 64, 300, 400),
        _example("packed_varlen", 64, 500, 900),
        _example("packed_varlen", 64, 700, 150),
        _example("packed_varlen", 64, 200, 4000),
    ),
}


def sites(launch: RecordedLaunch) -> list[Mutant]:
    """In text order."""
    found = [mutant for mutant in all_mutants(launch.ptx) if mutant.rule in RULES]
    known = {mutant.line for mutant in found}
    for number, line in enumerate(launch.ptx.split("\n"), 1):
        if line.strip().startswith("tcgen05.fence::") and number not in known:
            found.append(Mutant("drop", number, line, ""))
    return sorted(found, key=lambda mutant: mutant.line)


def opcode_of(line: str) -> str:
    return next(word for word in line.split() if not word.startswith("@")).rstrip(";")


def judge(benches: list[Bench], seeds: int) -> tuple[list[Outcome], list[Mutant]]:
    """Of every site that a launch executes: what becomes of it in the first launch that needs it, or in the last; and
    the sites that none executes.

    Launches of a kernel are of one template, if not of one plan: the sites of their codes correspond.
    """
    everywhere = [sites(bench.launch) for bench in benches]
    if len({tuple(opcode_of(mutant.before) for mutant in found) for found in everywhere}) > 1:
        raise SystemExit("launches of one kernel have different sites")
    outcomes, idle = [], []
    for mutants in zip(*everywhere, strict=True):
        outcome = None
        for bench, mutant in zip(benches, mutants, strict=True):
            if mutant.line in bench.executed and (outcome is None or outcome.how not in CAUGHT):
                outcome = bench.judge(mutant, seeds)
        if outcome is None:
            idle.append(mutants[0])
        else:
            outcomes.append(outcome)
    return outcomes, idle


def report(name: str, outcomes: list[Outcome], idle: list[Mutant]) -> str:
    """What became of every site."""
    how = Counter(outcome.how for outcome in outcomes)
    lines = [f"## {name}: {len(outcomes)} sites: " + ", ".join(f"{count} {kind}" for kind, count in how.most_common())]
    kinds: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        caught = outcome.detail if outcome.how == "finding" else outcome.how
        kinds.setdefault(opcode_of(outcome.before), Counter())[caught] += 1
    for opcode, counts in sorted(kinds.items()):
        lines.append(f"- {opcode}: {', '.join(f'{kind} {count}' for kind, count in counts.most_common())}")
    for outcome in outcomes:
        if outcome.how not in CAUGHT:
            why = f" ({outcome.detail})" if outcome.detail else ""
            lines.append(f"  {outcome.how}{why}: {outcome.rule}, line {outcome.line}: {outcome.before}")
    lines += [f"  not executed: line {mutant.line}: {mutant.before.strip()}" for mutant in idle]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", choices=list(KERNELS), help="one of them (default: all)")
    parser.add_argument("--seeds", type=int, default=6, help="schedules for each mutant and launch")
    options = parser.parse_args()
    missed = 0
    for name in [options.kernel] if options.kernel else list(KERNELS):
        outcomes, idle = judge([Bench(record()) for record in KERNELS[name]], options.seeds)
        print(report(name, outcomes, idle), flush=True)
        missed += sum(outcome.how not in CAUGHT for outcome in outcomes)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
