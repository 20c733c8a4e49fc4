"""A mask as lines of a terminal: half blocks or quarter blocks for single pairs, shades for tiles, ASCII where it must.

Nothing is drawn for invisible pairs, so the picture reads on a dark and on a light background; a frame says where
the mask ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .grid import FULL, MaskGrid

_HALVES = " ▄▀█"  # bit 1: upper, bit 0: lower
_QUARTERS = " ▗▖▄▝▐▞▟▘▚▌▙▀▜▛█"  # bits 3..0: upper left, upper right, lower left, lower right
_SHADES = "░▒▓"  # of tiles that are neither empty nor full
_BLUE, _PALE, _RESET = "38;5;33", "38;5;110", "\x1b[0m"  # 256-colour blues with contrast on black and on white


@dataclass(frozen=True)
class TerminalStyle:
    """What the terminal can show."""

    columns: int = 100  # characters of a line
    lines: int = 50  # lines one picture may take
    unicode: bool = True
    colour: bool = False


def _room(seq_q: int, style: TerminalStyle) -> tuple[int, int]:
    """Characters beside the row labels and the frame, lines between the column labels and the legend."""
    return max(8, style.columns - len(str(max(0, seq_q - 1))) - 4), max(4, style.lines - 6)


def fit(seq_q: int, seq_k: int, style: TerminalStyle) -> tuple[int, int]:
    """(rows, keys) of the finest cells whose picture fits: single pairs if they do, else tiles in proportion."""
    width, height = _room(seq_q, style)
    finer = 2 if style.unicode else 1  # pairs in a row or column of one character
    if seq_k <= finer * width and seq_q <= finer * height:
        return 1, 1
    # a character is about twice as high as wide: a tile of twice as many rows as keys looks square
    keys = max(1, -(-seq_k // width), -(-seq_q // (2 * height)))
    return 2 * keys, keys


def render(grid: MaskGrid, style: TerminalStyle) -> list[str]:
    """The framed picture and its legend; `grid` has the tiles that `fit` chose for this style."""
    if not grid.levels:
        return [f"no pairs to draw: {grid.seq_q:,} query rows, {grid.seq_k:,} keys"]
    if not style.unicode:
        kind = "ascii"
    elif not grid.exact:
        kind = "tile"
    else:
        kind = "half" if grid.seq_k <= _room(grid.seq_q, style)[0] else "quarter"
    step = {"half": 2, "quarter": 2}.get(kind, 1)
    bodies = {"half": _half_lines, "quarter": _quarter_lines, "tile": _tile_lines, "ascii": _ascii_lines}
    body = list(bodies[kind](grid))
    width = len(body[0])
    label_width = len(str(grid.seq_q - 1))
    across, corners, side = ("─", "┌┐└┘", "│") if style.unicode else ("-", "++++", "|")

    lines = [" " * (label_width + 2) + _column_labels(grid.seq_k, width)]
    lines.append(" " * (label_width + 1) + corners[0] + across * width + corners[1])
    for number, line in enumerate(body):
        label = _row_label(number, len(body), number * step * grid.tile_q, grid.seq_q)
        lines.append(f"{label:>{label_width}} {side}{_coloured(line) if style.colour else line}{side}")
    lines.append(" " * (label_width + 1) + corners[2] + across * width + corners[3])
    lines.append(" " * (label_width + 2) + _legend(grid, kind, style))
    return lines


def _level(grid: MaskGrid, row: int, column: int) -> int:
    return grid.levels[row * grid.columns + column] if row < grid.rows and column < grid.columns else 0


def _half_lines(grid: MaskGrid) -> Iterator[str]:
    for row in range(0, grid.rows, 2):
        yield "".join(
            _HALVES[2 * (_level(grid, row, column) == FULL) + (_level(grid, row + 1, column) == FULL)]
            for column in range(grid.columns)
        )


def _quarter_lines(grid: MaskGrid) -> Iterator[str]:
    for row in range(0, grid.rows, 2):
        line = []
        for column in range(0, grid.columns, 2):
            bits = 0
            for at_row, at_column in ((row, column), (row, column + 1), (row + 1, column), (row + 1, column + 1)):
                bits = 2 * bits + (_level(grid, at_row, at_column) == FULL)
            line.append(_QUARTERS[bits])
        yield "".join(line)


def _tile_lines(grid: MaskGrid) -> Iterator[str]:
    marks = [" "] + [_SHADES[level * len(_SHADES) // FULL] for level in range(1, FULL)] + ["█"]
    for row in range(grid.rows):
        yield "".join(marks[_level(grid, row, column)] for column in range(grid.columns))


def _ascii_lines(grid: MaskGrid) -> Iterator[str]:
    for row in range(grid.rows):
        levels = (_level(grid, row, column) for column in range(grid.columns))
        yield "".join("." if level == 0 else "#" if level == FULL else "+" for level in levels)


def _coloured(line: str) -> str:
    """The line with blue for what is visible and a pale blue for partial tiles."""
    parts, current = [], None
    for mark in line:
        wanted = None if mark == " " else _PALE if mark in _SHADES else _BLUE
        if wanted != current:
            parts.append(_RESET if wanted is None else f"\x1b[{wanted}m")
            current = wanted
        parts.append(mark)
    return "".join(parts) + (_RESET if current is not None else "")


def _column_labels(seq_k: int, width: int) -> str:
    first, name, last = "0", "kv_idx", str(seq_k - 1)
    if seq_k <= 1 or width < len(first) + len(last) + 1:
        return first
    if width >= len(first) + len(last) + len(name) + 4:
        name_at = (width - len(name)) // 2
        return (first.ljust(name_at) + name).ljust(width - len(last)) + last
    return first.ljust(width - len(last)) + last


def _row_label(number: int, count: int, first_row: int, seq_q: int) -> str:
    """Numbers at the first row, at every eighth line and at the last line; the last line shows the last row."""
    if number == count - 1 and number > 0:
        return str(seq_q - 1)
    return str(first_row) if number % 8 == 0 and number != count - 2 else ""


def _legend(grid: MaskGrid, kind: str, style: TerminalStyle) -> str:
    if grid.exact:
        words = "█ visible, blank not" if kind != "ascii" else "# visible, . not"
    else:
        words = "█ all visible, ░▒▓ some, blank none" if kind != "ascii" else "# all visible, + some, . none"
        words += f"; one character is {grid.tile_q} rows {'×' if style.unicode else 'x'} {grid.tile_k} keys"
    return words
