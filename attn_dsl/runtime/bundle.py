"""Bundles: kernels of one spec in a folder that loads where there is no CuTe DSL.

    bundle.json            the spec, and which folder has the kernel of which target and shape class
    sm90-1a2b3c4d5e6f/     an artifact (artifact.py)
    SHA256SUMS             of every file above, as `sha256sum --check` reads it

Loading needs torch, TVM-FFI and the runtime library of CuTe DSL. Checksums find damage; they are no signature: a bundle
is code, and whoever can write it can run code where it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attn_dsl.lowering.forward import ParamArgument, ShapeClass

from .._version import __version__
from ..diagnostics import UnsupportedError
from ..spec.model import AttentionSpec
from .artifact import SHARED, Artifact, DamagedArtifact
from .builder import linker
from .compiled import CompiledAttention
from .kernel import Kernel
from .kernels import KERNEL_TARGETS, Kernels
from .plain import from_plain, to_plain
from .precompile import Progress, jobs_of, precompile
from .torch_op import register

FORMAT = 1
INDEX, SUMS = "bundle.json", "SHA256SUMS"
_WRITE_AGAIN = "write it again with `attn-dsl compile`"


@dataclass(frozen=True)
class Bundle:
    """A bundle that is complete and unchanged."""

    folder: Path
    spec: AttentionSpec
    kernels: tuple[tuple[str, ShapeClass, str], ...]  # (target, shape class, folder)

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(target for target, _, _ in self.kernels))


def write_bundle(
    spec: AttentionSpec,
    targets: Sequence[str],
    folder: Path,
    extents: Mapping[str, int] | None = None,
    *,
    tensors: Sequence[ParamArgument] = (),
    processes: int = 0,
    progress: Progress | None = None,
) -> list[Artifact]:
    """Compiles `spec` for `targets` and puts the bundle at `folder`, whole or not at all; needs no GPU.

    `folder` is new, empty, or a bundle, which is replaced. `extents` and `tensors` as `jobs_of` takes them.

    Raises:
        UnsupportedError, PlanError: as `attn_dsl.compile` and a first call; without a C compiler (E323).
        FileExistsError: `folder` holds something else. OSError: it cannot be written.
    """
    if linker() is None:
        message = f"kernels are linked by a C compiler, and there is no '{os.environ.get('CC') or 'cc'}'"
        raise UnsupportedError.of("E323", message, hint="install gcc or clang, or set CC to a compiler")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / INDEX).exists())):
        raise FileExistsError(f"{folder} exists and is no bundle")
    jobs = jobs_of(spec, targets, dict(extents or {}), tensors)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        made = Path(temporary) / "bundle"
        made.mkdir()
        names = [f"{job.target}-{hashlib.sha256(repr(job.plan).encode()).hexdigest()[:12]}" for job in jobs]
        artifacts = precompile(jobs, [made / name for name in names], processes=processes, progress=progress)
        if any(not (made / name / SHARED).exists() for name in names):
            raise UnsupportedError.of("E323", f"the C compiler {linker()} cannot link a kernel")
        index = {
            "format": FORMAT,
            "attn_dsl": __version__,
            "platform": _platform(),
            "spec": to_plain(spec),
            "kernels": [
                {"target": job.target, "shape": to_plain(job.shape), "folder": name}
                for job, name in zip(jobs, names, strict=True)
            ],
        }
        (made / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
        files = sorted(path for path in made.rglob("*") if path.is_file())
        lines = [f"{_digest(path)}  {path.relative_to(made).as_posix()}\n" for path in files]
        (made / SUMS).write_text("".join(lines), "utf-8")
        if folder.exists():
            folder.rename(Path(temporary) / "replaced")
        made.rename(folder)
    return [replace(artifact, folder=folder / artifact.folder.name) for artifact in artifacts]


def read_bundle(folder: Path) -> Bundle:
    """The bundle at `folder`. Raises UnsupportedError (E320, E321)."""
    stated = _sums(folder)
    for name, digest in stated.items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            raise _damaged(folder, f"{name} cannot be read: {error.strerror}") from error
        if found != digest:
            raise _damaged(folder, f"{name} was changed: its SHA-256 is not the one in {SUMS}")
    if INDEX not in stated:
        raise _damaged(folder, f"{SUMS} does not list {INDEX}")
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        _check_writer(folder, index)
        kernels = tuple((str(k["target"]), from_plain(k["shape"]), str(k["folder"])) for k in index["kernels"])
        bundle = Bundle(folder, from_plain(index["spec"]), kernels)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise _damaged(folder, f"{INDEX} cannot be read: {error!r}") from error
    for _, _, name in kernels:
        if f"{name}/{SHARED}" not in stated:
            raise _damaged(folder, f"{SUMS} does not list {name}/{SHARED}")
    return bundle


def load_bundle(folder: Path, target: str | None = None) -> CompiledAttention:
    """The kernels at `folder` as a compiled object, for `target`, or for the GPU that is here.

    Raises UnsupportedError: the bundle is damaged (E320), of another format, version or machine, or has no kernels for
    this GPU (E321). A call raises it where no kernel fits its shape class (E322).
    """
    bundle = read_bundle(folder := folder.absolute())  # kernels are read when calls need them, from wherever that is
    chosen = _choose(bundle, target)
    shapes = {shape: name for of, shape, name in bundle.kernels if of == chosen}

    def kernel(shape: ShapeClass) -> Kernel:
        general = replace(shape, pack=1)  # every number of heads; without a page size, pages of every size
        serving = (shape, general, replace(shape, page_size=0), replace(general, page_size=0))
        name = next((shapes[each] for each in serving if each in shapes), None)
        if name is None:
            has = "; ".join(sorted(_words(known) for known in shapes))
            message = f"{folder} has no kernel for {_words(shape)}; it has {has}"
            raise UnsupportedError.of("E322", message, hint=f"write it with `attn-dsl compile {_options(shape)}`")
        try:
            artifact = Artifact.open(folder / name)
            return Kernel(artifact.info.signature, artifact.load(), artifact)
        except (DamagedArtifact, OSError) as problem:
            raise _damaged(folder, f"{name}: {problem}") from problem

    return register(CompiledAttention(bundle.spec, chosen, Kernels(bundle.spec, KERNEL_TARGETS[chosen], kernel)))


def _choose(bundle: Bundle, target: str | None) -> str:
    has = ", ".join(bundle.targets)
    if target is not None:
        if target not in bundle.targets:
            raise UnsupportedError.of("E321", f"{bundle.folder} has no kernels for '{target}'; it has {has}")
        return target
    if not torch.cuda.is_available():
        if len(bundle.targets) == 1:
            return bundle.targets[0]
        message = f"{bundle.folder} has kernels for {has}, and there is no GPU here to choose by"
        raise UnsupportedError.of("E321", message, hint=f"name one: load_bundle(..., target={bundle.targets[0]!r})")
    here = torch.cuda.get_device_capability()
    for name in bundle.targets:
        if KERNEL_TARGETS[name].capability == here:
            return name
    device = f"{torch.cuda.get_device_name()} of compute capability {here[0]}.{here[1]}"
    message = f"{bundle.folder} has kernels for {has}, and this GPU is a {device}"
    raise UnsupportedError.of("E321", message, hint="target='reference' of attn_dsl.compile runs everywhere")


def _check_writer(folder: Path, index: Mapping[str, Any]) -> None:
    for what, found, expected in (
        ("format", index["format"], FORMAT),
        ("attn-dsl", index["attn_dsl"], __version__),
        ("platform", index["platform"], _platform()),
    ):
        if found != expected:
            raise UnsupportedError.of("E321", f"{folder} is of {what} {found}, this is {expected}", hint=_WRITE_AGAIN)


def _sums(folder: Path) -> dict[str, str]:
    """File name -> SHA-256."""
    try:
        lines = (folder / SUMS).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _damaged(folder, f"{SUMS} cannot be read: {reason}") from error
    found = {}
    for line in lines:
        digest, space, name = line.partition("  ")
        if not space or len(digest) != 64 or name.startswith("/") or ".." in Path(name).parts:
            raise _damaged(folder, f"{SUMS} has a line of another form: {line[:80]!r}")
        found[name] = digest
    return found


def _damaged(folder: Path, what: str) -> UnsupportedError:
    problem = UnsupportedError.of("E320", f"the bundle {folder} is damaged: {what}", hint=_WRITE_AGAIN)
    assert isinstance(problem, UnsupportedError)
    return problem


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _platform() -> str:
    return f"{sys.platform}-{platform.machine()}"


def _options(shape: ShapeClass) -> str:
    """Options of `attn-dsl compile` with which a bundle gets the kernel of a shape class."""
    given = [f"--shape dim={shape.dim}" + (f",dim_v={shape.dim_v}" if shape.dim_v != shape.dim else "")]
    for param in shape.params:
        if param.form != "number":
            axis = f"[{param.per}]" if param.form == "axis_tensor" else ""
            given.append(f"--tensor-param {param.name}{axis}:{param.dtype}")
    return " ".join(given)


def _words(shape: ShapeClass) -> str:
    forms = [
        f"{param.name} as {param.form.replace('_', ' ')} of {param.dtype}"
        for param in shape.params
        if param.form != "number"
    ]
    shared = [f"{shape.pack} query heads a tile"] if shape.pack > 1 else []
    return ", ".join([f"dim {shape.dim}, dim_v {shape.dim_v}", *shared, *forms])
