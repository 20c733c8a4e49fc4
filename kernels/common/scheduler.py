"""Which tile of queries a thread block works on.

Blocks start in the order of their number. Pairs of (head, batch) are cut into sections whose keys and values fit the L2
cache together; within a section all pairs take their longest tile first, so that the last blocks to start are short.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr


def tile_of_block(
    tiles: Int32, heads: Int32, batch: Int32, pairs_per_section: Int32, longest_first: cutlass.Constexpr[bool]
) -> tuple[Int32, Int32, Int32]:
    """(query tile, head, batch entry) of this thread block, for a grid of tiles * heads * batch blocks.

    `heads` counts K/V heads where the query heads of one share a tile.
    """
    block, _, _ = cute.arch.block_idx()
    section = block // (pairs_per_section * tiles)
    within = block - section * pairs_per_section * tiles
    first_pair = section * pairs_per_section
    pairs = cutlass.min(pairs_per_section, heads * batch - first_pair)
    tile = within // pairs
    pair = first_pair + within - tile * pairs
    if const_expr(longest_first):
        tile = tiles - 1 - tile
    entry = pair // heads
    return tile, pair - entry * heads, entry
