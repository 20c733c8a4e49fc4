"""`attn-dsl compile` and `attn-dsl cache`, with kernels that take no compiling."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tvm_ffi")

from small_artifacts import SIGNATURE, builder, fill

from attn_dsl.runtime import cache, precompile
from attn_dsl.runtime.cache import KernelCache, cache_folder, kernel_cache

SPEC = "param window: int in 1.. = 8\nmask = 0 <= q_pos - kv_idx < window\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTN_DSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "read_sources", lambda: cache.SOURCES)  # whoever edits them while the tests run


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """The plans that are asked for; each gets an artifact at once."""
    asked = []

    def artifact_of(plan, target):
        asked.append((target.name, plan.dim, plan.dim_v, plan.pack))
        place = tmp_path / f"made{len(asked)}"
        place.mkdir()
        return fill(place, f"key{len(asked)}", name=plan.name)

    monkeypatch.setattr(precompile, "artifact_of", artifact_of)
    return asked


def test_kernels_into_the_cache(run, write, jobs):
    name = write("window.attn", SPEC, operands=True)
    outcome = run("compile", name, "--jobs", 1)
    assert outcome.code == 0, outcome.err
    assert jobs == [("sm90", 64, 64, 1), ("sm90", 128, 128, 1), ("sm100", 64, 64, 1), ("sm100", 128, 128, 1)]
    lines = outcome.out.splitlines()
    assert lines[0] == (
        f"window  sm90  dim 128, dim_v 128: {SIGNATURE.threads} threads, 168 registers, 8 bytes of local memory, "
        f"{SIGNATURE.shared:,} bytes of shared memory"
    )
    assert lines[-1].startswith("4 kernels in the cache, ")


def test_shapes_choose_kernels(run, write, jobs):
    name = write("window.attn", SPEC, operands=True)
    assert run("compile", name, "--target", "sm90", "--shape", "dim=96,heads=8,kv_heads=2", "--jobs", 1).code == 0
    assert jobs == [("sm90", 96, 96, 1), ("sm90", 96, 96, 4)]
    assert run("compile", name, "--target", "sm90", "--const", "dim=32", "--jobs", 1).code == 0
    assert jobs[2:] == [("sm90", 32, 32, 1)]


def test_parameters_as_tensors(run, write, jobs):
    name = write("window.attn", SPEC, operands=True)
    options = ["--target", "sm90", "--shape", "dim=64", "--jobs", 1]
    assert run("compile", name, *options, "--tensor-param", "window:i64").code == 0
    assert len(jobs) == 2


def test_a_bundle_and_its_json(run, write, jobs):
    name = write("window.attn", SPEC, operands=True)
    outcome = run("compile", name, "--target", "sm90", "--out", "out", "--jobs", 1, "--format", "json")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert found["bundle"] == "out"
    assert [kernel["registers"] for kernel in found["kernels"]] == [168, 168]
    assert all(kernel["folder"].startswith("out/sm90-") for kernel in found["kernels"])
    outcome = run("compile", name, "--target", "sm90", "--out", name, "--jobs", 1)
    assert outcome.code == 3
    assert "error[E284]: cannot write window.attn: window.attn exists and is no bundle" in outcome.err
    assert len(jobs) == 2


def test_bad_requests(run, write, jobs):
    name = write("window.attn", SPEC, operands=True)
    other = write("other.attn", "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, heads, dim]\n")
    cases = [
        (["compile", name, other, "--out", "x"], 2, "error[E283]: --out x: a bundle is of one spec, and there are 2"),
        (["compile", name, "--target", "sm91"], 2, "error[E280]: there is no target 'sm91'"),
        (["compile", name, "--target", "reference"], 1, "error[E281]: target 'reference' has no kernels to compile"),
        (["compile", other, "--target", "sm90"], 1, "error[E281]: target 'sm90' cannot do f32 q, k, v"),
        (["compile", name, "--shape", "dim=12"], 1, "error[E290]: dim is 12"),
        (["compile", name, "--tensor-param", "w"], 2, "error[E283]: --tensor-param w: 'window' has no parameter 'w'"),
        (["compile", name, "--tensor-param", "window=3"], 2, "error[E283]: --tensor-param window=3: expected NAME"),
        (["compile", name, "--tensor-param", "window:f32"], 2, "error[E274]: parameter 'window' in f32"),
        (["compile", name, "--jobs", "0"], 2, "error[E283]: argument --jobs: '0' is no integer of at least 1"),
        (["cache", "burn"], 2, "error[E283]: argument action: invalid choice: 'burn'"),
    ]
    for arguments, code, message in cases:
        outcome = run(*arguments)
        assert outcome.code == code, outcome
        assert message in outcome.err
    assert not jobs


def test_the_cache_is_listed_verified_and_cleared(run):
    assert run("cache", "ls").out == f"0 kernels, 0.0 of 1024 MiB in {cache_folder()}\n"
    for key in ("one", "two", "three"):
        kernel_cache().load(key, builder(key, []))
    listed = run("cache", "ls").out.splitlines()
    assert len(listed) == 4
    assert listed[-1].startswith("3 kernels, 0.0 of 1024 MiB in ")
    assert all(line.endswith("bytes  sm90   small, dim 128, dim_v 128") for line in listed[:3])
    found = json.loads(run("cache", "ls", "--format", "json").out)
    assert {kernel["key"] for kernel in found["kernels"]} == {"one", "two", "three"}
    assert found["bytes"] == sum(kernel["bytes"] for kernel in found["kernels"])

    assert run("cache", "verify").out == "3 kernels whole, 0 damaged\n"
    (cache_folder() / "two" / "kernel.ptx").write_text("changed")
    outcome = run("cache", "verify", "--format", "json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["damaged"] == [{"key": "two", "problem": "kernel.ptx has 7 bytes, expected 13"}]
    assert run("cache", "verify").out == "2 kernels whole, 0 damaged\n"

    assert run("cache", "clear").out.startswith("2 kernels removed, ")
    assert run("cache", "ls", "--format", "json").code == 0
    assert KernelCache(cache_folder(), 1).entries() == []
