"""`attn-dsl bench`: who takes part, that results are compared, the table, the JSON form and the chart."""

import io
import json

import pytest
import torch

from attn_dsl.cli import bench, main
from attn_dsl.cli.chart import Bar, chart, duration

HEAD = "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, kv_heads, dim]\n"
SIZES = ["--seq", "24,40", "--repeat", "2", "--shape", "heads=4,kv_heads=2,dim=16,batch=2"]


@pytest.fixture
def measured(tmp_path, capsys):
    def run(text, *options, code=0):
        path = tmp_path / "spec.attn"
        path.write_text(HEAD + text)
        assert main(["bench", str(path), *SIZES, *options]) == code
        return capsys.readouterr().out

    return run


def found(measured, text, *options, **more):
    rows = json.loads(measured(text, "--format", "json", *options, **more))["rows"]
    return [{entry["name"]: entry for entry in row["contenders"]} for row in rows]


@pytest.mark.parametrize(
    ("text", "sdpa", "flex"),
    [
        ("mask = kv_idx <= q_pos", "is_causal", "uncompiled"),
        ("", "", "uncompiled"),
        ("param n: int = 9\nmask = abs(kv_idx - q_pos) < n + h", "dense mask", "uncompiled"),
        ("t: f32[heads]\nscore = score + t[h] * kv_idx\nmask = kv_idx <= q_pos", "dense bias", "uncompiled"),
        (
            "score = 4.0 * tanh(score / 4.0)",
            "can add a bias to the score, and this score is more than a sum",
            "uncompiled",
        ),
        ("scale = 0.5\nmask = kv_idx <= q_pos", "is_causal", "uncompiled"),
        ("s: f32[heads]\nsink = s[h]", "has no sinks", "has no sinks"),
        ("s: f32[heads]\ndescale v = s[h]", "has no factors of v", "has no factors of v"),
        ("used: i32[batch]\nlengths k { used = used }", "takes dense sequences only", "takes dense sequences only"),
    ],
)
def test_who_takes_part(measured, text, sdpa, flex):
    for row in found(measured, text):
        assert row["reference"]["difference"] is None
        for name, note in (("SDPA", sdpa), ("FlexAttention", flex)):
            assert row[name]["note"] == note
            if row[name]["seconds"] is None:
                assert row[name]["difference"] is None
            else:
                assert row[name]["difference"] < 1e-5
                assert 0 < row[name]["seconds"]["min"] <= row[name]["seconds"]["median"]
    assert row["reference"]["seconds"]["median"] > 0


def test_different_results_are_found_out(measured, monkeypatch):
    from attn_dsl.cli import contenders

    monkeypatch.setattr(contenders, "_is_causal", lambda spec: True)
    assert "DIFFERS at length 24: SDPA" in measured("mask = kv_idx <= q_pos + 1", code=1)


def test_the_table(measured):
    lines = measured("mask = kv_idx <= q_pos").splitlines()
    assert lines[0] == "spec on cpu: batch=2, dim=16, dim_v=16, heads=4, kv_heads=2; median of 2 calls"
    assert lines[1].split() == ["length", "reference", "SDPA", "FlexAttention"]
    assert [line.split()[0] for line in lines[2:4]] == ["24", "40"]
    assert "  FlexAttention: uncompiled" in lines


def test_the_chart(measured, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    assert "chart: " in measured("mask = kv_idx <= q_pos", "--png", str(tmp_path / "out.png"))
    with Image.open(tmp_path / "out.png") as image:
        assert image.width == 680
        assert len(set(image.getdata())) > 4


def test_a_longer_time_is_a_longer_bar():
    Image = pytest.importorskip("PIL.Image")
    with Image.open(io.BytesIO(chart("t", [("1", [Bar("a", 0.001), Bar("b", 0.1), Bar("c", None)])]))) as image:
        counts = {colour: count for count, colour in image.getcolors(maxcolors=10_000)}
    assert counts[(219, 109, 40, 255)] > 2 * counts[(47, 129, 247, 255)]
    assert (46, 160, 67, 255) in counts  # only in the legend


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.5 s"), (0.00321, "3.21 ms"), (4.2e-7, "0.42 us")])
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "options", [["--seq", "0"], ["--seq", "x"], ["--png", "out.jpg"], ["--device", "tpu"], ["--target", "sm91"]]
)
def test_bad_options(measured, options):
    measured("mask = kv_idx <= q_pos", *options, code=2)


def test_the_bound_is_documented():
    assert bench.BOUND == 0.02
    assert torch.finfo(torch.bfloat16).eps < bench.BOUND
