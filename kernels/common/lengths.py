"""Where the rows of one sequence lie, read on the device: `docs/language.md`, "Lengths".

A launch knows how many sequences there are and how many rows all of them have together, and not how long each is. So
tiles of packed queries are found from places that can be counted without reading: sequence i begins at place
`cu_seqlens[i] // rows + i`. That grows with i, and leaves room for every tile of `rows` rows, because a sequence of n
rows moves the quotient by n // rows at least.

What a tensor holds is never trusted: every number is moved into its range, so that wrong lengths give wrong results and
no access outside of the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from attn_dsl.kernels.common.algebra import choose, clamped, larger, smaller
from attn_dsl.kernels.common.leaves import Arguments
from attn_dsl.kernels.common.scheduler import tile_of_block
from attn_dsl.lowering.forward import ForwardPlan, Lengths

LANES = 32  # of a warp


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one sequence on one side, all Int32."""

    first: Any  # slot of row 0 on the tensor's row axis
    count: Any  # rows
    slots: Any  # slots from the first one on that belong to the sequence: past its rows, outputs are cleared
    packed: Any  # slot at which captures of this sequence begin


def rows_of(lengths: Lengths, arguments: Arguments, b: Any, batch: Any, extent: Any) -> Rows:
    """The rows of sequence `b`, of `batch` in all, on an axis of `extent` slots (all Int32).

    Packed, sequence `batch` is what lies behind the last one: slots without rows.
    """
    start, stop, count = Int32(0), extent, extent
    if lengths.cu_seqlens is not None:
        cumulative = arguments.lengths(lengths.cu_seqlens)
        start = clamped(cumulative[b], 0, extent)
        stop = choose(b < batch, clamped(cumulative[smaller(b + Int32(1), batch)], start, extent), extent)
        count = choose(b < batch, stop - start, Int32(0))
    inside = larger(smaller(b, batch - Int32(1)), Int32(0))
    if lengths.used is not None:
        count = clamped(arguments.lengths(lengths.used)[inside], 0, count)
    padding = Int32(0)
    if lengths.left_pad is not None:
        padding = clamped(arguments.lengths(lengths.left_pad)[inside], 0, count)
    return Rows(start + padding, count - padding, stop - start, start)


def of_queries(plan: ForwardPlan, tensor: Any, rows: Rows, b: Any) -> Any:
    """The rows of a sequence of a tensor ((heads, rows), dim, batch), as ((heads, rows), dim)."""
    if plan.lengths_q.cu_seqlens is None:
        return tensor[None, None, b]
    return cute.domain_offset(((0, rows.first), 0), tensor[None, None, 0])


def of_keys(plan: ForwardPlan, tensor: Any, rows: Rows, kv_head: Any, b: Any) -> Any:
    """The rows of a sequence and head of a tensor (rows, dim, heads, batch), as (rows, dim)."""
    entry = b if plan.lengths_k.cu_seqlens is None else 0
    one = tensor[None, None, kv_head, entry]
    return one if plan.lengths_k == Lengths() else cute.domain_offset((rows.first, 0), one)


def of_lse(plan: ForwardPlan, tensor: Any, rows: Rows, b: Any) -> Any:
    """The rows of a sequence of a tensor (rows, heads, batch), as (rows, heads)."""
    if plan.lengths_q.cu_seqlens is None:
        return tensor[None, None, b]
    return cute.domain_offset((rows.first, 0), tensor[None, None, 0])


@dataclass(frozen=True, eq=False)
class Work:
    """What one thread block works on: a tile of queries of a sequence and of one or `plan.pack` heads, all Int32."""

    b: Any
    head: Any  # the first query head
    tile: Any  # of the sequence; may lie past its end, or before it where lengths are wrong
    q: Rows
    k: Rows


def work_of_block(
    plan: ForwardPlan, arguments: Arguments, heads: Any, batch: Any, slots_q: Any, slots_k: Any, pairs_per_section: Any
) -> Work:
    """The work of this thread block. Whole warps call it.

    `heads` and `batch` count query heads and sequences; `slots_q` and `slots_k` are the extents of the row axes.
    """
    rows, longest_first = plan.tile_q // plan.pack, plan.order == "longest_first"
    if plan.lengths_q.cu_seqlens is None:
        tiles = cute.ceil_div(slots_q, rows)
        tile, pair, b = tile_of_block(tiles, heads // plan.pack, batch, pairs_per_section, longest_first)
        q = rows_of(plan.lengths_q, arguments, b, batch, slots_q)
    else:
        count = places(slots_q, batch, rows)
        place, pair, _ = tile_of_block(count, heads // plan.pack, Int32(1), pairs_per_section, longest_first)
        b = sequence_at(place, arguments.lengths(plan.lengths_q.cu_seqlens), batch, rows)
        q = rows_of(plan.lengths_q, arguments, b, batch, slots_q)
        tile = place - (q.packed // rows + b)
    return Work(b, pair * plan.pack, tile, q, rows_of(plan.lengths_k, arguments, b, batch, slots_k))


def blocks(plan: ForwardPlan, heads: Any, batch: Any, slots_q: Any) -> Any:
    """Thread blocks of a launch: one for each work."""
    rows = plan.tile_q // plan.pack
    if plan.lengths_q.cu_seqlens is None:
        return cute.ceil_div(slots_q, rows) * (heads // plan.pack) * batch
    return places(slots_q, batch, rows) * (heads // plan.pack)


def sequences(plan: ForwardPlan, arguments: Arguments, batch: Any) -> Any:
    """How many sequences there are, where the tensor of queries has a batch axis of extent `batch`."""
    if plan.lengths_q.cu_seqlens is None:
        return batch
    return Int32(arguments.lengths(plan.lengths_q.cu_seqlens).shape[0]) - Int32(1)


def places(extent: Any, batch: Any, rows: int) -> Any:
    """How many places the tiles of `rows` rows of all sequences have, and what lies behind the last sequence."""
    return extent // rows + batch + 1


@cute.jit
def sequence_at(place: Int32, cumulative: cute.Tensor, batch: Int32, rows: cutlass.Constexpr[int]) -> Int32:
    """The sequence, 0 to `batch`, that a place belongs to. Whole warps call it, with the same place.

    The lanes of a warp look at 32 sequences at once, so that a search among thousands takes three reads.
    """
    low, count = Int32(0), batch + 1
    while count > 1:
        step = (count + (LANES - 1)) // LANES
        looked = low + cute.arch.lane_idx() * step
        begins = cumulative[cutlass.min(looked, batch)] // rows + looked
        # the first lane looks at `low`, which begins at or before the place
        reached = cute.arch.popc(cute.arch.vote_ballot_sync((looked < low + count) & (begins <= place)))
        passed = cutlass.max(reached - 1, 0) * step
        low, count = low + passed, cutlass.min(step, count - passed)
    return low
