"""A kernel in machine code, out of what `nvdisasm` prints of a cubin: its loops, and the registers of its roles.

A loop's *way round* is the shortest path from its head back to it through all of its characteristic instructions:
code that a wait runs while it spins, and branches that are rarely taken, are not in it.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attn_dsl.runtime import artifact

_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"^\s*(?P<label>\.L_x_\d+):")
_TARGET = re.compile(r"`\((?P<label>\.L_x_\d+)\)")
_REGISTER = re.compile(r"\bR(?P<number>\d+)\b(?:\.reuse)?(?P<type>\.64|\.F32x2|\.F32)?")
_ADDRESS = re.compile(r"\[[^\]]*\]")
PACKED = ("FADD2", "FMUL2", "FFMA2")  # two numbers in neighbouring registers; `.F32` operands are one for both


@dataclass(frozen=True)
class Instruction:
    """One machine instruction; `target` is the place of the instruction it may branch to."""

    opcode: str
    text: str
    conditional: bool
    target: int | None

    def after(self, place: int) -> list[int]:
        """Where control may go from here, this instruction being at `place`."""
        ends = self.opcode.partition(".")[0] in ("BRA", "EXIT") and not self.conditional
        return [*(() if ends else (place + 1,)), *(() if self.target is None else (self.target,))]

    @property
    def registers(self) -> int:
        """One more than the largest register it touches: an operand may be several, an address is one or two."""
        wide = re.search(r"\.x(\d+)\b", self.opcode)  # of tensor memory
        name, *modifiers = self.opcode.split(".")
        pair = name in PACKED or {"64", "WIDE"} & set(modifiers)
        width = int(wide[1]) if wide else 4 if "128" in modifiers else 2 if pair else 1
        data = [
            int(found["number"]) + (1 if found["type"] == ".F32" else width)
            for found in _REGISTER.finditer(_ADDRESS.sub("", self.text))
        ]
        addresses = [
            int(found["number"]) + (2 if found["type"] == ".64" else 1)
            for address in _ADDRESS.findall(self.text)
            for found in _REGISTER.finditer(address)
        ]
        return max([0, *data, *addresses])


@dataclass(frozen=True)
class Loop:
    """A loop of which no smaller one holds as many characteristic instructions."""

    first: int  # place of its first instruction
    last: int  # place of its last branch back
    path: tuple[Instruction, ...]  # the way round

    def classes(self) -> Counter[str]:
        """Instructions of the way round by opcode, without modifiers."""
        return Counter(instruction.opcode.partition(".")[0] for instruction in self.path)


def disassemble(cubin: bytes) -> str:
    """Its text. Raises UnsupportedError without a disassembler."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return artifact.disassemble(Path(file.name))


def parse(text: str) -> list[Instruction]:
    """The instructions of the first kernel in a disassembly."""
    lines: list[re.Match[str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label["label"]] = len(lines)
        elif found := _INSTRUCTION.match(line):
            lines.append(found)
    made = []
    for found in lines:
        name, target = found["opcode"].partition(".")[0], None
        if name in ("BRA", "BRX", "WARPSYNC") and (label := _TARGET.search(found["rest"])):
            target = labels.get(label["label"])
        # a uniform branch has its condition as an operand
        conditional = found["guard"] is not None or (
            name == "BRA" and re.match(r"\s*!?UP\d", found["rest"]) is not None
        )
        made.append(Instruction(found["opcode"], found[0].strip(), conditional, target))
    return made


@dataclass(frozen=True)
class Stretch:
    """What runs after one `setmaxnreg`."""

    limit: int  # registers of a thread from there on
    used: int  # the largest register that an instruction names, and one more
    instructions: int


def stretches(code: list[Instruction]) -> list[Stretch]:
    """One for each `setmaxnreg`, with all that can be reached from it up to the next."""
    found = []
    for place, instruction in enumerate(code):
        if instruction.opcode.startswith("USETMAXREG"):
            reached, waiting = set(), [place + 1]
            while waiting:
                here = waiting.pop()
                if here in reached or here >= len(code) or code[here].opcode.startswith("USETMAXREG"):
                    continue
                reached.add(here)
                waiting += code[here].after(here)
            used = max((code[here].registers for here in reached), default=0)
            found.append(Stretch(int(instruction.text.split()[-2], 0), used, len(reached)))
    return found


def local_memory(code: list[Instruction]) -> int:
    """Instructions that load from or store to local memory: spilled registers, and arrays that are not in any."""
    return sum(instruction.opcode.partition(".")[0] in ("LDL", "STL") for instruction in code)


def loops(code: list[Instruction], wanted: Callable[[Instruction], bool]) -> list[Loop]:
    """The innermost loops with instructions that are `wanted`, in the order of the code."""
    spans: dict[int, int] = {}
    for place, branch in enumerate(code):
        first = branch.target
        # what a wait runs while it spins may lie behind the loop and branch back into it, which makes no loop
        if first is not None and first <= place and place in _forwards(code, first, place, wanted):
            spans[first] = max(place, spans.get(first, 0))
    weights = {(a, b): sum(map(wanted, code[a : b + 1])) for a, b in spans.items()}
    found = []
    for (a, b), weight in sorted(weights.items()):
        inside = [w for (c, d), w in weights.items() if a <= c and d <= b and (c, d) != (a, b)]
        if weight and not any(inside):
            found.append(Loop(a, b, tuple(_way_round(code, a, b, wanted))))
    return found


def _forwards(
    code: list[Instruction], first: int, last: int, wanted: Callable[[Instruction], bool]
) -> dict[int, tuple[int, int, int]]:
    """The best way from `first` to every place up to `last`, by most wanted instructions, then fewest others, without
    a branch back: place -> (-wanted, length, place before)."""
    best = {first: (0, 0, -1)}
    for place in range(first, last + 1):
        if place not in best:
            continue
        lack, length, _ = best[place]
        here = code[place]
        reached = (lack - wanted(here), length + 1, place)
        for to in here.after(place):
            if place < to <= last and (to not in best or reached[:2] < best[to][:2]):
                best[to] = reached
    return best


def _way_round(
    code: list[Instruction], first: int, last: int, wanted: Callable[[Instruction], bool]
) -> list[Instruction]:
    best = _forwards(code, first, last, wanted)
    place = min((place for place in best if code[place].target == first), key=lambda place: best[place][:2])
    path = []
    while place >= 0:
        path.append(code[place])
        place = best[place][2]
    return path[::-1]
