"""`attn-dsl compile`: kernels ahead of their first call, into the cache or into a bundle. Needs no GPU."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import files, values
from .console import OK, FileError, Progress, UsageError, plural, print_json
from .run import OPERAND_DTYPES, with_dtype

if TYPE_CHECKING:
    from ..runtime.artifact import Artifact

_TARGETS = "sm90,sm100"

_EPILOG = """\
examples:
  attn-dsl compile window.attn
  attn-dsl compile window.attn --target sm90 --shape dim=128,heads=32,kv_heads=8
  attn-dsl compile window.attn --target sm100,sm90 --out window.bundle
  attn-dsl compile window.attn --out window.bundle --tensor-param window_tokens

Head dimensions nobody gives: one kernel each for 64 and 128. Without heads and kv_heads the kernels are those that
work with any number of either; with them, also those whose heads share tiles. Without page_size pages of every size
are copied row by row. Parameters come as numbers, those of --tensor-param as tensors too.
A bundle is loaded by attn_dsl.load_bundle("window.bundle")."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compile",
        help="compile kernels ahead of their first call",
        description="Compiles the kernels of specs into the cache, or those of one spec into a bundle. Needs no GPU.",
        epilog=_EPILOG,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="an .attn file, a folder of them, or -")
    parser.add_argument(
        "--target", default=_TARGETS, metavar="NAME,...", help=f"what to compile for (default {_TARGETS})"
    )
    parser.add_argument("--out", metavar="DIR", help="write a bundle there: new, empty, or a bundle to replace")
    values.add_shape(parser)
    values.add_tensor_params(parser)
    values.add_constants(parser)
    parser.add_argument("--dtype", choices=tuple(OPERAND_DTYPES), help="of q, k, v and o, instead of the file's")
    parser.add_argument(
        "--jobs", type=values.positive, default=0, metavar="N", help="processes at a time (default: one per processor)"
    )
    values.add_format(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Compiles; the exit code."""
    names = files.expand(options.files)
    if options.out is not None and len(names) > 1:
        raise UsageError.say(f"--out {options.out}: a bundle is of one spec, and there are {len(names)} files")
    specs = [files.spec(name, values.constants(options.const)) for name in names]
    if options.dtype is not None:
        specs = [with_dtype(spec, OPERAND_DTYPES[options.dtype]) for spec in specs]
    extents = values.extents(options.shape)
    named = [values.tensor_params(spec, options.tensor_param) for spec in specs]
    targets = list(dict.fromkeys(name.strip() for name in options.target.split(",") if name.strip()))
    started = time.monotonic()
    with Progress("loading torch") as line:
        from ..runtime.bundle import write_bundle
        from ..runtime.kernels import tensor_argument
        from ..runtime.precompile import jobs_of, precompile

        tensors = [[tensor_argument(*each) for each in of_spec] for of_spec in named]

        def progress(done: int, total: int) -> None:
            line.step(f"{done} of {plural(total, 'kernel')} compiled")

        if options.out is None:
            jobs = [
                job
                for spec, given in zip(specs, tensors, strict=True)
                for job in jobs_of(spec, targets, extents, given)
            ]
            artifacts = precompile(jobs, [None] * len(jobs), processes=options.jobs, progress=progress)
        else:
            try:
                artifacts = write_bundle(
                    specs[0],
                    targets,
                    Path(options.out),
                    extents,
                    tensors=tensors[0],
                    processes=options.jobs,
                    progress=progress,
                )
            except OSError as error:
                raise FileError.say(f"cannot write {options.out}: {error.strerror or error}") from error
    seconds = time.monotonic() - started
    if options.format == "json":
        kernels = [_as_dict(artifact) for artifact in artifacts]
        print_json({"ok": True, "bundle": options.out, "kernels": kernels, "seconds": seconds})
        return OK
    for artifact in artifacts:
        print(_line(artifact))
    where = "in the cache" if options.out is None else f"in {options.out}"
    print(f"{plural(len(artifacts), 'kernel')} {where}, {seconds:.1f} s")
    return OK


def _as_dict(artifact: Artifact) -> dict[str, object]:
    info = artifact.info
    return {
        "spec": info.spec,
        "target": info.signature.target,
        "arch": info.signature.arch,
        "dim": info.dim,
        "dim_v": info.dim_v,
        "pack": info.signature.pack,
        "threads": info.signature.threads,
        "shared": info.signature.shared,
        "registers": info.registers,
        "stack": info.stack,
        "folder": str(artifact.folder),
    }


def _line(artifact: Artifact) -> str:
    info, signature = artifact.info, artifact.info.signature
    shared = f", {signature.pack} heads a tile" if signature.pack > 1 else ""
    spilled = f", {info.stack} bytes of local memory" if info.stack else ""
    return (
        f"{info.spec}  {signature.target}  dim {info.dim}, dim_v {info.dim_v}{shared}: {signature.threads} threads, "
        f"{info.registers} registers{spilled}, {signature.shared:,} bytes of shared memory"
    )
