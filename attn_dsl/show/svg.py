"""A mask as an SVG picture (W3C SVG 1.1): one rectangle for each run of equal cells of a row."""

from __future__ import annotations

from itertools import groupby

from .colours import INK, Colour, colour
from .grid import MaskGrid

_AIM = 320  # pixels of the longer side
_LABEL = 14  # pixels around the cells, where the axes are named


def to_svg(grid: MaskGrid) -> str:
    """`grid` as an SVG element, `q_idx` down and `kv_idx` across. Raises ValueError for a grid without cells."""
    if not grid.levels:
        raise ValueError(f"no pairs to draw: {grid.seq_q} query rows, {grid.seq_k} keys")
    cell = max(1, _AIM // max(grid.rows, grid.columns))  # pixels of a cell's side
    width, height = grid.columns * cell, grid.rows * cell
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * _LABEL}" height="{height + 2 * _LABEL}" '
        f'font-family="monospace" font-size="11">',
        f"<title>mask of {grid.seq_q} query rows and {grid.seq_k} keys, {grid.visible} pairs visible</title>",
        f'<text x="{_LABEL}" y="11" {_fill(INK)}>kv_idx 0..{grid.seq_k - 1}</text>',
        f'<text transform="translate(11 {_LABEL + height}) rotate(-90)" {_fill(INK)}>q_idx 0..{grid.seq_q - 1}</text>',
    ]
    for row in range(grid.rows):
        levels = grid.levels[row * grid.columns : (row + 1) * grid.columns]
        column = 0
        for level, run in groupby(levels):
            length = len(list(run))
            x, y = _LABEL + column * cell, _LABEL + row * cell
            parts.append(f'<rect x="{x}" y="{y}" width="{length * cell}" height="{cell}" {_fill(colour(level))}/>')
            column += length
    return "\n".join([*parts, "</svg>"])


def _fill(ink: Colour) -> str:
    red, green, blue, alpha = ink
    opacity = "" if alpha == 255 else f' fill-opacity="{alpha / 255:.2f}"'
    return f'fill="rgb({red},{green},{blue})"{opacity}'
