"""Counting tiles: against what they are, for every way in which heads share them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from attn_dsl.lowering.forward import grid


@dataclass(frozen=True)
class Tiling:
    tile_q: int
    pack: int


TILINGS = [Tiling(tile_q, pack) for tile_q in (64, 128, 192, 256) for pack in (1, 2, 3, 5, 8, 12, 48, 64)]


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda t: f"{t.tile_q}x{t.pack}")
def test_one_block_for_each_tile(tiling):
    drawn = random.Random(1)
    for slots in (0, 1, 63, 64, 65, 127, *(drawn.randrange(2**25) for _ in range(20))):
        rows = slots * tiling.pack
        for more in (0, tiling.tile_q - 1):
            assert grid.quotient(tiling, slots, more) == (rows + more) // tiling.tile_q
        heads, batch = tiling.pack * drawn.randint(1, 5), drawn.randint(1, 5)
        tiles = -(-rows // tiling.tile_q)
        assert grid.blocks(tiling, False, heads, batch, slots) == tiles * heads // tiling.pack * batch


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda t: f"{t.tile_q}x{t.pack}")
def test_every_tile_of_packed_sequences_has_a_place(tiling):
    """And what lies behind the last one has as well."""
    drawn = random.Random(2)
    for _ in range(20):
        lengths = [drawn.choice((0, 1, 7, 64, 500)) for _ in range(drawn.randint(0, 6))]
        begins, start = [], 0
        for place, length in enumerate(lengths):
            begins.append((grid.quotient(tiling, start) + place, -(-length * tiling.pack // tiling.tile_q)))
            start += length
        total = start + drawn.choice((0, 3, 200))
        begins.append((grid.quotient(tiling, start) + len(lengths), -(-(total - start) * tiling.pack // tiling.tile_q)))
        count = grid.places(tiling, total, len(lengths))
        assert grid.blocks(tiling, True, 2 * tiling.pack, len(lengths), total) == 2 * count
        for (place, tiles), following in zip(begins, [*(first for first, _ in begins[1:]), count], strict=True):
            assert place + tiles <= following
