"""How many synchronisation mistakes the emulator catches: mutants of flash-attn-4 kernels under random schedules.

    python benchmarks/emulator_mutation.py --kernel NAME [--count 80] [--seeds 10] [--seed 1] [--json OUT]

A mutant is caught by a finding, or by an output that differs from that of the unchanged kernel. Running out of the
budget does not count. Only lines that the launch executes are changed. Two of three schedules complete asynchronous
work late.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from emulator_mutants import Mutant, sample
from mutant_proofs import Proofs

from attn_dsl import emulator
from attn_dsl.emulator import PtxError, RecordedLaunch
from attn_dsl.emulator.decoder import decode
from attn_dsl.emulator.execute import Loaded

BUDGET = 3_000_000  # warp-instructions of one cluster; the kernels here need less than a tenth of it


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant: `how` is finding, numbers, budget, equivalent or missed, `detail` why."""

    rule: str
    line: int
    before: str
    how: str
    detail: str
    schedules: int  # until it was caught


class Bench:
    """One recorded launch, the memory it works on, and what it leaves there when nothing is wrong."""

    def __init__(self, launch: RecordedLaunch) -> None:
        self.launch = launch
        self._ranges = [(a.base, a.size) for a in launch.allocations]
        self._before = [ctypes.string_at(*r) for r in self._ranges]
        report = launch.replay(collect=True, trace=True, threads=1)
        if report.findings:
            raise SystemExit(f"the unchanged kernel has findings: {report.findings[0]}")
        self._after = self._memory()
        self.executed = report.executed_lines
        self._proofs = Proofs(launch, report)

    def _memory(self) -> list[bytes]:
        return [ctypes.string_at(*r) for r in self._ranges]

    def restore(self) -> None:
        for (base, _), data in zip(self._ranges, self._before, strict=True):
            ctypes.memmove(base, data, len(data))

    def judge(self, mutant: Mutant, seeds: int) -> Outcome:
        try:
            loaded = Loaded(decode(mutant.apply(self.launch.ptx), self.launch.kernel))
        except PtxError as error:
            raise SystemExit(f"mutant of line {mutant.line} is no PTX: {error}") from None
        over_budget = False
        for seed in range(1, seeds + 1):
            self.restore()
            report = self._run(loaded, seed)
            kinds = [f.kind for f in report.findings if f.kind != "budget"]
            over_budget |= len(kinds) < len(report.findings)
            if kinds:
                return self._outcome(mutant, "finding", kinds[0], seed)
            if not over_budget and self._memory() != self._after:
                return self._outcome(mutant, "numbers", "", seed)
        if not over_budget and (proof := self._proofs.of(mutant)):
            return self._outcome(mutant, "equivalent", proof, seeds)
        return self._outcome(mutant, "budget" if over_budget else "missed", "", seeds)

    def _run(self, loaded: Loaded, seed: int) -> emulator.LaunchReport:
        config = replace(
            self.launch.config, seed=seed, late=seed % 3, budget=BUDGET, checks=True, collect=False, threads=1
        )
        return loaded.run(config, self.launch.params, self.launch.allocations)

    @staticmethod
    def _outcome(mutant: Mutant, how: str, detail: str, schedules: int) -> Outcome:
        return Outcome(mutant.rule, mutant.line, mutant.before.strip(), how, detail, schedules)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(torch.bfloat16)


def _forward(arch: str, length: int, **options: object) -> Callable[[], RecordedLaunch]:
    def record() -> RecordedLaunch:
        with emulator.device(arch, findings="collect", record=True) as gpu:
            from flash_attn.cute import flash_attn_func

            torch.manual_seed(3)
            q, k, v = (_random(1, length, 1, 128) for _ in range(3))
            flash_attn_func(q, k, v, **options)
        return gpu.launches[-1]

    return record


KERNELS: dict[str, Callable[[], RecordedLaunch]] = {
    "sm_100a causal": _forward("sm_100a", 768, causal=True),
    "sm_90a causal": _forward("sm_90a", 768, causal=True),
    "sm_100a full (held out)": _forward("sm_100a", 768),
}


def summary(name: str, outcomes: list[Outcome]) -> str:
    how = Counter(o.how for o in outcomes)
    lines = [f"## {name}: {len(outcomes)} mutants: " + ", ".join(f"{n} {k}" for k, n in how.most_common())]
    kinds = Counter(o.detail for o in outcomes if o.how == "finding")
    lines.append("findings: " + ", ".join(f"{k} {n}" for k, n in kinds.most_common()))
    judged = len(outcomes) - how["equivalent"]
    lines.append(f"caught: {how['finding'] + how['numbers']} of the {judged} not proved equivalent")
    lines += [
        f"  equivalent ({o.detail}): {o.rule}, line {o.line}: {o.before}" for o in outcomes if o.how == "equivalent"
    ]
    lines += [f"  {o.how}: {o.rule}, line {o.line}: {o.before}" for o in outcomes if o.how in ("missed", "budget")]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=80, help="mutants of each kernel")
    parser.add_argument("--seeds", type=int, default=10, help="schedules for each mutant")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of mutants")
    parser.add_argument("--kernel", choices=list(KERNELS), required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    bench = Bench(KERNELS[args.kernel]())
    mutants = sample(bench.launch.ptx, bench.executed, args.count, args.seed)
    outcomes = [bench.judge(mutant, args.seeds) for mutant in mutants]
    print(summary(args.kernel, outcomes))
    if args.json:
        args.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))


if __name__ == "__main__":
    main()
