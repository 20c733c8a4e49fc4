"""Exact rounding of rationals to small float formats: the definition the emulator is held to."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def largest(self) -> int:
        return self.infinity - 1 if self.has_infinity else (1 << (self.bits - 1)) - 2


F32 = Format(8, 23)
F16 = Format(5, 10)
BF16 = Format(8, 7)
TF32 = Format(8, 10)
E4M3 = Format(4, 3, has_infinity=False)
E5M2 = Format(5, 2)


def decode(x: int, f: Format) -> Fraction | float:
    """The value of an encoding: a rational, or an infinite or NaN float."""
    sign = -1 if x >> (f.bits - 1) & 1 else 1
    exponent = x >> f.mantissa_bits & ((1 << f.exponent_bits) - 1)
    mantissa = x & ((1 << f.mantissa_bits) - 1)
    top = (1 << f.exponent_bits) - 1
    if f.has_infinity and exponent == top:
        return math.nan if mantissa else sign * math.inf
    if not f.has_infinity and exponent == top and mantissa == (1 << f.mantissa_bits) - 1:
        return math.nan
    scale = max(exponent, 1) - f.bias - f.mantissa_bits
    return sign * Fraction(mantissa + (1 << f.mantissa_bits if exponent else 0)) * Fraction(2) ** scale


def encode(v: Fraction, f: Format, mode: str = "rn", *, sat: bool = False) -> int:
    """`v` rounded to the format; +0 for zero."""
    sign = 1 << (f.bits - 1) if v < 0 else 0
    a = abs(v)
    if a == 0:
        return 0
    exponent = math.floor(math.log2(a.numerator)) - math.floor(math.log2(a.denominator))
    while Fraction(2) ** exponent > a:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= a:
        exponent += 1
    lsb = max(exponent, 1 - f.bias) - f.mantissa_bits
    n = a / Fraction(2) ** lsb
    whole = n.numerator // n.denominator
    rest = n - whole
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": bool(sign) and rest > 0,
        "rp": not sign and rest > 0,
    }[mode]
    whole += up
    code = (
        whole + ((lsb + f.mantissa_bits + f.bias - 1) << f.mantissa_bits)
        if lsb > 1 - f.bias - f.mantissa_bits
        else whole
    )
    if code > f.largest:
        to_infinity = mode in ("rn", "rna") or (mode == "rp" and not sign) or (mode == "rm" and bool(sign))
        beyond = f.infinity if f.has_infinity else f.largest + 1
        code = f.largest if sat or not to_infinity else beyond
    return sign | code


def f32(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])
