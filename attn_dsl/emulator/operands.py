"""Operands of an instruction: from syntax to registers, constants and memory, by the kinds of `forms.py`."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .ir import SINK_OP, Elements, Ins, Op, Raw, Register, Target, Use
from .isa import isa
from .scopes import CallParam, LabelKey, Scope, Symbol
from .syntax import TYPE_BITS, Memory, Name, Not, Number, Operand, Pair, Vector

_FLOATS = {"f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2"}
TRUE = Raw(isa.PRED_TRUE)
FALSE = Raw(isa.PRED_FALSE)


class Mismatch(Exception):
    """The operands do not fit this form. `rank`: how many did, to report the closest form."""

    rank = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """One parsed entry of `Form.operands`."""

    kind: str
    type: str
    count: int  # elements of a vector, 0: any
    optional: bool

    @property
    def consumes(self) -> bool:
        return self.kind not in ("_", "true", "zero", "*")


def parse_kinds(operands: str) -> tuple[Kind, ...]:
    found = []
    for text in operands.split():
        head, _, tail = text.partition(":")
        optional = text.endswith("?") or head.endswith("?")
        if head.startswith("d|p"):
            # `d|p?:T`: the pair may be a single register; the operand itself is there.
            found.append(Kind("d|p?" if head.endswith("?") else "d|p", tail, 0, optional=False))
            continue
        name, _, count = tail.rstrip("?").partition("*")
        found.append(Kind(head.rstrip("?"), name, int(count or 0), optional))
    return tuple(found)


class Constants:
    """The read-only pool: every immediate once. A 64-bit one is two words, low first."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.relocations: list[tuple[int, int]] = []
        self._found: dict[tuple[int, int], int] = {}

    def intern(self, value: int, bits: int) -> Raw:
        words = max(1, bits // 32)
        value &= (1 << bits) - 1
        key = (value, words)
        index = self._found.get(key)
        if index is None:
            index = self._found[key] = len(self.words)
            self.words += [value >> 32 * i & 0xFFFFFFFF for i in range(words)]
        return Raw(~index)

    def address(self, offset: int) -> Raw:
        """The address of a byte of the module's global variables, known only when the program is loaded."""
        key = (offset, -1)
        index = self._found.get(key)
        if index is None:
            index = self._found[key] = len(self.words)
            self.words += [0, 0]
            self.relocations.append((index, offset))
        return Raw(~index)


class Translator:
    """Translates operands in one scope; collects the registers an instruction reads and writes."""

    def __init__(self, constants: Constants, dynamic_base: int) -> None:
        self.constants = constants
        self.zero = constants.intern(0, 64)
        self.dynamic_base = dynamic_base

    def translate(self, kinds: tuple[Kind, ...], operands: tuple[Operand, ...], scope: Scope, ins: Ins) -> None:
        """Fills in `ins.ops`, `ins.defs` and `ins.uses`. Raises Mismatch."""
        ins.ops, ins.defs, ins.uses = [], [], []
        at = 0
        for kind in kinds:
            if kind.kind == "*":
                return
            if not kind.consumes:
                ins.ops.append({"_": SINK_OP, "true": TRUE, "zero": self.zero}[kind.kind])
                continue
            if at == len(operands):
                if kind.optional:
                    break
                raise self._ranked(Mismatch(f"an operand is missing, {_say(kind)}"), at)
            try:
                self.one(kind, operands[at], scope, ins)
            except Mismatch as mismatch:
                raise self._ranked(Mismatch(f"operand {at + 1}: {mismatch}"), at) from None
            at += 1
        if at < len(operands):
            raise self._ranked(Mismatch(f"{len(operands) - at} operands too many"), at)

    @staticmethod
    def _ranked(mismatch: Mismatch, rank: int) -> Mismatch:
        mismatch.rank = rank
        return mismatch

    def one(self, kind: Kind, operand: Operand, scope: Scope, ins: Ins) -> None:
        what, of = kind.kind, kind.type
        ops = ins.ops
        if what == "s" or what == "sw":
            ops.append(self.source(operand, of, scope, ins, wider=what == "sw"))
        elif what == "d" or what == "dw":
            ops.append(self.destination(operand, of, scope, ins, wider=what == "dw"))
        elif what == "m":
            ops.append(self.memory(operand, scope, ins))
        elif what == "sp":
            ops.append(self.predicate(operand, scope, ins))
        elif what == "dp":
            ops.append(self.destination(operand, "pred", scope, ins))
        elif what == "dv" or what == "sv":
            self.vector(kind, operand, scope, ins, wider=True)
        elif what == "v" or what == "xv":
            if not isinstance(operand, Vector):
                raise Mismatch("a vector is expected")
            self.vector(kind, operand, scope, ins, wider=False)
        elif what == "mc":
            if not isinstance(operand, Memory) or operand.coordinates is None:
                raise Mismatch("an address with coordinates, [a, {...}], is expected")
            ops.append(self.memory(Memory(operand.base, operand.offset), scope, ins))
            self.vector(Kind("sv", "s32", 0, optional=False), operand.coordinates, scope, ins, wider=False)
        elif what == "p|q":
            pair = operand if isinstance(operand, Pair) else Pair(operand, Name("_"))
            ops.append(self.destination(pair.first, "pred", scope, ins))
            ops.append(self.destination(pair.second, "pred", scope, ins))
        elif what in ("d|p", "d|p?"):
            if not isinstance(operand, Pair):
                if what == "d|p":
                    raise Mismatch("two destinations, d|p, are expected")
                operand = Pair(operand, Name("_"))
            ops.append(self.destination(operand.first, of, scope, ins))
            ops.append(self.destination(operand.second, "pred", scope, ins))
        elif what == "i":
            if not isinstance(operand, Number) or operand.float_bits:
                raise Mismatch("an integer literal is expected")
            ops.append(self.constants.intern(operand.value, 32))
        elif what == "address":
            ops.append(self.address(operand, of, scope, ins))
        elif what == "label":
            target = Target(self.label(operand, scope))
            ins.targets.append(target)
            ops.append(target)
        else:
            raise AssertionError(f"operand kind {what!r}")

    def register(self, name: str, scope: Scope) -> Register:
        meaning = scope.find(name)
        if isinstance(meaning, Register):
            return meaning
        if meaning is None:
            hint = "; a special register is read with mov" if name.startswith("%") and name[1:2].isalpha() else ""
            raise Mismatch(f"'{name}' is not declared here{hint}")
        raise Mismatch(f"'{name}' is no register")

    def label(self, operand: Operand, scope: Scope) -> LabelKey:
        meaning = scope.find(operand.text) if isinstance(operand, Name) else None
        if not isinstance(meaning, LabelKey):
            raise Mismatch(
                "a label is expected" if not isinstance(operand, Name) else f"there is no label '{operand.text}' here"
            )
        return meaning

    def source(self, operand: Operand, of: str, scope: Scope, ins: Ins, *, wider: bool = False) -> Op:
        if isinstance(operand, Name):
            register = self.register(operand.text, scope)
            _check_size(register, of, wider)
            ins.uses.append(register)
            return Use(register)
        if isinstance(operand, Number):
            return self.immediate(operand, of)
        raise Mismatch(f"a register or literal of type .{of} is expected")

    def immediate(self, operand: Number, of: str) -> Raw:
        bits = TYPE_BITS[of]
        value = operand.value
        if operand.float_bits:
            if operand.float_bits == 64 and of == "f32":
                value = struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", value))[0]))[0]
            elif operand.float_bits != bits:
                raise Mismatch(f"a {operand.float_bits}-bit floating literal does not fit .{of}")
        elif of in ("f32", "f64"):
            raise Mismatch(f"an integer literal does not fit .{of}; write 0f or 0d and the bit pattern")
        elif not -(1 << bits - 1) <= value < 1 << bits and not (bits < 32 and -(2**31) <= value < 2**32):
            raise Mismatch(f"{value} does not fit .{of}")
        return self.constants.intern(value & ((1 << bits) - 1), max(bits, 32))

    def destination(self, operand: Operand, of: str, scope: Scope, ins: Ins, *, wider: bool = False) -> Op:
        if not isinstance(operand, Name):
            raise Mismatch(f"a destination of type .{of} is expected")
        if operand.text == "_":
            return SINK_OP
        register = self.register(operand.text, scope)
        _check_size(register, of, wider)
        ins.defs.append(register)
        return Use(register)

    def predicate(self, operand: Operand, scope: Scope, ins: Ins) -> Op:
        if isinstance(operand, Number):
            return TRUE if operand.value else FALSE
        negated = isinstance(operand, Not)
        name = operand.name if isinstance(operand, Not) else operand
        if not isinstance(name, Name):
            raise Mismatch("a predicate is expected")
        register = self.register(name.text, scope)
        _check_size(register, "pred", wider=False)
        ins.uses.append(register)
        return Use(register, int(negated))

    def memory(self, operand: Operand, scope: Scope, ins: Ins) -> Op:
        if not isinstance(operand, Memory) or operand.coordinates is not None:
            raise Mismatch("an address, [a + offset], is expected")
        offset = operand.offset
        if not -(2**31) <= offset < 2**32:
            raise Mismatch(f"the offset {offset} does not fit 32 bits")
        offset = offset - 2**32 if offset >= 2**31 else offset
        if isinstance(operand.base, Number):
            return Raw(self.constants.intern(operand.base.value + offset, 64).reg)
        meaning = scope.find(operand.base.text)
        if isinstance(meaning, Symbol):
            return self.symbol(meaning, offset)
        register = self.register(operand.base.text, scope)
        if register.bits not in (32, 64):
            raise Mismatch(f"the address '{register.name}' has {register.bits} bits, not 32 or 64")
        ins.uses.append(register)
        return Use(register, offset)

    def symbol(self, symbol: Symbol, offset: int) -> Raw:
        """The address of a variable inside its window."""
        if symbol.space == "shared":
            base = self.dynamic_base if symbol.offset < 0 else symbol.offset
            return Raw(isa.SLOT_SHARED, base + offset)
        if symbol.space in ("local", "param"):
            return Raw(self.zero.reg, symbol.offset + offset)
        return self.constants.address(symbol.offset + offset)

    def address(self, operand: Operand, of: str, scope: Scope, ins: Ins) -> Op:
        """A register, or a variable: its address in its own space."""
        if isinstance(operand, Memory):
            return self.memory(operand, scope, ins)
        if isinstance(operand, Name) and isinstance(meaning := scope.find(operand.text), Symbol):
            return self.symbol(meaning, 0)
        return self.source(operand, of, scope, ins)

    def vector(self, kind: Kind, operand: Operand, scope: Scope, ins: Ins, *, wider: bool) -> None:
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if kind.count and len(items) != kind.count:
            raise Mismatch(f"{kind.count} elements are expected, found {len(items)}")
        elements: list[Register | Raw] = []
        for item in items:
            if kind.kind == "dv":
                op = self.destination(item, kind.type, scope, ins, wider=wider)
            elif kind.kind == "xv":
                op = self.destination(item, kind.type, scope, ins)
                if isinstance(op, Use):
                    ins.uses.append(op.register)
            else:
                op = self.source(item, kind.type, scope, ins, wider=wider)
            elements.append(op.register if isinstance(op, Use) else op)  # type: ignore[arg-type]
        ins.ops.append(Elements(tuple(elements)))


def call_param(scope: Scope, operand: Operand) -> CallParam | None:
    """The call parameter a memory operand names, if it does."""
    if isinstance(operand, Memory) and isinstance(operand.base, Name):
        meaning = scope.find(operand.base.text)
        return meaning if isinstance(meaning, CallParam) else None
    return None


def _check_size(register: Register, of: str, wider: bool) -> None:
    bits = TYPE_BITS[of]
    fits = register.bits == bits or (register.bits > bits and bits > 1 and (wider or bits == 8))
    if not fits:
        kind = "predicate" if register.bits == 1 else f"{register.bits}-bit register"
        raise Mismatch(f"'{register.name}' is a {kind}, .{of} is expected")


def _say(kind: Kind) -> str:
    names = {"m": "an address", "mc": "an address with coordinates", "i": "a literal", "label": "a label"}
    return names.get(kind.kind, f"a .{kind.type or 'pred'}")
