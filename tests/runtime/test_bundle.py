"""Bundles: written on a machine without a GPU, run without CuTe DSL, refused when they are not what they were."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("tvm_ffi")

from small_artifacts import fill

import attn_dsl
from attn_dsl import CallError, UnsupportedError
from attn_dsl.lowering.forward import ShapeClass
from attn_dsl.runtime import bundle as module
from attn_dsl.runtime import kernels, random_inputs, write_bundle
from attn_dsl.runtime.bundle import INDEX, SUMS, read_bundle
from attn_dsl.runtime.kernels import tensor_argument
from attn_dsl.runtime.plain import from_plain, to_plain
from attn_dsl.runtime.precompile import jobs_of
from attn_dsl.spec import plan_key

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEVICE = Path(__file__).resolve().parents[1] / "support" / "bundle_on_device.py"
TEXT = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
param window: int in 1.. = 4096
mask = 0 <= q_pos - kv_idx < window
"""
SPEC = attn_dsl.parse(TEXT, name="window", dim=64)
PAGED = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[pages, page_size, kv_heads, dim]
table: i32[batch, max_pages]
used: i32[batch]
lengths k { used = used }
paged { table = table }
mask = kv_idx <= q_pos
"""


def without_compiling(jobs, folders, **_):
    """In the place of `precompile`: artifacts that load and compute nothing."""
    found = []
    for folder, job in zip(folders, jobs, strict=True):
        folder.mkdir()
        found.append(fill(folder, folder.name, name=job.plan.name, padding=64))
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A bundle for both targets whose kernels compute nothing."""
    folder = tmp_path_factory.mktemp("bundles") / "window.bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "precompile", without_compiling)
        artifacts = write_bundle(SPEC, ["sm100", "sm90"], folder)
    assert [artifact.folder.parent for artifact in artifacts] == [folder, folder]
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy to damage."""
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def refusal(folder, **options):
    with pytest.raises(UnsupportedError) as caught:
        attn_dsl.load_bundle(folder, **options)
    return f"{caught.value.code}: {caught.value.diagnostics[0].message}".replace(str(folder), "BUNDLE")


@pytest.mark.parametrize("target", ["sm90", pytest.param("sm100", marks=pytest.mark.slow)])
def test_a_bundle_runs_where_cute_dsl_cannot_be_imported(tmp_path, target):
    """On the virtual device, in a process of its own; results against float64, findings are errors."""
    pytest.importorskip("cutlass")
    folder = tmp_path / "window.bundle"
    write_bundle(SPEC, [target], folder, processes=1)
    made = subprocess.run([sys.executable, DEVICE, folder, target], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout == "2 launches without findings\n"


@pytest.mark.slow
def test_several_kernels_compile_in_processes_of_their_own(tmp_path, monkeypatch):
    pytest.importorskip("cutlass")
    monkeypatch.setenv("ATTN_DSL_CACHE_DIR", str(tmp_path / "cache"))
    said = []
    spec = attn_dsl.parse(TEXT, name="window")
    artifacts = write_bundle(
        spec, ["sm90"], tmp_path / "out", processes=2, progress=lambda done, total: said.append((done, total))
    )
    assert [artifact.info.dim for artifact in artifacts] == [64, 128]
    assert said == [(0, 2), (1, 2), (2, 2)]
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "out"}


def test_checksums_are_as_sha256sum_writes_them(written):
    lines = (written / SUMS).read_text().splitlines()
    stated = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert stated == {
        path.relative_to(written).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in written.rglob("*")
        if path.is_file() and path.name != SUMS
    }
    assert sum(name.endswith("/kernel.so") for name in stated) == 2


def test_every_kind_of_damage_is_found(folder):
    sums = (folder / SUMS).read_text()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content, name = path.read_bytes(), path.relative_to(folder).as_posix()
        changes = {
            "truncated": content[: len(content) // 2],
            "changed": bytes([content[0] ^ 1]) + content[1:],
            "extended": content + b"\0",
        }
        for kind, change in changes.items():
            path.write_bytes(change)
            assert refusal(folder, target="sm90").startswith("E320: the bundle BUNDLE is damaged: "), (name, kind)
        path.unlink()
        assert refusal(folder, target="sm90").startswith("E320: the bundle BUNDLE is damaged: "), name
        path.write_bytes(content)
    (folder / SUMS).write_text("".join(line + "\n" for line in sums.splitlines() if "kernel.so" not in line))
    assert "does not list" in refusal(folder, target="sm90")
    (folder / SUMS).write_text(sums + f"{64 * '0'}  ../outside\n")
    assert "has a line of another form" in refusal(folder, target="sm90")
    (folder / SUMS).write_text(sums)
    assert attn_dsl.load_bundle(folder, target="sm90").target == "sm90"


def rewrite(folder, **changes):
    """Changes the index, checksums included: as a bundle that somebody else wrote."""
    index = json.loads((folder / INDEX).read_text()) | changes
    (folder / INDEX).write_text(json.dumps(index))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}" for path in files
    ]
    (folder / SUMS).write_text("\n".join(lines) + "\n")


def test_what_another_version_or_machine_wrote_is_refused(folder):
    for changes, message in (
        ({"format": 2}, "E321: BUNDLE is of format 2, this is 1"),
        ({"attn_dsl": "9.9"}, f"E321: BUNDLE is of attn-dsl 9.9, this is {attn_dsl.__version__}"),
        ({"platform": "linux-riscv64"}, "E321: BUNDLE is of platform linux-riscv64, this is "),
    ):
        before = json.loads((folder / INDEX).read_text())
        rewrite(folder, **changes)
        assert refusal(folder, target="sm90").startswith(message)
        rewrite(folder, **before)
    for changes in ({"spec": {}}, {"kernels": [{}]}, {"spec": {"nodes": [], "value": {"is": "Path"}}}):
        rewrite(folder, **before)
        rewrite(folder, **changes)
        assert refusal(folder, target="sm90").startswith("E320: the bundle BUNDLE is damaged: bundle.json cannot be")


def test_the_target_is_that_of_the_gpu_or_named(written, monkeypatch):
    assert attn_dsl.load_bundle(written, target="sm100").target == "sm100"
    assert "no kernels for 'sm80'; it has sm100, sm90" in refusal(written, target="sm80")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "there is no GPU here to choose by" in refusal(written)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert attn_dsl.load_bundle(written).target == "sm90"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert refusal(written) == (
        "E321: BUNDLE has kernels for sm100, sm90, and this GPU is a A GPU of compute capability 8.0"
    )


def test_a_call_of_another_shape_class_is_refused(written, monkeypatch):
    monkeypatch.setattr(kernels, "check_here", lambda target, device: target)
    compiled = attn_dsl.load_bundle(written, target="sm90")
    sizes = {"batch": 1, "seq_q": 4, "seq_k": 4, "heads": 2, "kv_heads": 1}
    values = random_inputs(compiled.spec, sizes).tensors
    with pytest.raises(UnsupportedError) as caught:
        compiled(**values, window=torch.tensor(3, dtype=torch.int32))
    assert caught.value.code == "E322"
    lacks = "dim 64, dim_v 64, 2 query heads a tile, window as scalar tensor of i32"
    assert f"no kernel for {lacks}; it has dim 64, dim_v 64" in str(caught.value)
    assert "`attn-dsl compile --shape dim=64 --tensor-param window:i32`" in str(caught.value)


def test_parameters_as_tensors(tmp_path, monkeypatch):
    """Kernels for numbers, and for all that are named at once as tensors."""
    monkeypatch.setattr(module, "precompile", without_compiling)
    monkeypatch.setattr(kernels, "check_here", lambda target, device: target)
    spec = attn_dsl.parse(TEXT + "param gain: float[heads] = 1.0\nscore = gain * score", name="tensors", dim=64)
    window, gain = spec.params
    write_bundle(spec, ["sm90"], tmp_path / "out", tensors=[tensor_argument(window), tensor_argument(gain, "heads")])
    compiled = attn_dsl.load_bundle(tmp_path / "out", target="sm90")
    sizes = {"batch": 1, "seq_q": 4, "seq_k": 4, "heads": 2, "kv_heads": 1}
    values = random_inputs(compiled.spec, sizes).tensors
    of_tensors = {"window": torch.tensor(3, dtype=torch.int32), "gain": torch.rand(2)}
    found = [compiled.warmup(**values), compiled.warmup(**values, window=7), compiled.warmup(**values, **of_tensors)]
    assert found[0].artifact.folder == found[1].artifact.folder != found[2].artifact.folder
    for wrong in ({"window": of_tensors["window"]}, of_tensors | {"window": torch.tensor(3)}):
        with pytest.raises(UnsupportedError, match=r"(?s)E322.*--tensor-param window:i"):
            compiled.warmup(**values, **wrong)
    for arguments, message in (
        ((window, None, "f32"), "parameter 'window' in f32: a tensor of it is i32, i64"),
        ((window, "heads", None), "parameter 'window' along 'heads': it has one value"),
        ((gain, "batch", None), "parameter 'gain' along 'batch': it has a value for each element of 'heads'"),
    ):
        with pytest.raises(CallError, match="E274") as caught:
            tensor_argument(*arguments)
        assert message in str(caught.value)


def test_pages(tmp_path, monkeypatch):
    """The kernel that copies row by row serves pages of every size; the size that is named has one of its own."""
    monkeypatch.setattr(module, "precompile", without_compiling)
    spec = attn_dsl.parse(PAGED, name="paged", dim=128)
    assert [job.shape.page_size for job in jobs_of(spec, ["sm90"], {})] == [0]
    assert [job.shape.page_size for job in jobs_of(spec, ["sm90"], {"page_size": 7})] == [0]
    write_bundle(spec, ["sm90"], tmp_path / "out", {"page_size": 128})
    backend = attn_dsl.load_bundle(tmp_path / "out", target="sm90").backend
    found = {size: backend.kernel(ShapeClass(128, 128, page_size=size)).artifact.folder for size in (0, 128, 256)}
    assert found[0] == found[256] != found[128]


def test_the_working_directory_may_change_before_the_first_call(written, monkeypatch):
    monkeypatch.chdir(written.parent)
    compiled = attn_dsl.load_bundle(written.name, target="sm90")
    monkeypatch.chdir("/")
    assert compiled.backend.kernel(read_bundle(written).kernels[0][1]).signature.pack == 1


def test_a_kernel_of_no_heads_in_particular_serves_every_number(written):
    compiled = attn_dsl.load_bundle(written, target="sm90")
    shape = read_bundle(written).kernels[0][1]
    assert shape.pack == 1
    kernel = compiled.backend.kernel(ShapeClass(64, 64, shape.params, pack=4))
    assert kernel.signature.pack == 1


def test_writing_replaces_bundles_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "precompile", without_compiling)
    target = tmp_path / "out"
    for _ in range(2):
        write_bundle(SPEC, ["sm90"], target)
        assert read_bundle(target).targets == ("sm90",)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("important")
    with pytest.raises(FileExistsError, match="other exists and is no bundle"):
        write_bundle(SPEC, ["sm90"], other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UnsupportedError, match=r"E323.*no 'no-such-compiler'"):
        write_bundle(SPEC, ["sm90"], target)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.attn")), ids=lambda path: path.stem)
def test_a_spec_is_the_same_after_a_bundle(path):
    spec = attn_dsl.load(path)
    again = from_plain(json.loads(json.dumps(to_plain(spec))))
    assert again == spec
    assert again.wide == spec.wide
    assert plan_key(again) == plan_key(spec)


def test_only_values_of_this_package_are_made():
    with pytest.raises(KeyError):
        from_plain({"nodes": [], "value": {"is": "Popen", "args": "true"}})
    with pytest.raises(TypeError, match="PosixPath has no plain form"):
        to_plain(Path())
