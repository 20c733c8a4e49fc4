"""Terminal pictures: every pair of a small mask can be read back from the characters."""

import random

import pytest

from attn_dsl.show import FULL, MaskGrid, TerminalStyle, fit, grid_of_counts, render

HALVES = {" ": "00", "▄": "01", "▀": "10", "█": "11"}  # upper, lower
# upper left, upper right, lower left, lower right
QUARTERS = {mark: f"{index:04b}" for index, mark in enumerate(" ▗▖▄▝▐▞▟▘▚▌▙▀▜▛█")}


def random_grid(seed: int, seq_q: int, seq_k: int) -> MaskGrid:
    draw = random.Random(seed)
    return grid_of_counts([[draw.randint(0, 1) for _ in range(seq_k)] for _ in range(seq_q)], seq_q=seq_q, seq_k=seq_k)


def body(lines: list[str], side: str = "│") -> list[str]:
    return [line.split(side)[1] for line in lines if line.count(side) == 2]


def bits(grid: MaskGrid) -> list[str]:
    flat = "".join("1" if level == FULL else "0" for level in grid.levels)
    return [flat[row * grid.columns : (row + 1) * grid.columns] for row in range(grid.rows)]


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (2, 3), (7, 5), (40, 60), (63, 64)])
def test_half_blocks_show_every_pair(seq_q: int, seq_k: int) -> None:
    grid = random_grid(seq_q * 100 + seq_k, seq_q, seq_k)
    style = TerminalStyle(columns=80, lines=40)
    assert fit(seq_q, seq_k, style) == (1, 1)
    read = []
    for line in body(render(grid, style)):
        read += ["".join(HALVES[mark][half] for mark in line) for half in (0, 1)]
    assert read[:seq_q] == bits(grid)
    assert set("".join(read[seq_q:])) <= {"0"}


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 101), (9, 120), (60, 141)])
def test_quarter_blocks_show_every_pair(seq_q: int, seq_k: int) -> None:
    grid = random_grid(seq_q, seq_q, seq_k)
    style = TerminalStyle(columns=80, lines=40)
    assert fit(seq_q, seq_k, style) == (1, 1)
    read = []
    for line in body(render(grid, style)):
        for half in (0, 2):
            read.append("".join(QUARTERS[mark][half : half + 2] for mark in line)[:seq_k])
    assert read[:seq_q] == bits(grid)


def test_ascii_shows_every_pair_and_nothing_else() -> None:
    grid = random_grid(3, 11, 30)
    lines = render(grid, TerminalStyle(columns=60, lines=30, unicode=False))
    assert "\n".join(lines).isascii()
    assert [line.replace("#", "1").replace(".", "0") for line in body(lines, "|")] == bits(grid)


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 5000), (5000, 1), (300, 300), (97, 1031), (100_000, 100_000)])
def test_a_large_mask_fits_the_terminal(seq_q: int, seq_k: int, unicode: bool) -> None:
    style = TerminalStyle(columns=80, lines=40, unicode=unicode)
    tile_q, tile_k = fit(seq_q, seq_k, style)
    rows, columns = -(-seq_q // tile_q), -(-seq_k // tile_k)
    counts = [[0] * columns for _ in range(rows)]
    lines = render(grid_of_counts(counts, seq_q=seq_q, seq_k=seq_k, tile_q=tile_q, tile_k=tile_k), style)
    assert len(lines) <= style.lines
    assert max(map(len, lines[:-1])) <= style.columns


def test_tiles_have_three_looks() -> None:
    style = TerminalStyle(columns=20, lines=12)
    tile_q, tile_k = fit(200, 40, style)
    columns = -(-40 // tile_k)
    whole = tile_q * tile_k
    counts = [[whole, whole // 2, 0] + [0] * (columns - 3)] + [[0] * columns for _ in range(-(-200 // tile_q) - 1)]
    shown = body(render(grid_of_counts(counts, seq_q=200, seq_k=40, tile_q=tile_q, tile_k=tile_k), style))[0]
    assert shown[0] == "█"
    assert shown[1] in "░▒▓"
    assert shown[2] == " "


def test_colour_changes_no_character() -> None:
    grid = random_grid(5, 9, 9)
    plain, coloured = (render(grid, TerminalStyle(colour=colour)) for colour in (False, True))
    assert any("\x1b[" in line for line in coloured)
    stripped = [line.replace("\x1b[38;5;33m", "").replace("\x1b[0m", "") for line in coloured]
    assert stripped == plain


def test_labels_name_the_first_and_last_row_and_key() -> None:
    lines = render(random_grid(6, 41, 60), TerminalStyle())
    assert lines[0].split() == ["0", "kv_idx", "59"]
    labels = [line.split("│")[0].strip() for line in lines if "│" in line]
    assert (labels[0], labels[8], labels[-1]) == ("0", "16", "40")


def test_a_mask_without_pairs_is_said_in_words() -> None:
    assert render(grid_of_counts([], seq_q=0, seq_k=5), TerminalStyle()) == ["no pairs to draw: 0 query rows, 5 keys"]
    assert render(grid_of_counts([[], []], seq_q=2, seq_k=0), TerminalStyle()) == [
        "no pairs to draw: 2 query rows, 0 keys"
    ]
