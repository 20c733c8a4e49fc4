"""Every floating-point instruction with every modifier, against its definition in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product as every

import pytest
from exact_floats import BF16, F16, F32, Format, decode
from float_rules import (
    FORMATS,
    NAN_CODES,
    Flags,
    arithmetic,
    is_subnormal,
    negative,
    read,
    samples,
    write,
)
from ptx_lanes import run_lanes

MODES = ("rn", "rz", "rm", "rp")
COUNT = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "mad": 3}


def lanes(
    text: str, inputs: Sequence[list[int]], bits: int, *, packed: bool = False, target: str = "sm_100a"
) -> list[int]:
    """Results of an instruction on `inputs`, element by element; packed: two elements in one register."""
    operands = ", ".join(f"<{name}>" for name in "ABC"[: len(inputs)])
    if not packed:
        return run_lanes(
            f"{text} <D>, {operands};", inputs, " ".join([f"b{bits}"] * len(inputs)), f"b{bits}", target=target
        )
    mask = (1 << bits) - 1
    pairs = [[v[i] | v[-1 - i] << bits for i in range(32)] for v in inputs]
    got = run_lanes(
        f"{text} <D>, {operands};", pairs, " ".join([f"b{2 * bits}"] * len(inputs)), f"b{2 * bits}", target=target
    )
    low, high = [word & mask for word in got], [word >> bits for word in got]
    assert high == low[::-1], text  # both halves are the same instruction
    return low


def arithmetic_forms() -> list[tuple[str, str, Flags]]:
    """(opcode, type, flags) of add, sub, mul, fma and mad of one type."""
    found = []
    for op, mode in every(("add", "sub", "mul", "fma", "mad"), ("", *MODES)):
        if op in ("fma", "mad") and not mode:
            continue
        for kind, ftz, sat in every(("f32", "f32x2", "f64"), ("", ".ftz"), ("", ".sat")):
            if (sat and kind != "f32") or (ftz and kind == "f64") or (op == "mad" and kind == "f32x2"):
                continue
            dot = f".{mode}" if mode else ""
            found.append((f"{op}{dot}{ftz}{sat}.{kind}", kind, Flags(mode or "rn", bool(ftz), bool(sat))))
    for op, mode, kind in every(("add", "sub", "mul", "fma"), ("", ".rn"), ("f16", "f16x2", "bf16", "bf16x2")):
        half = kind.startswith("f16")
        for ftz, limit in every(("", ".ftz"), ("", ".sat", ".relu")):
            if (op == "fma" and not mode) or (ftz and not half) or (limit == ".sat" and not half):
                continue
            if limit == ".relu" and op != "fma":
                continue
            found.append(
                (f"{op}{mode}{ftz}{limit}.{kind}", kind, Flags("rn", bool(ftz), limit == ".sat", limit == ".relu"))
            )
    return found


@pytest.mark.parametrize(("opcode", "kind", "flags"), arithmetic_forms(), ids=lambda v: v if isinstance(v, str) else "")
def test_arithmetic(opcode: str, kind: str, flags: Flags) -> None:
    fmt, op = FORMATS[kind.removesuffix("x2")], opcode.partition(".")[0]
    inputs = [samples(fmt, 100 + i) for i in range(COUNT[op])]
    got = lanes(opcode, inputs, fmt.bits, packed=kind.endswith("x2"))
    for lane, codes in enumerate(zip(*inputs, strict=True)):
        values = [read(code, fmt, ftz=flags.ftz) for code in codes]
        want = write(arithmetic(op, values, flags.mode), fmt, flags)
        assert got[lane] == want, (lane, [hex(code) for code in codes], hex(got[lane]), hex(want))


@pytest.mark.parametrize("sat", ["", ".sat"])
@pytest.mark.parametrize("mode", ["", *MODES])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "fma"])
def test_mixed_precision(op: str, kind: str, mode: str, sat: str) -> None:
    """add, sub: d = a + c with a of 16 bits; fma: d = a * b + c with a, b of 16 bits; one rounding to f32."""
    if op == "fma" and not mode:
        return
    narrow = FORMATS[kind]
    inputs = [samples(narrow, 120 + i) for i in range(COUNT[op] - 1)] + [samples(F32, 130)]
    text = f"{op}{'.' * bool(mode)}{mode}{sat}.f32.{kind} <D>, {', '.join(f'<{n}>' for n in 'ABC'[: len(inputs)])};"
    got = run_lanes(text, inputs, " ".join(["b16"] * (len(inputs) - 1) + ["b32"]), "b32")
    flags = Flags(mode or "rn", sat=bool(sat))
    for lane, codes in enumerate(zip(*inputs, strict=True)):
        values = [read(code, narrow) for code in codes[:-1]] + [read(codes[-1], F32)]
        assert got[lane] == write(arithmetic(op, values, flags.mode), F32, flags), (lane, [hex(c) for c in codes])


def division_forms() -> list[tuple[str, str, Flags]]:
    found = []
    for mode, (kind, ftz) in every(MODES, (("f32", ""), ("f32", ".ftz"), ("f64", ""))):
        found.append((f"div.{mode}{ftz}.{kind}", kind, Flags(mode, bool(ftz))))
    return found


@pytest.mark.parametrize(("opcode", "kind", "flags"), division_forms(), ids=lambda v: v if isinstance(v, str) else "")
def test_division(opcode: str, kind: str, flags: Flags) -> None:
    fmt = FORMATS[kind]
    inputs = [samples(fmt, 140 + i) for i in range(2)]
    got = lanes(opcode, inputs, fmt.bits)
    for lane, codes in enumerate(zip(*inputs, strict=True)):
        values = [read(code, fmt, ftz=flags.ftz) for code in codes]
        want = write(arithmetic("div", values, flags.mode), fmt, flags)
        assert got[lane] == want, (lane, [hex(c) for c in codes], hex(got[lane]), hex(want))


@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["rcp", "sqrt"])
def test_reciprocal_and_root(op: str, mode: str, ftz: str) -> None:
    inputs = samples(F32, 150)
    got = lanes(f"{op}.{mode}{ftz}.f32", [inputs], 32)
    flags = Flags(mode, bool(ftz))
    for code, bits in zip(inputs, got, strict=True):
        sign, v = value = read(code, F32, ftz=flags.ftz)
        if op == "rcp":
            assert bits == write(arithmetic("div", [(False, Fraction(1)), value], mode), F32, flags), hex(code)
        elif not isinstance(v, Fraction) or v <= 0:
            want = code if v == math.inf else int(sign) << 31 if v == 0 else NAN_CODES[32]
            assert bits == want, hex(code)
        else:
            around = [decode(bits + step, F32) for step in (-1, 0, 1)]
            assert all(isinstance(x, Fraction) for x in around)
            below, result, above = around
            if mode == "rn":
                assert ((below + result) / 2) ** 2 <= v <= ((result + above) / 2) ** 2, hex(code)
            elif mode == "rp":
                assert below**2 < v <= result**2, hex(code)
            else:
                assert result**2 <= v < above**2, hex(code)


def pick(op: str, a: int, b: int, fmt: Format, *, nan: bool, ftz: bool, xorsign: bool) -> int:
    """min and max (PTX ISA): a NaN loses to a number, or wins with .NaN; +0 is larger than -0."""
    top = 1 << (fmt.bits - 1)
    sign = (a ^ b) & top if xorsign else 0
    if ftz:
        a, b = (code & top if is_subnormal(code, fmt) else code for code in (a, b))
    if xorsign:
        a, b = a & ~top, b & ~top
    lost = [isinstance(v, float) and math.isnan(v) for v in (decode(a, fmt), decode(b, fmt))]
    if all(lost) or (nan and any(lost)):
        return NAN_CODES[fmt.bits]
    if any(lost):
        return (b if lost[0] else a) | sign

    def order(code: int) -> tuple[Fraction | float, bool]:
        return decode(code, fmt), not negative(code, fmt)

    return (max if op == "max" else min)((a, b), key=order) | sign


def extreme_forms() -> list[tuple[str, str]]:
    found = []
    for op, kind in every(("min", "max"), ("f32", "f16", "f16x2", "bf16", "bf16x2")):
        for ftz, nan, xorsign in every(("", ".ftz"), ("", ".NaN"), ("", ".xorsign.abs")):
            if not (ftz and kind.startswith("bf16")):
                found.append((f"{op}{ftz}{nan}{xorsign}.{kind}", kind))
        if kind == "f32":
            found.append((f"{op}.f64", "f64"))
    return found


@pytest.mark.parametrize(("opcode", "kind"), extreme_forms())
def test_minimum_and_maximum(opcode: str, kind: str) -> None:
    fmt = FORMATS[kind.removesuffix("x2")]
    inputs = [samples(fmt, 160 + i) for i in range(2)]
    inputs[1][:4] = inputs[0][:4]  # and equal operands
    got = lanes(opcode, inputs, fmt.bits, packed=kind.endswith("x2"))
    options = {"nan": ".NaN" in opcode, "ftz": ".ftz" in opcode, "xorsign": ".xorsign" in opcode}
    for a, b, bits in zip(*inputs, got, strict=True):
        assert bits == pick(opcode[:3], a, b, fmt, **options), (hex(a), hex(b), hex(bits))


@pytest.mark.parametrize("flags", ["", ".ftz", ".NaN", ".ftz.NaN"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_three_operands(op: str, flags: str) -> None:
    inputs = [samples(F32, 170 + i) for i in range(3)]
    options = {"nan": ".NaN" in flags, "ftz": ".ftz" in flags, "xorsign": False}
    for a, b, c, bits in zip(*inputs, lanes(f"{op}{flags}.f32", inputs, 32), strict=True):
        assert bits == pick(op, pick(op, a, b, F32, **options), c, F32, **options), (hex(a), hex(b), hex(c))


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "f16x2", "bf16", "bf16x2"])
@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_sign_bits(kind: str, ftz: str) -> None:
    if ftz and kind not in ("f32", "f16", "f16x2"):
        return
    fmt = FORMATS[kind.removesuffix("x2")]
    top = 1 << (fmt.bits - 1)
    inputs = [code for code in samples(fmt, 180) if isinstance(decode(code, fmt), Fraction)]
    inputs += [0] * (32 - len(inputs))

    def flushed(code: int) -> int:
        return code & top if ftz and is_subnormal(code, fmt) else code

    packed = kind.endswith("x2")
    assert lanes(f"neg{ftz}.{kind}", [inputs], fmt.bits, packed=packed) == [flushed(code) ^ top for code in inputs]
    assert lanes(f"abs{ftz}.{kind}", [inputs], fmt.bits, packed=packed) == [flushed(code) & ~top for code in inputs]


# The documented bounds of the approximate functions (PTX ISA): arguments, and the error allowed at a result.
APPROXIMATE: list[tuple[str, Format, Callable[[float], float], tuple[float, float], Callable[[float], float]]] = [
    ("ex2.approx.f32", F32, lambda x: 2.0**x, (-120, 120), lambda y: 2.0**-22 * y),
    ("ex2.approx.f16", F16, lambda x: 2.0**x, (-10, 10), lambda y: 2.0**-9.9 * y),
    ("ex2.approx.f16x2", F16, lambda x: 2.0**x, (-10, 10), lambda y: 2.0**-9.9 * y),
    ("ex2.approx.ftz.bf16", BF16, lambda x: 2.0**x, (-20, 20), lambda y: 2.0**-7 * y),
    ("ex2.approx.ftz.bf16x2", BF16, lambda x: 2.0**x, (-20, 20), lambda y: 2.0**-7 * y),
    ("tanh.approx.f16", F16, math.tanh, (-3, 3), lambda y: 2.0**-10.987),
    ("tanh.approx.f16x2", F16, math.tanh, (-3, 3), lambda y: 2.0**-10.987),
    ("tanh.approx.bf16", BF16, math.tanh, (-3, 3), lambda y: 2.0**-8 + 2.0**-9),  # and the rounding of the result
    ("tanh.approx.bf16x2", BF16, math.tanh, (-3, 3), lambda y: 2.0**-8 + 2.0**-9),
    ("tanh.approx.f32", F32, math.tanh, (-4, 4), lambda y: 2.0**-11 * abs(y)),
    ("lg2.approx.f32", F32, math.log2, (0.5, 2), lambda y: 2.0**-22),
    ("lg2.approx.f32", F32, math.log2, (2, 1e6), lambda y: 2.0**-22 * abs(y)),
    *((f"sin.approx{ftz}.f32", F32, math.sin, (-math.pi, math.pi), lambda y: 2.0**-20.5) for ftz in ("", ".ftz")),
    *((f"cos.approx{ftz}.f32", F32, math.cos, (-math.pi, math.pi), lambda y: 2.0**-20.5) for ftz in ("", ".ftz")),
    *(
        (f"{op}.approx{ftz}.f32", F32, rule, (1e-3, 1e3), lambda y: 2.0**-22.9 * y)
        for op, rule in (("rsqrt", lambda x: x**-0.5), ("sqrt", math.sqrt), ("rcp", lambda x: 1 / x))
        for ftz in ("", ".ftz")
    ),
]


@pytest.mark.parametrize(("opcode", "fmt", "rule", "span", "bound"), APPROXIMATE, ids=[row[0] for row in APPROXIMATE])
def test_approximate_functions(
    opcode: str,
    fmt: Format,
    rule: Callable[[float], float],
    span: tuple[float, float],
    bound: Callable[[float], float],
) -> None:
    low, high = span
    codes = [write((False, Fraction(low + (high - low) * i / 31)), fmt, Flags()) for i in range(32)]
    codes = [code | (1 << (fmt.bits - 1) if low + (high - low) * i / 31 < 0 else 0) for i, code in enumerate(codes)]
    got = lanes(opcode, [codes], fmt.bits, packed=opcode.endswith("x2"))
    for code, bits in zip(codes, got, strict=True):
        x, y = float(decode(code, fmt)), float(decode(bits, fmt))
        assert abs(y - rule(x)) <= bound(rule(x)), (x, y, rule(x))


@pytest.mark.parametrize("how", ["approx", "approx.ftz", "full", "full.ftz"])
def test_approximate_division(how: str) -> None:
    a, b = ([code & 0x3FFFFFFF | 0x20000000 for code in samples(F32, 190 + i)] for i in range(2))
    for x, y, bits in zip(a, b, lanes(f"div.{how}.f32", [a, b], 32), strict=True):
        want = decode(x, F32) / decode(y, F32)
        assert abs(decode(bits, F32) - want) <= abs(want) * Fraction(2, 2**23)  # 2 ulp


def test_classes() -> None:
    special = [0x7F800000, 0x7FC00000, 0x00000001, 0x3F800000, 0xFF800000, 0, 0x80000000, 0x807FFFFF] * 4
    got = run_lanes("testp.number.f32 %p1, <A>; selp.b32 <D>, 1, 0, %p1;", [special], "b32", "b32")
    assert got[:8] == [1, 0, 1, 1, 1, 1, 1, 1]
