"""The instructions whose operands decide what they are: mov, and the calls of vprintf (PTX ISA 9.1, `mov`, `call`)."""

from __future__ import annotations

from .forms import TYPES
from .ir import Elements, Ins, Raw, Register, Use
from .isa import isa
from .operands import Mismatch, Translator
from .scopes import CallParam, Layout, Scope, Symbol
from .syntax import TYPE_BITS, Group, Memory, Name, Operand, Vector

_SPECIAL = {
    "%" + name.lower().replace("_x", ".x").replace("_y", ".y").replace("_z", ".z"): value
    for name, value in isa.names("SR_").items()
}


def translate(translator: Translator, of: str, operands: tuple[Operand, ...], scope: Scope, ins: Ins) -> None:
    """mov.<of> d, a: a copy, a pack, an unpack, a special register, or the address of a variable."""
    ins.ops, ins.defs, ins.uses = [], [], []
    if len(operands) != 2:
        raise Mismatch(f"2 operands are expected, found {len(operands)}")
    target, value = operands
    bits = TYPE_BITS[of]
    if of == "pred":
        ins.handler = "mov_pred"
        ins.ops = [translator.destination(target, "pred", scope, ins), translator.predicate(value, scope, ins)]
        return
    if isinstance(target, Vector):
        _unpack(translator, bits, target, value, scope, ins)
        return
    if isinstance(value, Vector):
        _pack(translator, bits, target, value, scope, ins)
        return
    destination = translator.destination(target, of, scope, ins)
    if isinstance(value, Name) and value.text in _SPECIAL:
        ins.handler = "mov_sreg"
        ins.mods = (_SPECIAL[value.text], TYPES["u64" if bits == 64 else "u32"], 0, 0)
        ins.ops = [destination]
        return
    place = value.base if isinstance(value, Memory) else value
    meaning = scope.find(place.text) if isinstance(place, Name) else None
    if isinstance(meaning, Symbol):
        _address(translator, bits, destination, meaning, value.offset if isinstance(value, Memory) else 0, ins)
        return
    ins.handler = f"mov_b{max(bits, 16)}"
    ins.ops = [destination, translator.source(value, of, scope, ins)]


def _address(translator: Translator, bits: int, destination: object, symbol: Symbol, offset: int, ins: Ins) -> None:
    if bits not in (32, 64):
        raise Mismatch("an address has 32 or 64 bits")
    assert isinstance(destination, Use | Raw)
    if symbol.space == "param":
        if bits != 64:
            raise Mismatch("the address of a parameter has 64 bits")
        ins.handler, ins.mods, ins.ops = "param_addr", (symbol.offset + offset, 0, 0, 0), [destination]
    elif symbol.space == "local":
        ins.handler = "local_addr"
        ins.mods, ins.ops = (symbol.offset + offset, TYPES[f"u{bits}"], 0, 0), [destination]
    elif symbol.space == "shared":
        ins.handler, ins.ops = f"lea_b{bits}", [destination, translator.symbol(symbol, offset)]
    else:
        if bits != 64:
            raise Mismatch("the address of a global variable has 64 bits")
        ins.handler, ins.ops = "mov_b64", [destination, translator.symbol(symbol, offset)]


def _element_type(bits: int, count: int) -> str:
    if count == 0 or bits % count or bits // count not in (8, 16, 32, 64):
        raise Mismatch(f"{count} elements do not make {bits} bits")
    return f"b{bits // count}"


def _pack(translator: Translator, bits: int, target: Operand, value: Vector, scope: Scope, ins: Ins) -> None:
    element = _element_type(bits, len(value.items))
    destination = translator.destination(target, f"b{bits}", scope, ins)
    items = tuple(translator.source(item, element, scope, ins) for item in value.items)
    ins.handler = "mov_pack"
    ins.mods = (TYPE_BITS[element], bits, 0, 0)
    ins.ops = [destination, Elements(tuple(_plain(item) for item in items))]


def _unpack(translator: Translator, bits: int, target: Vector, value: Operand, scope: Scope, ins: Ins) -> None:
    element = _element_type(bits, len(target.items))
    items = tuple(translator.destination(item, element, scope, ins) for item in target.items)
    ins.handler = "mov_unpack"
    ins.mods = (TYPE_BITS[element], bits, 0, 0)
    ins.ops = [Elements(tuple(_plain(item) for item in items)), translator.source(value, f"b{bits}", scope, ins)]


def _plain(op: object) -> Register | Raw:
    if isinstance(op, Use):
        return op.register
    assert isinstance(op, Raw)
    return op


def register_bits(ins: Ins, of: str) -> int:
    """Size of the registers of the vector operand: a register may be wider than the element it holds."""
    for op in ins.ops:
        if isinstance(op, Elements):
            for item in op.items:
                if isinstance(item, Register):
                    return item.bits
    return max(TYPE_BITS[of], 16)


def vector_length(ins: Ins) -> int:
    return next(len(op.items) for op in ins.ops if isinstance(op, Elements))


def call_parameter(
    translator: Translator,
    layout: Layout,
    handler: str,
    of: str,
    param: object,
    operands: tuple[Operand, ...],
    scope: Scope,
    ins: Ins,
) -> None:
    """st.param to an argument of a call, ld.param of its result: both are copies."""
    assert isinstance(param, CallParam)
    memory = operands[0] if handler == "st" else operands[1]
    bits = TYPE_BITS[of]
    if not isinstance(memory, Memory) or memory.offset or bits != param.size * 8 or bits < 32 or len(operands) != 2:
        raise Mismatch("an argument of a call is one whole register")
    if param.register is None:
        param.register = layout.register(bits, param.name)
    ins.ops, ins.defs, ins.uses = [], [], []
    ins.handler = f"mov_b{bits}"
    if handler == "st":
        ins.ops = [Use(param.register), translator.source(operands[1], f"b{bits}", scope, ins)]
        ins.defs.append(param.register)
    else:
        ins.ops = [translator.destination(operands[0], f"b{bits}", scope, ins), Use(param.register)]
        ins.uses.append(param.register)


def vprintf(functions: tuple[str, ...], operands: tuple[Operand, ...], layout: Layout, scope: Scope, ins: Ins) -> None:
    """call (result), vprintf, (format, arguments)"""
    ins.ops, ins.defs, ins.uses = [], [], []
    named = [operand.text for operand in operands if isinstance(operand, Name)]
    if named != ["vprintf"] or "vprintf" not in functions:
        raise Mismatch(f"only vprintf can be called, found {', '.join(named) or 'no name'}")
    groups = [operand.items for operand in operands if isinstance(operand, Group)]
    if len(groups) != 2 or len(groups[0]) != 1 or len(groups[1]) != 2:
        raise Mismatch("call (result), vprintf, (format, arguments) is expected")
    found = []
    for operand, bits in zip((*groups[0], *groups[1]), (32, 64, 64), strict=True):
        meaning = scope.find(operand.text) if isinstance(operand, Name) else None
        if not isinstance(meaning, CallParam) or meaning.size * 8 != bits:
            raise Mismatch(f"an argument of a call is a .param variable of {bits} bits")
        if meaning.register is None:
            meaning.register = layout.register(bits, meaning.name)
        found.append(meaning.register)
    ins.handler = "call_vprintf"
    ins.ops = [Use(register) for register in found]
    ins.defs, ins.uses = found[:1], found[1:]
