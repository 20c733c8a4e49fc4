"""Whether pages of keys and values are copied whole."""

from __future__ import annotations

from math import gcd

SWIZZLE_ROWS = 8  # a box starts where the pattern of shared memory does
MAX_BOX_ROWS = 256  # PTX ISA, tensor maps: the extent of a box
MAX_BOXES = 32  # of a tile: each lane of a warp looks up one


def makes_boxes(tile_rows: int, page_size: int) -> bool:
    """Whether a tile of keys is made of boxes that are whole pages, or is a box of one page."""
    box = gcd(tile_rows, page_size)
    whole = box == min(tile_rows, page_size)
    return whole and box % SWIZZLE_ROWS == 0 and box <= MAX_BOX_ROWS and tile_rows // box <= MAX_BOXES
