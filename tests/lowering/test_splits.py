"""How many parts keys are split into, from sizes alone."""

from __future__ import annotations

import pytest

from attn_dsl.lowering.forward.splits import MAX_SPLITS, splits

PROCESSORS = 132


@pytest.mark.parametrize(
    ("blocks", "key_tiles", "expected"),
    [
        (0, 100, 1),  # nothing to do
        (8, 0, 1),
        (8, 1, 1),
        (8, 4, 1),  # the second kernel costs more than it saves
        (512, 64, 1),  # 64 sequences of 8 K/V heads fill the GPU by themselves
        (8, 1024, 16),  # one long sequence of 8 K/V heads: 128 of 132 processors, one wave
        (1, 1024, 128),  # 132 parts would take as long: 8 tiles each
        (132, 64, 1),
        (66, 64, 2),
    ],
)
def test_choices(blocks: int, key_tiles: int, expected: int) -> None:
    assert splits(blocks, key_tiles, PROCESSORS) == expected


def test_limits() -> None:
    assert splits(1, 10**6, 10**4) <= MAX_SPLITS
    for blocks in (1, 3, 17, 100, 400):
        for key_tiles in (2, 5, 33, 1000):
            assert 1 <= splits(blocks, key_tiles, PROCESSORS) <= key_tiles


def test_no_part_is_idle_for_long() -> None:
    """Whatever is chosen takes no longer than one part, and no longer than a part for every processor."""
    for blocks in range(1, 200, 7):
        for key_tiles in (8, 64, 500):
            count = splits(blocks, key_tiles, PROCESSORS)
            waves = -(-blocks * count // PROCESSORS)
            assert waves * -(-key_tiles // count) <= -(-blocks // PROCESSORS) * key_tiles
