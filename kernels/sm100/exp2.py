"""Pairs of exponentials on FMA units, beside those of the special function unit.

That unit makes 16 exponentials per cycle, while the tensor cores take 8,192 operations, so that at a head dimension of
128 both need the same time; a part of the exponentials is moved to where there is time left (FlashAttention-4, arXiv
2603.05451). With i = floor(x) and f = x - i, 2^x = 2^i 2^f, as Cody and Waite split arguments (Software Manual for the
Elementary Functions, 1980): 2^f is a polynomial, and i is added to its exponent.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32

from attn_dsl.kernels.common.algebra import instruction
from attn_dsl.kernels.common.softmax import exp2
from attn_dsl.lowering.forward.sm100_plan import PAIRS

# 2^f = 1 + f (C1 + f (C2 + f C3)) on [0, 1], the coefficients of the smallest relative error, 8.6e-5: a quarter of the
# rounding of f16 and a fortieth of that of bf16, to which weights are rounded. At 0 it is exact.
C1, C2, C3 = 0.6951167740812637, 0.22764505506756766, 0.077066987673331
ROUND = 12_582_912.0  # 1.5 * 2^23: a sum with it is an integer, which stands in the low bits
LOWEST = -127.0  # from here on 2^i 2^f is made to be exactly 0, by an exponent of 0
EXPONENT = 23  # place of the exponent in an f32
Pair = tuple[Float32, Float32]


def polynomial_exp2(x: Pair) -> Pair:
    """2^x for two x up to 127. NaN gives a huge number or NaN."""
    add, fma = cute.arch.add_packed_f32x2, cute.arch.fma_packed_f32x2
    kept = tuple(instruction("max.NaN.f32 $0, $1, $2;", Float32, "=f,f,f", value, Float32(LOWEST)) for value in x)
    shifted = add(kept, (ROUND, ROUND), rnd="rm")
    whole = add(shifted, (-ROUND, -ROUND))
    rest = cute.arch.sub_packed_f32x2(kept, whole)
    power = fma(rest, (C3, C3), (C2, C2))
    power = fma(rest, power, (C1, C1))
    power = fma(rest, power, (1.0, 1.0))
    low, high = (scaled(value, exponent) for value, exponent in zip(power, shifted, strict=True))
    return low, high


def exp2_pair(x: Pair, place: int, on_fma: int) -> Pair:
    """2^x for the pair at `place` of a row: on FMA units for `on_fma` of 16 neighbouring pairs, evenly spread."""
    if place * on_fma % PAIRS + on_fma >= PAIRS:
        return polynomial_exp2(x)
    return exp2(x[0]), exp2(x[1])


def scaled(value: Any, exponent: Any) -> Any:
    """`value` times 2^i, where i stands in the low bits of the float `exponent`.

    Shift and sum become one instruction of the integer units (LEA); a product would go to the FMA units.
    """
    text = f"{{.reg .b32 i, v; shl.b32 i, $1, {EXPONENT}; mov.b32 v, $2; add.s32 v, v, i; mov.b32 $0, v;}}"
    return instruction(text, Float32, "=f,f,f", exponent, value)
