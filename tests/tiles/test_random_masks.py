"""The tile analysis against brute force over random specs, lengths, parameters, alignments and tile shapes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from random_masks import random_call, random_spec
from tile_oracle import compare, dense_mask, dense_values

from attn_dsl.expr.text import to_text
from attn_dsl.lowering.tiles import Binding, Direction, TileAnalysis, analyze

CALLS_PER_SPEC = 2
TILES = [(4, 4), (8, 4), (4, 8), (8, 8), (5, 3), (16, 16), (1, 1)]


def _check(analysis: TileAnalysis, call: Binding, rng: random.Random) -> Counter[str]:
    """Everything that must hold of one call; returns what the call was a case of."""
    tile_q, tile_k = rng.choice(TILES)
    pack = rng.random() < 0.5
    seen: Counter[str] = Counter()
    where = (to_text(analysis.spec.mask), analysis.spec.align, call, tile_q, tile_k, pack)
    for exact in (None, False):
        found = compare(analysis.spec, call, analysis.evaluate(call, tile_q, tile_k, pack, exact=exact))
        assert found.is_sound, (found, where)
        assert found.is_exact or not analysis.is_exact, (found, where)
    seen["exact"] += found.is_exact
    seen["packed heads"] += pack and call.group > 1
    if analysis.is_ranges:
        seen["ranges"] += 1
        _check_rows(analysis, call, where)
    _check_directions(analysis, call)
    return seen


def _check_directions(analysis: TileAnalysis, call: Binding) -> None:
    """A bound that is said to rise or fall with the row does."""
    pieces = (*analysis.columns.seen.pieces, *analysis.columns.hidden.pieces)
    for bound in {bound for piece in pieces for bound in (*piece.low, *piece.high)}:
        for b in range(call.batch):
            steps = dense_values(analysis.spec, call, b, bound.expr)[:, :, :1].diff(dim=1)
            assert bound.direction not in (Direction.FIXED, Direction.RISING) or bool((steps >= 0).all()), bound
            assert bound.direction not in (Direction.FIXED, Direction.FALLING) or bool((steps <= 0).all()), bound


def _check_rows(analysis: TileAnalysis, call: Binding, where: object) -> None:
    """The column ranges of every row are the mask's own."""
    visible = 0
    for b in range(call.batch):
        mask = dense_mask(analysis.spec, call, b)
        visible += int(mask.sum())
        columns = torch.arange(mask.shape[2])
        for h in range(mask.shape[0]):
            low, high = analysis.row_ranges(call, b, h, torch.arange(mask.shape[1]))
            inside = ((columns >= low[..., None]) & (columns < high[..., None])).any(0)
            assert torch.equal(inside, mask[h]), (b, h, where)
    pairs = analysis.visible_pairs(call)
    assert pairs is None or pairs == visible, (pairs, visible, where)


def _sweep(kind: str, seed: int, specs: int) -> Counter[str]:
    rng = random.Random(f"{kind} {seed}")
    seen: Counter[str] = Counter()
    for _ in range(specs):
        spec, packed = random_spec(rng, kind)
        analysis = analyze(spec)
        assert str(analysis)
        seen["proved exact"] += analysis.is_exact
        for _ in range(CALLS_PER_SPEC):
            seen += _check(analysis, random_call(rng, packed), rng)
    return seen


def test_random_masks_are_sound() -> None:
    """Any mask the language can say. Counts make sure that the sample reaches each kind."""
    seen = _sweep("any", 1, 100)
    assert min(seen[kind] for kind in ("exact", "ranges", "packed heads", "proved exact")) >= 5, seen


def test_random_range_masks_are_their_ranges() -> None:
    """Masks of windows, chunks, prefixes and their unions: ranges, and mostly proved exact."""
    seen = _sweep("ranges", 2, 90)
    assert seen["ranges"] == 90 * CALLS_PER_SPEC
    assert seen["proved exact"] >= 50, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["any", "ranges"])
def test_sweep(kind: str, seed: int) -> None:
    _sweep(kind, 1000 + seed, 500)
