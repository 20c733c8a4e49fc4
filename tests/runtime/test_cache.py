"""The cache of compiled kernels: what is a hit, what is not, and what several processes do to it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tvm_ffi")

from cache_processes import die, load
from small_artifacts import builder, fill

import attn_dsl
from attn_dsl.lowering.forward import ShapeClass, sm90
from attn_dsl.runtime import cache as module
from attn_dsl.runtime import library, versions
from attn_dsl.runtime.cache import KernelCache, cache_folder, cache_limit, key_of

LARGE = 1 << 30
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["attn_dsl.runtime.cache"])  # once for all of them


@pytest.fixture(autouse=True)
def unedited(monkeypatch):
    """Somebody may edit the sources while the tests run."""
    monkeypatch.setattr(module, "read_sources", lambda: module.SOURCES)


@pytest.fixture
def cache(tmp_path):
    return KernelCache(tmp_path / "kernels", LARGE)


def test_the_second_load_builds_nothing(cache):
    calls = []
    first, function = cache.load("one", builder("one", calls))
    assert function() is None
    again, function = cache.load("one", builder("one", calls))
    assert function() is None
    assert (first.info, first.folder) == (again.info, again.folder)
    assert calls == ["one"]
    cache.load("two", builder("two", calls))
    assert calls == ["one", "two"]


def test_a_warm_load_takes_less_than_50_ms(cache):
    """Imports and the DSL's runtime library aside, which a process loads once."""
    cache.load("one", builder("one", [], padding=500_000))
    took = []
    for _ in range(5):
        start = time.perf_counter()
        cache.load("one", builder("one", []))
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05


@pytest.mark.parametrize("name", ["kernel.so", "kernel.o", "kernel.ptx", "kernel.cubin", "kernel.json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "removed", "emptied"])
def test_damage_is_set_aside_and_built_again(cache, name, damage):
    calls = []
    (cache.folder / "one").mkdir(parents=True)  # not loaded: a process may not lose a library under its feet
    path = fill(cache.folder / "one", "one", padding=64).folder / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        changed = bytes([content[0] ^ 1]) + content[1:]
        path.write_bytes({"truncated": content[: len(content) // 2], "changed": changed, "emptied": b""}[damage])
    artifact, function = cache.load("one", builder("one", calls, padding=64))
    assert function() is None
    assert calls == ["one"]
    assert artifact.folder == cache.folder / "one"
    (aside,) = (cache.folder / "quarantine").iterdir()
    assert aside.name.startswith("one-")
    assert cache.verify() == []


def test_a_description_that_never_ends_is_damage(cache):
    (cache.folder / "one").mkdir(parents=True)
    (fill(cache.folder / "one", "one").folder / "kernel.json").write_text("[" * 100_000)
    assert cache.entries() == []
    assert [key for key, _ in cache.verify()] == ["one"]


def test_an_artifact_under_another_key_is_no_hit(cache):
    calls = []
    cache.load("one", builder("one", calls))
    (cache.folder / "one").rename(cache.folder / "two")
    cache.load("two", builder("two", calls))
    assert calls == ["one", "two"]


def test_quarantine_is_bounded(cache):
    for _ in range(12):
        cache.load("one", builder("one", []))
        (cache.folder / "one" / "kernel.so").unlink()
    cache.verify()
    assert len(list((cache.folder / "quarantine").iterdir())) == 8


def test_what_was_not_used_for_longest_goes_when_the_limit_is_reached(tmp_path):
    size = fill_size(tmp_path)
    cache = KernelCache(tmp_path / "kernels", 3 * size + size // 2)
    for place, key in enumerate(["a", "b", "c"]):
        cache.load(key, builder(key, [], padding=50_000))
        os.utime(cache.folder / key / "kernel.json", (place, place))
    cache.load("a", builder("a", []))  # used just now
    cache.load("d", builder("d", [], padding=50_000))
    assert sorted(entry.info.key for entry in cache.entries()) == ["a", "c", "d"]


def fill_size(folder: Path) -> int:
    (folder / "sample").mkdir()
    return fill(folder / "sample", "sample", padding=50_000).size


def test_one_artifact_larger_than_the_limit_is_still_kept_for_now(tmp_path):
    cache = KernelCache(tmp_path / "kernels", 1000)
    calls = []
    for _ in range(2):
        cache.load("one", builder("one", calls))
    assert calls == ["one"]


def test_a_limit_of_0_keeps_nothing_and_says_nothing(tmp_path):
    cache = KernelCache(tmp_path / "kernels", 0)
    calls = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert cache.load("one", builder("one", calls))[1]() is None
    assert calls == ["one", "one"]
    assert not cache.folder.exists()


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("no folder")
    cache = KernelCache(tmp_path / "file" / "kernels", LARGE)
    module._warn_once.cache_clear()
    calls = []
    with pytest.warns(RuntimeWarning, match=r"compiled kernels are not kept: .*kernels: Not a directory"):
        assert cache.load("one", builder("one", calls))[1]() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert cache.load("one", builder("one", calls))[1]() is None
    assert calls == ["one"] * 3
    assert cache.entries() == cache.verify() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_costs_one_warning(tmp_path):
    tmp_path.chmod(0o500)
    module._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="Permission denied"):
        KernelCache(tmp_path / "kernels", LARGE).load("one", builder("one", []))


def test_eight_processes_build_once(tmp_path):
    with PROCESSES.Pool(8) as pool:
        found = pool.starmap(load, [(tmp_path, "one")] * 8, chunksize=1)
    assert found == [True] * 8
    assert len((tmp_path / "notes").read_text().split()) == 1


def test_a_process_killed_while_it_writes_loses_nothing(tmp_path):
    calls = []
    cache = KernelCache(tmp_path, LARGE)
    cache.load("before", builder("before", calls))
    victim = PROCESSES.Process(target=die, args=(tmp_path, "one"))
    victim.start()
    victim.join()
    assert victim.exitcode == -9
    assert [entry.info.key for entry in cache.entries()] == ["before"]
    (left,) = (tmp_path / "building").iterdir()
    cache.load("before", builder("before", calls))
    assert cache.load("one", builder("one", calls))[1]() is None
    assert calls == ["before", "one"]
    os.utime(left, (0, 0))
    cache.load("two", builder("two", calls))
    assert not left.exists()


def test_sources_edited_meanwhile_are_not_kept(cache, monkeypatch):
    """What this process imported is not what a later one will find on disk."""
    monkeypatch.setattr(module, "read_sources", lambda: "edited")
    calls = []
    for _ in range(2):
        assert cache.load("one", builder("one", calls))[1]() is None
    assert cache.entries() == []


def test_clear_removes_everything_but_the_folder(cache):
    for key in ("one", "two"):
        cache.load(key, builder(key, []))
    (cache.folder / "two" / "kernel.so").unlink()
    cache.verify()
    count, size = cache.clear()
    assert count == 1
    assert size > 1000
    assert not any(path for path in cache.folder.rglob("*") if path.is_file())


def plan(**changes):
    spec = attn_dsl.parse("q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]", name="full")
    return replace(sm90.select(spec, ShapeClass(64, 64)), **changes)


def test_a_key_has_everything_that_decides_a_kernel(monkeypatch):
    base = key_of(plan(), "sm_90a")
    assert key_of(plan(), "sm_90a") == base
    others = {key_of(plan(tile_k=64), "sm_90a"), key_of(plan(name="other"), "sm_90a"), key_of(plan(), "sm_100a")}
    with monkeypatch.context() as patch:
        patch.setattr(module, "SOURCES", "edited")
        others.add(key_of(plan(), "sm_90a"))
    with monkeypatch.context() as patch:
        patch.setattr(module, "compiler_facts", lambda: (("torch", "9.0"),))
        others.add(key_of(plan(), "sm_90a"))
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    others.add(key_of(plan(), "sm_90a"))
    assert len(others | {base}) == 7


def test_a_key_is_the_same_in_every_process():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_cache as t;print(t.key_of(t.plan(), 'sm_90a'))"
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    made = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == key_of(plan(), "sm_90a")


def test_sources_are_those_of_plans_templates_and_expressions():
    names = {f"{path.parent.name}/{path.name}" for path in versions.source_files()}
    assert {"forward/sm90.py", "common/leaves.py", "expr/evaluate.py", "sm100/build.py"} <= names


def test_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_DSL_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path / "kernels"
    monkeypatch.delenv("ATTN_DSL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "attn_dsl" / "kernels"
    assert cache_limit() == 1 << 30
    monkeypatch.setenv("ATTN_DSL_CACHE_MB", "3")
    assert cache_limit() == 3 << 20
    monkeypatch.setenv("ATTN_DSL_CACHE_MB", "much")
    module._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="ATTN_DSL_CACHE_MB=much is no whole number"):
        assert cache_limit() == 1 << 30


@pytest.mark.parametrize(
    ("found", "message"),
    [(None, "compiles with CuTe DSL, which is not installed"), ("5.0.1", "compiles with CuTe DSL 4.8.*, and 5.0.1 is")],
)
def test_a_release_of_the_compiler_outside_the_tested_ones_is_refused(monkeypatch, found, message):
    monkeypatch.setattr(versions, "version_of", lambda name: found)
    with pytest.raises(attn_dsl.UnsupportedError, match=message) as caught:
        versions.check_dsl("sm90")
    assert caught.value.code == "E282"
    assert "attn-dsl[cute]" in str(caught.value)


def test_the_runtime_library_is_named_or_found(monkeypatch, tmp_path):
    (found,) = library.runtime_libraries()
    assert found.name == "libcute_dsl_runtime.so"
    monkeypatch.setenv("CUTE_DSL_LIBS", str(tmp_path / "none.so"))
    with pytest.raises(attn_dsl.UnsupportedError, match=r"E282.*none.so, which does not exist"):
        library.runtime_libraries()
    monkeypatch.delenv("CUTE_DSL_LIBS")
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(attn_dsl.UnsupportedError, match=r"E282.*needs libcute_dsl_runtime.so"):
        library.runtime_libraries()
