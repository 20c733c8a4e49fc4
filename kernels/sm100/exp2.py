"""Pairs of exponentials on FMA units, beside those of the special function unit.

That unit makes 16 exponentials per cycle, while the tensor cores take 8,192 operations, so that at a head dimension of
128 both need the same time; a part of the exponentials is moved to where there is time left (FlashAttention-4, arXiv
2603.05451). How: `kernels.common.exponential`.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32

from attn_dsl.kernels.common.algebra import instruction
from attn_dsl.kernels.common.exponential import C1, C2, C3, LOWEST, ROUND, scaled
from attn_dsl.kernels.common.softmax import exp2
from attn_dsl.lowering.forward.sm100_plan import PAIRS

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
