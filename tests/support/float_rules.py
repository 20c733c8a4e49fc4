"""Floating-point instructions by their definition (PTX ISA, "Floating Point Instructions"), in exact arithmetic."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from exact_floats import BF16, F16, F32, Format, decode, encode

F64 = Format(11, 52)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
NAN_CODES = {16: 0x7FFF, 32: 0x7FFFFFFF, 64: 0x7FFFFFFFFFFFFFFF}

# A value with its sign, which zeros have as well.
Value: TypeAlias = "tuple[bool, Fraction | float]"


@dataclass(frozen=True)
class Flags:
    """Modifiers of an instruction."""

    mode: str = "rn"
    ftz: bool = False
    sat: bool = False
    relu: bool = False


def negative(code: int, fmt: Format) -> bool:
    return bool(code >> (fmt.bits - 1) & 1)


def is_subnormal(code: int, fmt: Format) -> bool:
    magnitude = code & ((1 << (fmt.bits - 1)) - 1)
    return 0 < magnitude < 1 << fmt.mantissa_bits


def read(code: int, fmt: Format, *, ftz: bool = False) -> Value:
    """The operand an encoding stands for."""
    sign = negative(code, fmt)
    return (sign, Fraction(0)) if ftz and is_subnormal(code, fmt) else (sign, decode(code, fmt))


def write(value: Value, fmt: Format, flags: Flags) -> int:
    """The encoding of a result: clamped, rounded, flushed."""
    sign, v = value
    zero = int(sign) << (fmt.bits - 1)
    if isinstance(v, float):
        if math.isnan(v):
            return 0 if flags.sat else NAN_CODES[fmt.bits]
        if flags.sat or (flags.relu and sign):
            return encode(Fraction(0 if sign else 1), fmt)
        return zero | fmt.infinity
    if flags.sat:
        v = min(max(v, Fraction(0)), Fraction(1))
    if flags.relu:
        v = max(v, Fraction(0))
    if (flags.sat or flags.relu) and v == 0:
        return 0
    code = encode(v, fmt, flags.mode) | zero if v else zero
    return zero if flags.ftz and is_subnormal(code, fmt) else code


def negate(value: Value) -> Value:
    return not value[0], -value[1]


def product(a: Value, b: Value) -> Value:
    sign = a[0] != b[0]
    if any(isinstance(v, float) for _, v in (a, b)):
        return sign, float(a[1]) * float(b[1]) if 0 not in (a[1], b[1]) else math.nan
    return sign, a[1] * b[1]


def total(a: Value, b: Value, mode: str) -> Value:
    if any(isinstance(v, float) for _, v in (a, b)):
        finite = [v if isinstance(v, float) else 0.0 for _, v in (a, b)]
        v = finite[0] + finite[1]
        return v < 0, v
    v = a[1] + b[1]
    if v:
        return v < 0, v
    # An exact zero: the common sign, else + (- when rounding down).
    return (a[0] if a[0] == b[0] and not a[1] else mode == "rm"), v


def quotient(a: Value, b: Value) -> Value:
    sign = a[0] != b[0]
    if math.nan in (a[1], b[1]) or any(isinstance(v, float) and math.isnan(v) for _, v in (a, b)):
        return sign, math.nan
    if isinstance(a[1], float):
        return sign, math.nan if isinstance(b[1], float) else -math.inf if sign else math.inf
    if isinstance(b[1], float):
        return sign, Fraction(0)
    if not b[1]:
        return sign, math.nan if not a[1] else -math.inf if sign else math.inf
    return sign, a[1] / b[1]


def arithmetic(op: str, operands: list[Value], mode: str) -> Value:
    """add, sub, mul, div, fma (mad), unrounded."""
    a, b = operands[:2]
    if op == "add":
        return total(a, b, mode)
    if op == "sub":
        return total(a, negate(b), mode)
    if op == "mul":
        return product(a, b)
    if op == "div":
        return quotient(a, b)
    return total(product(a, b), operands[2], mode)


def samples(fmt: Format, seed: int, count: int = 32) -> list[int]:
    """Encodings: zeros, subnormals, extremes, infinities, NaN, then random ones, half of them with exponents near 0."""
    rng = random.Random(seed)
    sign = 1 << (fmt.bits - 1)
    smallest, one = 1 << fmt.mantissa_bits, fmt.bias << fmt.mantissa_bits
    found = [0, sign, 1, sign | smallest - 1, smallest, sign | fmt.infinity - 1, fmt.infinity, sign | fmt.infinity]
    found += [fmt.infinity | 1 << fmt.mantissa_bits - 1, one, sign | one]
    while len(found) < count:
        mantissa = rng.getrandbits(fmt.mantissa_bits)
        near = min(12, fmt.bias - 1)
        exponent = fmt.bias + rng.randrange(-near, near) if len(found) % 2 else rng.randrange(1, 2 * fmt.bias)
        found.append(rng.getrandbits(1) * sign | exponent << fmt.mantissa_bits | mantissa)
    rng.shuffle(found)
    return found
