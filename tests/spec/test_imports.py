"""Libraries: what can be read, what cannot, and what a name means where."""

from __future__ import annotations

import os

import pytest

from attn_dsl.expr.text import to_text


@pytest.fixture
def folder(tmp_path):
    """A folder that a spec lies in, with room for a file outside of it."""
    inside = tmp_path / "specs"
    inside.mkdir()
    return inside


def test_definitions_come_from_files_beside_the_spec_and_below(check, folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "b.attn").write_text("def twice(x: int) -> int = 2 * x\n")
    (folder / "a.attn").write_text(
        "from .deep.b import twice\nlet reach = twice(4)\ndef near() -> bool = kv_idx < reach\n"
    )
    checked = check("from .a import near as close\nmask = close()", folder=folder)
    assert checked.spec is not None
    assert to_text(checked.spec.mask) == "kv_idx < 8"


def test_a_name_means_what_it_means_in_its_own_file(check, folder):
    (folder / "a.attn").write_text("let reach = 3\ndef near() -> bool = kv_idx < reach\n")
    checked = check("from .a import near\nlet reach = 5\nmask = near() and q_pos < reach", folder=folder)
    assert checked.spec is not None
    assert to_text(checked.spec.mask) == "kv_idx < 3 and q_pos < 5"


def test_a_library_does_not_see_the_tensors_of_the_spec(codes, folder):
    (folder / "a.attn").write_text("def biased() -> float = score + bias[h]\n")
    assert codes("from .a import biased\nbias: f32[heads]\nscore = biased() + bias[h]", folder=folder) == ["E220"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("from .missing import x", "E210"),
        ("from std.windoww import window", "E210"),
        ("from os.path import join", "E211"),
        ("from .outside_link import x", "E211"),
        ("from .a import missing", "E213"),
        ("from std.window import windoww", "E213"),
        ("from .loop import x", "E212"),
        ("from .spec import x", "E214"),
        ("from .broken import x", "E204"),
    ],
)
def test_what_cannot_be_imported(codes, folder, line, code):
    (folder.parent / "outside.attn").write_text("let x = 1\n")
    os.symlink(folder.parent / "outside.attn", folder / "outside_link.attn")
    (folder / "a.attn").write_text("let x = 1\n")
    (folder / "loop.attn").write_text("from .pool import y\nlet x = 1\n")
    (folder / "pool.attn").write_text("from .loop import x\nlet y = 1\n")
    (folder / "spec.attn").write_text("q: f16[batch, seq_q, heads, dim]\nlet x = 1\n")
    (folder / "broken.attn").write_text("let x = = 1\n")
    assert code in codes(line, folder=folder)


def test_a_text_without_a_folder_has_no_files_beside_it(check):
    errors = check("from .a import x").errors
    assert [problem.code for problem in errors] == ["E211"]
    assert "folder=" in (errors[0].hint or "")


def test_an_error_in_a_library_points_into_the_library(check, folder):
    (folder / "a.attn").write_text("# one\ndef f(x: int) -> bool = x + missing > 0\n")
    errors = check("from .a import f\nmask = f(kv_idx)", folder=folder).errors
    assert [problem.code for problem in errors] == ["E220"]
    assert errors[0].span is not None
    assert errors[0].span.source.name.endswith("a.attn")
    assert errors[0].span.line == 2


def test_a_proof_that_fails_in_a_library_points_at_the_call(check):
    errors = check("from std.chunked import same_chunk\nparam size: int\nmask = same_chunk(size)").errors
    assert {problem.code for problem in errors} == {"E260"}
    assert errors[0].span is not None
    assert errors[0].span.source.name == "<text>"
    assert "in 1.." in (errors[0].hint or "")


def test_libraries_alone_are_checked(check):
    checked = check("def f(x: int) -> bool = x < heads", prelude="")
    assert checked.spec is None
    assert checked.diagnostics == ()
    assert [p.code for p in check("def f(x: int) -> bool = x < seq", prelude="").errors] == ["E220"]


def test_a_spec_reads_at_most_64_libraries_however_they_are_imported(codes, check, folder):
    for place in range(70):
        more = f"from .m{place + 1} import x{place + 1}\n" if place < 69 else ""
        (folder / f"m{place}.attn").write_text(f"{more}let x{place} = {place}\n")
    assert check("from .m6 import x6\nmask = kv_idx < x6", folder=folder).spec is not None
    assert codes("from .m5 import x5\nmask = kv_idx < x5", folder=folder) == ["E215"]
    wide = "".join(f"from .w{place} import y{place}\n" for place in range(65))
    for place in range(65):
        (folder / f"w{place}.attn").write_text(f"let y{place} = {place}\n")
    assert codes(wide, folder=folder) == ["E215"]


def test_uses_of_an_import_that_failed_are_not_reported_again(codes, folder):
    assert codes("from std.windows import window\nmask = window(3) and kv_idx < 9") == ["E210"]
    assert codes("from std.window import windows as near\nlet reach = near\nmask = near(3)") == ["E213"]
    (folder / "a.attn").write_text("from .missing import x\nlet y = x + 1\n")
    assert codes("from .a import x, y\nmask = kv_idx < x + y", folder=folder) == ["E210"]
    (folder / "b.attn").write_text("from .b import x\nlet y = x + 1\n")
    assert codes("from .b import y\nmask = kv_idx < y", folder=folder) == ["E212"]
