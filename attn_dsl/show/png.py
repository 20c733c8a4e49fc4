"""A mask as a PNG file, written with the standard library alone.

Everything outside the cells is transparent and the labels are mid-grey, so one file reads on light and on dark pages.
The format is W3C PNG (third edition): signature, IHDR, IDAT, IEND; colour type 6 is RGBA at 8 bits.
"""

from __future__ import annotations

import struct
import zlib

from . import font
from .colours import CLEAR, INK, colour
from .grid import FULL, MaskGrid

_GAP_FROM = 6  # pixels; cells at least this wide stand one pixel apart
_AIM = 512  # pixels of the longer side when no scale is given


def encode(width: int, height: int, pixels: bytes) -> bytes:
    """A PNG file of `pixels`: RGBA, 8 bits each, row by row from the top, `width * height * 4` bytes."""
    if len(pixels) != width * height * 4:
        raise ValueError(f"{width} x {height} pixels take {width * height * 4} bytes, not {len(pixels)}")
    stride = width * 4
    filtered = b"".join(b"\0" + pixels[row * stride : (row + 1) * stride] for row in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(filtered, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def default_scale(grid: MaskGrid) -> int:
    """Pixels of one cell's side that make the longer side of the picture about 512 pixels."""
    return max(1, _AIM // max(grid.rows, grid.columns))


def to_png(grid: MaskGrid, *, scale: int | None = None, labels: bool = True) -> bytes:
    """`grid` as a PNG file; a cell is `scale` x `scale` pixels. Labels name the axes and their first and last index.

    Raises ValueError for a grid without cells.
    """
    if not grid.levels:
        raise ValueError(f"no pairs to draw: {grid.seq_q} query rows, {grid.seq_k} keys")
    scale = default_scale(grid) if scale is None else scale
    width, height = grid.columns * scale, grid.rows * scale
    letter = 2 if max(width, height) >= 240 else 1  # pixels of a letter's dot
    line = font.HEIGHT * letter
    pad = 2 * letter + 4  # pixels between a label and what it labels
    if not labels:
        canvas = _Canvas(width + 2, height + 2)
        canvas.cells(grid, 1, 1, scale)
        return canvas.encoded()

    last_q, last_k = str(grid.seq_q - 1), str(grid.seq_k - 1)
    gutter = max(font.text_width(last_q) * letter, line) + pad
    left, top = gutter + pad, line + 2 * pad
    canvas = _Canvas(left + max(width, line) + pad, top + max(height, line) + pad)
    canvas.cells(grid, left, top, scale)

    first_width, last_width = font.text_width("0") * letter, font.text_width(last_k) * letter
    canvas.text("0", left, pad, letter)
    if grid.seq_k > 1 and width >= first_width + last_width + pad:
        canvas.text(last_k, left + width - last_width, pad, letter)
    name = font.text_width("kv_idx") * letter
    if width >= first_width + last_width + name + 2 * pad:
        canvas.text("kv_idx", left + (width - name) // 2, pad, letter)

    canvas.text("0", left - pad - first_width, top, letter)
    if grid.seq_q > 1 and height >= 2 * line + pad:
        canvas.text(last_q, left - pad - font.text_width(last_q) * letter, top + height - line, letter)
    name = font.text_width("q_idx") * letter
    if height >= name + 2 * (line + pad):
        canvas.text("q_idx", left - pad - line, top + (height + name) // 2, letter, upwards=True)
    return canvas.encoded()


class _Canvas:
    """RGBA pixels, transparent at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [bytearray(bytes(CLEAR) * width) for _ in range(height)]

    def cells(self, grid: MaskGrid, left: int, top: int, scale: int) -> None:
        gap = 1 if scale >= _GAP_FROM else 0
        cell = [bytes(colour(level)) * (scale - gap) + bytes(CLEAR) * gap for level in range(FULL + 1)]
        for row in range(grid.rows):
            levels = grid.levels[row * grid.columns : (row + 1) * grid.columns]
            line = b"".join([cell[level] for level in levels])
            for y in range(top + row * scale, top + (row + 1) * scale - gap):
                self.rows[y][left * 4 : left * 4 + len(line)] = line

    def text(self, text: str, left: int, top: int, size: int, *, upwards: bool = False) -> None:
        """Letters from (left, top); `upwards`: turned a quarter left, from the lower end (left, top) up."""
        ink = bytes(INK)
        for x, y in font.dots(text):
            at_x, at_y = (left + y * size, top - (x + 1) * size) if upwards else (left + x * size, top + y * size)
            for pixel_y in range(at_y, at_y + size):
                self.rows[pixel_y][at_x * 4 : (at_x + size) * 4] = ink * size

    def encoded(self) -> bytes:
        return encode(self.width, self.height, b"".join(self.rows))
