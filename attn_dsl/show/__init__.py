"""Masks as pictures: a grid of cells, drawn in a terminal or as a PNG file. `show.mask` makes the grid of a spec."""

from .grid import FULL, MaskGrid, grid_of_counts
from .png import to_png
from .svg import to_svg
from .terminal import TerminalStyle, fit, render

__all__ = ["FULL", "MaskGrid", "TerminalStyle", "fit", "grid_of_counts", "render", "to_png", "to_svg"]
