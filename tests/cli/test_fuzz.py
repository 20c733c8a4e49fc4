"""Random command lines: whatever the values, an exit code of the documented ones and never an internal error."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attn_dsl.cli import main

SPEC = """\
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
doc: i32[batch, seq_k]
table: f32[rows, heads]
param tokens: int in 1.. = 4
param cap: float in 0.5..=100.0 = 30.0
param slope: float[heads] = 1.0
const half: int = 2
mask = 0 <= q_pos - kv_idx < tokens and doc[b, q_pos // half] == doc[b, kv_idx]
score = cap * tanh(score / cap) + slope * table[0, h]
"""
# tiny, absurd or malformed; nothing between, where a run would only take long
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "5",
    "7",
    "-1",
    "1.5",
    "1e400",
    "nan",
    "unbounded",
    "",
    "0x3",
    "9" * 19,
    "9" * 40,
    "1,2",
    ",",
]
NAMES = [
    "batch",
    "seq_q",
    "seq_k",
    "heads",
    "kv_heads",
    "dim",
    "rows",
    "tokens",
    "cap",
    "slope",
    "half",
    "doc",
    "q",
    "x",
    "",
]
FILES = ["spec.attn", "doc.npy", "junk.npy", "junk.pt", "missing.npy", "folder", "", "\0", "q.npy"]

number = st.sampled_from(NUMBERS) | st.text(max_size=4)
name = st.sampled_from(NAMES) | st.text(max_size=4)
pair = st.builds("{}={}".format, name, number)
tensor = st.builds("{}={}".format, name, st.sampled_from(FILES))
OPTIONS = {
    "--seq-q": number,
    "--seq-k": number,
    "--batch": number,
    "--head": number,
    "--heads": number,
    "--kv-heads": number,
    "--dim": number,
    "--tile-q": number,
    "--tile-k": number,
    "--pack": st.sampled_from(["on", "off", "auto"]),
    "--shape": pair | st.builds("{},{}".format, pair, pair),
    "--param": pair,
    "--const": pair,
    "--tensor": tensor,
    "--seed": number,
    "--dtype": st.sampled_from(["f32", "e4m3", "i32"]),
    "--target": st.sampled_from(["auto", "reference", "reference-f64", "sm90", ""]),
    "--device": st.sampled_from(["cpu", "meta", "cuda", "x:y"]),
    "--repeat": st.sampled_from(["1", "0", "x"]),
    "--format": st.sampled_from(["text", "json"]),
    "--scale": st.sampled_from(["1", "0", "9" * 9, "x"]),
    "--png": st.sampled_from(["out.png", "folder", "no/out.png", ""]),
    "--color": st.sampled_from(["auto", "always"]),
}
FLAGS = ["--check", "--strict", "--no-labels", "--diff", "--version", "--help"]
option = st.sampled_from(sorted(OPTIONS)).flatmap(lambda o: st.tuples(st.just(o), OPTIONS[o]))
options = st.lists(option | st.tuples(st.sampled_from(FLAGS)), max_size=5).map(
    lambda found: [a for o in found for a in o]
)
small = ["--seq-q", "5", "--seq-k", "6"]
lines = st.tuples(st.sampled_from(["check", "show", "explain", "run", "capabilities", ""]), st.booleans(), options)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import numpy

    monkeypatch.chdir(tmp_path)
    Path("spec.attn").write_text(SPEC, encoding="utf-8")
    Path("junk.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff")
    Path("junk.pt").write_bytes(b"PK\x03\x04")
    Path("folder").mkdir()
    numpy.save("doc.npy", numpy.arange(12, dtype=numpy.int64).reshape(2, 6) // 3)
    numpy.save("q.npy", numpy.zeros((1, 5, 2, 3), dtype=numpy.complex64))
    return tmp_path


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lines)
def test_no_command_line_is_an_internal_error(
    folder: Path, capsys: pytest.CaptureFixture[str], line: tuple[str, bool, list[str]]
) -> None:
    command, sized, found = line
    sizes = (
        small
        if sized and command in ("show", "explain")
        else ["--shape", "seq_q=5,seq_k=6"]
        if command == "run"
        else []
    )
    before = set(os.listdir(folder))
    code = main(
        [*([command] if command else []), *([] if command == "capabilities" else ["spec.attn"]), *sizes, *found]
    )
    captured = capsys.readouterr()
    assert code in (0, 1, 2, 3), captured.err
    assert "Traceback" not in captured.err
    assert set(os.listdir(folder)) - before <= {"out.png"}, "nothing half-written"
    Path("out.png").unlink(missing_ok=True)
