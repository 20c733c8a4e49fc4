"""Integer instructions, lane by lane, against their definition in Python integers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from ptx_lanes import run_lanes


def signed(v: int, bits: int) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def values(seed: int, bits: int) -> list[int]:
    """32 values: the corners, then random ones."""
    rng = random.Random(seed)
    top = 1 << bits
    corners = [0, 1, 2, top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1, 31, 32, 33, 64]
    return [c % top for c in corners] + [rng.randrange(top) for _ in range(32 - len(corners))]


def shuffled(seed: int, bits: int) -> list[int]:
    v = values(seed, bits)
    random.Random(seed + 1).shuffle(v)
    return v


def check(text: str, bits: tuple[int, ...], out: int, want: Callable[..., int]) -> None:
    inputs = [values(7, bits[0]), *(shuffled(11 * i, b) for i, b in enumerate(bits[1:], 1))]
    got = run_lanes(text, inputs, " ".join(f"b{b}" for b in bits), f"b{out}")
    expected = [want(*lane) & ((1 << out) - 1) for lane in zip(*inputs, strict=True)]
    assert got == expected


def trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


TYPES = [("s16", 16), ("u16", 16), ("s32", 32), ("u32", 32), ("s64", 64), ("u64", 64)]
BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: (a * b) >> n,
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
}


@pytest.mark.parametrize(("kind", "bits"), TYPES)
@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str, kind: str, bits: int) -> None:
    read = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    check(f"{op}.{kind} <D>, <A>, <B>;", (bits, bits), bits, lambda a, b: BINARY[op](read(a), read(b), bits))


@pytest.mark.parametrize(("kind", "bits"), TYPES)
def test_division_truncates(kind: str, bits: int) -> None:
    read = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    inputs = [values(3, bits), [v or 5 for v in shuffled(4, bits)]]
    for op, want in (("div", trunc_div), ("rem", lambda a, b: a - b * trunc_div(a, b))):
        got = run_lanes(f"{op}.{kind} <D>, <A>, <B>;", inputs, f"b{bits} b{bits}", f"b{bits}")
        assert got == [want(read(a), read(b)) & ((1 << bits) - 1) for a, b in zip(*inputs, strict=True)]


@pytest.mark.parametrize(("kind", "bits"), [("s16", 16), ("u16", 16), ("s32", 32), ("u32", 32)])
def test_wide(kind: str, bits: int) -> None:
    read = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    check(f"mul.wide.{kind} <D>, <A>, <B>;", (bits, bits), 2 * bits, lambda a, b: read(a) * read(b))


@pytest.mark.parametrize(("kind", "bits"), [("s32", 32), ("u32", 32), ("s64", 64)])
def test_mad(kind: str, bits: int) -> None:
    check(f"mad.lo.{kind} <D>, <A>, <B>, <C>;", (bits, bits, bits), bits, lambda a, b, c: a * b + c)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp(bits: int) -> None:
    amounts = [0, 1, bits - 1, bits, bits + 1, 255, 1 << 31, 7] * 4
    inputs = [values(5, bits), amounts]
    mask = (1 << bits) - 1
    rules: dict[str, Callable[[int, int], int]] = {
        f"shl.b{bits}": lambda a, n: a << n if n < bits else 0,
        f"shr.u{bits}": lambda a, n: a >> n if n < bits else 0,
        f"shr.s{bits}": lambda a, n: signed(a, bits) >> min(n, bits - 1),
    }
    for op, want in rules.items():
        got = run_lanes(f"{op} <D>, <A>, <B>;", inputs, f"b{bits} b32", f"b{bits}")
        assert got == [want(a, n) & mask for a, n in zip(*inputs, strict=True)], op


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bitwise(bits: int) -> None:
    for op, want in {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}.items():
        check(f"{op}.b{bits} <D>, <A>, <B>;", (bits, bits), bits, want)
    check(f"not.b{bits} <D>, <A>;", (bits,), bits, lambda a: ~a)


def test_counting_and_reversing() -> None:
    check("popc.b32 <D>, <A>;", (32,), 32, lambda a: a.bit_count())
    check("popc.b64 <D>, <A>;", (64,), 32, lambda a: a.bit_count())
    check("clz.b32 <D>, <A>;", (32,), 32, lambda a: 32 - a.bit_length())
    check("clz.b64 <D>, <A>;", (64,), 32, lambda a: 64 - a.bit_length())
    check("brev.b32 <D>, <A>;", (32,), 32, lambda a: int(f"{a:032b}"[::-1], 2))
    check("bfind.u32 <D>, <A>;", (32,), 32, lambda a: a.bit_length() - 1)


def test_permute_and_logic() -> None:
    def prmt(a: int, b: int, sel: int) -> int:
        octets = [(b << 32 | a) >> (8 * i) & 255 for i in range(8)]
        out = 0
        for i in range(4):
            n = sel >> (4 * i) & 15
            octet = octets[n & 7]
            out |= (0 if not n & 8 else 255 if octet & 128 else 0) << (8 * i) if n & 8 else octet << (8 * i)
        return out

    check("prmt.b32 <D>, <A>, <B>, <C>;", (32, 32, 32), 32, prmt)
    for lut in (0x80, 0xE8, 0x96, 0x1B):

        def lop(a: int, b: int, c: int, lut: int = lut) -> int:
            return sum((lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))

        check(f"lop3.b32 <D>, <A>, <B>, <C>, {lut};", (32, 32, 32), 32, lop)


def test_bit_fields() -> None:
    positions, lengths = [0, 5, 31, 32, 40, 8, 255, 16] * 4, [0, 8, 1, 32, 5, 64, 3, 16] * 4
    a = values(9, 32)

    def bfe_u(v: int, pos: int, n: int) -> int:
        return (v >> pos) & ((1 << n) - 1)

    def bfe_s(v: int, pos: int, n: int) -> int:
        if not n:
            return 0
        sign = v >> min(pos + n - 1, 31) & 1
        field = (v >> pos) & ((1 << n) - 1)
        have = max(0, min(n, 32 - pos))
        return field | (~((1 << have) - 1) if sign else 0)

    for op, want in (("bfe.u32", bfe_u), ("bfe.s32", bfe_s)):
        got = run_lanes(f"{op} <D>, <A>, <B>, <C>;", [a, positions, lengths], "b32 b32 b32", "b32")
        assert got == [want(*x) & 0xFFFFFFFF for x in zip(a, positions, lengths, strict=True)], op


def test_select_and_compare() -> None:
    for kind, read in (("s32", lambda v: signed(v, 32)), ("u32", lambda v: v)):
        for cmp, rule in {
            "lt": int.__lt__,
            "le": int.__le__,
            "gt": int.__gt__,
            "ge": int.__ge__,
            "eq": int.__eq__,
        }.items():
            check(
                f"setp.{cmp}.{kind} %p1, <A>, <B>;\nselp.b32 <D>, 7, 9, %p1;",
                (32, 32),
                32,
                lambda a, b, read=read, rule=rule: 7 if rule(read(a), read(b)) else 9,
            )


def test_setp_combines_and_gives_the_complement() -> None:
    check(
        "setp.ne.b32 %p1, <C>, 0;\nsetp.lt.and.s32 %p2|%p3, <A>, <B>, %p1;\n"
        "selp.b32 %r30, 1, 0, %p2;\nselp.b32 %r31, 2, 0, %p3;\nor.b32 <D>, %r30, %r31;",
        (32, 32, 32),
        32,
        lambda a, b, c: 0 if c == 0 else 1 if signed(a, 32) < signed(b, 32) else 2,
    )


def test_vectors_pack_and_unpack() -> None:
    check("mov.b64 <D>, {<A>, <B>};", (32, 32), 64, lambda a, b: b << 32 | a)
    check("mov.b32 {%h30, %h31}, <A>;\nmov.b32 <D>, {%h31, %h30};", (32,), 32, lambda a: a >> 16 | a << 16)
    check("mov.b64 {%r30, %r31}, <A>;\nsub.s32 <D>, %r31, %r30;", (64,), 32, lambda a: (a >> 32) - a)


def clamp(v: int) -> int:
    return max(-(2**31), min(2**31 - 1, v))


SIGNED_RULES: dict[str, Callable[[int, int], int]] = {
    "add.sat.s32": lambda a, b: clamp(a + b),
    "sub.sat.s32": lambda a, b: clamp(a - b),
    "min.relu.s32": lambda a, b: max(min(a, b), 0),
    "max.relu.s32": lambda a, b: max(a, b, 0),
}


@pytest.mark.parametrize("op", SIGNED_RULES)
def test_saturation_and_relu(op: str) -> None:
    check(f"{op} <D>, <A>, <B>;", (32, 32), 32, lambda a, b: SIGNED_RULES[op](signed(a, 32), signed(b, 32)))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_negation_and_absolute_value(bits: int) -> None:
    check(f"neg.s{bits} <D>, <A>;", (bits,), bits, lambda a: -a)
    check(f"abs.s{bits} <D>, <A>;", (bits,), bits, lambda a: abs(signed(a, bits)))


def test_insertion_funnel_shift_and_distance() -> None:
    check("bfi.b32 <D>, <A>, <B>, 5, 9;", (32, 32), 32, lambda a, b: (b & ~(511 << 5)) | (a & 511) << 5)
    check("bfi.b64 <D>, <A>, <B>, 40, 60;", (64, 64), 64, lambda a, b: (b & ((1 << 40) - 1)) | a << 40)
    amounts = "and.b32 %r50, <C>, 63; "
    both = (32, 32, 32)
    check(amounts + "shf.l.wrap.b32 <D>, <A>, <B>, %r50;", both, 32, lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32)
    check(amounts + "shf.r.wrap.b32 <D>, <A>, <B>, %r50;", both, 32, lambda a, b, c: (b << 32 | a) >> (c & 31))
    clamped = amounts + "shf.l.clamp.b32 <D>, <A>, <B>, %r50;"
    check(clamped, both, 32, lambda a, b, c: ((b << 32 | a) << min(c & 63, 32)) >> 32)
    check("sad.u32 <D>, <A>, <B>, <C>;", both, 32, lambda a, b, c: abs(a - b) + c)
    check("cnot.b32 <D>, <A>;", (32,), 32, lambda a: int(a == 0))
    check("mad.wide.s32 <D>, <A>, <B>, <C>;", (32, 32, 64), 64, lambda a, b, c: signed(a, 32) * signed(b, 32) + c)
    check("mad.hi.u32 <D>, <A>, <B>, <C>;", both, 32, lambda a, b, c: (a * b >> 32) + c)


def test_predicate_logic() -> None:
    text = "setp.lt.u32 %p1, <A>, <B>; setp.lt.u32 %p2, <B>, <C>; {op} selp.b64 %d50, 3, 4, %p3; cvt.u32.u64 <D>, %d50;"
    rules: dict[str, Callable[[bool, bool], bool]] = {
        "and.pred %p3, %p1, %p2;": lambda p, q: p and q,
        "or.pred %p3, %p1, %p2;": lambda p, q: p or q,
        "xor.pred %p3, %p1, %p2;": lambda p, q: p != q,
        "not.pred %p3, %p1;": lambda p, q: not p,
        "mov.pred %p3, -1;": lambda p, q: True,
        "and.pred %p3, %p1, !%p2;": lambda p, q: p and not q,
    }
    for op, rule in rules.items():
        check(text.format(op=op), (32, 32, 32), 32, lambda a, b, c, rule=rule: 3 if rule(a < b, b < c) else 4)
