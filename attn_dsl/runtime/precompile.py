"""Compiling several kernels ahead of their calls, in several processes: CuTe DSL compiles one at a time in each."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, ShapeClass

from ..diagnostics import UnsupportedError
from ..spec.model import AttentionSpec
from .artifact import Artifact
from .kernels import KERNEL_TARGETS, KernelTarget, artifact_of, param_argument

DEFAULT_DIMS = (64, 128)  # head dimensions of specs that fix none
Progress = Callable[[int, int], None]  # (kernels that are there, kernels in all)


@dataclass(frozen=True)
class Job:
    """One kernel."""

    target: str
    shape: ShapeClass
    plan: ForwardPlan


def jobs_of(
    spec: AttentionSpec, targets: Sequence[str], extents: dict[str, int], tensors: Sequence[ParamArgument] = ()
) -> list[Job]:
    """The kernels that calls with head dimensions, heads and pages of `extents` need.

    Head dimensions that neither the spec nor `extents` fixes are those of DEFAULT_DIMS. Without `heads` and `kv_heads`
    the kernels are those that work with any number of either, without `page_size` those for every size. Parameters come
    as numbers; with `tensors` there are also kernels for calls in which those come as tensors.

    Raises UnsupportedError and PlanError as `attn_dsl.compile` and a first call do.
    """
    from .targets import compile_for

    fixed = dict(spec.fixed_axes) | extents
    dims = (fixed["dim"],) if "dim" in fixed else DEFAULT_DIMS
    numbers = tuple(param_argument(param, 0 if param.default is None else param.default) for param in spec.params)
    by_name = {argument.name: argument for argument in tensors}
    forms = dict.fromkeys((numbers, tuple(by_name.get(argument.name, argument) for argument in numbers)))
    found = []
    for name in targets:
        compile_for(spec, name)
        target = KERNEL_TARGETS.get(name)
        if target is None:
            known = ", ".join(KERNEL_TARGETS)
            raise UnsupportedError.of("E281", f"target '{name}' has no kernels to compile", hint=f"these have: {known}")
        packs = {1}
        if {"heads", spec.kv_heads_axis} <= fixed.keys():
            packs.add(target.pack_of(spec, fixed["heads"] // fixed[spec.kv_heads_axis]))
        for dim in dims:
            dim_v = fixed.get("dim_v", dim) if spec.dim_v_axis == "dim_v" else dim
            shapes = [ShapeClass(dim, dim_v, params, pack) for pack in sorted(packs) for params in forms]
            for shape in (each for general in shapes for each in _with_pages(spec, target, general, fixed)):
                found.append(Job(name, shape, target.select(spec, shape)))
    return found


def _with_pages(
    spec: AttentionSpec, target: KernelTarget, shape: ShapeClass, fixed: Mapping[str, int]
) -> list[ShapeClass]:
    """`shape`, whose kernel copies pages row by row, and the one that copies whole pages of the size that is fixed."""
    if spec.paging is None or target.page_size_of is None or "page_size" not in fixed:
        return [shape]
    size = target.page_size_of(spec, shape, fixed["page_size"])
    return [shape, replace(shape, page_size=size)] if size else [shape]


def precompile(
    jobs: Sequence[Job], folders: Sequence[Path | None], *, processes: int = 0, progress: Progress | None = None
) -> list[Artifact]:
    """The artifacts of `jobs`, copied into their `folders`, or where those are None into the cache alone.

    `processes`: at most so many at a time; 0: as many as there are processors. An error of one job is raised when the
    others are done.
    """
    count = min(processes or os.cpu_count() or 1, len(jobs))
    if progress is not None:
        progress(0, len(jobs))
    if count <= 1:
        found = []
        for place, (job, folder) in enumerate(zip(jobs, folders, strict=True)):
            found.append(_work(job, folder))
            if progress is not None:
                progress(place + 1, len(jobs))
        return found
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_work, job, folder) for job, folder in zip(jobs, folders, strict=True)]
        for done, _ in enumerate(as_completed(running), 1):
            if progress is not None:
                progress(done, len(jobs))
        return [each.result() for each in running]


def _work(job: Job, folder: Path | None) -> Artifact:
    artifact = artifact_of(job.plan, KERNEL_TARGETS[job.target])
    if folder is None:
        return artifact
    shutil.copytree(artifact.folder, folder)
    return Artifact(folder, artifact.info)
