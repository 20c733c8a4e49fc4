"""From what a warp executed in PTX to what it executed in machine code.

The emulator hands out basic blocks and events (barriers, MMAs, copies) of PTX; every machine instruction names its
PTX line. Between two events the way through the machine code is the one with the most instructions of PTX blocks that
were executed, and the fewest of others: ptxas moves instructions between blocks, turns branches into predicates and
copies blocks, so the two graphs differ, but events keep their order. `Walk.foreign` counts instructions on the way
whose block was not executed, which bounds how wrong it may be.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ..emulator.isa import INSTRUCTION
from ..emulator.native import Step, WarpPath
from ..emulator.program import DecodedProgram
from .machine_code import Instruction

# Machine instruction that an event of the emulator becomes, by its handler; others of its PTX line only help it.
# Products of warpgroups are not here: ptxas gives all of a sequence one line, and their shapes are in the machine code.
PRIMARY: dict[str, tuple[str, ...]] = {
    "mbar_init": ("SYNCS.EXCH",),
    "mbar_try_wait": ("SYNCS.PHASECHK",),
    "mbar_arrive": ("SYNCS.ARRIVE",),
    "mbar_expect_tx": ("SYNCS.ARRIVE", "SYNCS.A"),
    "tma_load": ("UTMALDG",),
    "tma_store": ("UTMASTG",),
    "tma_reduce": ("UTMAREDG",),
    "bulk_load": ("UBLKCP",),
    "bulk_store": ("UBLKCP",),
    "bulk_commit": ("UTMACMDFLUSH",),
    "bulk_wait": ("DEPBAR",),
    "bar_sync": ("BAR.SYNC",),
    "bar_arrive": ("BAR.ARV",),
    "bar_red": ("BAR.RED",),
    "cp_async": ("LDGSTS",),
    "cp_async_commit": ("LDGDEPBAR",),
    "cp_async_wait": ("DEPBAR",),
    "cp_async_mbar_arrive": ("ARRIVES",),
    "tcgen05_mma": ("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"),
    "tcgen05_commit": ("UTCBAR",),
    "tcgen05_cp": ("UTCCP",),
    "tcgen05_ld": ("LDTM",),
    "tcgen05_st": ("STTM",),
}
_PEELED = 20  # lines between a wait in PTX and what its first try is said to come from
_BACKWARD = 2  # branches back between two events
_NEAR = 2  # intervals before and after whose blocks count too: ptxas moves arithmetic past waits
# what an instruction of a block that did not run costs, an event that did not happen, a branch back
_FOREIGN, _SKIPPED, _RETURN = -2, -30, -20


@dataclass(frozen=True)
class Event:
    """An executed event: its handler, operands and amount."""

    handler: str
    step: Step
    modifiers: tuple[int, ...]  # of the decoded instruction


@dataclass
class Walk:
    """The machine instructions of a warp, in order."""

    places: list[int] = field(default_factory=list)
    events: dict[int, Event] = field(default_factory=dict)  # by index in `places`
    foreign: int = 0  # instructions of PTX blocks that were not executed then
    lost: list[str] = field(default_factory=list)  # events without a place in the machine code


@dataclass(frozen=True)
class Program:
    """A kernel's PTX, decoded, as its events and blocks are looked up."""

    handlers: tuple[str, ...]  # by instruction
    lines: tuple[int, ...]
    blocks: tuple[int, ...]
    modifiers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, decoded: DecodedProgram) -> Program:
        records = list(struct.iter_unpack(INSTRUCTION, decoded.code))
        return cls(
            tuple(decoded.handlers[record[0]] for record in records),
            tuple(record[6] for record in records),
            tuple(record[7] for record in records),
            tuple(tuple(record[8:12]) for record in records),
        )

    def intervals(self, path: WarpPath, known: frozenset[int]) -> Iterator[tuple[frozenset[int], Event | None, int]]:
        """(blocks near, the event that ends the interval or None, its line) of each interval; events of lines without
        machine code are left out."""
        ran: list[set[int]] = [set()]
        events: list[tuple[Event | None, int]] = []
        for step in path.steps():
            ran[-1].add(self.blocks[step.pc])
            if step.lanes and self.lines[step.pc] in known:
                events.append((Event(self.handlers[step.pc], step, self.modifiers[step.pc]), self.lines[step.pc]))
                ran.append({self.blocks[step.pc]})
        events.append((None, 0))
        for place, (event, line) in enumerate(events):
            near = ran[max(0, place - _NEAR) : place + _NEAR + 1]
            yield frozenset().union(*near), event, line


class _Way(NamedTuple):
    score: int
    places: tuple[int, ...]
    foreign: int


_Link: TypeAlias = "tuple[_Way, Event | None, _Link | None]"


class Follower:
    """Follows paths through one kernel's machine code."""

    def __init__(self, code: tuple[Instruction, ...], program: Program) -> None:
        self.code, self.program = code, program
        kinds: dict[int, set[str]] = {}
        for handler, line in zip(program.handlers, program.lines, strict=True):
            if handler in PRIMARY:
                kinds.setdefault(line, set()).update(PRIMARY[handler])
        self.event_line = [
            instruction.line if instruction.opcode.startswith(tuple(kinds.get(instruction.line, ("-",)))) else 0
            for instruction in code
        ]
        waits = sorted(line for line, names in kinds.items() if PRIMARY["mbar_try_wait"][0] in names)
        self.stray = self._place_waits(waits)
        self.known = frozenset(self.event_line) - {0}
        self._block_of: dict[int, int] = dict(zip(program.lines, program.blocks, strict=True))
        self._known_ways: dict[tuple[int, int, frozenset[int]], dict[int, _Way]] = {}
        self._starts = self._cut()

    def walk(self, path: WarpPath) -> Walk:
        """The machine instructions behind what a warp executed."""
        found = Walk()
        # by place of the last event: score, and (way to it, event, the entry before)
        reached: dict[int, tuple[int, _Link | None]] = {0: (0, None)}
        for blocks, event, line in self.program.intervals(path, self.known):
            after: dict[int, tuple[int, _Link | None]] = {}
            for start, (score, link) in reached.items():
                key = (start, line, blocks)
                if key not in self._known_ways:
                    self._known_ways[key] = self._ways(*key)
                for place, way in self._known_ways[key].items():
                    total = score + way.score
                    if place + 1 not in after or total > after[place + 1][0]:
                        after[place + 1] = total, (way, event, link)
            if after:
                reached = after
            elif event is not None:
                found.lost.append(f"PTX line {line}: {event.handler}")
        _, link = max(reached.values(), key=lambda entry: entry[0])
        chain: list[_Link] = []
        while link is not None:
            chain.append(link)
            link = link[2]
        for way, event, _ in reversed(chain):
            found.places.extend(way.places)
            found.foreign += way.foreign
            if event is not None:
                found.events[len(found.places) - 1] = event
        return found

    def _place_waits(self, lines: list[int]) -> list[bool]:
        """Gives waits their lines, and says which instructions only run while one spins.

        ptxas peels the loop of a wait: the first try gets a line just before that of the instruction; the loop, behind
        the kernel, keeps it, and sleeps between two tries.
        """
        stray = [instruction.base == "NANOSLEEP" for instruction in self.code]
        tries = [p for p, instruction in enumerate(self.code) if instruction.opcode.startswith("SYNCS.PHASECHK")]
        spinning = [place for place in tries if stray[place - 1] or (place + 1 < len(stray) and stray[place + 1])]
        first = {place: self._wait_line(self.code[place].line, lines) for place in tries if place not in spinning}
        for place, line in first.items():
            self.event_line[place] = line
            stray[place] = not line
        for place in spinning:
            if self.event_line[place] in first.values():
                self.event_line[place] = 0
                stray[place] = True
        return stray

    @staticmethod
    def _wait_line(line: int, lines: list[int]) -> int:
        """The line of the wait that begins at or a little after `line`, or 0."""
        at = bisect_left(lines, line)
        return lines[at] if at < len(lines) and lines[at] - line <= _PEELED else 0

    def _cut(self) -> list[int]:
        """First places of stretches without a branch, a label or an event inside; an event is a stretch of its own."""
        starts = {0}
        for place, instruction in enumerate(self.code):
            if self.event_line[place]:
                starts |= {place, place + 1}
            if instruction.target is not None or instruction.base == "EXIT":
                starts |= {place + 1} | ({instruction.target} if instruction.target is not None else set())
        return sorted(place for place in starts if place < len(self.code))

    def _weight(self, first: int, last: int, blocks: frozenset[int]) -> tuple[int, int]:
        """Of a stretch: instructions of executed blocks less the others, weighted; and how many the others are."""
        good = foreign = 0
        for place in range(first, last):
            block = self._block_of.get(self.code[place].line)
            if self.stray[place]:
                good += _SKIPPED
            elif block is None or block in blocks:
                good += 1
            else:
                foreign += 1
        return good + _FOREIGN * foreign, foreign

    def _end(self, place: int) -> int:
        """The place after the stretch that `place` lies in."""
        return self._starts[bisect_right(self._starts, place)] if place < self._starts[-1] else len(self.code)

    def _ways(self, start: int, line: int, blocks: frozenset[int]) -> dict[int, _Way]:
        """The best way from a place to each place of the next event, at `line` (0: of the end).

        Ways back in the code are few: a state is (how many of them are behind, place), which makes the search acyclic.
        """
        best: dict[tuple[int, int], tuple[int, tuple[int, int] | None]] = {(0, start): (0, None)}
        ends: dict[int, tuple[int, tuple[int, int]]] = {}
        for state in ((back, place) for back in range(_BACKWARD + 1) for place in self._places(start)):
            if state not in best:
                continue
            score, _ = best[state]
            place = state[1]
            last = self._end(place)
            score += self._weight(place, last, blocks)[0]
            closes = self.event_line[place] == line if line else self.code[last - 1].base == "EXIT"
            if closes and (place not in ends or score > ends[place][0]):
                ends[place] = score, state
            if self.event_line[place]:
                if closes or not self.code[place].guard:
                    continue  # another event would have happened
                score += _SKIPPED
            for to in self.code[last - 1].after(last - 1):
                if to < len(self.code):
                    following, less = ((state[0], to), 0) if to > place else ((state[0] + 1, to), _RETURN)
                    if following not in best or score + less > best[following][0]:
                        best[following] = score + less, state
        return {place: self._traced(score, state, best, blocks) for place, (score, state) in ends.items()}

    def _places(self, start: int) -> list[int]:
        """Where stretches begin, in order, and the start of a way."""
        at = bisect_left(self._starts, start)
        known = at < len(self._starts) and self._starts[at] == start
        return self._starts if known else [*self._starts[:at], start, *self._starts[at:]]

    def _traced(
        self,
        score: int,
        state: tuple[int, int] | None,
        best: dict[tuple[int, int], tuple[int, tuple[int, int] | None]],
        blocks: frozenset[int],
    ) -> _Way:
        firsts: list[int] = []
        while state is not None:
            firsts.append(state[1])
            state = best[state][1]
        places: list[int] = []
        for first in reversed(firsts):
            places.extend(range(first, self._end(first)))
        foreign = sum(self._weight(first, self._end(first), blocks)[1] for first in firsts)
        return _Way(score, tuple(places), foreign)
