"""Every wait, arrival and fence of our SM100 kernel, removed one at a time: does the virtual device notice?

A mutant lacks one instruction that a launch executes (an mbarrier wait passes at once; an arrival, commit, fence,
barrier or wait of another kind is dropped). It runs under several schedules until a finding, or an output that differs
from the unchanged kernel's. What is never caught is listed: it is redundant in these launches, or nobody would notice.
What the device does not look at is counted apart, with the reason.

    python benchmarks/sm100_mutation.py [--kernel NAME] [--seeds 6]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

import torch
from emulator_mutants import Mutant, all_mutants
from emulator_mutation import Bench, Outcome

import attn_dsl
from attn_dsl import emulator
from attn_dsl.emulator import RecordedLaunch
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM100, Kernels

HEAD = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
"""
RULES = ("drop", "wait passes at once")
# instructions that PTX asks for and the device does not
OUTSIDE = {
    "tcgen05.wait::ld": "the device, as ptxas does, counts a register dependence on tcgen05.ld as waiting",
    "tcgen05.fence::": "ptxas makes a NOP of it; the device orders tensor memory by barriers and commits alone",
}
LOUD = 12.0  # factor of keys: maxima rise often enough that outputs are rescaled


def _record(mask: str, seq_q: int, seq_k: int, heads: int, dim: int) -> Callable[[], RecordedLaunch]:
    def record() -> RecordedLaunch:
        spec = attn_dsl.parse(HEAD + mask, name="mutated")
        extents = {"batch": 1, "seq_q": seq_q, "seq_k": seq_k, "heads": heads, "kv_heads": 1, "dim": dim, "dim_v": dim}
        inputs = random_inputs(spec, extents, seed=5)
        tensors = dict(inputs.tensors) | {"k": inputs.tensors["k"] * LOUD}
        call = bind(spec, (), {**tensors, **inputs.params}, False)
        o = torch.zeros(1, seq_q, heads, dim, dtype=torch.bfloat16)
        lse = torch.zeros(1, heads, seq_q)
        with emulator.device("sm_100a", strict=True, record=True) as gpu:
            Kernels(spec, SM100).launch(call, o, lse)
        return gpu.launches[-1]

    return record


CAUSAL = "mask = kv_idx <= q_pos"
KERNELS = {
    "causal": _record(CAUSAL, 512, 640, 1, 128),  # two query tiles in turn, copies by TMA
    "rows": _record(CAUSAL, 190, 520, 3, 64),  # rows of Q and O one by one: three heads share a tile
    "one tile": _record(CAUSAL, 200, 640, 1, 256),  # one query tile, two slots of scores, keys ahead of values
}


def sites(launch: RecordedLaunch, executed: frozenset[int]) -> list[Mutant]:
    """In text order."""
    found = [mutant for mutant in all_mutants(launch.ptx) if mutant.rule in RULES]
    known = {mutant.line for mutant in found}
    for number, line in enumerate(launch.ptx.split("\n"), 1):
        if line.strip().startswith("tcgen05.fence::") and number not in known:
            found.append(Mutant("drop", number, line, ""))
    return sorted((mutant for mutant in found if mutant.line in executed), key=lambda mutant: mutant.line)


def outside(outcome: Outcome) -> str | None:
    """Why the device cannot catch this one, if it cannot."""
    if outcome.how != "missed":
        return None
    return next((why for opcode, why in OUTSIDE.items() if outcome.before.startswith(opcode)), None)


def report(name: str, outcomes: list[Outcome]) -> str:
    """What became of every site."""
    how = Counter("not looked at" if outside(outcome) else outcome.how for outcome in outcomes)
    lines = [f"## {name}: {len(outcomes)} sites: " + ", ".join(f"{count} {kind}" for kind, count in how.most_common())]
    kinds: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        opcode = next(word for word in outcome.before.split() if not word.startswith("@")).rstrip(";")
        caught = outcome.detail if outcome.how == "finding" else outside(outcome) or outcome.how
        kinds.setdefault(opcode, Counter())[caught] += 1
    for opcode, counts in sorted(kinds.items()):
        lines.append(f"- {opcode}: {', '.join(f'{kind} {count}' for kind, count in counts.most_common())}")
    for outcome in outcomes:
        if outcome.how not in ("finding", "numbers") and not outside(outcome):
            why = f" ({outcome.detail})" if outcome.detail else ""
            lines.append(f"  {outcome.how}{why}: {outcome.rule}, line {outcome.line}: {outcome.before}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", choices=list(KERNELS), help="one of them (default: all)")
    parser.add_argument("--seeds", type=int, default=6, help="schedules for each mutant")
    options = parser.parse_args()
    missed = 0
    for name in [options.kernel] if options.kernel else list(KERNELS):
        bench = Bench(KERNELS[name]())
        mutants = sites(bench.launch, bench.executed)
        outcomes = [bench.judge(mutant, options.seeds) for mutant in mutants]
        print(report(name, outcomes), flush=True)
        caught = ("finding", "numbers", "equivalent")
        missed += sum(outcome.how not in caught and not outside(outcome) for outcome in outcomes)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
