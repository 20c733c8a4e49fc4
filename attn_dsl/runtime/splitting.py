"""Calls whose keys are split: one kernel for the parts, and one that joins their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attn_dsl.lowering.forward.splits import MAX_SPLITS, MOST_ROWS, splits

from ..reference import lse_axes
from ..spec.model import AttentionSpec
from .binding import Call
from .builder import About, Template, build, compile_plan
from .cache import kernel_cache, key_of
from .kernel import Kernel
from .recipe import slots_of
from .signature import Signature

FEW = 32  # parts of which one warp joins a row
SPLITTING = ("sm90", "sm100")  # targets whose kernels can write partial results


def splits_of(call: Call, signature: Signature) -> int:
    """Into how many parts the keys of a call are split: as the schedule says, else by the sizes of the call.

    By itself only a call is split whose queries of one sequence, with all heads that share a tile, fill one tile at
    most: decoding and short continuations.
    """
    return parts_of(call.spec, signature, call.extents, slots_of(call, signature), call.device)


def parts_of(
    spec: AttentionSpec, signature: Signature, extents: Mapping[str, int], slots_k: int, device: torch.device
) -> int:
    """As `splits_of`, for a call whose axes have `extents` and whose sequences have `slots_k` slots of k."""
    if signature.target not in SPLITTING:
        return 1
    hint = dict(spec.schedule).get("splits")
    if hint is not None:
        return int(hint)
    most = min(signature.tile_q, MOST_ROWS[signature.target])
    if signature.packed_q or extents["seq_q"] * signature.pack > most:
        return 1
    blocks = math.prod(signature.grid(extents))
    at_once = _processors(device) * signature.blocks
    return splits(blocks, -(-slots_k // signature.tile_k), at_once)


def _processors(device: torch.device) -> int:
    """Multiprocessors; 1 where there is no GPU, which then nothing can occupy better."""
    if device.type == "cuda":
        return _processors_of_gpu(device)
    # a virtual device answers for tensors of the CPU while it is open, and another one later
    if not torch.cuda.is_available():
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def _processors_of_gpu(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(frozen=True, eq=False)
class Splitting:
    """What stands for the function of a kernel: the same arguments, and the keys in `count` parts."""

    count: int
    inner: int  # place of o's inner axis
    partial: Callable[..., Any]
    join: Callable[..., Any]

    @staticmethod
    def of(spec: AttentionSpec, dim_v: int, kernel: Kernel, count: int, join_of: JoinOf) -> Splitting:
        """For `count` parts by `kernel`; values have `dim_v` elements."""
        signature = kernel.signature
        o_axes = tuple(str(axis.name) for axis in spec.output.axes)
        inner = next(place for place, axis in enumerate(o_axes) if axis in ("dim", "dim_v"))
        logs = tuple(str(axis.name) for axis in lse_axes(spec))
        join = Join(signature.target, signature.arch, str(spec.output.dtype), dim_v, o_axes, logs, spec.lse_base)
        return Splitting(
            count, inner, kernel.function, join_of(join if count <= FEW else replace(join, most=MAX_SPLITS))
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, arguments: tuple[Any, ...]) -> None:
        shape = list(o.shape)
        shape.append(shape.pop(self.inner))
        parts = torch.empty((self.count, *shape), dtype=torch.float32, device=o.device)
        if self.inner + 1 < len(shape):
            parts = parts.movedim(-1, self.inner + 1)
        logs = torch.empty((self.count, *lse.shape), dtype=torch.float32, device=o.device)
        self.partial(q, k, v, parts, logs, arguments)
        self.join(parts, logs, o, lse)


@dataclass(frozen=True)
class Join:
    """The kernel that joins parts: the fields of its plan, which are known without CuTe DSL."""

    target: str
    arch: str
    o_dtype: str
    dim_v: int  # elements
    o_axes: tuple[str, ...]
    lse_axes: tuple[str, ...]
    lse_base: str
    most: int = FEW  # parts


JoinOf = Callable[[Join], Callable[..., Any]]


@cache
def cached_join(join: Join) -> Callable[..., Any]:
    """Its function, from the cache of compiled kernels or compiled now. Raises UnsupportedError (E282)."""
    key = key_of(join, join.arch)
    about = About("join", 0, join.dim_v, Signature.of_join(join.target, join.arch))
    return kernel_cache().load(key, lambda folder: build(join, about, _template, folder, key))[1]


@cache
def traced_join(join: Join) -> Callable[..., Any]:
    """Its function, compiled in this process. Raises UnsupportedError (E282)."""
    made: Callable[..., Any] = compile_plan(join, _template)
    return made


def _template() -> Template:
    from attn_dsl.kernels.common.combine import CombinePlan, compile_combine

    def compile_join(plan: Join, options: str = "") -> Any:
        combine = CombinePlan(
            plan.target, plan.o_dtype, plan.dim_v, plan.o_axes, plan.lse_axes, plan.lse_base, plan.most
        )
        return compile_combine(combine, plan.arch, options)

    return compile_join
