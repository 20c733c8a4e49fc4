"""The gallery's page: every spec is in its table, the words are those of the specs, the pictures are up to date."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

Image = pytest.importorskip("PIL.Image")

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(path.stem for path in EXAMPLES.glob("*.attn"))


@pytest.fixture(scope="module")
def gallery():
    found = importlib.util.spec_from_file_location("draw_gallery", EXAMPLES / "draw_gallery.py")
    module = importlib.util.module_from_spec(found)
    sys.modules["draw_gallery"] = module  # where dataclasses look for their annotations
    found.loader.exec_module(module)
    return module


def test_every_spec_has_a_picture_and_a_row(gallery):
    assert sorted(gallery.PICTURES) == SPECS
    assert sorted(path.stem for path in (EXAMPLES / "pictures").iterdir()) == SPECS
    page = gallery.README.read_text(encoding="utf-8")
    for name in SPECS:
        assert f"| [{name}]({name}.attn) | ![mask of {name}](pictures/{name}.png) |" in page


def test_the_tables_are_current(gallery):
    assert gallery.README.read_text(encoding="utf-8") == gallery.readme(), "run `make pictures`"


@pytest.mark.parametrize("name", SPECS)
def test_picture_is_current_and_small(gallery, tmp_path, name):
    kept = EXAMPLES / "pictures" / f"{name}.png"
    assert kept.stat().st_size < 6 * 1024
    with Image.open(kept) as old, Image.open(gallery.draw(name, tmp_path)) as new:
        assert old.size == new.size, "run `make pictures`"
        assert old.tobytes() == new.tobytes(), "run `make pictures`"
