"""Which tile of queries a thread block works on.

Blocks start in the order of their number. Pairs of (head, batch) are cut into sections whose keys and values fit the L2
cache together; within a section all pairs take their longest tile first, so that the last blocks to start are short.
"""

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

Order = Any  # of blocks, as `order_of_blocks` makes it: a tuple that may be an argument of a kernel


def order_of_blocks(
    tiles: Int32, heads: Int32, batch: Int32, pairs_per_section: Int32, divisor: Callable[[Any], Any] = Int32
) -> Order:
    """The order of a grid of tiles * heads * batch blocks, at least one.

    `heads` counts K/V heads where the query heads of one share a tile. `divisor` makes what `//` divides by. A division
    takes a block some hundred cycles before it can start to load; on the host, `cute.fast_divmod_create_divisor` makes
    one of two instructions.
    """
    pairs = heads * batch
    section = cutlass.min(pairs_per_section, pairs)
    sections = pairs // section
    rest = cutlass.max(pairs - sections * section, 1)  # pairs of the last, smaller section; 1: there is none
    divisors = tuple(divisor(x) for x in (section * tiles, section, rest, heads))
    return tiles, heads, section, sections, rest, divisors


def tile_of_block(order: Order, longest_first: cutlass.Constexpr[bool]) -> tuple[Int32, Int32, Int32]:
    """(query tile, head, batch entry) of this thread block."""
    tiles, heads, section, sections, rest, (by_section, by_pairs, by_rest, by_heads) = order
    block, _, _ = cute.arch.block_idx()
    place = block // by_section
    within = block - place * (section * tiles)
    is_whole = place < sections
    tile = cutlass.select_(is_whole, within // by_pairs, within // by_rest)
    pair = place * section + within - tile * cutlass.select_(is_whole, section, rest)
    if const_expr(longest_first):
        tile = tiles - 1 - tile
    entry = pair // by_heads
    return tile, pair - entry * heads, entry
