"""Every comparison and every conversion between two types, with every modifier, against its definition."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import product as every

import pytest
from exact_floats import BF16, E4M3, E5M2, F16, F32, TF32, decode, encode
from float_rules import FORMATS, Flags, read, samples, write
from ptx_lanes import run_lanes

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGRAL = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def width(kind: str) -> int:
    return int(kind.lstrip("usbf"))


def register(kind: str) -> int:
    """Bits of the register that holds it."""
    return max(16, width(kind))


def integers(kind: str, seed: int) -> list[int]:
    """32 values of an integer type: its limits, limits of smaller types, then random ones of every size."""
    bits = width(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    found = [v for v in (low, high, 0, 1, 127, 128, -128, -129, 255, 256, 32767, 32768, 65535, -1) if low <= v <= high]
    rng = random.Random(seed)
    while len(found) < 32:
        size = rng.randrange(1, bits)
        found.append(max(low, min(high, rng.getrandbits(size) * rng.choice((1, -1)))))
    return found


def clamp(v: int, kind: str) -> int:
    bits = width(kind)
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, v)) if kind[0] == "s" else max(0, min((1 << bits) - 1, v))


def wrap(v: int, kind: str) -> int:
    bits = width(kind)
    v &= (1 << bits) - 1
    return v - (1 << bits) if kind[0] == "s" and v >> bits - 1 else v


def convert(opcode: str, source: str, target: str, values: list[int]) -> list[int]:
    return run_lanes(f"{opcode} <D>, <A>;", [values], f"b{register(source)}", f"b{register(target)}")


@pytest.mark.parametrize(("target", "source"), every(INTEGERS, INTEGERS))
def test_integer_to_integer(target: str, source: str) -> None:
    values = integers(source, 1)
    for sat, rule in (("", wrap), (".sat", clamp)):
        got = convert(f"cvt{sat}.{target}.{source}", source, target, values)
        assert got == [rule(v, target) & (1 << register(target)) - 1 for v in values], sat


@pytest.mark.parametrize(("target", "source"), every(FLOATS, INTEGERS))
def test_integer_to_float(target: str, source: str) -> None:
    fmt, values = FORMATS[target], integers(source, 2)
    for mode in ("rn", "rz", "rm", "rp"):
        got = convert(f"cvt.{mode}.{target}.{source}", source, target, values)
        assert got == [write((v < 0, Fraction(v)), fmt, Flags(mode)) for v in values], mode


@pytest.mark.parametrize(("target", "source"), every(INTEGERS, FLOATS))
def test_float_to_integer(target: str, source: str) -> None:
    fmt = FORMATS[source]
    for ftz, (mode, rule) in every(("", ".ftz") if source == "f32" else ("",), INTEGRAL.items()):
        codes = samples(fmt, 3)
        got = convert(f"cvt.{mode}{ftz}.{target}.{source}", source, target, codes)
        for code, bits in zip(codes, got, strict=True):
            _, v = read(code, fmt, ftz=bool(ftz))
            if isinstance(v, float):
                if math.isnan(v):
                    continue  # the ISA fixes it for some types only
                v = Fraction(1 << 100) * (1 if v > 0 else -1)
            assert bits == clamp(rule(v), target) & (1 << register(target)) - 1, (mode, hex(code))


@pytest.mark.parametrize(("target", "source"), every(FLOATS, FLOATS))
def test_float_to_float(target: str, source: str) -> None:
    """Widening needs no rounding; narrowing rounds; within a type `.rni` and its kin round to whole numbers."""
    wide = {"f16": 0, "bf16": 0, "f32": 1, "f64": 2}
    codes = samples(FORMATS[source], 4)
    if target == source:
        modes = ("", *INTEGRAL)
    elif wide[target] > wide[source]:
        modes = ("",)
    else:
        modes = ("rn", "rz", "rm", "rp")
    limits = ("", ".sat", ".relu", ".satfinite", ".relu.satfinite") if target in ("f16", "bf16") else ("", ".sat")
    for mode, limit, ftz in every(modes, limits, ("", ".ftz") if "f32" in (source, target) else ("",)):
        dotted = "." * bool(mode) + mode
        parts = f"cvt{dotted}{ftz}{limit}.{target}.{source}"
        check_floats(parts, mode, limit, bool(ftz), (source, target), codes)


def check_floats(opcode: str, mode: str, limit: str, ftz: bool, types: tuple[str, str], codes: list[int]) -> None:
    source, target = types
    fmt, to = FORMATS[source], FORMATS[target]
    flags = Flags(
        mode if mode in ("rn", "rz", "rm", "rp") else "rn", ftz and target == "f32", limit == ".sat", "relu" in limit
    )
    for code, bits in zip(codes, convert(opcode, source, target, codes), strict=True):
        sign, v = read(code, fmt, ftz=ftz and source == "f32")
        if isinstance(v, Fraction) and mode in INTEGRAL:
            v = Fraction(INTEGRAL[mode](v))
        want = write((sign, v), to, flags)
        if "satfinite" in limit and want & (1 << to.bits - 1) - 1 == to.infinity:
            want -= 1
        if target == "f64" and isinstance(v, float) and math.isnan(v) and not flags.sat:
            assert math.isnan(decode(bits, to))
            continue
        assert bits == want, (opcode, hex(code), hex(bits), hex(want))


EIGHT = {"e4m3x2": E4M3, "e5m2x2": E5M2}
SIXTEEN = {"f16x2": F16, "bf16x2": BF16}


def halves(word: int, bits: int) -> tuple[int, int]:
    return word & (1 << bits) - 1, word >> bits


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize(("target", "source"), every(EIGHT, ("f32", *SIXTEEN)))
def test_to_eight_bits(target: str, source: str, relu: str) -> None:
    """Two elements, the first source in the upper half; beyond the largest value: the largest."""
    fmt = EIGHT[target]
    source_fmt = F32 if source == "f32" else SIXTEEN[source]
    a, b = samples(source_fmt, 5), samples(source_fmt, 6)
    opcode = f"cvt.rn.satfinite{relu}.{target}.{source}"
    if source == "f32":
        got = run_lanes(f"{opcode} <D>, <A>, <B>;", [a, b], "b32 b32", "b16")
    else:
        packed = [y | x << 16 for x, y in zip(a, b, strict=True)]
        got = run_lanes(f"{opcode} <D>, <A>;", [packed], "b32", "b16")
    for word, *codes in zip(got, b, a, strict=True):
        for bits, code in zip(halves(word, 8), codes, strict=True):
            sign, v = read(code, source_fmt)
            top = int(sign) << 7
            if isinstance(v, float):
                want = 0x7F if math.isnan(v) else 0 if sign and relu else top | fmt.largest
            elif relu and v <= 0:
                want = 0
            else:
                want = top | encode(v, fmt, sat=True)
            assert bits == want, (opcode, hex(code), hex(bits), hex(want))


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("source", EIGHT)
def test_from_eight_bits(source: str, relu: str) -> None:
    fmt = EIGHT[source]
    words = [(2 * i) << 8 | (255 - 3 * i) for i in range(32)]
    got = run_lanes(f"cvt.rn{relu}.f16x2.{source} <D>, <A>;", [words], "b16", "b32")
    for word, given in zip(got, words, strict=True):
        for bits, code in zip(halves(word, 16), halves(given, 8), strict=True):
            sign, v = read(code, fmt)
            assert bits == write((sign, v), F16, Flags(relu=bool(relu))), (hex(code), hex(bits))


@pytest.mark.parametrize("limits", ["", "relu", "satfinite", "relu satfinite"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("target", SIXTEEN)
def test_to_pairs(target: str, mode: str, limits: str) -> None:
    fmt, a, b = SIXTEEN[target], samples(F32, 7), samples(F32, 8)
    names = limits.split()
    for dotted in {"".join(f".{name}" for name in names), "".join(f".{name}" for name in names[::-1])}:
        got = run_lanes(f"cvt.{mode}{dotted}.{target}.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")
        for word, *codes in zip(got, b, a, strict=True):
            for bits, code in zip(halves(word, 16), codes, strict=True):
                want = write(read(code, F32), fmt, Flags(mode, relu="relu" in names))
                if "satfinite" in names and want & 0x7FFF == fmt.infinity:
                    want -= 1
                assert bits == want, (dotted, hex(code), hex(bits), hex(want))


@pytest.mark.parametrize("limits", ["", ".satfinite", ".relu", ".satfinite.relu"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rna"])
def test_to_tf32(mode: str, limits: str) -> None:
    codes = samples(F32, 9)
    got = run_lanes(f"cvt.{mode}{limits}.tf32.f32 <D>, <A>;", [codes], "b32", "b32")
    for code, bits in zip(codes, got, strict=True):
        sign, v = read(code, F32)
        if isinstance(v, float) and math.isnan(v):
            continue  # the payload is not defined
        want = write((sign, v), TF32, Flags(mode, relu="relu" in limits))
        if "satfinite" in limits and want & (1 << 18) - 1 == TF32.infinity:
            want -= 1
        assert bits == want << 13, (hex(code), hex(bits), hex(want << 13))


def compared(kind: str) -> tuple[list[int], list[int]]:
    """Operands of a comparison: every pair of specials, equal values, random ones."""
    if kind in FLOATS:
        a, b = samples(FORMATS[kind], 10), samples(FORMATS[kind], 11)
    else:
        a, b = integers(kind.replace("b", "u"), 12), integers(kind.replace("b", "u"), 13)
        random.Random(14).shuffle(b)
    b[:6] = a[:6]
    return a, b


ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
RULES = {
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
}


def holds(comparison: str, x: Fraction | float, y: Fraction | float) -> bool:
    unordered = any(isinstance(v, float) and math.isnan(v) for v in (x, y))
    if comparison in ("num", "nan"):
        return unordered == (comparison == "nan")
    if comparison in UNORDERED:
        return unordered or RULES[UNORDERED[comparison]](x, y)
    return not unordered and RULES[ORDERED.get(comparison) or UNSIGNED[comparison]](x, y)


def comparisons(kind: str) -> list[str]:
    if kind[0] == "b" and kind != "bf16":
        return ["eq", "ne"]
    if kind[0] == "u":
        return [*ORDERED, *UNSIGNED]
    return list(ORDERED) if kind[0] == "s" else [*ORDERED, *UNORDERED, "num", "nan"]


COMPARED = ("b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64", *FLOATS)


@pytest.mark.parametrize(("kind", "flush"), [*((kind, "") for kind in COMPARED), ("f32", ".ftz"), ("f16", ".ftz")])
def test_comparisons(kind: str, flush: str) -> None:
    """p = a cmp b and q = its opposite, each combined with c."""
    a, b = compared(kind)
    bits = width(kind.replace("bf", "f"))
    mask = (1 << bits) - 1
    combine = {"": lambda p, _: p, "and": lambda p, c: p and c, "or": lambda p, c: p or c, "xor": lambda p, c: p != c}
    for comparison, (word, rule) in every(comparisons(kind), combine.items()):
        third = ", %p9" if word else ""
        text = f"setp.{comparison}{'.' * bool(word)}{word}{flush}.{kind} %p1|%p2, <A>, <B>{third};"
        body = (
            f"mov.u32 %r60, %tid.x; and.b32 %r61, %r60, 1; setp.ne.u32 %p9, %r61, 0; {text}"
            "selp.b32 %r62, 1, 0, %p1; selp.b32 %r63, 2, 0, %p2; or.b32 <D>, %r62, %r63;"
        )
        got = run_lanes(body, [[v & mask for v in a], [v & mask for v in b]], f"b{bits} b{bits}", "b32")
        for lane, (x, y) in enumerate(zip(a, b, strict=True)):
            if kind in FLOATS:
                (_, x), (_, y) = (read(code, FORMATS[kind], ftz=bool(flush)) for code in (x, y))
            p, c = holds(comparison, x, y), bool(lane & 1)
            assert got[lane] == int(rule(p, c)) + 2 * int(rule(not p, c)), (text, lane, x, y)
