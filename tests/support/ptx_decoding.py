"""Decodes a kernel and shows its instructions as Python values."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from attn_dsl.emulator.decoder import decode
from attn_dsl.emulator.isa import INSTRUCTION
from attn_dsl.emulator.program import DecodedProgram

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<99>;\n.reg .f32 %f<9>;\n.reg .b64 %d<9>;\n.reg .b128 %q<2>;\n"
)


def text(body: str, head: str = "", params: str = "") -> str:
    return f"{HEAD}{head}.visible .entry k({params}) {{\n{REGISTERS}{body}\n}}\n"


@dataclass(frozen=True)
class Row:
    handler: str
    guard: int
    guard_negated: int
    flags: int
    line: int
    mods: tuple[int, ...]
    ops: tuple[tuple[int, int], ...]


def rows(program: DecodedProgram) -> list[Row]:
    found = []
    for fields in struct.iter_unpack(INSTRUCTION, program.code):
        handler, guard, negated, _cls, nops, flags, line, _site, *rest = fields
        ops = tuple(zip(rest[4::2], rest[5::2], strict=True))[:nops]
        found.append(Row(program.handlers[handler], guard, negated, flags, line, tuple(rest[:4]), ops))
    return found


def first(body: str, **options: str) -> Row:
    return rows(decode(text(body, **options)))[0]


def constants(program: DecodedProgram) -> tuple[int, ...]:
    return struct.unpack(f"<{len(program.consts) // 4}I", program.consts)
