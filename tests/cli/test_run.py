"""`attn-dsl run`: runs, errors against float64, bounds, times."""

import json

import numpy
import pytest
import torch

from attn_dsl.cli import accuracy
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.spec import DType

BIASED = "bias: bf16[heads, seq_q, seq_k]\nmask = kv_idx <= q_pos\nscore = score + bias[h, q_idx, kv_idx]\n"
SMALL = "batch=2,heads=4,kv_heads=2,seq_q=9,seq_k=13,dim=8"


def test_text(run, write) -> None:
    outcome = run("run", write("a.attn", BIASED, operands=True), "--shape", SMALL, "--check", "--repeat", 2)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "target  reference on cpu"
    assert lines[1] == "inputs  batch=2, dim=8, dim_v=8, heads=4, kv_heads=2, seq_k=13, seq_q=9; seed 0"
    assert lines[2] == "        bias: normally distributed"
    assert lines[3] == "output  o bf16[2, 9, 4, 8], lse f32[2, 4, 9]"
    assert [line.split(":")[0] for line in lines[4:7]] == [
        "error   o by norm",
        "error   o by max",
        "error   lse by max",
    ]
    assert lines[7].startswith("time    median ")
    assert " ms of 2 calls (" in lines[7]


def test_json_shape(run, write) -> None:
    outcome = run("run", write("a.attn", BIASED, operands=True), "--shape", SMALL, "--check", "--format", "json")
    report = json.loads(outcome.out)
    assert outcome.code == 0
    assert list(report) == [
        *("version", "ok", "file", "target", "device", "extents", "seed", "assumed", "outputs", "checks", "seconds"),
        "emulator",
    ]
    assert report["extents"] == {"batch": 2, "dim": 8, "dim_v": 8, "heads": 4, "kv_heads": 2, "seq_k": 13, "seq_q": 9}
    assert report["outputs"] == {"o": "bf16[2, 9, 4, 8]", "lse": "f32[2, 4, 9]"}
    output, lse = report["checks"]
    assert (output["output"], lse["output"]) == ("o", "lse")
    assert output["ok"] is True
    assert 0 < output["errors"]["norm"]["error"] < output["errors"]["norm"]["bound"]
    assert 0 <= lse["errors"]["max"]["error"] < lse["errors"]["max"]["bound"] == 1e-4
    assert report["seconds"]["calls"] == 5
    assert 0 < report["seconds"]["min"] <= report["seconds"]["median"] <= report["seconds"]["max"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "e5m2"])
def test_every_dtype_stays_inside_its_bound_and_uses_it(run, write, dtype: str) -> None:
    name = write("a.attn", "mask = kv_idx <= q_pos\n", operands=True)
    outcome = run("run", name, "--shape", SMALL, "--dtype", dtype, "--check", "--format", "json", "--repeat", 1)
    report = json.loads(outcome.out)
    assert (outcome.code, report["outputs"]["o"]) == (0, f"{dtype}[2, 9, 4, 8]")
    norm = report["checks"][0]["errors"]["norm"]
    assert norm["bound"] / 100 < norm["error"] <= norm["bound"]


def test_without_check_nothing_is_compared(run, write) -> None:
    outcome = run("run", write("a.attn", "mask = kv_idx <= q_pos\n", operands=True), "--format", "json")
    report = json.loads(outcome.out)
    assert report["checks"] == []
    sizes = "batch=1, dim=64, dim_v=64, heads=8, kv_heads=2, seq_k=256, seq_q=256"
    assert ", ".join(f"{name}={extent}" for name, extent in report["extents"].items()) == sizes


def test_a_wrong_result_fails_the_check(run, write, monkeypatch: pytest.MonkeyPatch) -> None:
    from attn_dsl.runtime import CompiledAttention

    honest = CompiledAttention.__call__

    def off(self: CompiledAttention, *args: object, **kwargs: object) -> object:
        o, lse = honest(self, *args, **{**kwargs, "return_lse": True})
        return (o * 1.02, lse) if kwargs["return_lse"] else o * 1.02

    monkeypatch.setattr(CompiledAttention, "__call__", off)
    name = write("a.attn", "mask = kv_idx <= q_pos\n", operands=True)
    outcome = run("run", name, "--shape", SMALL, "--check")
    assert outcome.code == 1
    assert outcome.out.count("TOO LARGE") == 2
    assert run("run", name, "--shape", SMALL).code == 0


def test_empty_rows_and_sequences_pass(run, write) -> None:
    name = write("a.attn", "mask = kv_idx + 4 <= q_pos\n", operands=True)
    for shape in (SMALL, "batch=0", "seq_q=0", "seq_k=0,seq_q=3", "seq_q=9,seq_k=3"):
        assert run("run", name, "--shape", shape, "--check", "--repeat", 1).code == 0, shape


def test_parameters_and_tensors_reach_the_call(run, write) -> None:
    text = BIASED.replace("mask = kv_idx", "mask = kv_idx * steps")
    text += "param cap: float in 0.5..\nparam steps: int[heads] in 1..=8 = 2\nsink = cap\n"
    name = write("a.attn", text, operands=True)
    numpy.save("bias.npy", numpy.random.default_rng(0).normal(size=(4, 9, 13)))
    outcome = run(
        *("run", name, "--shape", "kv_heads=2", "--tensor", "bias=bias.npy", "--check"),
        *("--param", "cap=2", "--param", "steps=1,2,3,4", "--format", "json"),
    )
    report = json.loads(outcome.out)
    assert outcome.code == 0, report
    assert report["extents"] | {"heads": 4, "seq_q": 9, "seq_k": 13} == report["extents"]
    assert report["assumed"] == ["bias: converted from torch.float64 to bf16"]


def test_seeds_repeat(run, write) -> None:
    name = write("a.attn", BIASED, operands=True)
    errors = [
        json.loads(run("run", name, "--seed", seed, "--shape", SMALL, "--check", "--format", "json").out)["checks"]
        for seed in (3, 3, 4)
    ]
    assert errors[0] == errors[1]
    assert errors[0] != errors[2]


def test_unknown_target_and_device(run, write) -> None:
    name = write("a.attn", "mask = kv_idx <= q_pos\n", operands=True)
    assert run("run", name, "--target", "warp9").code == 2
    outcome = run("run", name, "--device", "toaster")
    assert outcome.code == 2
    assert "--device toaster: no device of that name" in outcome.err
    if not torch.cuda.is_available():
        outcome = run("run", name, "--device", "cuda")
        assert outcome.code == 1
        assert "error[E282]: device 'cuda' cannot be used" in outcome.err


def test_more_than_memory_is_refused(run, write) -> None:
    outcome = run("run", write("a.attn", "mask = kv_idx <= q_pos\n", operands=True), "--shape", "seq_q=1000000000")
    assert outcome.code == 2
    assert "this machine has" in outcome.err


def test_places_that_are_not_finite_must_agree() -> None:
    inf, nan = torch.inf, torch.nan
    exact = torch.tensor([1.0, -inf, nan, 2.0, -inf], dtype=torch.float64)
    assert compare_lse(exact.float(), exact).ok
    for place, value in ((0, nan), (1, inf), (1, 0.0), (2, 1.0), (4, nan)):
        given = exact.float().clone()
        given[place] = value
        comparison = compare_lse(given, exact)
        assert (comparison.misplaced, comparison.ok) == (1, False)


def test_bounds_are_held_to_the_last_digit() -> None:
    exact = torch.full((100,), 3.0, dtype=torch.float64)
    for dtype, roundoff in accuracy.ROUNDOFF.items():
        assert compare_output(exact * (1 + 2 * roundoff), exact, dtype).ok
        assert not compare_output(exact * (1 + 2 * roundoff + 2e-5), exact, dtype).ok
        one_off = exact.clone()
        one_off[7] *= 1 + 5 * roundoff + 2e-4
        assert not compare_output(one_off, exact, dtype).measures[1].ok
    zero = torch.zeros(4, dtype=torch.float64)
    assert compare_output(zero, zero, DType.F32).ok
    assert not compare_output(zero + 1e-30, zero, DType.F32).ok


def test_roundoff_is_that_of_torch() -> None:
    from attn_dsl.runtime.dtypes import TORCH_DTYPES

    for dtype, roundoff in accuracy.ROUNDOFF.items():
        assert torch.finfo(TORCH_DTYPES[dtype]).eps / 2 == roundoff, dtype


def test_axes_of_captures_have_a_size_that_is_said(run, write) -> None:
    name = write(
        "a.attn",
        "few: f32[half]\ntable: f32[entries, 2 * half + 1]\nscore = score + few[0] * table[0, 0]\n",
        operands=True,
    )
    report = json.loads(run("run", name, "--shape", SMALL, "--format", "json").out)
    assert (report["extents"]["entries"], report["extents"]["half"]) == (64, 64)
    drawn = ["few: normally distributed", "table: normally distributed"]
    assert report["assumed"] == ["half: 64 entries", "entries: 64 entries", *drawn]
    report = json.loads(run("run", name, "--shape", f"{SMALL},half=3,entries=5", "--format", "json").out)
    assert report["assumed"] == drawn


def test_a_view_has_room_in_its_base(run, write) -> None:
    text = "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, heads, dim]\nview v = k[:, :, :, 0..80]\n"
    report = json.loads(run("run", write("a.attn", text), "--shape", "seq_q=4", "--check", "--format", "json").out)
    assert report["ok"] is True
    assert report["extents"]["dim"] == 80
    assert report["outputs"]["o"] == "bf16[1, 4, 8, 80]"


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_a_kernel_runs_on_the_emulator(run, write, target: str) -> None:
    """Compiled for the architecture and run on the CPU: no time, no findings, inside the bounds."""
    pytest.importorskip("cutlass")
    path = write("a.attn", "mask = kv_idx <= q_pos", operands=True)
    sizes = "batch=1,heads=2,kv_heads=1,seq_q=70,seq_k=90,dim=64"
    options = ("--device", "emulator", "--check", "--format", "json")
    outcome = run("run", path, "--target", target, "--shape", sizes, *options)
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert report["seconds"] is None
    assert report["device"] == "emulator"
    assert report["emulator"]["arch"] == {"sm90": "sm_90a", "sm100": "sm_100a"}[target]
    assert (report["emulator"]["launches"], report["emulator"]["findings"]) == (1, 0)
    assert report["emulator"]["instructions"] > 1000
    assert all(check["ok"] for check in report["checks"])


def test_weights_are_as_exact_as_their_dtype(run, write) -> None:
    """o is held to what kernels round weights to, where o itself is finer."""
    pytest.importorskip("cutlass")
    name = write("a.attn", "o: f16[batch, seq_q, heads, dim]\n", operands=True)
    shape = "batch=1,heads=2,kv_heads=1,seq_q=130,seq_k=140,dim=64"
    options = ("--target", "sm90", "--device", "emulator", "--check", "--format", "json")
    outcome = run("run", name, "--shape", shape, *options)
    report = json.loads(outcome.out)
    assert report["outputs"]["o"] == "f16[1, 130, 2, 64]"
    norm = report["checks"][0]["errors"]["norm"]
    assert (outcome.code, norm["bound"]) == (0, 2 * 2**-8 + 1e-5)
    assert norm["error"] > 2 * 2**-11 + 1e-5


def test_the_emulator_runs_kernels_only(run, write) -> None:
    outcome = run("run", write("a.attn", BIASED, operands=True), "--device", "emulator")
    assert outcome.code == 2
    assert "error[E283]: --device emulator: target 'reference' has no kernel to run on it" in outcome.err
