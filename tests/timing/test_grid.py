"""Waves, residency, and the machine that a block gets to itself at the end."""

from __future__ import annotations

import pytest

from attn_dsl.timing.grid import Grid
from attn_dsl.timing.predict import occupancy
from attn_dsl.timing.tables import table


@pytest.mark.parametrize(("blocks", "waves"), [(1, 1), (132, 1), (133, 2), (264, 2), (1000, 8)])
def test_waves_of_equal_blocks(blocks: int, waves: int) -> None:
    assert Grid({0: 100.0}, blocks, 132, 1, 1.0).cycles() == 100 * waves


def test_a_long_block_that_starts_last_ends_last() -> None:
    assert Grid({0: 10.0, 1: 10.0, 2: 10.0, 3: 100.0}, 4, 2, 1, 1.0).cycles() == 110
    assert Grid({0: 100.0, 1: 10.0, 2: 10.0, 3: 10.0}, 4, 2, 1, 1.0).cycles() == 100


def test_resident_blocks_slow_each_other_down() -> None:
    assert Grid({0: 100.0}, 2, 1, 2, 1.5).cycles() == pytest.approx(150)
    assert Grid({0: 100.0}, 4, 1, 2, 1.5).cycles() == pytest.approx(300)
    assert Grid({0: 100.0}, 3, 1, 2, 1.5).cycles() == pytest.approx(250)  # the last one alone


def test_blocks_are_like_their_nearest_neighbour() -> None:
    assert Grid({1: 10.0, 8: 70.0}, 10, 1, 1, 1.0).cycles() == 5 * 10 + 5 * 70


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "expected"),
    [
        (168, 384, 160_000, 1),  # shared memory, and registers: 168 x 384 of 65,536
        (168, 384, 1_000, 1),
        (80, 256, 1_000, 3),  # 20,480 registers each
        (32, 64, 70_000, 3),  # 233,472 bytes, 1,024 of each block the system's
        (32, 128, 1_000, 16),  # 64 warps
        (16, 32, 0, 32),  # 32 blocks
        (41, 384, 0, 3),  # 41 registers are allocated as 48
    ],
)
def test_occupancy(registers: int, threads: int, shared: int, expected: int) -> None:
    assert occupancy(registers, threads, shared, table("sm90")) == expected
