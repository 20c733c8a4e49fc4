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
from ..runtime import Inputs, compile_for
from ..runtime.binding import Call
from ..runtime.kernels import KERNEL_TARGETS, KernelTarget, shape_class
from ..spec import AttentionSpec
from .explanation import Section

_WIDTH = 118  # columns
_GROUPS = range(1, 257)  # query heads of a K/V head that are tried
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
    yield f"shape class of this call: dim {shape.dim}, dim_v {shape.dim_v}, {packed}{forms}"
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
    for param in spec.params:
        others = True
        tensor = f"a tensor[{param.per}]" if param.per else "a tensor of one element"
        yield f"  {param.name} as {tensor} instead of a number, or of another dtype"
    if not others:
        yield "  nothing: this is the only one"


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
