"""What a plan decides about pages and about keys in parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

import attn_dsl
from attn_dsl.lowering.forward import ShapeClass, explain, select, sm90, sm100
from attn_dsl.lowering.forward.paging import makes_boxes

TEXT = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[pages, page_size, kv_heads, dim]
page_table: i32[batch, max_pages]
used: i32[batch]
paged {{ table = page_table }}
lengths k {{ used = used{more} }}
"""
SHAPE = ShapeClass(128, 128, pack=4)


def spec(more: str = "", statements: str = "") -> attn_dsl.AttentionSpec:
    return attn_dsl.parse(TEXT.format(more=more) + statements, name="paged")


@pytest.mark.parametrize(
    ("rows", "page_size", "fits"),
    [
        (128, 8, True),
        (128, 128, True),
        (128, 256, True),  # a tile is a box of a page
        (128, 24, True),  # three boxes of 8 rows in a page
        (128, 192, True),  # three boxes of 64 in a page; a tile may reach over two pages
        (176, 88, True),
        (80, 16, True),
        (128, 4, False),  # a box begins where the swizzle does
        (128, 12, False),
        (512, 512, False),  # no box has more than 256 rows
        (512, 8, False),  # more boxes than lanes
    ],
)
def test_which_pages_make_boxes(rows: int, page_size: int, fits: bool) -> None:
    assert makes_boxes(rows, page_size) is fits


def test_the_page_size_is_compiled_in_only_for_boxes() -> None:
    assert [sm90.page_size_of(spec(), SHAPE, size) for size in (1, 7, 16, 128)] == [0, 0, 16, 128]
    wide = ShapeClass(256, 256)
    assert [sm90.page_size_of(spec(), wide, size) for size in (64, 20)] == [64, 0]  # boxes of 16 rows in tiles of 80
    padded = spec(", left_pad = pad", "pad: i32[batch]\n")
    assert sm90.page_size_of(padded, SHAPE, 16) == 0


def test_the_plan_says_how_pages_are_copied() -> None:
    plan = select(spec(), SHAPE)
    assert plan.geometry == ("used", "page_table")
    assert (plan.registers_producer, plan.registers_consumer) == (40, 232)
    assert "pages: of any size, row by row" in explain.explain(plan)
    boxes = select(spec(), replace(SHAPE, page_size=16))
    assert "pages: of 16 rows, in boxes of 16 by TMA" in explain.explain(boxes)
    assert "page_table (i32)" in explain.explain(boxes)
    assert repr(plan) != repr(boxes) != repr(replace(boxes, partial=True))


def test_plans_for_blackwell() -> None:
    """Two warps copy rows; one has the boxes. For parts a thread block has one query tile, and O is not staged."""
    rows, boxes = (sm100.select(spec(), replace(SHAPE, page_size=size)) for size in (0, 16))
    assert [(plan.role("load").warps, plan.loads_rows, plan.clears) for plan in (rows, boxes)] == [
        (2, True, False),
        (1, False, False),
    ]
    assert [{edge.name: edge.count for edge in plan.edges}["kv_full"] for plan in (rows, boxes)] == [64, 1]
    assert "pages: of any size, row by row by 2 warps" in explain.explain(rows)
    assert "pages: of 16 rows, in boxes of 16 by TMA" in explain.explain(boxes)
    parts = sm100.select(spec(), replace(SHAPE, page_size=16, partial=True))
    assert (parts.query_tiles, parts.tile_q) == (1, 128)
    assert "o_staged" not in [edge.name for edge in parts.edges]
    assert [sm100.page_size_of(spec(), SHAPE, size) for size in (1, 7, 8, 16, 48, 64, 128, 256)] == [
        *(0, 0, 8, 16, 48, 64, 128, 256)
    ]
