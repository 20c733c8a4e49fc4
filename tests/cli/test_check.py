"""`attn-dsl check`: diagnostics, summary, exit codes, JSON."""

import io
import json
import sys
from pathlib import Path

import pytest

SOUND = "param tokens: int in 1.. = 8\nmask = 0 <= q_pos - kv_idx < tokens\n"
CLAMPED = "doc: i32[batch, seq_k]\nmask = doc[b, q_pos] == doc[b, kv_idx]\n"
NEVER = "mask = kv_idx < 0\n"
WRONG = "mask = kv_idx <= qpos\nscore = kv_idx < 3\n"


def test_a_sound_file(run, write) -> None:
    outcome = run("check", write("a.attn", SOUND, operands=True))
    assert (outcome.code, outcome.out, outcome.err) == (0, "1 file: 0 errors, 0 warnings, 0 notes\n", "")


def test_all_findings_of_all_files(run, write) -> None:
    names = [write("a.attn", WRONG, operands=True), write("b.attn", SOUND, operands=True), write("c.attn", "q: [")]
    outcome = run("check", *names)
    assert outcome.code == 1
    assert "a.attn:3:18: error[E220]" in outcome.out
    assert "a.attn:4:9: error[E233]" in outcome.out
    assert "c.attn:1:" in outcome.out
    assert outcome.out.splitlines()[-1].startswith("3 files: ")


def test_notes_never_fail_and_are_printed(run, write) -> None:
    outcome = run("check", write("a.attn", CLAMPED, operands=True), "--strict")
    assert outcome.code == 0
    assert "a.attn:4:15: note[W266]" in outcome.out
    assert outcome.out.endswith("1 file: 0 errors, 0 warnings, 1 note\n")


def test_strict_makes_warnings_fail(run, write) -> None:
    name = write("a.attn", NEVER, operands=True)
    relaxed, strict = run("check", name), run("check", name, "--strict")
    assert (relaxed.code, strict.code) == (0, 1)
    assert relaxed.out == strict.out
    assert "warning[W265]" in relaxed.out


def test_libraries_are_checked_as_libraries(run, write) -> None:
    good, bad = write("good.attn", "def f(x: int) -> int = x + 1\n"), write("bad.attn", "def f(x: int) -> int = y\n")
    outcome = run("check", good, bad, "--format", "json")
    kinds = {entry["file"]: entry["kind"] for entry in json.loads(outcome.out)["files"]}
    assert kinds == {"good.attn": "library", "bad.attn": None}
    assert outcome.code == 1


def test_a_folder_stands_for_its_files(run, write, tmp_path: Path) -> None:
    (tmp_path / "specs" / "deep").mkdir(parents=True)
    write("specs/b.attn", SOUND, operands=True)
    write("specs/deep/a.attn", SOUND, operands=True)
    write("specs/other.txt", "no spec")
    assert run("check", "specs", "specs/b.attn").out == "2 files: 0 errors, 0 warnings, 0 notes\n"
    (tmp_path / "empty").mkdir()
    outcome = run("check", "empty")
    assert (outcome.code, outcome.err) == (2, "error[E283]: folder 'empty' holds no .attn file\n")


def test_the_standard_library_has_no_findings(run) -> None:
    import attn_dsl

    outcome = run("check", Path(attn_dsl.__file__).parent / "std", "--strict")
    assert outcome.code == 0
    assert " 0 errors, 0 warnings" in outcome.out


def test_standard_input(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"q: bf16[batch]\n")))
    outcome = run("check", "-")
    assert outcome.code == 1
    assert "<stdin>:1:" in outcome.out


def test_constants_replace_and_fix(run, write) -> None:
    name = write("a.attn", "const half: int = 2\nmask = kv_idx <= q_pos // half\n", operands=True)
    assert run("check", name).code == 0
    outcome = run("check", name, "--const", "half=0")
    assert outcome.code == 1
    assert "E260" in outcome.out
    assert run("check", name, "--const", "heads=6", "--const", "kv_heads=4").code == 1
    assert "E223" in run("check", name, "--const", "halve=3").out


def test_a_target_is_checked_too(run, write) -> None:
    name = write("a.attn", SOUND, operands=True)
    assert run("check", name, "--target", "reference").code == 0
    outcome = run("check", name, "--target", "warp9")
    assert (outcome.code, outcome.out) == (2, "")
    assert "E280" in outcome.err


def test_a_missing_file_is_no_finding(run, write) -> None:
    outcome = run("check", "missing.attn", write("a.attn", SOUND, operands=True))
    assert outcome.code == 3
    assert "error[E200]: cannot read 'missing.attn': no such file or directory" in outcome.out
    assert outcome.out.endswith("2 files: 1 error, 0 warnings, 0 notes\n")


def test_json_shape(run, write) -> None:
    outcome = run("check", write("a.attn", WRONG, operands=True), "missing.attn", "--format", "json")
    report = json.loads(outcome.out)
    assert list(report) == ["version", "ok", "files", "summary"]
    assert (report["version"], report["ok"]) == (1, False)
    assert report["summary"] == {"files": 2, "errors": 3, "warnings": 0, "notes": 0}
    first, missing = report["files"]
    assert list(first) == ["file", "kind", "ok", "diagnostics"]
    assert first["diagnostics"][0] == {
        "code": "E220",
        "severity": "error",
        "message": first["diagnostics"][0]["message"],
        "hint": "did you mean 'q_pos'?",
        "file": "a.attn",
        "line": 3,
        "column": 18,
        "end_line": 3,
        "end_column": 22,
        "rule": "A name is defined before it means something.",
    }
    assert "qpos" in first["diagnostics"][0]["message"]
    assert missing["diagnostics"][0]["code"] == "E200"
    assert "line" not in missing["diagnostics"][0]
