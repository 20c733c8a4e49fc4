"""Online softmax in base 2 over register fragments (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2,
arXiv 2307.08691).

A fragment of scores is viewed as (rows, columns): the rows a thread takes part in, and its own columns of them. Four
neighbouring lanes of a warp hold one row between them (PTX ISA, accumulator layout of `wgmma`).
"""

import math
from collections.abc import Callable

import cutlass
import cutlass.cute as cute
from cutlass import Float32

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
LANES_PER_ROW = 4
Combine = Callable[[Float32, Float32], Float32]
LAZY = 8.0  # in base 2: how far scores may rise above the maximum before it follows them
CHAINS = 4  # independent chains of a reduction, so that one instruction's latency hides behind the others


def _reduce(combine: Combine, values: list[Float32]) -> Float32:
    """`values` combined in `CHAINS` chains."""
    chains = list(values[:CHAINS])
    for place, value in enumerate(values[CHAINS:]):
        chains[place % CHAINS] = combine(chains[place % CHAINS], value)
    while len(chains) > 1:
        chains = [combine(*chains[i : i + 2]) if i + 1 < len(chains) else chains[i] for i in range(0, len(chains), 2)]
    return chains[0]


def _across_lanes(combine: Combine, value: Float32) -> Float32:
    """`value` combined over the lanes that hold one row."""
    offset = 1
    while offset < LANES_PER_ROW:
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset *= 2
    return value


def exp2(x: Float32) -> Float32:
    """2^x by one approximate instruction (PTX ISA, ex2.approx.ftz: an error of 2^-22 at most)."""
    return cute.math.exp2(x, approx=True, ftz=True)


def _add(x: Float32, y: Float32) -> Float32:
    return x + y


def online_softmax(
    scores: cute.Tensor, row_max: cute.Tensor, row_sum: cute.Tensor, scale: Float32, first: bool
) -> list[Float32]:
    """Turns `scores` into weights exp2(scale * (score - max)) and updates both statistics.

    Args:
        scores: f32 (rows, columns), overwritten by the weights; -inf where a key is not visible.
        row_max: f32 (rows), the largest score so far, before `scale`, or one at most `LAZY` / `scale` below it; -inf if
            there is none.
        row_sum: f32 (rows), the sum of this thread's own weights so far.
        scale: from scores to logarithms in base 2; positive.
        first: whether no tile came before; then both statistics are written without being read.

    Returns:
        For each row the factor that what was accumulated before has to be multiplied with.
    """
    rows, columns = scores.shape[0], scores.shape[1]
    factors: list[Float32] = []
    for row in range(cute.size(rows)):
        values = [scores[row, column] for column in range(cute.size(columns))]
        largest = _across_lanes(cute.arch.fmax, _reduce(cute.arch.fmax, values))
        before = row_max[row]
        if not first:
            # a maximum that is a little too small serves as well, and what was accumulated stays as it is
            largest = cute.arch.fmax(largest, before)
            largest = cutlass.select_((largest - before) * scale > LAZY, largest, before)
        row_max[row] = largest
        # a row without a visible key has -inf here; any finite number makes its weights exp2(-inf) = 0
        base = cutlass.select_(largest == -Float32.inf, Float32(0.0), largest) * scale
        weights = [exp2(value * scale - base) for value in values]
        for column in range(cute.size(columns)):
            scores[row, column] = weights[column]
        total = _reduce(_add, weights)
        if first:
            row_sum[row] = total
            factors.append(Float32(0.0))  # nothing came before
        else:
            factor = exp2(before * scale - base)
            row_sum[row] = row_sum[row] * factor + total
            factors.append(factor)
    return factors


def finish_softmax(row_max: Float32, row_sum: Float32, scale: Float32, sink: Float32 | None) -> tuple[Float32, Float32]:
    """`normalised` for a row that several lanes hold; `row_sum` is this thread's part."""
    return normalised(row_max * scale, _across_lanes(_add, row_sum), sink)


def normalised(largest: Float32, total: Float32, sink: Float32 | None) -> tuple[Float32, Float32]:
    """(factor, lse): what the accumulated output is multiplied with, and the logarithm of the denominator in base 2.

    `largest` and `sink` are logits in base 2, `total` the sum of the weights relative to `largest`. A row that sees no
    key gets 0, and -inf or `sink`.
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
