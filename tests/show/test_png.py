"""The PNG writer against a reader nobody here wrote (pillow), and the picture against the grid."""

import io

import pytest
from PIL import Image

from attn_dsl.show import FULL, MaskGrid, grid_of_counts, to_png
from attn_dsl.show.font import GLYPHS, HEIGHT, WIDTH
from attn_dsl.show.png import encode


def causal(size: int) -> MaskGrid:
    return grid_of_counts([[int(j <= i) for j in range(size)] for i in range(size)], seq_q=size, seq_k=size)


def opened(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()  # checks every chunk's sum
    return picture


def test_encode_round_trips_through_pillow() -> None:
    pixels = bytes((x * 7 + y * 13 + channel * 50) % 256 for y in range(5) for x in range(3) for channel in range(4))
    picture = opened(encode(3, 5, pixels))
    assert picture.mode == "RGBA"
    assert picture.size == (3, 5)
    assert picture.tobytes() == pixels


def test_encode_refuses_a_wrong_number_of_bytes() -> None:
    with pytest.raises(ValueError, match="3 x 5 pixels take 60 bytes, not 59"):
        encode(3, 5, bytes(59))


@pytest.mark.parametrize("scale", [1, 5, 6, 16])
def test_every_cell_has_its_colour(scale: int) -> None:
    size = 7
    picture = opened(to_png(causal(size), scale=scale, labels=False))
    assert picture.size == (size * scale + 2, size * scale + 2)
    colours = {
        (row >= column, picture.getpixel((1 + column * scale, 1 + row * scale)))
        for row in range(size)
        for column in range(size)
    }
    assert len(colours) == 2, "one colour for visible, one for not"
    (_, hidden), (_, visible) = sorted(colours)
    assert hidden != visible
    assert visible[3] == 255


def test_wide_cells_stand_apart_and_narrow_ones_do_not() -> None:
    assert opened(to_png(causal(4), scale=6, labels=False)).getpixel((6, 1))[3] == 0
    assert opened(to_png(causal(4), scale=5, labels=False)).getpixel((5, 1))[3] != 0


def test_partial_cells_differ_from_full_and_empty_ones() -> None:
    grid = grid_of_counts([[0, 1, 3, 4]], seq_q=2, seq_k=8, tile_q=2, tile_k=2)
    picture = opened(to_png(grid, scale=3, labels=False))
    shown = [picture.getpixel((1 + 3 * column, 1)) for column in range(4)]
    assert len(set(shown)) == 4
    assert [alpha for *_, alpha in shown] == sorted(alpha for *_, alpha in shown)


def test_labels_stand_outside_the_cells_and_are_readable_on_black_and_white() -> None:
    plain, labelled = opened(to_png(causal(32), labels=False)), opened(to_png(causal(32)))
    left, top = (labelled.size[0] - plain.size[0], labelled.size[1] - plain.size[1])
    assert min(left, top) >= HEIGHT
    ink = {labelled.getpixel((x, y)) for x in range(labelled.size[0]) for y in range(2 * HEIGHT)}
    assert (0, 0, 0, 0) in ink
    (colour,) = ink - {(0, 0, 0, 0)}
    assert all(64 < channel < 192 for channel in colour[:3]), "neither near black nor near white"
    assert len(ink) == 2


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 100), (100, 1), (3, 5), (11, 700)])
def test_odd_shapes_have_room_for_their_labels(seq_q: int, seq_k: int) -> None:
    grid = grid_of_counts([[1] * seq_k for _ in range(seq_q)], seq_q=seq_q, seq_k=seq_k)
    for scale in (None, 1, 9):
        picture = opened(to_png(grid, scale=scale))
        edges = [picture.getpixel((x, y))[3] for x in range(picture.size[0]) for y in (0, picture.size[1] - 1)]
        assert not any(edges), "nothing touches the border"


def test_a_grid_without_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="0 query rows, 5 keys"):
        to_png(grid_of_counts([], seq_q=0, seq_k=5))


def test_glyphs_fill_their_box() -> None:
    for letter, rows in GLYPHS.items():
        assert len(rows) == HEIGHT, letter
        assert {len(row) for row in rows} == {WIDTH}, letter
        assert set("".join(rows)) <= {"#", "."}, letter
    assert len(set(GLYPHS.values())) == len(GLYPHS), "two letters look alike"


def test_levels_say_none_and_all_only_when_it_is_so() -> None:
    tile = 1000
    counts = [[0, 1, tile * tile - 1, tile * tile]]
    levels = grid_of_counts(counts, seq_q=tile, seq_k=4 * tile, tile_q=tile, tile_k=tile).levels
    assert levels == bytes([0, 1, FULL - 1, FULL])


def test_cut_cells_are_full_when_all_they_have_is_visible() -> None:
    grid = grid_of_counts([[4, 2], [2, 1]], seq_q=3, seq_k=3, tile_q=2, tile_k=2)
    assert grid.levels == bytes([FULL] * 4)
    assert (grid.rows, grid.columns, grid.visible, grid.exact) == (2, 2, 9, False)
