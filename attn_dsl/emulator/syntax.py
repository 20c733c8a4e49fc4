"""The syntax tree of a PTX module: what the text says, with names not yet resolved.

Names are lexically scoped: a `{ ... }` inside a body opens a scope for registers, variables and labels (PTX ISA,
"Statements"). Compilers emit one such scope for every block of inline assembly and repeat names in them freely.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

# Bits of one element of each fundamental type.
TYPE_BITS = {
    **dict.fromkeys(("b8", "u8", "s8"), 8),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 16),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), 32),
    **dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2"), 64),
    "b128": 128,
    "pred": 1,
}


@dataclass(frozen=True, slots=True)
class Name:
    """A register, label, symbol or special register; `_` is the sink."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    value: int  # an integer, or the bit pattern of a floating literal
    float_bits: int = 0  # 32 or 64 for 0f/0d literals and decimal floats (64), else 0


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """`[base + offset]` or `[base, {coordinates}]`."""

    base: Name | Number
    offset: int
    coordinates: Vector | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """`first|second`, two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """`!p`."""

    name: Name


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`, the arguments or results of a call."""

    items: tuple[Operand, ...]


Operand: TypeAlias = "Name | Number | Vector | Memory | Pair | Not | Group"


@dataclass(frozen=True, slots=True)
class Instruction:
    opcode: str  # with all modifiers
    operands: tuple[Operand, ...]
    guard: Name | None
    guard_negated: bool
    start: int  # character offsets in the text
    end: int
    line: int  # from 1


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    start: int


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """`name: .branchtargets a, b, ...;`"""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registers:
    """`.reg .type name;` or, with a count, `name0` to `name<count-1>`."""

    name: str
    type: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a state space: `.shared`, `.local`, `.global`, `.const` or `.param`."""

    space: str
    name: str
    align: int  # bytes
    size: int  # bytes; 0 for `.extern .shared name[]`
    external: bool = False
    data: bytes = b""  # initial contents, for .global and .const


@dataclass(slots=True)
class Block:
    """A scope: its declarations, and its statements in order."""

    registers: list[Registers] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    statements: list[Instruction | Label | BranchTargets | Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel."""

    name: str
    parameters: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]]  # reqntid, maxntid, minnctapersm, maxnreg, reqnctapercluster, ...
    body: Block
    start: int


@dataclass(frozen=True, slots=True)
class Module:
    version: tuple[int, int]
    target: str
    variables: tuple[Variable, ...]
    functions: tuple[str, ...]  # declared external functions
    entries: tuple[Entry, ...]
