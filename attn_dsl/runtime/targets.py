"""Targets: what `attn_dsl.compile(spec, target=...)` may name, and what it makes for each."""

from __future__ import annotations

from ..diagnostics import Diagnostic, UnsupportedError, did_you_mean
from ..spec.model import AttentionSpec
from .capabilities import TARGETS, missing_features
from .compiled import CompiledAttention, ReferenceBackend
from .kernels import KERNEL_TARGETS, Kernels
from .torch_op import register

_PRECISIONS = {"reference": "float32", "reference-f64": "float64"}  # one target in two precisions
_WAY_OUT = "target='reference' runs every spec, on CPU and on CUDA tensors"


def compile_for(spec: AttentionSpec, target: str = "auto") -> CompiledAttention:
    """`spec` on a target: "reference" (float32 arithmetic), "reference-f64", "sm90", "sm100", or "auto".

    Raises UnsupportedError: E280 for an unknown target, E281 for what the target cannot do.
    """
    if target == "auto":
        target = "reference"  # the one backend that takes tensors of every device and gradients
    if target in _PRECISIONS:
        return register(CompiledAttention(spec, target, ReferenceBackend(_PRECISIONS[target])))
    if target not in TARGETS:
        known = ("auto", *_PRECISIONS, *(name for name in TARGETS if name not in _PRECISIONS))
        raise UnsupportedError.of("E280", f"there is no target '{target}'", hint=did_you_mean(target, known))
    missing = missing_features(spec, target)
    problems = [
        Diagnostic("E281", f"target '{target}' cannot do {feature.name}: {feature.on(target)}", hint=_WAY_OUT)
        for feature in missing
    ]
    problems = problems or list(KERNEL_TARGETS[target].refusals(spec))
    if problems:
        raise UnsupportedError(problems)
    return register(CompiledAttention(spec, target, Kernels(spec, KERNEL_TARGETS[target])))
