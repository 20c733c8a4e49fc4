"""`attn-dsl show`: golden pictures, PNG files, what is assumed, limits."""

import io
import sys
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

WINDOW = "param tokens: int in 1.. = 4\nmask = 0 <= q_pos - kv_idx < tokens\n"
DOCUMENT = "doc: i32[batch, seq_k]\nmask = doc[b, q_pos] == doc[b, kv_idx] and kv_idx <= q_pos\n"

PICTURE = """\
a: sequence 0, head 0, 9 query rows, 12 keys, 36 of 108 pairs visible (33.3%)
   0         11
  ┌────────────┐
0 │▀███▄       │
  │  ▀███▄     │
  │    ▀███▄   │
  │      ▀███▄ │
8 │        ▀▀▀▀│
  └────────────┘
   █ visible, blank not
  with tokens = 4
"""
ASCII_PICTURE = """\
a: sequence 0, head 0, 4 query rows, 4 keys, 7 of 16 pairs visible (43.8%)
   0  3
  +----+
0 |#...|
  |##..|
  |.##.|
3 |..##|
  +----+
   # visible, . not
  with tokens = 2
"""


def test_golden_picture(run, write) -> None:
    outcome = run("show", write("a.attn", WINDOW, operands=True), "--seq-q", 9, "--seq-k", 12)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == PICTURE


def test_golden_picture_in_ascii(write, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    name = write("a.attn", WINDOW, operands=True)
    monkeypatch.setattr(sys, "stdout", stream)
    from attn_dsl.cli import main

    assert main(["show", name, "--seq-q", "4", "--param", "tokens=2"]) == 0
    stream.flush()
    assert stream.buffer.getvalue().decode() == ASCII_PICTURE


def test_colour_only_where_asked(run, write) -> None:
    name = write("a.attn", WINDOW, operands=True)
    assert "\x1b[" not in run("show", name).out
    coloured = run("show", name, "--color", "always").out
    assert "\x1b[38;5;33m" in coloured


@pytest.mark.parametrize("kind", ["npy", "pt"])
def test_given_tensors_are_used(run, write, kind: str) -> None:
    name = write("a.attn", DOCUMENT, operands=True)
    ids = [[0, 0, 1, 1, 1, 2]]
    if kind == "npy":
        numpy.save("ids.npy", numpy.array(ids))
    else:
        torch.save(torch.tensor(ids, dtype=torch.int32), "ids.pt")
    outcome = run("show", name, "--seq-q", 6, "--tensor", f"doc=ids.{kind}")
    assert outcome.code == 0
    assert "10 of 36 pairs visible" in outcome.out
    assert ("doc: converted from torch.int64 to i32" in outcome.out) == (kind == "npy")


def test_what_was_invented_is_said_and_repeatable(run, write) -> None:
    name = write("a.attn", DOCUMENT, operands=True)
    first, again, other = (run("show", name, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert "  with doc: " in first


def test_only_what_decides_the_mask_is_said(run, write) -> None:
    text = "seen: bool[entries]\nadded: f32[other]\nmask = seen[kv_idx]\nscore = score + added[0]\n"
    outcome = run("show", write("a.attn", text, operands=True))
    said = [line for line in outcome.out.splitlines() if line.startswith("  with ")]
    assert said == ["  with entries: 64 entries", "  with seen: true for three of four elements, at random"]


def test_batch_and_head_choose_what_is_drawn(run, write) -> None:
    name = write("a.attn", "mask = (q_idx + kv_idx + b) % (h + 2) == 0\n", operands=True)
    whole = {(b, h): run("show", name, "--seq-q", 7, "--batch", b, "--head", h).out for b in (0, 1) for h in (0, 1)}
    assert len({out.split("\n", 1)[1] for out in whole.values()}) == 4
    assert "sequence 1, head 1" in whole[1, 1]
    outcome = run("show", name, "--head", 4, "--shape", "heads=4")
    assert (outcome.code, outcome.err) == (2, "error[E283]: --head 4: axis 'heads' has 4 entries, from 0\n")


def test_packed_sequences_are_drawn_alone(run, write) -> None:
    text = (
        "q: bf16[total_q, heads, dim]\nk, v: bf16[total_k, heads, dim]\nseq: i32[batch + 1]\n"
        "lengths q { cu_seqlens = seq }\nlengths k { cu_seqlens = seq }\nmask = kv_idx <= q_pos\n"
    )
    numpy.save("seq.npy" if write("a.attn", text) else "", numpy.array([0, 3, 8], dtype=numpy.int32))
    outcome = run("show", "a.attn", "--batch", 1, "--tensor", "seq=seq.npy")
    assert outcome.code == 0, outcome.err
    assert "sequence 1, head 0, 5 query rows, 5 keys, 15 of 25 pairs visible" in outcome.out


def test_png(run, write) -> None:
    outcome = run(
        "show", write("a.attn", WINDOW, operands=True), "--png", "a.png", "--seq-q", 8, "--no-labels", "--scale", 2
    )
    assert outcome.code == 0
    assert outcome.out.startswith("a.png: a: sequence 0, head 0, 8 query rows, 8 keys, ")
    with Image.open("a.png") as picture:
        shown = [[picture.getpixel((1 + 2 * k, 1 + 2 * q))[3] == 255 for k in range(8)] for q in range(8)]
    assert shown == [[0 <= q - k < 4 for k in range(8)] for q in range(8)]


def test_a_long_mask_becomes_a_png_of_tiles(run, write) -> None:
    outcome = run("show", write("a.attn", WINDOW, operands=True), "--png", "a.png", "--seq-q", 1500, "--no-labels")
    assert outcome.code == 0
    with Image.open("a.png") as picture:
        assert picture.size == (502, 502)


def test_a_failed_png_leaves_nothing(run, write, tmp_path: Path) -> None:
    name = write("a.attn", WINDOW, operands=True)
    outcome = run("show", name, "--png", "no/a.png")
    assert (outcome.code, outcome.err) == (3, "error[E284]: cannot write no/a.png: No such file or directory\n")
    outcome = run("show", name, "--png", "a.png", "--seq-q", 0)
    assert outcome.code == 2
    assert "nothing to draw: 0 query rows, 0 keys" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.attn"]


def test_an_empty_sequence_is_said_in_words(run, write) -> None:
    outcome = run("show", write("a.attn", WINDOW, operands=True), "--seq-q", 0, "--seq-k", 5)
    assert outcome.code == 0
    assert "no pairs to draw: 0 query rows, 5 keys" in outcome.out


def test_too_many_pairs_are_refused_with_a_way_out(run, write) -> None:
    outcome = run("show", write("a.attn", WINDOW, operands=True), "--seq-q", 200_000)
    assert outcome.code == 2
    assert "E283" in outcome.err
    assert "'attn-dsl explain' counts tiles at any length" in outcome.err


def test_a_png_takes_no_spec_s_place(run, write) -> None:
    name = write("a.attn", WINDOW, operands=True)
    before = Path(name).read_bytes()
    outcome = run("show", name, "--png", name)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"--png {name}: not the name of a PNG file" in outcome.err
    assert Path(name).read_bytes() == before


def test_png_options_without_png_are_refused(run, write) -> None:
    outcome = run("show", write("a.attn", WINDOW, operands=True), "--scale", 3)
    assert outcome.code == 2
    assert "add --png OUT" in outcome.err
