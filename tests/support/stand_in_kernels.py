"""Kernels of the CPU in the place of compiled ones: they are called as those are, and compute by the reference.

What they get is what a launch hands to a kernel, so a wrong argument or a stale one gives a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_dsl import reference
from attn_dsl.lowering.forward import ForwardPlan
from attn_dsl.runtime import kernels
from attn_dsl.runtime.kernel import Kernel
from attn_dsl.runtime.signature import Signature
from attn_dsl.spec import AttentionSpec


@dataclass
class StandIn:
    """What was compiled and launched."""

    spec: AttentionSpec
    plans: list[ForwardPlan] = field(default_factory=list)
    launches: int = 0
    slow: Callable[[], None] = lambda: None  # run while a plan compiles

    def compile(self, plan: ForwardPlan, target: kernels.KernelTarget) -> Kernel:
        self.plans.append(plan)
        self.slow()
        signature = Signature.of(plan, target.arch)

        def function(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, arguments: tuple[Any, ...]) -> None:
            if any(tensor.data_ptr() % 16 for tensor in (q, k, v, o)):
                raise ValueError("Misaligned Tensor data")  # as host code of kernels does, before it launches
            self.launches += 1
            for value in (q, k, v, o, lse, *arguments):
                assert not isinstance(value, Tensor) or value.numel(), "a kernel takes no tensor without elements"
            with torch.no_grad():
                self._run(signature, {"q": q, "k": k, "v": v}, o, lse, arguments)

        return Kernel(signature, function, None)

    def _run(
        self, signature: Signature, tensors: dict[str, Tensor], o: Tensor, lse: Tensor, arguments: tuple[Any, ...]
    ) -> None:
        rest = iter(arguments)
        slots_k, pairs = next(rest), next(rest)
        assert pairs >= 1
        names = [*signature.captures, *(p.name for p in signature.params), *signature.sizes, *signature.geometry]
        given = dict(zip(names, rest, strict=True))
        for tensor in self.spec.tensors:
            if tensor.name in given:
                value = given[tensor.name]
                tensors[tensor.name] = value.bool() if tensor.dtype.spelling == "bool" else value
            axis = tensor.axis_index(signature.slots_k)
            if slots_k == 0 and axis is not None:  # a launch has one element where a tensor has none
                value = tensors[tensor.name]
                tensors[tensor.name] = value.expand(_shape(tensors["q"], tensor, value)).narrow(axis, 0, 0)
        params = {param.name: given[param.name] for param in self.spec.params}
        for param in signature.params:
            if param.form == "scalar_tensor":
                params[param.name] = params[param.name].reshape(())
        found = reference.attention(self.spec, tensors, params)
        o.copy_(found[0])
        lse.copy_(found[1])


def _shape(q: Tensor, tensor: Any, value: Tensor) -> list[int]:
    """The shape of a capture's stand-in, with the batch axis that the tensor had."""
    shape = list(value.shape)
    place = tensor.axis_index("batch")
    if place is not None:
        shape[place] = q.shape[0]
    return shape


@contextmanager
def stand_in(spec: AttentionSpec) -> Iterator[StandIn]:
    """While open, compiling for a target with kernels makes stand-ins for `spec`, and tensors of the CPU are let in."""
    made = StandIn(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "compiled_kernel", made.compile)
        patch.setattr(kernels, "check_here", lambda target, device: target)
        yield made
