"""The colours of pictures. The same on light and on dark pages: what is empty is clear, labels are mid-grey."""

from __future__ import annotations

from .grid import FULL

Colour = tuple[int, int, int, int]  # red, green, blue, alpha: 0..255

CLEAR: Colour = (0, 0, 0, 0)
INK: Colour = (125, 133, 144, 255)  # labels
_NONE: Colour = (125, 133, 144, 56)  # no pair of the cell is visible
_VISIBLE: Colour = (47, 129, 247, 255)  # every pair is visible
_PARTIAL_ALPHA = (96, 208)  # of a cell with the fewest and with the most visible pairs that is neither


def colour(level: int) -> Colour:
    """The colour of a cell of a mask, by its level (`MaskGrid.levels`)."""
    if level == 0:
        return _NONE
    if level == FULL:
        return _VISIBLE
    low, high = _PARTIAL_ALPHA
    return (*_VISIBLE[:3], low + (high - low) * level // FULL)
