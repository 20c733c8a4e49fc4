"""Instructions -> bytes, in the encoding of `csrc/emu_isa.h`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .ir import Elements, Ins, Op, Raw, Register, Target, Use
from .isa import INSTRUCTION, MAX_OPERANDS, isa
from .operands import Constants
from .slots import Slots


@dataclass(frozen=True)
class Encoded:
    code: bytes
    handlers: tuple[str, ...]
    pool: bytes
    consts: bytes


def encode(code: list[Ins], slots: Slots, constants: Constants) -> Encoded:
    handlers: dict[str, int] = {}
    pool: list[int] = []
    pools: dict[tuple[int, ...], int] = {}
    pack = struct.Struct(INSTRUCTION).pack
    first = slots.first

    def element(item: Register | Raw) -> int:
        return first[item.index] if isinstance(item, Register) else item.reg

    def operand(op: Op) -> tuple[int, int]:
        if isinstance(op, Use):
            register = op.register
            return (register.index if register.bits == 1 else first[register.index]), op.off
        if isinstance(op, Raw):
            return op.reg, op.off
        if isinstance(op, Elements):
            return vector(tuple(element(item) for item in op.items))
        assert isinstance(op, Target)
        return op.index, op.reconvergence

    def vector(items: tuple[int, ...]) -> tuple[int, int]:
        at = pools.get(items)
        if at is None:
            at = pools[items] = len(pool)
            pool.extend(items)
        return at, len(items)

    parts = []
    for ins in code:
        handler = handlers.setdefault(ins.handler, len(handlers))
        ops = [operand(op) for op in ins.ops]
        mods = ins.mods
        if ins.handler == "brx_idx":
            ops.append(vector(tuple(target.index for target in ins.targets)))
            mods = (ins.targets[0].reconvergence & 0xFFFFFFFF, 0, 0, 0)
        guard, negated = isa.PRED_TRUE, 0
        if isinstance(ins.guard, Use):
            guard, negated = ins.guard.register.index, ins.guard.off
        flat = [value for pair in ops for value in pair]
        flat += [0] * (2 * MAX_OPERANDS - len(flat))
        parts.append(pack(handler, guard, negated, ins.cls, len(ops), ins.flags, ins.line, ins.block, *mods, *flat))
    return Encoded(
        b"".join(parts),
        tuple(handlers),
        struct.pack(f"<{len(pool)}i", *pool),
        struct.pack(f"<{len(constants.words)}I", *constants.words),
    )
