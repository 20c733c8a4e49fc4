"""Softmax of one tile in the registers of a warpgroup, against a reference that seldom moves.

Weights are exp2(score - reference), and any reference near the largest score serves: it cancels when the output is
divided by the sum of the weights. So a row keeps its reference from tile to tile, the weights of a tile need no maximum
first, and their sum, which is needed anyway, tells whether the reference still serves. Only where it does not is the
tile taken again, as online softmax takes it (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2, arXiv
2307.08691). Nothing but the softmax keeps a warpgroup from issuing its next products: every instruction that the
exponentials do not hide is time.

Four neighbouring lanes of a warp hold one row between them, each of them a part of two rows (PTX ISA, accumulator
layout of `wgmma`).
"""

from collections.abc import Callable
from functools import reduce

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass._mlir.dialects import llvm

from attn_dsl.kernels.common.softmax import LANES_PER_ROW, exp2, normalised

ROWS_PER_THREAD = 2  # of a 64-row wgmma accumulator: lane // 4 and 8 below
COLUMNS_PER_STEP = 2  # neighbouring columns a lane holds of every 8
LIMIT = 2.0**10  # of a thread's weights of one row and tile; the largest f16 number is 2^16
FLOOR = -(2.0**12)  # of a reference: a score above one far below 0 would be rounded to nothing
CHAINS = 4  # independent chains of a maximum, so that one instruction's latency hides behind the others
PAIR = {cutlass.Float16: "f16x2", cutlass.BFloat16: "bf16x2"}
Combine = Callable[[Float32, Float32], Float32]


def by_row(accumulator: cute.Tensor) -> cute.Tensor:
    """An accumulator ((2, 2, N / 8), 1, 1) viewed as (2 rows, N / 4 columns)."""
    steps = cute.size(accumulator) // 4
    layout = cute.make_layout((ROWS_PER_THREAD, (COLUMNS_PER_STEP, steps)), stride=(2, (1, 4)))
    return cute.make_tensor(accumulator.iterator, layout)


def in_register_order(tensor: cute.Tensor) -> cute.Tensor:
    """A tensor in registers viewed as one row of registers."""
    return cute.make_tensor(tensor.iterator, cute.make_layout(cute.size(tensor)))


def rescale(accumulator: cute.Tensor, factors: list[Float32]) -> None:
    """Multiplies each row of an accumulator with its factor."""
    rows = by_row(accumulator)
    for row in range(ROWS_PER_THREAD):
        for column in range(cute.size(rows, mode=[1])):
            rows[row, column] = rows[row, column] * factors[row]


def convert(source: cute.Tensor, target: cute.Tensor) -> None:
    """Rounds f32 values to 16 bits, two neighbours at a time, in register order."""
    values, pairs = in_register_order(source), cute.recast_tensor(in_register_order(target), Int32)
    for pair in range(cute.size(pairs)):
        pairs[pair] = _rounded(values[2 * pair], values[2 * pair + 1], target.element_type)


def _rounded(low: Float32, high: Float32, element: type) -> Int32:
    """Two values of 16 bits in one register (PTX ISA, cvt)."""
    text = f"cvt.rn.{PAIR[element]}.f32 $0, $2, $1;"
    # said to have side effects, or it would be moved behind the branch that follows, where no exponential hides it
    return Int32(
        llvm.inline_asm(Int32.mlir_type, [low.ir_value(), high.ir_value()], text, "=r,f,f", has_side_effects=True)
    )


def weigh(scores: cute.Tensor, weights: cute.Tensor, reference: cute.Tensor | None, scale: Float32) -> list[Float32]:
    """Writes the rounded weights of a tile and returns the sum of each row's, as far as this thread holds them.

    Args:
        scores: f32, an accumulator; -inf where a key is not visible. What is left there are the scores in base 2 above
            the reference.
        weights: 16-bit, as many in the same order.
        reference: f32 (rows), logarithms in base 2; None: scores are in base 2 above the reference already.
        scale: from scores to logarithms in base 2; positive.
    """
    values, pairs = in_register_order(scores), cute.recast_tensor(in_register_order(weights), Int32)
    sums: list[Float32 | None] = [None] * ROWS_PER_THREAD
    for pair in range(cute.size(pairs)):
        row = pair % ROWS_PER_THREAD
        if reference is not None:
            for place in (2 * pair, 2 * pair + 1):
                values[place] = values[place] * scale - reference[row]
        low, high = exp2(values[2 * pair]), exp2(values[2 * pair + 1])
        before = sums[row]
        sums[row] = low + high if before is None else before + low + high
        pairs[pair] = _rounded(low, high, weights.element_type)
    return [Float32(total) for total in sums]


def reference_serves(sums: list[Float32], reference: cute.Tensor, base: cute.Tensor) -> Boolean:
    """Whether all weights behind `sums` are fit for use; not so where one is NaN."""
    serves = Boolean(True)
    for row, total in enumerate(sums):
        serves = serves & (total <= LIMIT) & (base[row] == reference[row])
    return serves


def move_reference(
    scores: cute.Tensor,
    weights: cute.Tensor,
    output: cute.Tensor,
    statistics: tuple[cute.Tensor, cute.Tensor, cute.Tensor],
    scale: Float32,
    first: bool = False,
) -> None:
    """A step of online softmax: the base becomes the largest score so far, and what was accumulated follows.

    Args:
        scores: f32, an accumulator: scores above the reference as `weigh` leaves them; overwritten.
        weights: 16-bit, as many in the same order; written.
        output: f32, an accumulator: the sum of weighted values so far.
        statistics: reference, base, row_sum, each f32 (rows): what `weigh` takes weights against; what the weights so
            far were taken against, -inf before the first visible key; the sum of this thread's weights so far. Both of
            the former are one number, or the reference is 0 because the base is below `FLOOR`.
        scale: from `scores` to logarithms in base 2; positive.
        first: whether no tile came before; then output is not read and statistics are their initial values.
    """
    reference, base, row_sum = statistics
    rows = by_row(scores)
    columns = range(cute.size(rows, mode=[1]))
    factors: list[Float32] = []
    for row in range(ROWS_PER_THREAD):
        values = [rows[row, column] for column in columns]
        largest = _across_lanes(cute.arch.fmax, _largest(values)) * scale + reference[row]
        before = base[row]
        if not first:
            largest = cute.arch.fmax(largest, before)
        # a row without a visible key has -inf here; any finite number makes its weights exp2(-inf) = 0
        finite = cutlass.select_(largest == -Float32.inf, Float32(0.0), largest)
        shift = finite - reference[row]
        total = Float32(0.0)
        for column in columns:
            weight = exp2(values[column] * scale - shift)
            total = total + weight
            rows[row, column] = weight
        if not first:
            factors.append(exp2(before - finite))
            total = row_sum[row] * factors[row] + total
        base[row], row_sum[row] = largest, total
        reference[row] = cutlass.select_(largest >= FLOOR, largest, Float32(0.0))
    convert(scores, weights)
    if not first:
        rescale(output, factors)


def _largest(values: list[Float32]) -> Float32:
    chains = list(values[:CHAINS])
    for place, value in enumerate(values[CHAINS:]):
        chains[place % CHAINS] = cute.arch.fmax(chains[place % CHAINS], value)
    return reduce(cute.arch.fmax, chains)


def _across_lanes(combine: Combine, value: Float32) -> Float32:
    """`value` combined over the lanes that hold one row."""
    offset = 1
    while offset < LANES_PER_ROW:
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset *= 2
    return value


def _add(x: Float32, y: Float32) -> Float32:
    return x + y


def finish_softmax(base: Float32, row_sum: Float32, sink: Float32 | None) -> tuple[Float32, Float32]:
    """`normalised` for a row that several lanes hold; `row_sum` is this thread's part."""
    return normalised(base, _across_lanes(_add, row_sum), sink)
