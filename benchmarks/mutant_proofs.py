"""Why a mutant that nothing catches may be no mistake in a given launch: proofs from what the unchanged kernel did.

They hold for the recorded launch, not for every launch of the kernel: with more tiles per CTA a barrier may get used.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict

from emulator_mutants import Mutant

from attn_dsl.emulator import LaunchReport, RecordedLaunch
from attn_dsl.emulator.isa import INSTRUCTION

# Handlers whose only effect is on registers and on where the warp goes next.
_HARMLESS = re.compile(
    r"(add|sub|mul|mad|and|or|xor|not|shl|shr|selp|setp|mov|min|max|cvt|lea)_|bra$|elect$|nop$|setmaxnreg$"
)


class Proofs:
    """Proofs about one kernel in one launch, from its text, its code and its traced mbarrier uses."""

    def __init__(self, launch: RecordedLaunch, report: LaunchReport) -> None:
        self._lines = launch.ptx.split("\n")
        self._uses = defaultdict(list)
        for use in report.mbarrier_uses:
            self._uses[use.line].append(use)
        self._last_needed: dict[tuple[int, int], int] = defaultdict(int)  # (offset, CTA): last phase a wait depended on
        for use in report.mbarrier_uses:
            if use.depended:
                key = (use.offset, use.cta)
                self._last_needed[key] = max(self._last_needed[key], use.phase)
        decoded = launch.decoded
        self._code = list(struct.iter_unpack(INSTRUCTION, decoded.code))
        self._handlers = decoded.handlers

    def of(self, mutant: Mutant) -> str | None:
        """A sentence, or None if nothing here proves the mutant equivalent."""
        if "mbarrier.try_wait" in mutant.before:
            return self._wait(mutant.line)
        if "mbarrier" in mutant.before or "tcgen05.commit" in mutant.before:
            return (
                "no wait depends on the phase this counts for, nor on a later one" if self._idle(mutant.line) else None
            )
        if "bar.warp.sync" in mutant.before:
            return self._warp_barrier(mutant.line)
        if "bulk.wait_group" in mutant.before or "bulk.commit_group" in mutant.before:
            return self._bulk_group(mutant.line)
        if "wgmma.fence" in mutant.before:
            return "the wgmma behind it use no register written since an earlier wgmma.fence: the emulator checks each"
        return self._dead_register(mutant)

    def _idle(self, line: int) -> bool:
        """Nobody waits for what the arrivals (or counts) of this line contribute to."""
        return all(use.phase > self._last_needed[use.offset, use.cta] for use in self._uses[line])

    def _idle_arrival(self, ins: tuple[int, ...]) -> bool:
        return self._handlers[ins[0]] == "mbar_arrive" and self._idle(ins[6])

    def _wait(self, line: int) -> str | None:
        if not any(use.depended for use in self._uses[line]):
            return "every execution of this wait passes because the barrier is fresh"
        if self._only_waits_follow(line):
            return "the warps do nothing after this wait but wait, arrive where nobody waits, and exit"
        return None

    def _only_waits_follow(self, line: int) -> bool:
        """After their last execution of this wait the warps only wait, and arrive where nobody waits."""
        for use in self._uses[line]:
            if use.after is None:
                return False
            for later in use.after:
                if "mbarrier.try_wait" not in self._lines[later - 1] and not (self._uses[later] and self._idle(later)):
                    return False
        return True

    def _warp_barrier(self, line: int) -> str | None:
        """Between two collective .aligned instructions of one basic block the warp is converged."""
        for step, stop in ((-1, -30), (1, 30)):
            for at in range(line - 1 + step, line - 1 + stop, step):
                text = self._lines[at].strip() if 0 <= at < len(self._lines) else ""
                if ".sync.aligned" in text or "bar.sync" in text or "elect.sync" in text:
                    break
                if re.match(r"(\$\w+|\w+):|@|bra", text):
                    return None
        return "the warp is converged here: collective instructions before and after it, no branch between them"

    def _bulk_group(self, line: int) -> str | None:
        """From the first wait the change can shorten to a wait for all groups there are only idle arrivals."""
        first = self._index(line)
        if "commit_group" in self._lines[line - 1]:
            following = (
                i for i in range(first + 1, len(self._code)) if self._handlers[self._code[i][0]] == "bulk_wait"
            )
            first = next(following)
            if not any(self._handlers[ins[0]] == "bulk_commit" for ins in self._code[self._index(line) + 1 : first]):
                return None
        for ins in self._code[first + 1 : first + 20]:
            handler = self._handlers[ins[0]]
            if handler == "bulk_wait" and re.search(r"wait_group(\.read)?\s+0", self._lines[ins[6] - 1]):
                return "until the next wait for all groups there are only arrivals that no wait depends on"
            if not (_HARMLESS.match(handler) or self._idle_arrival(ins)):
                return None
        return None

    def _index(self, line: int) -> int:
        return next(i for i, ins in enumerate(self._code) if ins[6] == line)

    def _dead_register(self, mutant: Mutant) -> str | None:
        m = re.match(r"\s*(?:mov|or)\.b(?:32|64)\s+([%\w]+),", mutant.before)
        if not m:
            return None
        readers = self._readers(m[1])
        if not readers:
            return "the register is never read"
        halves = [re.match(r"\s*mov\.b64\s+\{[%\w]+,\s*([%\w]+)\}", line) for line in readers]
        if "or.b64" in mutant.before and all(half and not self._readers(half[1]) for half in halves):
            return "only the low half of the register is read, and the change is in the high half"
        return None

    def _readers(self, register: str) -> list[str]:
        """Lines that name a register otherwise than to declare or define it."""
        name = re.compile(rf"(?<![%\w]){re.escape(register)}(?!\w)")
        found = []
        for line in self._lines:
            reads = len(name.findall(line)) - int(".reg" in line or self._defines(line, register))
            if reads > 0:
                found.append(line)
        return found

    @staticmethod
    def _defines(line: str, register: str) -> bool:
        m = re.match(r"\s*(?:@!?[%\w]+\s+)?[a-z][\w.:]*\s+(\{[^}]*\}|[%\w]+)\s*,", line)
        return bool(m) and register in re.findall(r"[%\w]+", m[1])
