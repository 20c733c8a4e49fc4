"""The plan of a kernel, in words: what a target would build for the call that is explained."""

from __future__ import annotations

import textwrap

import torch

from ..lowering.forward.explain import explain
from ..runtime import Inputs, compile_for
from ..runtime.binding import Call
from ..runtime.kernels import KERNEL_TARGETS, shape_class
from ..spec import AttentionSpec
from .explanation import Section

_WIDTH = 118  # columns


def plan(spec: AttentionSpec, inputs: Inputs, target: str) -> Section:
    """Every decision of the plan of `target`. Raises UnsupportedError as compiling for it does."""
    compile_for(spec, target)
    defaults = {param.name: param.default for param in spec.params if param.default is not None}
    call = Call(spec, inputs.tensors, {**defaults, **inputs.params}, inputs.extents, torch.device("cpu"))
    chosen = KERNEL_TARGETS[target].select(spec, shape_class(call, KERNEL_TARGETS[target]))
    lines = explain(chosen).splitlines()
    wrapped = [
        part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False)
    ]
    return Section(f"plan for {target}", tuple(wrapped), {"plan": {"target": target, "lines": lines}})
