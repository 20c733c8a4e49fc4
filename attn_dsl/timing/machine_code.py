"""A kernel's machine code with what its timing depends on: control fields, branches, PTX lines.

Text is what `nvdisasm -gp -hex` prints. Every 128-bit instruction of compute capability 7.0 and later carries, above
its operation, how many cycles its warp waits before the next one, which of six counters (scoreboards) it raises until
its result is written or its sources are read, and which counters it waits for (Jia et al., arXiv 1804.06826, section
2.1; Huerta et al., arXiv 2503.20481, section 4). ptxas writes these fields, so fixed latencies need no table.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..runtime import artifact

SCOREBOARDS = 6
_NO_SCOREBOARD = 7

_LINE = re.compile(r'^\s*//## File "\.nv_debug_ptx_txt", line (\d+)')
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>[^;]*);"
    r"\s+/\* 0x(?P<low>[0-9a-f]{16}) \*/"
)
_HIGH = re.compile(r"^\s+/\* 0x(?P<high>[0-9a-f]{16}) \*/")
_LABEL = re.compile(r"^\s*(?P<label>\.L_x_\d+):")
_TARGET = re.compile(r"`\((?P<label>\.L_x_\d+)\)")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction."""

    opcode: str
    operands: str
    guard: str  # predicate, "" if there is none
    line: int  # of the PTX text, 0 if it is not known
    target: int | None  # place of the instruction it may branch to
    stall: int  # cycles before the warp may issue the next one
    writes: int  # scoreboard raised until the result is there, or -1
    reads: int  # scoreboard raised until the sources are read, or -1
    waits: tuple[int, ...]  # scoreboards that must be down

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def conditional(self) -> bool:
        """Whether a branch may fall through. A branch may have its condition as an operand."""
        return bool(self.guard) or re.match(r"\s*!?U?P\d", self.operands) is not None

    def after(self, place: int) -> list[int]:
        """Where control may go from here, this instruction being at `place`."""
        ends = self.base in ("BRA", "EXIT") and not self.conditional
        return [*(() if ends else (place + 1,)), *(() if self.target is None else (self.target,))]


def control(high: int) -> tuple[int, int, int, tuple[int, ...]]:
    """Stall cycles, scoreboards of the result and of the sources, scoreboards waited for: bits 105 to 121."""
    fields = high >> 41
    writes, reads = fields >> 5 & 7, fields >> 8 & 7
    waits = tuple(bit for bit in range(SCOREBOARDS) if fields >> 11 >> bit & 1)
    return fields & 15, *(-1 if board == _NO_SCOREBOARD else board for board in (writes, reads)), waits  # type: ignore[return-value]


def parse(text: str, kernel: str) -> tuple[Instruction, ...]:
    """The instructions of a kernel in a disassembly. Raises ValueError if it has none."""
    _, found, text = text.partition(f"\n.text.{kernel}:\n")
    if not found:
        raise ValueError(f"the disassembly has no kernel {kernel}")
    lines: list[tuple[re.Match[str], int, int]] = []
    labels: dict[str, int] = {}
    line, pending = 0, None
    for row in text.splitlines():
        if row.startswith(("//-", ".section", "\t.section")):
            break
        if given := _LINE.match(row):
            line = int(given[1])
        elif label := _LABEL.match(row):
            labels[label["label"]] = len(lines)
        elif pending is not None and (high := _HIGH.match(row)):
            lines.append((pending, int(high["high"], 16), line))
            pending = None
        else:
            pending = _INSTRUCTION.match(row)
    made = []
    for match, high_word, at in lines:
        target = None
        if match["opcode"].partition(".")[0] in ("BRA", "BRX", "WARPSYNC") and (label := _TARGET.search(match["rest"])):
            target = labels.get(label["label"])
        stall, writes, reads, waits = control(high_word)
        rest = match["rest"].strip()
        made.append(Instruction(match["opcode"], rest, match["guard"] or "", at, target, stall, writes, reads, waits))
    return tuple(made)


@lru_cache(maxsize=16)
def of_cubin(cubin: bytes, kernel: str) -> tuple[Instruction, ...]:
    """The instructions of a kernel, compiled with line information. Raises UnsupportedError without a disassembler."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return parse(artifact.disassemble(Path(file.name), "-gp", "-hex"), kernel)
