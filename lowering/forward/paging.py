"""Whether pages of keys and values are copied in boxes."""

from __future__ import annotations

from math import gcd

SWIZZLE_ROWS = 8  # a box starts where the pattern of shared memory does
MAX_BOX_ROWS = 256  # PTX ISA, tensor maps: the extent of a box
MAX_BOXES = 32  # of a tile: each lane of a warp looks up one


def box_rows(tile_rows: int, page_size: int) -> int:
    """The height of the boxes of which tiles and pages are both made."""
    return gcd(tile_rows, page_size)


def makes_boxes(tile_rows: int, page_size: int) -> bool:
    """Whether TMA can copy such boxes, one for each lane of a warp at most."""
    box = box_rows(tile_rows, page_size)
    return box % SWIZZLE_ROWS == 0 and box <= MAX_BOX_ROWS and tile_rows // box <= MAX_BOXES
