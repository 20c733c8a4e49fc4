"""2^x on FMA units, beside the special function unit, which makes 16 exponentials per cycle and multiprocessor.

With i = floor(x) and f = x - i, 2^x = 2^i 2^f, as Cody and Waite split arguments (Software Manual for the Elementary
Functions, 1980): 2^f is a polynomial, and i is added to its exponent.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32

from attn_dsl.kernels.common.algebra import instruction

# 2^f = 1 + f (C1 + f (C2 + f C3)) on [0, 1], the coefficients of the smallest relative error, 8.6e-5: a quarter of the
# rounding of f16 and a fortieth of that of bf16, to which weights are rounded. At 0 it is exact.
C1, C2, C3 = 0.6951167740812637, 0.22764505506756766, 0.077066987673331
ROUND = 12_582_912.0  # 1.5 * 2^23: a sum with it is an integer, which stands in the low bits
LOWEST = -127.0  # from here on 2^i 2^f is made to be exactly 0, by an exponent of 0
HIGHEST = 127.0  # up to here the exponent has room for i
EXPONENT = 23  # place of the exponent in an f32


def polynomial_exp2(x: Float32) -> Float32:
    """2^x for one x; 2^127 for what lies above 127 and for NaN."""
    kept = cute.arch.fmax(cute.arch.fmin(x, Float32(HIGHEST)), Float32(LOWEST))
    shifted = instruction("add.rm.f32 $0, $1, $2;", Float32, "=f,f,f", kept, Float32(ROUND))
    rest = kept - (shifted - Float32(ROUND))
    power = cute.math.fma(rest, Float32(C3), Float32(C2))
    power = cute.math.fma(rest, power, Float32(C1))
    power = cute.math.fma(rest, power, Float32(1.0))
    return scaled(power, shifted)


def scaled(value: Any, exponent: Any) -> Any:
    """`value` times 2^i, where i stands in the low bits of the float `exponent`.

    Shift and sum become one instruction of the integer units (LEA); a product would go to the FMA units.
    """
    text = f"{{.reg .b32 i, v; shl.b32 i, $1, {EXPONENT}; mov.b32 v, $2; add.s32 v, v, i; mov.b32 $0, v;}}"
    return instruction(text, Float32, "=f,f,f", exponent, value)
