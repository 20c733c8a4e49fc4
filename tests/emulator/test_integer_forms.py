"""Every integer, logic and selection instruction of every type, against its definition in Python integers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product as every

import pytest
from ptx_lanes import run_lanes

TYPES = ("s16", "u16", "s32", "u32", "s64", "u64")


def bits_of(kind: str) -> int:
    return int(kind[1:])


def values(kind: str, seed: int) -> list[int]:
    """32 values: limits, small ones, then random ones of every size."""
    bits = bits_of(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    rng = random.Random(seed)
    found = [low, high, 0, 1, max(low, -1), high - 1, low + 1, 7]
    while len(found) < 32:
        found.append(max(low, min(high, rng.getrandbits(rng.randrange(1, bits + 1)) * rng.choice((1, -1)))))
    rng.shuffle(found)
    return found


def masked(numbers: list[int], bits: int) -> list[int]:
    return [v & (1 << bits) - 1 for v in numbers]


def check(text: str, kinds: str, out: str, rule: Callable[..., int], seed: int = 1) -> None:
    """`text` on random operands of the types `kinds` gives what `rule` says."""
    types = kinds.split()
    inputs = [values(kind, seed + 7 * i) for i, kind in enumerate(types)]
    widths = " ".join(f"b{bits_of(kind)}" for kind in types)
    got = run_lanes(
        text, [masked(v, bits_of(k)) for v, k in zip(inputs, types, strict=True)], widths, f"b{bits_of(out)}"
    )
    assert got == masked([rule(*operands) for operands in zip(*inputs, strict=True)], bits_of(out)), text


def divided(a: int, b: int) -> tuple[int, int]:
    """Quotient, truncated, and remainder."""
    q = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
    return q, a - q * b


@pytest.mark.parametrize("kind", TYPES)
def test_arithmetic(kind: str) -> None:
    bits, two, three = bits_of(kind), f"{kind} {kind}", f"{kind} {kind} {kind}"
    check(f"add.{kind} <D>, <A>, <B>;", two, kind, lambda a, b: a + b)
    check(f"sub.{kind} <D>, <A>, <B>;", two, kind, lambda a, b: a - b)
    check(f"min.{kind} <D>, <A>, <B>;", two, kind, min)
    check(f"max.{kind} <D>, <A>, <B>;", two, kind, max)
    check(f"mul.lo.{kind} <D>, <A>, <B>;", two, kind, lambda a, b: a * b)
    check(f"mul.hi.{kind} <D>, <A>, <B>;", two, kind, lambda a, b: a * b >> bits)
    check(f"mad.lo.{kind} <D>, <A>, <B>, <C>;", three, kind, lambda a, b, c: a * b + c)
    if bits > 16:
        check(f"mad.hi.{kind} <D>, <A>, <B>, <C>;", three, kind, lambda a, b, c: (a * b >> bits) + c)
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        check(f"mul.wide.{kind} <D>, <A>, <B>;", two, wide, lambda a, b: a * b)
        check(f"mad.wide.{kind} <D>, <A>, <B>, <C>;", f"{two} {wide}", wide, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("kind", TYPES)
def test_division(kind: str) -> None:
    """By anything but zero; the one overflow wraps."""
    bits = bits_of(kind)
    a, b = values(kind, 3), [v or 5 for v in values(kind, 4)]
    for op, part in (("div", 0), ("rem", 1)):
        got = run_lanes(
            f"{op}.{kind} <D>, <A>, <B>;", [masked(a, bits), masked(b, bits)], f"b{bits} b{bits}", f"b{bits}"
        )
        assert got == masked([divided(x, y)[part] for x, y in zip(a, b, strict=True)], bits), op


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_distance(kind: str) -> None:
    check(f"sad.{kind} <D>, <A>, <B>, <C>;", f"{kind} {kind} {kind}", kind, lambda a, b, c: abs(a - b) + c)


@pytest.mark.parametrize("bits", [32, 64])
def test_counting(bits: int) -> None:
    kind = f"u{bits}"
    check(f"brev.b{bits} <D>, <A>;", kind, kind, lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    check(f"popc.b{bits} <D>, <A>;", kind, "u32", lambda a: a.bit_count())
    check(f"clz.b{bits} <D>, <A>;", kind, "u32", lambda a: bits - a.bit_length())


def test_first_bit_that_is_not_the_sign() -> None:
    check("bfind.s32 <D>, <A>;", "s32", "u32", lambda a: (~a if a < 0 else a).bit_length() - 1)
    check("bfind.u32 <D>, <A>;", "u32", "u32", lambda a: a.bit_length() - 1)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extraction(kind: str) -> None:
    bits = bits_of(kind)
    numbers = values(kind, 5)
    positions, lengths = [0, 5, bits - 1, bits, bits + 8, 8, 255, 16] * 4, [0, 8, 1, bits, 5, 64, 3, 16] * 4

    def extract(v: int, position: int, length: int) -> int:
        """Bits beyond the value are its top bit (signed) or zero; so are those above the field."""
        if not length:
            return 0
        field = (v >> position) & (1 << length) - 1 if position < bits else (-1 if kind[0] == "s" and v < 0 else 0)
        top = v >> min(position + length - 1, bits - 1) & 1
        return field | -1 << length if kind[0] == "s" and top else field & (1 << length) - 1

    got = run_lanes(
        f"bfe.{kind} <D>, <A>, <B>, <C>;", [masked(numbers, bits), positions, lengths], f"b{bits} b32 b32", f"b{bits}"
    )
    assert got == masked([extract(*row) for row in zip(numbers, positions, lengths, strict=True)], bits)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64"])
def test_shifts(kind: str) -> None:
    """Amounts beyond the width shift everything out."""
    bits, signed = bits_of(kind), kind[0] == "s"
    amounts = [0, 1, bits - 1, bits, bits + 1, 64, 200, 3] * 4
    numbers = values(kind if signed else f"u{bits}", 6)
    inputs = [masked(numbers, bits), amounts]
    got = run_lanes(f"shr.{kind} <D>, <A>, <B>;", inputs, f"b{bits} b32", f"b{bits}")
    assert got == masked([v >> n for v, n in zip(numbers, amounts, strict=True)], bits)
    if kind[0] == "b":
        got = run_lanes(f"shl.{kind} <D>, <A>, <B>;", inputs, f"b{bits} b32", f"b{bits}")
        assert got == masked([v << n for v, n in zip(numbers, amounts, strict=True)], bits)


@pytest.mark.parametrize(("way", "mode"), every("lr", ("clamp", "wrap")))
def test_funnel_shift(way: str, mode: str) -> None:
    def shift(a: int, b: int, c: int) -> int:
        n = c & 31 if mode == "wrap" else min(c, 32)
        return ((b << 32 | a) << n) >> 32 if way == "l" else (b << 32 | a) >> n

    check(f"shf.{way}.{mode}.b32 <D>, <A>, <B>, <C>;", "u32 u32 u32", "u32", shift)
    amounts = f"and.b32 %r50, <C>, 63; shf.{way}.{mode}.b32 <D>, <A>, <B>, %r50;"
    check(amounts, "u32 u32 u32", "u32", lambda a, b, c: shift(a, b, c & 63))


PERMUTATIONS: dict[str, Callable[[int], tuple[int, int, int, int]]] = {
    "f4e": lambda n: (n, n + 1, n + 2, n + 3),
    "b4e": lambda n: (n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8),
    "rc8": lambda n: (n, n, n, n),
    "ecl": lambda n: (max(n, 0), max(n, 1), max(n, 2), 3),
    "ecr": lambda n: (0, min(n, 1), min(n, 2), min(n, 3)),
    "rc16": lambda n: (0, 1, 0, 1) if n % 2 == 0 else (2, 3, 2, 3),
}


@pytest.mark.parametrize("mode", PERMUTATIONS)
def test_special_permutations(mode: str) -> None:
    """Bytes 0 to 3 are those of a, 4 to 7 those of b; the mode picks four of them by the two low bits of c."""

    def permute(a: int, b: int, c: int) -> int:
        source = a | b << 32
        return sum((source >> 8 * byte & 255) << 8 * i for i, byte in enumerate(PERMUTATIONS[mode](c & 3)))

    check(f"prmt.b32.{mode} <D>, <A>, <B>, <C>;", "u32 u32 u32", "u32", permute)


@pytest.mark.parametrize(
    "kind", ["b16", "u16", "s16", "f16", "bf16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"]
)
def test_selection_copies_bits(kind: str) -> None:
    bits = int(kind.lstrip("busf"))
    choose = f"setp.lt.u{bits} %p1, <B>, <A>; selp.{kind} <D>, <A>, <B>, %p1;"
    check(choose, f"u{bits} u{bits}", f"u{bits}", max)


@pytest.mark.parametrize("kind", ["b32", "u32", "s32", "f32"])
def test_selection_by_sign(kind: str) -> None:
    check(f"slct.{kind}.s32 <D>, <A>, <B>, <C>;", "u32 u32 s32", "u32", lambda a, b, c: a if c >= 0 else b)


@pytest.mark.parametrize(
    "kind", ["b16", "u16", "s16", "f16", "bf16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"]
)
def test_moves_copy_bits(kind: str) -> None:
    bits = int(kind.lstrip("busf"))
    check(f"mov.{kind} <D>, <A>;", f"u{bits}", f"u{bits}", lambda a: a)


def test_a_wide_move() -> None:
    text = (
        ".reg .b128 %w<2>; mov.b128 %w0, {<A>, <B>}; mov.b128 %w1, %w0; mov.b128 {%d50, "
        "%d51}, %w1; xor.b64 <D>, %d50, %d51;"
    )
    check(text, "u64 u64", "u64", lambda a, b: a ^ b)


def test_logic_of_every_width() -> None:
    for bits, (op, rule) in every((16, 32, 64), (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__))):
        check(f"{op}.b{bits} <D>, <A>, <B>;", f"u{bits} u{bits}", f"u{bits}", rule)
