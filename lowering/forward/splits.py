"""Into how many parts the keys of a call are split, so that few tiles of queries still occupy a whole GPU.

Each part is a thread block; its partial result is joined with the others' by a second kernel. The number is decided
from sizes the host knows, never from what a tensor holds: a call waits for nothing, and equal sizes give equal results
bit by bit.
"""

from __future__ import annotations

from functools import lru_cache

MAX_SPLITS = 256
# Rows, pairs of query and head of one sequence, up to which a call is split by itself: what fills one tile of a kernel
# for parts. On Blackwell that is one with a single query tile, whose next scores are made before an output.
MOST_ROWS = {"sm90": 128, "sm100": 128}
# Costs beside the time one thread block takes for one tile of keys; estimates, to which the minimum is not sensitive
START = 2  # tiles: a block begins, fetches its queries and first keys, and writes its part
JOIN = 3  # tiles: the second kernel begins


@lru_cache(maxsize=4096)
def splits(blocks: int, key_tiles: int, processors: int) -> int:
    """The number of parts, 1 to `MAX_SPLITS`, that takes least time; of equals the smallest.

    Args:
        blocks: thread blocks of the call unsplit: tiles of queries, times K/V heads, times sequences.
        key_tiles: tiles of keys of the longest sequence that its tensor or page table can hold.
        processors: thread blocks that the GPU runs at once.

    Blocks run in waves of `processors`, and every wave takes as long as one block.
    """
    if blocks < 1 or key_tiles < 2:
        return 1

    def time(count: int) -> int:
        waves = -(-blocks * count // processors)
        return waves * (-(-key_tiles // count) + START) + (JOIN if count > 1 else 0)

    return min(range(1, min(key_tiles, MAX_SPLITS) + 1), key=lambda count: (time(count), count))
