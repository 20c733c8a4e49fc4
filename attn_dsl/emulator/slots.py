"""Registers -> slots. Registers whose lives do not overlap share a slot, which keeps a warp's register file in cache.

A register may take over a slot only if on every path it is written before it is read: then "never written" stays exact
for the check of uninitialised registers. Asynchronous instructions (tcgen05.ld, wgmma) touch registers after they were
issued, so theirs live on: until a result of the same load is read, or, for wgmma, for the whole kernel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .cfg import BasicBlock
from .ir import Ins, Register
from .isa import isa


@dataclass(frozen=True)
class Slots:
    first: dict[int, int]  # first slot by register index
    count: int


def assign(code: list[Ins], blocks: list[BasicBlock]) -> Slots:
    """Give every data register its slots."""
    registers: dict[int, Register] = {}
    for ins in code:
        for register in (*ins.defs, *ins.uses):
            if register.bits > 1:
                registers[register.index] = register
    live_in, live_out = _liveness(code, blocks)
    start: dict[int, int] = {}
    end: dict[int, int] = {}

    def extend(index: int, at: int) -> None:
        if index not in start:
            start[index] = end[index] = at
        else:
            start[index] = min(start[index], at)
            end[index] = max(end[index], at)

    for number, block in enumerate(blocks):
        for index in _bits(live_in[number]):
            extend(index, block.start)
        for index in _bits(live_out[number]):
            extend(index, block.end)
        for at in range(block.start, block.end):
            for register in (*code[at].defs, *code[at].uses):
                if register.bits > 1:
                    extend(register.index, at)
    keep = set(_bits(live_in[0])) if blocks else set()
    _asynchronous(code, start, end, keep)
    return _scan(registers, start, end, keep)


def _asynchronous(code: list[Ins], start: dict[int, int], end: dict[int, int], keep: set[int]) -> None:
    for at, ins in enumerate(code):
        if ins.handler == "tcgen05_ld":
            results = [register.index for register in ins.defs]
            last = max((end[index] for index in results), default=at)
            if last == at:  # nobody reads them: the load may still be under way at any later point
                keep.update(results)
            first = min((start[index] for index in results), default=at)
            for index in results:  # in a loop, a result may be read before the load in the text
                start[index], end[index] = first, last
        elif ins.handler == "wgmma":
            keep.update(register.index for register in (*ins.defs, *ins.uses) if register.bits > 1)


def _scan(registers: dict[int, Register], start: dict[int, int], end: dict[int, int], keep: set[int]) -> Slots:
    """Linear scan (Poletto and Sarkar, 1999) over one pool of slots for each size."""
    first: dict[int, int] = {}
    count = int(isa.SLOT_FIRST)
    free: dict[int, list[int]] = defaultdict(list)
    by_end: dict[int, list[int]] = defaultdict(list)
    order = sorted(start, key=lambda index: start[index])
    ends = sorted({end[index] for index in order if index not in keep})
    position = 0
    for index in order:
        begin = start[index]
        while position < len(ends) and ends[position] < begin:
            for done in by_end.pop(ends[position], ()):
                free[registers[done].slots].append(first[done])
            position += 1
        size = registers[index].slots
        if index not in keep and free[size]:
            first[index] = free[size].pop()
        else:
            first[index] = count
            count += size
        if index not in keep:
            by_end[end[index]].append(index)
    return Slots(first, count)


def _liveness(code: list[Ins], blocks: list[BasicBlock]) -> tuple[list[int], list[int]]:
    """Registers live at the start and the end of each block, as bit sets. A guarded write does not end a life."""
    reads: list[int] = []
    writes: list[int] = []
    for block in blocks:
        read = written = 0
        for ins in code[block.start : block.end]:
            for register in ins.uses:
                if register.bits > 1 and not written >> register.index & 1:
                    read |= 1 << register.index
            if not ins.guarded:
                for register in ins.defs:
                    if register.bits > 1:
                        written |= 1 << register.index
        reads.append(read)
        writes.append(written)
    live_in = reads[:]
    live_out = [0] * len(blocks)
    predecessors: list[list[int]] = [[] for _ in blocks]
    for i, block in enumerate(blocks):
        for successor in block.successors:
            if successor < len(blocks):
                predecessors[successor].append(i)
    work = list(range(len(blocks)))
    while work:
        number = work.pop()
        out = 0
        for successor in blocks[number].successors:
            if successor < len(blocks):
                out |= live_in[successor]
        live_out[number] = out
        new = reads[number] | (out & ~writes[number])
        if new != live_in[number]:
            live_in[number] = new
            work.extend(predecessors[number])
    return live_in, live_out


def _bits(value: int) -> list[int]:
    found = []
    while value:
        low = value & -value
        found.append(low.bit_length() - 1)
        value ^= low
    return found
