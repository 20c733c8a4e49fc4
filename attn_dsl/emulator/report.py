"""What a launch did: findings and counters, and how they are shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .native import LaunchConfig, LaunchResult, MbarrierUse, RawFinding, WarpPath

Role = tuple[int, int, dict[str, int]]  # first and last warp, and what they ran by class


@dataclass(frozen=True)
class Finding:
    """One thing a kernel did wrong. `line` counts from 1 in the PTX text; 0 is the end of a CTA."""

    kind: str  # a stable word, such as "race-shared"
    text: str  # a plain sentence
    kernel: str
    line: int
    source: str  # the PTX line
    warp: int  # in its CTA
    lanes: int  # bit mask
    ctaid: tuple[int, int, int]
    times: int
    role: tuple[int, int]  # first and last warp of the CTA that, side by side, run the same kinds of instructions

    def __str__(self) -> str:
        place = f"line {self.line}: {self.source}" if self.line else "at the end of the CTA"
        often = f" ({self.times} times)" if self.times > 1 else ""
        role = "" if self.role[0] == self.role[1] else f" (with warps {self.role[0]} to {self.role[1]})"
        where = f"warp {self.warp}{role} of CTA {self.ctaid} of {self.kernel}, {place}"
        return f"{self.kind}: {self.text}{often}\n  {where}"

    @classmethod
    def of(cls, raw: RawFinding, kernel: str, lines: tuple[str, ...], roles: list[Role]) -> Finding:
        source = lines[raw.line - 1].strip() if 0 < raw.line <= len(lines) else ""
        role = next(((first, last) for first, last, _ in roles if first <= raw.warp <= last), (raw.warp, raw.warp))
        return cls(raw.kind, raw.text, kernel, raw.line, source, raw.warp, raw.lanes, raw.ctaid, raw.times, role)


@dataclass(frozen=True)
class LaunchReport:
    """One launch of one kernel."""

    kernel: str
    config: LaunchConfig
    findings: tuple[Finding, ...]
    instructions: int  # warp-instructions
    seconds: float  # of the host
    roles: tuple[dict[str, int], ...]  # warp-instructions by class, for each warp index of a CTA, all CTAs together
    role_engines: tuple[dict[str, int], ...]  # bytes by engine and MMA FLOPs, the same way
    smem_bytes: int  # shared memory of one CTA
    tmem_columns: int  # most in use at once in one CTA
    printed: str  # output of the kernel's printf
    mbarrier_uses: tuple[MbarrierUse, ...] = ()  # with LaunchConfig.trace
    executed_lines: frozenset[int] = frozenset()  # of the PTX text, with LaunchConfig.trace
    paths: tuple[WarpPath, ...] = ()  # with LaunchConfig.path

    @property
    def classes(self) -> dict[str, int]:
        """Warp-instructions by class."""
        return _total(self.roles)

    @property
    def engines(self) -> dict[str, int]:
        """Bytes by engine, and MMA FLOPs."""
        return _total(self.role_engines)

    @classmethod
    def of(cls, name: str, lines: tuple[str, ...], config: LaunchConfig, result: LaunchResult) -> LaunchReport:
        return cls(
            name,
            config,
            tuple(Finding.of(raw, name, lines, role_groups(result.classes)) for raw in result.findings),
            result.instructions,
            result.seconds,
            result.classes,
            result.engines,
            result.smem_bytes,
            result.tmem_columns,
            result.printed,
            result.mbarrier_uses,
            result.executed_lines,
            result.paths,
        )

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.config.grid))
        rate = self.instructions / self.seconds / 1e6 if self.seconds else 0.0
        head = [
            f"kernel {short_name(self.kernel)}",
            f"  grid {shape}, cluster {self.config.cluster}, {_threads(self.config)} threads, "
            f"{self.smem_bytes} bytes of shared memory, {self.tmem_columns} TMEM columns",
            f"  {self.instructions} warp-instructions in {self.seconds:.3f} s ({rate:.1f} million per second)",
        ]
        counted = sorted(((n, k) for k, n in self.classes.items() if n), reverse=True)
        head.append("  " + ", ".join(f"{name} {count}" for count, name in counted))
        for first, last, counters in role_groups(self.roles):
            top = sorted(((n, k) for k, n in counters.items() if n), reverse=True)[:6]
            warps = f"warp {first}" if first == last else f"warps {first}-{last}"
            head.append(f"    {warps}: " + (", ".join(f"{name} {count}" for count, name in top) or "nothing"))
        moved = [f"{name} {count}" for name, count in self.engines.items() if count]
        if moved:
            head.append("  " + ", ".join(moved))
        head += [f"  finding: {finding}" for finding in self.findings]
        return "\n".join(head)


def role_groups(roles: tuple[dict[str, int], ...]) -> list[Role]:
    """Warps next to each other that run instructions of the same classes: the roles of a specialised kernel."""
    groups: list[tuple[int, int, tuple[dict[str, int], ...]]] = []
    for warp, counters in enumerate(roles):
        if groups and _kinds(groups[-1][2][-1]) == _kinds(counters):
            first, _, members = groups[-1]
            groups[-1] = (first, warp, (*members, counters))
        else:
            groups.append((warp, warp, (counters,)))
    return [(first, last, _total(members)) for first, last, members in groups]


def short_name(kernel: str) -> str:
    """The kernel's name without the argument types CuTe DSL appends to it."""
    return kernel if len(kernel) <= 80 else kernel[:77] + "..."


def _threads(config: LaunchConfig) -> int:
    return config.block[0] * config.block[1] * config.block[2]


def _kinds(counters: dict[str, int]) -> set[str]:
    return {name for name, count in counters.items() if count}


def _total(counters: tuple[dict[str, int], ...]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return dict(total)
