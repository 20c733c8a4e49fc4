"""Where the rows of one sequence lie, read on the device: `docs/language.md`, "Lengths".

A launch knows how many sequences there are and how many rows all of them have together, and not how long each is. So
tiles of packed queries are found from places that can be counted without reading: sequence i begins at place
`cu_seqlens[i] // n + i`, where n queries fill a tile. That grows with i, and leaves room for every tile, because a
sequence of m queries moves the quotient by m // n at least.

What a tensor holds is never trusted: every number is moved into its range, so that wrong lengths give wrong results and
no access outside of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from attn_dsl.kernels.common.algebra import choose, clamped, larger, smaller
from attn_dsl.kernels.common.leaves import Arguments
from attn_dsl.kernels.common.scheduler import Order, order_of_blocks, tile_of_block
from attn_dsl.kernels.pack_gqa import row_of
from attn_dsl.lowering.forward import ForwardPlan, Lengths, grid
from attn_dsl.lowering.forward.grid import places, quotient

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
    """What one thread block works on: a tile of queries of a sequence and of `plan.pack` heads, all Int32.

    A tile has `plan.tile_q` rows, pairs of query and head with heads side by side.
    """

    plan: ForwardPlan
    b: Any
    head: Any  # the first query head
    tile: Any  # of the sequence; may lie past its end, or before it where lengths are wrong
    first_row: Any  # q_idx of the tile's first row
    skipped: Any  # heads of that query whose rows belong to the tile before
    q: Rows
    k: Rows
    split: tuple[Any, Any] | None  # which part of the keys, and of how many; None: all keys

    @property
    def last_row(self) -> Any:
        """q_idx of the tile's last row that the sequence has, if it has the first."""
        return smaller(self.row(self.plan.tile_q - 1)[0], self.q.count - Int32(1))

    def row(self, place: Any) -> tuple[Any, Any]:
        """(q_idx, head) of a row of the tile."""
        row, head = row_of(place + self.skipped, self.plan.pack)
        return self.first_row + row, self.head + head


def work_of_block(
    plan: ForwardPlan,
    arguments: Arguments,
    order: Order,
    batch: Any,
    slots_q: Any,
    slots_k: Any,
    splits: Any = None,
) -> Work:
    """The work of this thread block. Whole warps call it.

    `order` is as `order_of` gives it; `batch` counts sequences; `slots_q` and `slots_k` are the extents of the row
    axes, of paged keys the slots that a sequence may have. `splits` is the grid's second extent, into which keys are
    split.
    """
    longest_first = plan.order == "longest_first"
    if plan.lengths_q.cu_seqlens is None:
        tile, pair, b = tile_of_block(order, longest_first)
        q = rows_of(plan.lengths_q, arguments, b, batch, slots_q)
    else:
        place, pair, _ = tile_of_block(order, longest_first)
        b = sequence_at(plan, place, arguments.lengths(plan.lengths_q.cu_seqlens), batch)
        q = rows_of(plan.lengths_q, arguments, b, batch, slots_q)
        tile = place - (quotient(plan, q.packed) + b)
    first_row, skipped = _first_row(plan, tile)
    k = rows_of(plan.lengths_k, arguments, b, batch, slots_k)
    split = None if splits is None else (cute.arch.block_idx()[1], splits)
    return Work(plan, b, pair * plan.pack, tile, first_row, skipped, q, k, split)


def order_of(
    plan: ForwardPlan,
    heads: Any,
    batch: Any,
    slots_q: Any,
    pairs_per_section: Any,
    divisor: Callable[[Any], Any] = Int32,
) -> Order:
    """The order of the blocks of a launch; `divisor` as `order_of_blocks` takes it."""
    if plan.lengths_q.cu_seqlens is None:
        tiles = quotient(plan, slots_q, plan.tile_q - 1)
        return order_of_blocks(tiles, heads // plan.pack, batch, pairs_per_section, divisor)
    count = places(plan, slots_q, batch)
    return order_of_blocks(count, heads // plan.pack, Int32(1), pairs_per_section, divisor)


def _first_row(plan: ForwardPlan, tile: Any) -> tuple[Any, Any]:
    """(q_idx, skipped heads) of the first row of a tile; no product passes 32 bits."""
    if plan.tile_q % plan.pack == 0:
        return tile * (plan.tile_q // plan.pack), 0
    rest = tile % plan.pack * plan.tile_q
    return tile // plan.pack * plan.tile_q + rest // plan.pack, rest % plan.pack


def blocks(plan: ForwardPlan, heads: Any, batch: Any, slots_q: Any) -> Any:
    """Thread blocks of a launch: one for each work."""
    return grid.blocks(plan, plan.lengths_q.cu_seqlens is not None, heads, batch, slots_q)


def sequences(plan: ForwardPlan, arguments: Arguments, batch: Any) -> Any:
    """How many sequences there are, where the tensor of queries has a batch axis of extent `batch`."""
    if plan.lengths_q.cu_seqlens is None:
        return batch
    return Int32(arguments.lengths(plan.lengths_q.cu_seqlens).shape[0]) - Int32(1)


@cute.jit
def sequence_at(plan: cutlass.Constexpr, place: Int32, cumulative: cute.Tensor, batch: Int32) -> Int32:
    """The sequence, 0 to `batch`, that a place belongs to. Whole warps call it, with the same place.

    The lanes of a warp look at 32 sequences at once, so that a search among thousands takes three reads.
    """
    low, count = Int32(0), batch + 1
    while count > 1:
        step = (count + (LANES - 1)) // LANES
        looked = low + cute.arch.lane_idx() * step
        begins = quotient(plan, cumulative[cutlass.min(looked, batch)]) + looked
        # the first lane looks at `low`, which begins at or before the place
        reached = cute.arch.popc(cute.arch.vote_ballot_sync((looked < low + count) & (begins <= place)))
        passed = cutlass.max(reached - 1, 0) * step
        low, count = low + passed, cutlass.min(step, count - passed)
    return low
