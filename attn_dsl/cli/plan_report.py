"""The plan of a kernel, in words: what a target would build for the call that is explained."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import suppress

import torch

from ..diagnostics import UnsupportedError
from ..lowering.forward.explain import explain, form_of
from ..lowering.forward.plan import ShapeClass
from ..lowering.forward.rules import MAX_DIM, dim_step
from ..lowering.forward.splits import MAX_SPLITS
from ..runtime import Inputs, compile_for
from ..runtime.binding import Call
from ..runtime.kernels import KERNEL_TARGETS, KernelTarget, shape_class
from ..runtime.splitting import FEW
from ..spec import AttentionSpec
from .explanation import Section

_WIDTH = 118  # columns
_GROUPS = range(1, 257)  # query heads of a K/V head that are tried
_PAGE_SIZES = range(1, 257)  # rows of a page that are tried
_LISTED = 20  # numbers of heads, at most


def plan(spec: AttentionSpec, inputs: Inputs, target: str) -> Section:
    """Every decision of the plan of `target`. Raises UnsupportedError as compiling for it does."""
    compile_for(spec, target)
    defaults = {param.name: param.default for param in spec.params if param.default is not None}
    call = Call(spec, inputs.tensors, {**defaults, **inputs.params}, inputs.extents, torch.device("cpu"))
    chosen = KERNEL_TARGETS[target]
    shape = shape_class(call, chosen)
    lines = explain(chosen.select(spec, shape)).splitlines()
    classes = list(shape_classes(spec, shape, chosen))
    wrapped = [
        part
        for line in (*lines, *classes)
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False)
    ]
    return Section(
        f"plan for {target}",
        tuple(wrapped),
        {"plan": {"target": target, "lines": lines, "shape_class": classes}},
    )


def shape_classes(spec: AttentionSpec, shape: ShapeClass, target: KernelTarget) -> Iterator[str]:
    """Which kernel this call meets, and what a call must change to meet another."""
    forms = "".join(f", {param.name} as {form_of(param)}" for param in shape.params)
    packed = f"{shape.pack} query heads share a tile" if shape.pack > 1 else "each query head has tiles of its own"
    pages = f", pages of {shape.page_size} rows" if shape.page_size else ""
    yield f"shape class of this call: dim {shape.dim}, dim_v {shape.dim_v}, {packed}{pages}{forms}"
    yield "another kernel is compiled for"
    others = False
    for axis in dict.fromkeys(("dim", spec.dim_v_axis)):
        if spec.fixed(axis) is None:
            others = True
            yield f"  each {axis} that is called: multiples of {dim_step(spec)} to {MAX_DIM[target.name]}"
    packs = sorted(_packs(target, spec))
    if len(packs) > 1:
        others = True
        known = ", ".join(map(str, packs)) if len(packs) <= _LISTED else "any"
        yield f"  each number of heads that share a tile: {known}"
    if spec.params:
        others = True
        yield f"  each form of a parameter instead of a number, and each dtype of it: {_forms(spec)}"
    if page_sizes := _page_sizes(spec, shape, target):
        others = True
        yield f"  {page_sizes}"
    if parts := _parts(spec):
        others = True
        yield f"  {parts}"
    if not others:
        yield "  nothing: this is the only one"


def _forms(spec: AttentionSpec) -> str:
    return ", ".join(
        f"{param.name} as a tensor{f'[{param.per}]' if param.per else ' of one element'}" for param in spec.params
    )


def _page_sizes(spec: AttentionSpec, shape: ShapeClass, target: KernelTarget) -> str:
    """For which sizes of pages there are kernels of their own."""
    if spec.paging is None or target.page_size_of is None:
        return ""
    copied = []
    for size in _PAGE_SIZES:
        with suppress(UnsupportedError):
            if target.page_size_of(spec, shape, size):
                copied.append(size)
    return f"each page_size that whole tiles are copied from: multiples of {copied[0]}" if copied else ""


def _parts(spec: AttentionSpec) -> str:
    """Which calls have kernels for parts of their keys."""
    count = dict(spec.schedule).get("splits")
    if count == 1 or (count is None and spec.lengths_q.cu_seqlens is not None):
        return ""
    which = "few queries on many keys" if count is None else "all calls, by the schedule"
    return f"{which}: one for parts of keys, and one that joins up to {FEW} of them or one for up to {MAX_SPLITS}"


def _packs(target: KernelTarget, spec: AttentionSpec) -> set[int]:
    """How many query heads may share a tile, over all calls that the target takes."""
    found = set()
    for group in _groups(spec):
        with suppress(UnsupportedError):
            found.add(target.pack_of(spec, group))
    return found


def _groups(spec: AttentionSpec) -> tuple[int, ...]:
    """Query heads of a K/V head that a call can have."""
    if spec.kv_heads_axis != "kv_heads":
        return (1,)
    heads, kv_heads = spec.fixed("heads"), spec.fixed("kv_heads")
    return (heads // kv_heads,) if heads is not None and kv_heads is not None else tuple(_GROUPS)
