"""Floating-point instructions: exact rounding where the ISA defines it, the documented bound where it gives one."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import pytest
from exact_floats import BF16, E4M3, E5M2, F16, F32, TF32, Format, decode, encode, f32
from ptx_lanes import run_lanes

NAN = 0x7FFFFFFF


def floats(seed: int, spread: int = 40) -> list[int]:
    """32 finite f32 encodings: subnormals, extremes, then random with exponents near 0."""
    rng = random.Random(seed)
    special = [0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x33800000]
    return special + [
        rng.getrandbits(1) << 31 | (127 + rng.randrange(-spread, spread)) << 23 | rng.getrandbits(23) for _ in range(24)
    ]


def mixed(seed: int) -> list[int]:
    v = floats(seed)
    random.Random(seed).shuffle(v)
    return v


def value(x: int) -> Fraction:
    v = decode(x, F32)
    assert isinstance(v, Fraction)
    return v


def exact(v: Fraction, mode: str, zero: int) -> int:
    return encode(v, F32, mode) if v else zero


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_f32_rounds_as_asked(op: str, mode: str) -> None:
    a, b, c = floats(1), mixed(2), mixed(3)
    operands = "<A>, <B>, <C>" if op == "fma" else "<A>, <B>"
    inputs = [a, b, c] if op == "fma" else [a, b]
    got = run_lanes(f"{op}.{mode}.f32 <D>, {operands};", inputs, " ".join(["b32"] * len(inputs)), "b32")
    for lane, bits in enumerate(got):
        x, y, z = value(a[lane]), value(b[lane]), value(c[lane])
        want = {"add": x + y, "sub": x - y, "mul": x * y, "fma": x * y + z}[op]
        if want:
            assert bits == encode(want, F32, mode), (lane, hex(a[lane]), hex(b[lane]), hex(c[lane]))


@pytest.mark.parametrize("mode", ["rn", "rm"])
def test_f32x2_is_two_f32(mode: str) -> None:
    a, b, c, d = floats(4), mixed(5), mixed(6), floats(7)
    left = [y << 32 | x for x, y in zip(a, b, strict=True)]
    right = [y << 32 | x for x, y in zip(c, d, strict=True)]
    got = run_lanes(f"add.{mode}.f32x2 <D>, <A>, <B>;", [left, right], "b64 b64", "b64")
    for lane, bits in enumerate(got):
        for half, x, y in ((bits & 0xFFFFFFFF, a[lane], c[lane]), (bits >> 32, b[lane], d[lane])):
            if value(x) + value(y):
                assert half == encode(value(x) + value(y), F32, mode)


def test_round_down_with_the_magic_constant() -> None:
    """How software exp2 takes the floor: add 1.5 * 2^23 rounding down."""
    magic = f32(12582912.0)
    xs = [f32(v / 7) for v in range(-16, 16)]
    pairs = [x << 32 | x for x in xs]
    got = run_lanes("add.rm.f32x2 <D>, <A>, <B>;", [pairs, [magic << 32 | magic] * 32], "b64 b64", "b64")
    for x, bits in zip(xs, got, strict=True):
        floor = (bits & 0xFFFFFFFF) - magic
        assert floor == math.floor(struct.unpack("<f", struct.pack("<I", x))[0])


def test_flush_to_zero_and_saturation() -> None:
    tiny, big = 0x00400000, f32(3.5)
    got = run_lanes("add.ftz.f32 <D>, <A>, <B>;", [[tiny] * 32, [0] * 32], "b32 b32", "b32")
    assert set(got) == {0}
    got = run_lanes("add.f32 <D>, <A>, <B>;", [[tiny] * 32, [0] * 32], "b32 b32", "b32")
    assert set(got) == {tiny}
    got = run_lanes("add.sat.f32 <D>, <A>, <B>;", [[big, f32(-3.0), NAN, f32(0.25)] * 8, [0] * 32], "b32 b32", "b32")
    assert got[:4] == [f32(1.0), 0, 0, f32(0.25)]


def test_nan_results_are_canonical() -> None:
    inf, payload = 0x7F800000, 0x7FC12345
    a, b = [inf, payload, f32(1.0), 0] * 8, [inf, f32(1.0), payload, inf] * 8
    assert run_lanes("sub.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")[:3] == [NAN] * 3
    assert run_lanes("mul.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")[3] == NAN


def test_min_max_prefer_numbers_and_order_zeros() -> None:
    zero, minus, one, nan = 0, 0x80000000, f32(1.0), 0x7FC00001
    a, b = [zero, minus, nan, one, nan, one, minus, one] * 4, [minus, zero, one, nan, nan, zero, minus, one] * 4
    assert run_lanes("max.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")[:8] == [
        zero,
        zero,
        one,
        one,
        NAN,
        one,
        minus,
        one,
    ]
    assert run_lanes("min.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")[:8] == [
        minus,
        minus,
        one,
        one,
        NAN,
        zero,
        minus,
        one,
    ]
    assert run_lanes("max.NaN.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")[2] == NAN


def test_fused_multiply_add_rounds_once() -> None:
    a, b = f32(1 + 2**-12), f32(1 - 2**-12)
    inputs = [[a] * 32, [b] * 32, [f32(-1.0)] * 32]
    assert set(run_lanes("fma.rn.f32 <D>, <A>, <B>, <C>;", inputs, "b32 b32 b32", "b32")) == {f32(-(2.0**-24))}


@pytest.mark.parametrize(
    ("op", "reference", "ulps"),
    [
        ("ex2.approx.ftz.f32", lambda x: 2.0**x, 2),
        ("rcp.approx.ftz.f32", lambda x: 1 / x, 1),
        ("rcp.rn.f32", lambda x: 1 / x, 0.5),
    ],
)
def test_approximate_functions_stay_within_their_bound(op: str, reference, ulps: float) -> None:
    rng = random.Random(8)
    xs = [f32(rng.uniform(-60, 60)) for _ in range(32)]
    for x, bits in zip(xs, run_lanes(f"{op} <D>, <A>;", [xs], "b32", "b32"), strict=True):
        v = struct.unpack("<f", struct.pack("<I", x))[0]
        got, want = struct.unpack("<f", struct.pack("<I", bits))[0], reference(v)
        spacing = 2.0 ** (math.floor(math.log2(abs(want))) - 23)
        assert abs(got - want) <= (ulps + 1e-6) * spacing, (op, v)


def test_lg2_and_tanh_bounds() -> None:
    rng = random.Random(9)
    xs = [f32(rng.uniform(0.5, 2)) for _ in range(32)]
    for x, bits in zip(xs, run_lanes("lg2.approx.ftz.f32 <D>, <A>;", [xs], "b32", "b32"), strict=True):
        v, got = (struct.unpack("<f", struct.pack("<I", y))[0] for y in (x, bits))
        assert abs(got - math.log2(v)) <= 2.0**-22
    xs = [f32(rng.uniform(-4, 4)) for _ in range(32)]
    for x, bits in zip(xs, run_lanes("tanh.approx.f32 <D>, <A>;", [xs], "b32", "b32"), strict=True):
        v, got = (struct.unpack("<f", struct.pack("<I", y))[0] for y in (x, bits))
        assert abs(got - math.tanh(v)) <= 2.0**-11 * abs(math.tanh(v))


def test_special_arguments() -> None:
    inf, minus_inf, nan = 0x7F800000, 0xFF800000, 0x7FC00000
    xs = [minus_inf, inf, nan, 0x00000001, f32(-200.0), f32(128.0), f32(0.0), f32(-126.5)] * 4
    got = run_lanes("ex2.approx.ftz.f32 <D>, <A>;", [xs], "b32", "b32")[:8]
    assert got == [0, inf, NAN, f32(1.0), 0, inf, f32(1.0), 0]
    got = run_lanes("rcp.approx.ftz.f32 <D>, <A>;", [[0, 0x80000000, inf, 0x00000001] * 8], "b32", "b32")[:4]
    assert got == [inf, minus_inf, 0, inf]
    got = run_lanes("lg2.approx.ftz.f32 <D>, <A>;", [[0, f32(-1.0), inf, f32(8.0)] * 8], "b32", "b32")[:4]
    assert got == [minus_inf, NAN, inf, f32(3.0)]


def test_comparisons_with_nan() -> None:
    nan, one, two = 0x7FC00000, f32(1.0), f32(2.0)
    a, b = [nan, one, one, two] * 8, [one, nan, two, one] * 8
    table = {
        "lt": "0010",
        "ltu": "1110",
        "ge": "0001",
        "geu": "1101",
        "ne": "0011",
        "neu": "1111",
        "nan": "1100",
        "num": "0011",
    }
    for cmp, want in table.items():
        got = run_lanes(f"setp.{cmp}.f32 %p1, <A>, <B>;\nselp.b32 <D>, 1, 0, %p1;", [a, b], "b32 b32", "b32")
        assert "".join(map(str, got[:4])) == want, cmp


@pytest.mark.parametrize(("text", "fmt"), [("f16", F16), ("bf16", BF16)])
def test_narrow_arithmetic_rounds_once(text: str, fmt: Format) -> None:
    rng = random.Random(10)

    def some() -> list[int]:
        return [rng.getrandbits(1) << 15 | rng.randrange(1, fmt.infinity) for _ in range(32)]

    a, b, c = some(), some(), some()
    got = run_lanes(f"fma.rn.{text} <D>, <A>, <B>, <C>;", [a, b, c], "b16 b16 b16", "b16")
    for x, y, z, bits in zip(a, b, c, got, strict=True):
        want = decode(x, fmt) * decode(y, fmt) + decode(z, fmt)
        if want:
            assert bits == encode(want, fmt), (hex(x), hex(y), hex(z))


@pytest.mark.parametrize(
    ("op", "fmt", "mode", "sat"),
    [
        ("cvt.rn.bf16x2.f32", BF16, "rn", False),
        ("cvt.rz.bf16x2.f32", BF16, "rz", False),
        ("cvt.rn.f16x2.f32", F16, "rn", False),
        ("cvt.rn.satfinite.e4m3x2.f32", E4M3, "rn", True),
        ("cvt.rn.satfinite.e5m2x2.f32", E5M2, "rn", True),
    ],
)
def test_packed_narrowing(op: str, fmt: Format, mode: str, sat: bool) -> None:
    a, b = floats(11, 12), mixed(12)
    out = 32 if fmt.bits == 16 else 16
    got = run_lanes(f"{op} <D>, <A>, <B>;", [a, b], "b32 b32", f"b{out}")
    for x, y, bits in zip(a, b, got, strict=True):
        for source, part in ((x, bits >> (out // 2)), (y, bits & ((1 << (out // 2)) - 1))):
            want = encode(value(source), fmt, mode, sat=sat)
            if want & ~(1 << (fmt.bits - 1)):
                assert part == want, (hex(source), hex(part), hex(want))


def test_scalar_conversions() -> None:
    a = floats(13, 20)
    for mode in ("rn", "rz"):
        got = run_lanes(f"cvt.{mode}.bf16.f32 <D>, <A>;", [a], "b32", "b16")
        assert [g & 0x7FFF for g in got] == [encode(abs(value(x)), BF16, mode) for x in a]
    got = run_lanes("cvt.rna.tf32.f32 <D>, <A>;", [a], "b32", "b32")
    for x, bits in zip(a, got, strict=True):
        assert bits & 0x7FFFE000 == encode(abs(value(x)), TF32, "rna") << 13
    halves = list(range(0, 0x7C00, 0x3E0))[:32]
    assert run_lanes("cvt.f32.f16 <D>, <A>;", [halves], "b16", "b32") == [encode(decode(h, F16), F32) for h in halves]
    assert run_lanes("cvt.f32.bf16 <D>, <A>;", [halves], "b16", "b32") == [h << 16 for h in halves]


def test_float_to_integer_saturates() -> None:
    xs = [f32(v) for v in (2.5, -2.5, 3.5, 1e10, -1e10, 0.49, -0.51, 7.0)] * 3 + [0x7FC00000] * 8
    cases = {
        "cvt.rni.s32.f32": [2, -2, 4, 2**31 - 1, -(2**31), 0, -1, 7],
        "cvt.rzi.s32.f32": [2, -2, 3, 2**31 - 1, -(2**31), 0, 0, 7],
        "cvt.rmi.s32.f32": [2, -3, 3, 2**31 - 1, -(2**31), 0, -1, 7],
        "cvt.rpi.u32.f32": [3, 0, 4, 2**32 - 1, 0, 1, 0, 7],
    }
    for op, want in cases.items():
        got = run_lanes(f"{op} <D>, <A>;", [xs], "b32", "b32")
        assert got[:8] == [w & 0xFFFFFFFF for w in want], op
        assert got[31] == 0


def test_integer_to_float_rounds() -> None:
    xs = [0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 16777217, 33554435, 123456789] * 4
    got = run_lanes("cvt.rn.f32.s32 <D>, <A>;", [xs], "b32", "b32")
    assert got == [encode(Fraction(x - (1 << 32) if x >> 31 else x), F32) for x in xs]
    got = run_lanes("cvt.rz.f32.u32 <D>, <A>;", [xs], "b32", "b32")
    assert got == [encode(Fraction(x), F32, "rz") for x in xs]


def test_mixed_precision_fma_rounds_once() -> None:
    rng = random.Random(14)
    a, b = ([rng.randrange(0x3000, 0x4200) for _ in range(32)] for _ in range(2))
    c = [f32(rng.uniform(-3, 3)) for _ in range(32)]
    got = run_lanes("fma.rn.f32.bf16 <D>, <A>, <B>, <C>;", [a, b, c], "b16 b16 b32", "b32")
    for x, y, z, bits in zip(a, b, c, got, strict=True):
        assert bits == encode(decode(x, BF16) * decode(y, BF16) + value(z), F32)


def doubles(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.uniform(-1, 1) * 2.0 ** rng.randrange(-30, 30) for _ in range(32)]


def b64(values: list[float]) -> list[int]:
    return [int(struct.unpack("<Q", struct.pack("<d", v))[0]) for v in values]


def test_f64_arithmetic() -> None:
    a, b = doubles(20), doubles(21)
    rules = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y}
    for op, rule in rules.items():
        got = run_lanes(f"{op}.rn.f64 <D>, <A>, <B>;", [b64(a), b64(b)], "b64 b64", "b64")
        assert got == b64([rule(x, y) for x, y in zip(a, b, strict=True)]), op
    got = run_lanes("cvt.rn.f32.f64 <D>, <A>;", [b64(a)], "b64", "b32")
    assert got == [encode(Fraction(x), F32) for x in a]
    got = run_lanes("cvt.f64.f32 <D>, <A>;", [[f32(x) for x in a]], "b32", "b64")
    assert got == b64([struct.unpack("<f", struct.pack("<f", x))[0] for x in a])


@pytest.mark.parametrize("op", ["div.rn.f32", "rcp.rn.f32", "sqrt.rn.f32"])
def test_ieee_division_and_root(op: str) -> None:
    a, b = floats(22), [abs(x) & 0x7FFFFFFF for x in mixed(23)]
    if op == "div.rn.f32":
        got = run_lanes(f"{op} <D>, <A>, <B>;", [a, b], "b32 b32", "b32")
        want = [encode(value(x) / value(y), F32) for x, y in zip(a, b, strict=True)]
        assert got == [w or x & 0x80000000 for w, x in zip(want, a, strict=True)]
    elif op == "rcp.rn.f32":
        assert run_lanes(f"{op} <D>, <A>;", [b], "b32", "b32") == [encode(1 / value(y), F32) for y in b]
    else:
        for y, bits in zip(b, run_lanes(f"{op} <D>, <A>;", [b], "b32", "b32"), strict=True):
            below, above = (value(bits + d) for d in (-1, 1))
            half_below, half_above = (below + value(bits)) / 2, (above + value(bits)) / 2
            assert half_below**2 <= value(y) <= half_above**2


def test_bits_of_floats() -> None:
    a, b = floats(24), mixed(25)
    assert run_lanes("neg.f32 <D>, <A>;", [a], "b32", "b32") == [x ^ 0x80000000 for x in a]
    assert run_lanes("abs.f32 <D>, <A>;", [a], "b32", "b32") == [x & 0x7FFFFFFF for x in a]
    got = run_lanes("copysign.f32 <D>, <A>, <B>;", [a, b], "b32 b32", "b32")
    assert got == [(y & 0x7FFFFFFF) | (x & 0x80000000) for x, y in zip(a, b, strict=True)]
    special = [0x7F800000, 0x7FC00000, 0x00000001, 0x3F800000] * 8
    for test, want in {
        "finite": "0011",
        "infinite": "1000",
        "notanumber": "0100",
        "subnormal": "0010",
        "normal": "0001",
    }.items():
        got = run_lanes(f"testp.{test}.f32 %p1, <A>; selp.b32 <D>, 1, 0, %p1;", [special], "b32", "b32")
        assert "".join(map(str, got[:4])) == want, test


def test_three_operands() -> None:
    a, b, c = floats(26), mixed(27), mixed(28)
    got = run_lanes("max.f32 <D>, <A>, <B>, <C>;", [a, b, c], "b32 b32 b32", "b32")
    assert [value(g) for g in got] == [max(map(value, t)) for t in zip(a, b, c, strict=True)]
    got = run_lanes("min.f32 <D>, <A>, <B>, <C>;", [a, b, c], "b32 b32 b32", "b32")
    assert [value(g) for g in got] == [min(map(value, t)) for t in zip(a, b, c, strict=True)]


@pytest.mark.parametrize(("text", "fmt"), [("f16", F16), ("bf16", BF16)])
def test_narrow_pairs(text: str, fmt: Format) -> None:
    rng = random.Random(29)
    top = fmt.infinity - (1 << fmt.mantissa_bits) * 4
    a, b = (
        [rng.getrandbits(1) << 15 | rng.randrange(1 << fmt.mantissa_bits, top) for _ in range(64)] for _ in range(2)
    )
    pairs = [[v[2 * i + 1] << 16 | v[2 * i] for i in range(32)] for v in (a, b)]
    rules = {
        "add.rn": lambda x, y: x + y,
        "sub.rn": lambda x, y: x - y,
        "mul.rn": lambda x, y: x * y,
        "max": max,
        "min": min,
    }
    for op, rule in rules.items():
        got = run_lanes(f"{op}.{text}x2 <D>, <A>, <B>;", pairs, "b32 b32", "b32")
        for i, word in enumerate(got):
            for bits, x, y in ((word & 0xFFFF, a[2 * i], b[2 * i]), (word >> 16, a[2 * i + 1], b[2 * i + 1])):
                want = encode(rule(decode(x, fmt), decode(y, fmt)), fmt)
                if want & 0x7FFF:
                    assert bits == want, (op, hex(x), hex(y))


def test_widening_pairs() -> None:
    codes = [(7 * i + 3) % 0x7E for i in range(64)]
    pairs = [codes[2 * i + 1] << 8 | codes[2 * i] for i in range(32)]
    for name, fmt in (("e4m3x2", E4M3), ("e5m2x2", E5M2)):
        limit = fmt.infinity if fmt.has_infinity else 0x7F
        got = run_lanes(f"cvt.rn.f16x2.{name} <D>, <A>;", [[p % (limit << 8 | limit) for p in pairs]], "b16", "b32")
        for p, word in zip((p % (limit << 8 | limit) for p in pairs), got, strict=True):
            for code, half in ((p & 255, word & 0xFFFF), (p >> 8, word >> 16)):
                exact = decode(code, fmt)
                if isinstance(exact, Fraction):
                    assert decode(half, F16) == exact


def test_rounding_to_integral_floats() -> None:
    xs = [f32(v) for v in (2.5, -2.5, 3.5, 0.4999, -0.75, 1e9, 7.0, -3.2)] * 4
    for mode, rule in {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}.items():
        got = run_lanes(f"cvt.{mode}.f32.f32 <D>, <A>;", [xs], "b32", "b32")
        want = [rule(struct.unpack("<f", struct.pack("<I", x))[0]) for x in xs]
        assert [decode(g, F32) for g in got] == want, mode


def test_relu_conversions_clamp_at_zero() -> None:
    a = [f32(v) for v in (-2.0, 3.0, -0.5, 0.0)] * 8
    got = run_lanes("cvt.rn.relu.bf16x2.f32 <D>, <A>, <A>;", [a], "b32", "b32")
    assert got[:4] == [0, 0x40404040, 0, 0]
