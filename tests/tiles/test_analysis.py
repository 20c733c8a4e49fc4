"""The public face of the tile analysis: texts, segments, limits, lengths, and its cost in numbers held."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from standard_masks import EXTENTS, PROVED, STANDARD_MASKS
from tile_oracle import compare
from torch.utils._python_dispatch import TorchDispatchMode

import attn_dsl
from attn_dsl.lowering.tiles import Binding, Direction, Segment, TileAnalysis, TileCounts, analyze

HEAD = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
"""
PACKED = """
q: bf16[total_q, heads, dim]
k, v: bf16[total_k, kv_heads, dim]
cu_q, cu_k: i32[batch + 1]
lengths q { cu_seqlens = cu_q }
lengths k { cu_seqlens = cu_k }
"""


def _analysis(text: str, head: str = HEAD) -> TileAnalysis:
    return analyze(attn_dsl.parse(head + text))


def _sizes(seq_q: int, seq_k: int, batch: int = 1, heads: int = 1, kv_heads: int = 1, **more: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": seq_q, "seq_k": seq_k, **more}


def test_text_of_ranges() -> None:
    text = "param n: int\nmask = kv_idx <= q_pos and (kv_idx < 4 or q_pos - kv_idx < n)"
    assert str(_analysis(text)) == (
        "mask: kv_idx <= q_pos and (kv_idx < 4 or q_pos - kv_idx < n)\n"
        "a row sees the keys\n"
        "  kv_idx < min(q_pos + 1, 4)\n"
        "  q_pos - n + 1 <= kv_idx < q_pos + 1\n"
        "and does not see the keys\n"
        "  q_pos + 1 <= kv_idx\n"
        "  4 <= kv_idx < q_pos - n + 1\n"
        "tiles: exact (proved): no empty tile is visited, no full tile is called partial"
    )


def test_text_of_tables_and_conditions() -> None:
    declared = "document: i32[batch, seq_k]\nlimit: i32[batch, seq_q]\nkept: bool[seq_q, seq_k]\n"
    mask = "mask = document[b, q_pos] == document[b, kv_idx] and kv_idx < limit[b, q_idx] and kept[q_idx, kv_idx]"
    analysis = _analysis(declared + mask)
    assert [(step.tensor, step.over) for step in analysis.tables] == [
        ("document", "rows and keys"),
        ("limit", "rows"),
        ("kept", "pairs"),
    ]
    assert "of them those with" in str(analysis)
    assert "sound, by ranges and then tile by tile" in str(analysis)


def test_segments_of_sinks_and_window() -> None:
    analysis = _analysis("mask = kv_idx <= q_pos and (kv_idx < 4 or q_pos - kv_idx < 24)")
    grid = analysis.evaluate(Binding.of(_sizes(64, 64), {}), 16, 8)
    assert grid.segments(0, 0, 3) == (
        Segment(0, 1, False),
        Segment(3, 5, False),
        Segment(5, 6, True),
        Segment(6, 8, False),
    )
    assert grid.segments(0, 0, 0) == (Segment(0, 2, False),)
    assert grid.counts() == TileCounts(total=32, visited=18, full=3, partial=15)
    assert grid.counts().empty == 14
    with pytest.raises(IndexError, match="batch entry 0 has no query tile 4"):
        grid.segments(0, 0, 4)


def test_a_tile_past_the_last_key_is_not_full() -> None:
    grid = _analysis("mask = true").evaluate(Binding.of(_sizes(8, 20), {}), 8, 8)
    assert grid.segments(0, 0, 0) == (Segment(0, 2, True), Segment(2, 3, False))


def test_ranges_with_gaps_are_not_called_exact() -> None:
    """Row i sees keys 9 i and 9 i + 1: the tiles between are visited, and the analysis does not promise otherwise."""
    analysis = _analysis("mask = 9 * q_idx <= kv_idx < 9 * q_idx + 2")
    call = Binding.of(_sizes(8, 80), {})
    found = compare(analysis.spec, call, analysis.evaluate(call, 4, 4))
    assert found.is_sound
    assert found.visited_but_empty
    assert not analysis.is_exact
    assert "a tile between the ranges of two rows may be visited in vain" in str(analysis)


def test_directions_of_bounds() -> None:
    texts = {
        "kv_idx < 2 * q_pos + seq_k": Direction.RISING,
        "kv_idx < 10 - q_pos // 3": Direction.FALLING,
        "kv_idx < n": Direction.FIXED,
        "kv_idx < n * q_pos": Direction.UNKNOWN,
        "kv_idx < size * q_pos": Direction.RISING,
        "kv_idx < q_pos // 2 - q_pos // 3": Direction.UNKNOWN,
        "kv_idx < q_pos % 4": Direction.UNKNOWN,
        "kv_idx < max(q_pos, 3) - min(-q_pos, 9)": Direction.RISING,
    }
    for text, direction in texts.items():
        params = {"n": "param n: int\n", "size": "param size: int in 0..\n"}
        declared = "".join(line for name, line in params.items() if f"{name} *" in text or text.endswith(f" {name}"))
        (piece,) = _analysis(f"{declared}mask = {text}").columns.seen.pieces
        (bound,) = piece.high
        assert bound.direction is direction, text


def test_heads_and_batch_entries_that_are_alike_count_as_many() -> None:
    sizes = _sizes(32, 32, batch=5, heads=6, kv_heads=2)
    analysis = _analysis("mask = kv_idx <= q_pos")
    grid = analysis.evaluate(Binding.of(sizes, {}), 8, 8)
    assert grid.heads == 1
    assert grid.counts() == TileCounts(total=16 * 30, visited=10 * 30, full=6 * 30, partial=4 * 30)
    assert grid.visited_fraction == 10 / 16
    packed = analysis.evaluate(Binding.of(sizes, {}), 24, 8, pack_gqa=True)
    assert packed.counts() == TileCounts(total=16 * 10, visited=10 * 10, full=6 * 10, partial=4 * 10)
    assert grid.segments(4, 5, 1) == packed.segments(4, 1, 1) == (Segment(0, 1, True), Segment(1, 2, False))


def test_a_packed_tile_joins_the_heads_of_its_group() -> None:
    """Row r is query row r // 3 of head r % 3: a tile of 5 rows holds a part of a query row's heads."""
    analysis = _analysis("param n: int[heads]\nlimit: i32[batch, seq_q]\nmask = kv_idx < limit[b, q_idx] + n")
    limit = torch.arange(11, dtype=torch.int32)[None] * 3
    sizes = _sizes(11, 64, heads=6, kv_heads=2)
    call = Binding.of(sizes, {"n": torch.tensor([0, 9, 30, -5, 1, 2]), "limit": limit})
    for tile_q in (1, 2, 4, 5, 7):
        assert compare(analysis.spec, call, analysis.evaluate(call, tile_q, 4, True)).is_exact, tile_q
    alike = _analysis("limit: i32[batch, seq_q]\nmask = kv_idx < limit[b, q_idx]")
    for tile_q in (1, 2, 4, 5, 7):
        found = compare(alike.spec, call, alike.evaluate(call, tile_q, 4, True))
        assert found.is_exact, (tile_q, found)


@pytest.mark.parametrize(
    ("declared", "mask", "given", "meant"),
    [
        ("int", "kv_idx < (n & 7)", torch.tensor(2**40), 2**31 - 1),
        ("int[heads]", "kv_idx < (n & 15)", torch.tensor([2**40 + 3, -(2**50)]), [2**31 - 1, -(2**31)]),
        ("float in 4.0..", "kv_idx < floor(n)", torch.tensor(torch.nan), 4.0),
    ],
)
def test_parameter_tensors_are_moved_into_their_range(
    declared: str, mask: str, given: torch.Tensor, meant: object
) -> None:
    """As the reference does it: the tiles of the given number itself are others."""
    analysis = _analysis(f"param n: {declared}\nmask = {mask}")
    sizes = _sizes(16, 32, heads=2)
    grid = analysis.evaluate(Binding.of(sizes, {"n": given}), 4, 4, False)
    assert compare(analysis.spec, Binding.of(sizes, {"n": torch.tensor(meant)}), grid).is_exact


def test_packed_sequences_are_analysed_one_by_one() -> None:
    analysis = _analysis("mask = kv_idx <= q_pos", PACKED)
    seq_q, seq_k = [0, 17, 3, 40, 0], [5, 17, 20, 33, 0]
    sizes = {"batch": 5, "heads": 2, "kv_heads": 1, "total_q": 60, "total_k": 75}
    starts = [0, 0, 17, 20, 60], [0, 5, 22, 42, 75]
    call = Binding.of(sizes, {}, seq_q, seq_k, *starts)
    for packed in (False, True):
        grid = analysis.evaluate(call, 8, 8, packed)
        assert compare(analysis.spec, call, grid).is_exact
        assert len(grid.cells.tile) == sum(-(-rows * (2 if packed else 1) // 8) for rows in seq_q)
    assert analysis.visible_pairs(call) == 2 * (17 * 18 // 2 + 18 + 19 + 20 + 33 * 34 // 2)


@pytest.mark.parametrize("batch", [0, 2])
def test_calls_without_rows_or_keys(batch: int) -> None:
    for seq_q, seq_k in ((0, 0), (0, 9), (9, 0)):
        for text in (
            "mask = kv_idx <= q_pos",
            "mask = kv_idx % 3 == q_pos % 3",
            "flag: bool[seq_k]\nmask = flag[kv_idx]",
        ):
            analysis = _analysis(text)
            call = Binding.of(_sizes(seq_q, seq_k, batch=batch), {"flag": torch.ones(seq_k, dtype=torch.bool)})
            grid = analysis.evaluate(call, 4, 4)
            assert grid.counts().visited == 0
            assert grid.visited_fraction == 0.0
            assert analysis.visible_pairs(call) in (0, None)


def test_masks_that_are_not_taken_apart_are_tested_tile_by_tile() -> None:
    many = " or ".join(f"kv_idx == {7 * i}" for i in range(30))
    deep = "let d0 = kv_idx <= q_pos\n" + "".join(
        f"let d{i + 1} = (d{i} or kv_idx == {i}) and kv_idx != {200 + i}\n" for i in range(45)
    )
    cases = {f"mask = {many}": "more than 16 column ranges", f"{deep}mask = d45": "nests deeper than 80"}
    for text, reason in cases.items():
        analysis = _analysis(text)
        assert reason in str(analysis)
        call = Binding.of(_sizes(40, 260), {})
        grid = analysis.evaluate(call, 8, 4)
        assert compare(analysis.spec, call, grid).is_sound
        assert 0 < grid.visited_fraction < 1


def test_a_float_condition_holds_in_either_precision() -> None:
    """0.1 as an f32 is larger than 0.1: a kernel says `<=`, double precision does not, and neither may be surprised."""
    lines = {"weight": "weight: f32[heads]\n", "level": "level: f32[seq_k]\n", "cut": "param cut: float\n"}
    tenth = torch.tensor(0.1)
    for text in ("weight[h] <= cut", "level[kv_idx] <= cut", "level[kv_idx] + 0.0 * weight[h] <= 0.1"):
        declared = "".join(line for name, line in lines.items() if name in text)
        analysis = _analysis(f"{declared}mask = {text}")
        for number, full in ((tenth, False), (tenth / 2, True)):
            values = {"weight": number.expand(1), "level": number.expand(8), "cut": 0.1}
            grid = analysis.evaluate(Binding.of(_sizes(8, 8), values), 8, 8)
            assert grid.segments(0, 0, 0) == (Segment(0, 1, full),), (text, number)


HOSTILE = [
    f"mask = {'abs(' * 78}kv_idx - q_pos{')' * 78} < 3",
    "mask = all(i in 0..500: kv_idx >= q_pos - i * i)",
    "mask = sum(i in 0..600: kv_idx if i == 0 else q_pos % (i + 1)) < 7",
    "mask = any(i in 0..15: all(j in 0..15: kv_idx // (j + 1) >= q_pos // (i + 2)))",
    "mask = sum(i in 0..100: (kv_idx if q_pos < i else q_pos)) < q_pos",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_masks_are_given_up_in_time(text: str) -> None:
    spec = attn_dsl.parse(HEAD + text)
    start = time.process_time()
    analysis = analyze(spec)
    assert time.process_time() - start < 1.0
    call = Binding.of(_sizes(24, 31), {})
    assert compare(spec, call, analysis.evaluate(call, 8, 4)).is_sound


def test_the_limit_of_tile_tests() -> None:
    """Without a test of single tiles the answer is wider and still sound."""
    analysis = _analysis("mask = kv_idx <= q_pos and (kv_idx // 8) % 4 == (q_pos // 8) % 4")
    call = Binding.of(_sizes(128, 128), {})
    with_tests, without = (analysis.evaluate(call, 8, 8, exact=exact) for exact in (True, False))
    assert with_tests.boxes is not None
    assert without.boxes is None
    assert with_tests.counts().visited == 4 * (1 + 2 + 3 + 4)
    assert 40 < without.counts().visited <= 16 * 17 // 2
    assert compare(analysis.spec, call, without).is_sound


def test_bad_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="a tile has at least one row and one key, not 0 x 128"):
        _analysis("mask = true").evaluate(Binding.of(_sizes(8, 8), {}), 0)


class Held(TorchDispatchMode):
    """Counts the elements of every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, Iterable) and not isinstance(result, torch.Tensor) else [result]:
            if isinstance(value, torch.Tensor) and not value._is_view():
                self.made += value.numel()
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize("case", [c for c in STANDARD_MASKS if c.tiles == PROVED], ids=lambda case: case.mask)
def test_memory_grows_with_the_number_of_query_tiles(case: Any) -> None:
    """A million tokens: no tensor is longer than a few numbers per query tile and head, nothing is per key or row."""
    analysis = analyze(attn_dsl.parse(case.text))
    made = []
    for tokens in (2**19, 2**20):
        sizes = _sizes(tokens, tokens, heads=4, kv_heads=2, **EXTENTS)
        call = Binding.of(sizes, case.values(sizes, torch.Generator().manual_seed(1)))
        with Held() as held:
            grid = analysis.evaluate(call, 128, 128)
            grid.counts()
        query_tiles = grid.heads * tokens // 128
        ranges = sum(max(1, len(form.pieces)) for form in (analysis.columns.seen, analysis.columns.hidden)) + 1
        assert held.largest <= ranges * query_tiles
        assert held.made <= 800 * query_tiles
        made.append(held.made)
    assert made[1] <= 2 * made[0]
