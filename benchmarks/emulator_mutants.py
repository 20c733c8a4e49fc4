"""Mutants of a PTX kernel: at every synchronisation site one thing is dropped or weakened.

A mutant changes one line and keeps the line numbering. The generator walks all sites with all rules, so what is tested
is a seeded sample of everything it can break, none chosen by hand.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One changed line: `rule` says what was done, `line` counts from 1."""

    rule: str
    line: int
    before: str
    after: str

    def apply(self, ptx: str) -> str:
        lines = ptx.split("\n")
        lines[self.line - 1] = self.after
        return "\n".join(lines)


# Opcodes whose whole instruction can go.
_DROPPED = re.compile(
    r"(bar\.sync|bar\.arrive|bar\.warp\.sync|barrier\.sync|barrier\.arrive|barrier\.cluster\.\w+|fence\.[\w.:]+"
    r"|mbarrier\.arrive[\w.:]*|tcgen05\.wait::\w+|tcgen05\.commit|tcgen05\.dealloc|wgmma\.fence|wgmma\.commit_group"
    r"|wgmma\.wait_group|cp\.async\.bulk\.commit_group|cp\.async\.bulk\.wait_group|cp\.async\.commit_group"
    r"|cp\.async\.wait_group|cp\.async\.mbarrier\.arrive[\w.:]*|griddepcontrol\.wait)"
)
_INSTRUCTION = re.compile(
    r"^(?P<lead>\s*)(?P<guard>@!?[%\w]+\s+)?(?P<opcode>[a-z][\w.:]*)(?P<rest>\s[^;]*)?;(?P<tail>.*)$"
)

Rule = Callable[[str, str, str], Iterator[tuple[str, str]]]  # guard, opcode, operands -> (rule name, new instructions)


def _operands(text: str) -> list[str]:
    """Top-level comma-separated operands."""
    parts, depth, current = [], 0, ""
    for ch in text:
        depth += (ch in "[{") - (ch in "]}")
        if ch == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += ch
    return [*parts, current.strip()] if current.strip() else parts


def _with_temporary(guard: str, make: str, instruction: str) -> str:
    return f"{{ .reg .b32 MUTANT; {make} {guard}{instruction}; }}"


def _drop(guard: str, opcode: str, rest: str) -> Iterator[tuple[str, str]]:
    del guard, rest
    if _DROPPED.match(opcode):
        yield "drop", ""


def _waits(guard: str, opcode: str, rest: str) -> Iterator[tuple[str, str]]:
    args = _operands(rest)
    if opcode.startswith("mbarrier.try_wait.parity"):
        yield "wait passes at once", f"setp.eq.b32 {args[0]}, 0, 0;"
        changed = ", ".join([*args[:2], "MUTANT", *args[3:]])
        yield "parity flipped", _with_temporary(guard, f"xor.b32 MUTANT, {args[2]}, 1;", f"{opcode} {changed}")
    if "wait_group" in opcode and args and args[0].isdigit():
        yield "one group fewer waited for", f"{guard}{opcode} {int(args[0]) + 1};"


def _counts(guard: str, opcode: str, rest: str) -> Iterator[tuple[str, str]]:
    args = _operands(rest)
    if opcode.startswith("mbarrier.init"):
        for name, step in (("count one more", 1), ("count one less", -1)):
            make = f"add.s32 MUTANT, {args[1]}, {step};"
            yield name, _with_temporary(guard, make, f"{opcode} {args[0]}, MUTANT")
    if opcode.startswith("mbarrier.arrive.expect_tx"):
        for name, make in (
            ("bytes halved", f"shr.u32 MUTANT, {args[2]}, 1;"),
            ("bytes plus 16", f"add.s32 MUTANT, {args[2]}, 16;"),
        ):
            yield name, _with_temporary(guard, make, f"{opcode} {args[0]}, {args[1]}, MUTANT")
    if re.match(r"bar(rier)?\.(sync|arrive)", opcode) and len(args) == 2 and args[1].isdigit():
        yield "32 threads more", f"{guard}{opcode} {args[0]}, {int(args[1]) + 32};"
        if int(args[1]) > 32:
            yield "32 threads fewer", f"{guard}{opcode} {args[0]}, {int(args[1]) - 32};"


_HIGH_WORD = re.compile(r"0x40004040\b")
_WGMMA_DESCRIPTOR = re.compile(r"\b46116\d{14}\b")
_WGMMA_HIGH_WORD = re.compile(r"\b1073741888\b")  # 0x40000040: swizzle 128B, stride 1024
_IDESC = re.compile(r"(_idesc, )(0x[0-9a-fA-F]+)")


def _fields(line: str) -> Iterator[tuple[str, str]]:
    """Descriptor fields: swizzle, stride, transposition, N."""
    if _HIGH_WORD.search(line):
        yield "swizzle 128B becomes 64B", _HIGH_WORD.sub("0x80004040", line)
        yield "stride halved", _HIGH_WORD.sub("0x40004020", line)
    if m := _WGMMA_DESCRIPTOR.search(line):
        value = int(m[0])
        yield "swizzle 128B becomes 64B", line.replace(m[0], str(value ^ (3 << 62) if value >> 62 == 1 else value))
        yield "stride halved", line.replace(m[0], str(value - (32 << 32)))
    if m := _WGMMA_HIGH_WORD.search(line):
        yield "swizzle 128B becomes 64B", line.replace(m[0], str(0x80000040 - 2**32))
        yield "stride halved", line.replace(m[0], str(0x40000020))
    if m := _IDESC.search(line):
        value = int(m[2], 16)
        yield "B transposed", line.replace(m[2], hex(value ^ 1 << 16))
        yield "N smaller", line.replace(m[2], hex(value - (1 << 17)))


_RULES: tuple[Rule, ...] = (_drop, _waits, _counts)


def all_mutants(ptx: str) -> list[Mutant]:
    """Every mutant of a module, in text order."""
    out = []
    for number, line in enumerate(ptx.split("\n"), 1):
        out += [Mutant(rule, number, line, after) for rule, after in _fields(line) if after != line]
        m = _INSTRUCTION.match(line)
        if not m:
            continue
        guard, opcode, rest = m["guard"] or "", m["opcode"], m["rest"] or ""
        for rule in _RULES:
            for name, new in rule(guard, opcode, rest):
                out.append(Mutant(name, number, line, f"{m['lead']}{new} {m['tail']}"))
    return out


def sample(ptx: str, lines: frozenset[int], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of these lines drawn without replacement by `seed`, or all if there are fewer."""
    everything = [mutant for mutant in all_mutants(ptx) if mutant.line in lines]
    return random.Random(seed).sample(everything, min(count, len(everything)))
