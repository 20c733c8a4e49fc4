"""`attn-dsl fmt`: in place, to standard output, or only looking."""

import io
import sys
from pathlib import Path

import pytest

UGLY = "q:bf16[batch,seq_q,heads,dim]\nk,v:bf16[batch,seq_k,heads,dim]\nmask=kv_idx<=q_pos   # causal\n"
NEAT = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\nmask = kv_idx <= q_pos  # causal\n"


def test_in_place_and_then_nothing_to_do(run, write) -> None:
    name = write("a.attn", UGLY)
    outcome = run("fmt", name)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "1 file laid out, 0 as they should be\n")
    assert Path(name).read_text() == NEAT
    before = Path(name).stat()
    assert run("fmt", name).err == "0 files laid out, 1 as they should be\n"
    assert Path(name).stat().st_ino == before.st_ino, "a file in the right layout is not rewritten"


def test_check_writes_nothing(run, write) -> None:
    names = [write("a.attn", UGLY), write("b.attn", NEAT)]
    outcome = run("fmt", "--check", *names)
    assert (outcome.code, outcome.out) == (1, "a.attn: layout differs\n")
    assert outcome.err == "1 file would be laid out, 1 as they should be\n"
    assert Path("a.attn").read_text() == UGLY
    assert run("fmt", "--check", "b.attn").code == 0


def test_diff_shows_what_would_change(run, write) -> None:
    outcome = run("fmt", "--diff", write("a.attn", UGLY.rstrip("\n")))
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    assert lines[:2] == ["--- a.attn", "+++ a.attn (laid out)"]
    assert [line for line in lines if line.startswith("+")][1:] == [f"+{line}" for line in NEAT.splitlines()]
    assert "\\ No newline at end of file" in lines
    assert Path("a.attn").read_text() == UGLY.rstrip("\n")


@pytest.mark.parametrize(("flags", "code", "out"), [([], 0, NEAT), (["--check"], 1, "<stdin>: layout differs\n")])
def test_standard_input(run, monkeypatch: pytest.MonkeyPatch, flags: list[str], code: int, out: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(UGLY.encode())))
    outcome = run("fmt", *flags, "-")
    assert (outcome.code, outcome.out) == (code, out)


def test_a_broken_file_is_left_alone_and_the_others_are_not(run, write) -> None:
    names = [write("broken.attn", "q: bf16[\n"), write("a.attn", UGLY)]
    outcome = run("fmt", *names)
    assert outcome.code == 1
    assert "broken.attn:1:" in outcome.err
    assert outcome.err.endswith("1 file laid out, 0 as they should be, 1 with errors\n")
    assert Path("broken.attn").read_text() == "q: bf16[\n"
    assert Path("a.attn").read_text() == NEAT


def test_a_file_that_cannot_be_written_stays_as_it_is(run, write, monkeypatch: pytest.MonkeyPatch) -> None:
    from attn_dsl.cli import console

    def read_only(*_arguments: object, **_settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    name = write("a.attn", UGLY)
    monkeypatch.setattr(console.tempfile, "mkstemp", read_only)
    outcome = run("fmt", name)
    assert (outcome.code, outcome.err) == (3, "error[E284]: cannot write a.attn: Permission denied\n")
    assert Path(name).read_text() == UGLY


def test_names_beyond_ascii_in_comments_survive(run, write) -> None:
    name = write("a.attn", f"# größer als ∞\n{UGLY}")
    run("fmt", name)
    assert Path(name).read_text(encoding="utf-8") == f"# größer als ∞\n{NEAT}"
