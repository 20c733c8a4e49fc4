"""Letters for the labels of a picture: 5 x 7 dots each, only those the labels use."""

from __future__ import annotations

HEIGHT = 7  # dots
WIDTH = 5  # dots; neighbours stand one dot apart

_DRAWN = {
    "0": ".###. #...# #..## #.#.# ##..# #...# .###.",
    "1": "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
    "2": ".###. #...# ....# ...#. ..#.. .#... #####",
    "3": ".###. #...# ....# ..##. ....# #...# .###.",
    "4": "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
    "5": "##### #.... ####. ....# ....# #...# .###.",
    "6": "..##. .#... #.... ####. #...# #...# .###.",
    "7": "##### ....# ...#. ..#.. ..#.. .#... .#...",
    "8": ".###. #...# #...# .###. #...# #...# .###.",
    "9": ".###. #...# #...# .#### ....# ...#. .##..",
    "_": "..... ..... ..... ..... ..... ..... #####",
    "d": "....# ....# .##.# #..## #...# #..## .##.#",
    "i": "..#.. ..... .##.. ..#.. ..#.. ..#.. .###.",
    "k": "#.... #.... #..#. #.#.. ##... #.#.. #..#.",
    "q": "..... .##.# #..## #...# .#### ....# ....#",
    "v": "..... ..... #...# #...# #...# .#.#. ..#..",
    "x": "..... ..... #...# .#.#. ..#.. .#.#. #...#",
}
GLYPHS: dict[str, tuple[str, ...]] = {letter: tuple(rows.split()) for letter, rows in _DRAWN.items()}


def text_width(text: str) -> int:
    """Dots from the left edge of the first letter to the right edge of the last."""
    return max(0, len(text) * (WIDTH + 1) - 1)


def dots(text: str) -> list[tuple[int, int]]:
    """(x, y) of every inked dot of `text`, from its upper left corner. KeyError for a letter that is not drawn."""
    return [
        (index * (WIDTH + 1) + x, y)
        for index, letter in enumerate(text)
        for y, row in enumerate(GLYPHS[letter])
        for x, mark in enumerate(row)
        if mark == "#"
    ]
