"""`attn-dsl explain --time`: the predicted time, its words of caution, its trace, and what is refused."""

import json

import pytest

SIZES = ("--seq-q", 512, "--seq-k", 512, "--heads", 2, "--kv-heads", 2, "--dim", 64)
CAUSAL = "mask = kv_idx <= q_pos\n"


@pytest.fixture
def name(write):
    return write("causal.attn", CAUSAL, operands=True)


def test_a_prediction_says_that_it_is_one(run, name, tmp_path):
    path = tmp_path / "trace.json"
    shown = run("explain", name, *SIZES, "--target", "sm90", "--time", "--trace", path)
    assert shown.code == 0
    text = shown.out[shown.out.index("predicted time on sm90") : shown.out.index("\nkeys")]
    assert "us predicted (somewhere in " in text
    assert "a prediction for 1750 MHz, not a measurement" in text
    assert "consumer warps wait" in text
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {"mbarrier", "product"} <= {span["name"] for span in spans}
    assert all(span["dur"] >= 0 and span["ts"] >= 0 for span in spans)
    tracks = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {span["tid"] for span in spans} <= tracks


def test_longer_takes_longer(run, name):
    def microseconds(keys):
        sizes = [*SIZES[:3], keys, *SIZES[4:]]
        report = json.loads(run("explain", name, *sizes, "--target", "sm90", "--time", "--format", "json").out)
        assert report["time"]["prediction"] is True
        (kernel,) = report["time"]["kernels"]
        low, high = kernel["range"]
        assert low < kernel["microseconds"] < high
        return kernel["microseconds"]

    assert microseconds(512) < microseconds(2048)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time",), "--time needs a target"),
        (("--target", "sm90", "--trace", "x.json"), "--trace needs --time"),
        (("--target", "sm100", "--time"), "no parameters of the timing model for sm100"),
    ],
)
def test_refusals(run, name, options, words):
    shown = run("explain", name, *SIZES, *options)
    assert shown.code == 2
    assert "E283" in shown.err
    assert words in shown.err


def test_a_trace_that_cannot_be_written(run, name, tmp_path):
    shown = run("explain", name, *SIZES, "--target", "sm90", "--time", "--trace", tmp_path / "no" / "x.json")
    assert "E284" in shown.err
    assert shown.code != 0
