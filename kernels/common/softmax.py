"""What every softmax of a template ends in: exponentials in base 2, and the division by their sum."""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
LANES_PER_ROW = 4  # neighbouring lanes that hold one row of an accumulator (PTX ISA, `wgmma` register fragments)


def exp2(x: Float32) -> Float32:
    """2^x by one approximate instruction (PTX ISA, ex2.approx.ftz: an error of 2^-22 at most)."""
    return cute.math.exp2(x, approx=True, ftz=True)


def normalised(largest: Float32, total: Float32, sink: Float32 | None) -> tuple[Float32, Float32]:
    """(factor, lse): what the accumulated output is multiplied with, and the logarithm of the denominator in base 2.

    `largest` and `sink` are logits in base 2, `total` the sum of the weights relative to `largest`, which may be any
    logit near the largest. A row that sees no key gets 0, and -inf or `sink`.
    """
    empty = total == 0.0  # the largest score of any other row has a weight; NaN is not 0
    if sink is None:
        factor = cutlass.select_(empty, Float32(0.0), cute.arch.rcp_approx(total))
        return factor, cutlass.select_(empty, -Float32.inf, largest + cute.math.log2(total, fastmath=True))
    # the larger of both logits becomes the reference, so that neither exponential overflows
    reference = cute.arch.fmax(largest, sink)
    mine = exp2(largest - reference)
    both = total * mine + exp2(sink - reference)
    factor = cutlass.select_(empty, Float32(0.0), mine * cute.arch.rcp_approx(both))
    return factor, cutlass.select_(empty, sink, reference + cute.math.log2(both, fastmath=True))
