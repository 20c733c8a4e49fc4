"""`attn-dsl new`: what it writes checks without a word, is laid out, and passes its own test."""

import importlib.util

import pytest

from attn_dsl.cli import main
from attn_dsl.cli.templates import TEMPLATES


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_kind_checks_and_passes_its_test(kind, tmp_path, capsys):
    folder = tmp_path / "specs"
    assert main(["new", "mine", "--like", kind, "--folder", str(folder)]) == 0
    spec, test = folder / "mine.attn", folder / "test_mine.py"
    assert capsys.readouterr().out.split() == [str(spec), str(test)]
    assert main(["check", "--strict", str(spec)]) == 0
    assert main(["fmt", "--check", str(spec)]) == 0
    found = importlib.util.spec_from_file_location("test_mine", test)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.test_mine()
    text = spec.read_text().replace("mask = ", "mask = kv_idx != 20 and ").replace("length[b]", "length[b] - 1")
    spec.write_text(text)
    found.loader.exec_module(module)
    with pytest.raises(AssertionError):
        module.test_mine()


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "test_mine.py").write_text("kept")
    assert main(["new", "mine", "--folder", str(tmp_path)]) == 3
    assert "test_mine.py exists" in capsys.readouterr().err
    assert not (tmp_path / "mine.attn").exists()
    assert (tmp_path / "test_mine.py").read_text() == "kept"


@pytest.mark.parametrize("name", ["a-b", "folder/x", "x.attn", "1x", "class", "é", ""])
def test_names(name, tmp_path, capsys):
    assert main(["new", name, "--folder", str(tmp_path)]) == 2
    assert "E283" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["new", "mine", "--folder", str(tmp_path / "file" / "x")]) == 3
    assert "E284" in capsys.readouterr().err
