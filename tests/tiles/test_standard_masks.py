"""The standard library's masks: sound everywhere, exact where docs/tiles.md says so, and listed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from standard_masks import EXTENTS, PROVED, SORTED, STANDARD_MASKS, StandardMask
from tile_oracle import compare, dense_mask

import attn_dsl
from attn_dsl.lowering.tiles import Binding, Direction, analyze

DOCUMENT = Path(__file__).parents[2] / "docs" / "tiles.md"
SIZES = [  # seq_q, seq_k, tile_q, tile_k, packed heads
    (64, 64, 16, 16, False),
    (50, 70, 16, 8, True),
    (70, 50, 8, 16, False),
    (33, 65, 16, 16, True),
    (1, 40, 8, 8, True),
    (7, 0, 4, 4, False),
    (0, 7, 4, 4, True),
]
SAME_LENGTH = [(64, 64, 16, 16, False), (61, 61, 8, 16, True), (40, 40, 16, 8, False)]


def _call(case: StandardMask, seq_q: int, seq_k: int) -> Binding:
    extents = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": seq_q, "seq_k": seq_k, **EXTENTS}
    return Binding.of(extents, case.values(extents, torch.Generator().manual_seed(seq_q)))


@pytest.mark.parametrize("case", STANDARD_MASKS, ids=lambda case: case.mask)
def test_tiles(case: StandardMask) -> None:
    analysis = analyze(attn_dsl.parse(case.text))
    assert analysis.is_exact is (case.tiles == PROVED)
    for seq_q, seq_k, tile_q, tile_k, packed in SIZES:
        call = _call(case, seq_q, seq_k)
        found = compare(analysis.spec, call, analysis.evaluate(call, tile_q, tile_k, packed))
        assert found.is_sound, (seq_q, seq_k, found)
        assert found.is_exact or case.tiles != PROVED, (seq_q, seq_k, found)
        if case.tiles == PROVED:
            assert analysis.visible_pairs(call) == sum(int(dense_mask(analysis.spec, call, b).sum()) for b in range(2))


@pytest.mark.parametrize("case", [case for case in STANDARD_MASKS if case.tiles == SORTED], ids=lambda case: case.mask)
@pytest.mark.parametrize("exact", [True, False])
def test_sorted_documents_are_exact(case: StandardMask, exact: bool) -> None:
    """By binary search over running maxima already, without a test of single tiles."""
    analysis = analyze(attn_dsl.parse(case.text))
    for seq_q, seq_k, tile_q, tile_k, packed in SAME_LENGTH:
        call = _call(case, seq_q, seq_k)
        found = compare(analysis.spec, call, analysis.evaluate(call, tile_q, tile_k, packed, exact=exact))
        assert found.is_exact, (seq_q, seq_k, found)


def test_unsorted_documents_skip_what_lies_apart() -> None:
    """Ids in any order: tiles whose ids do not meet are skipped, one by one if asked to."""
    case = next(case for case in STANDARD_MASKS if case.mask == "same_document(document)")
    analysis = analyze(attn_dsl.parse(case.text))
    extents = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 64, "seq_k": 64}
    document = torch.tensor([3, 0, 2, 1]).repeat_interleave(16)[None].int()
    call = Binding.of(extents, {"document": document})
    counts = analysis.evaluate(call, 16, 16).counts()
    assert (counts.total, counts.visited, counts.full) == (16, 4, 4)
    ranges = analysis.evaluate(call, 16, 16, exact=False)
    assert compare(analysis.spec, call, ranges).is_sound
    assert ranges.counts().visited < 16


def test_bounds_of_the_standard_masks_move_one_way() -> None:
    """So a kernel finds the first and last tile from the first and last row of its query tile."""
    for case in STANDARD_MASKS:
        columns = analyze(attn_dsl.parse(case.text)).columns
        if case.tiles == PROVED:
            bounds = [b for f in (columns.seen, columns.hidden) for p in f.pieces for b in (*p.low, *p.high)]
            assert {bound.direction for bound in bounds} <= {Direction.FIXED, Direction.RISING}, case.mask


def test_the_document_lists_every_mask() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (\d+) \| (.+?) \|$", DOCUMENT.read_text(), re.MULTILINE)
    pieces = {case.mask: len(analyze(attn_dsl.parse(case.text)).columns.seen.pieces) for case in STANDARD_MASKS}
    assert rows == [(case.mask, str(pieces[case.mask]), case.tiles) for case in STANDARD_MASKS]
