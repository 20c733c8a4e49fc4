"""Launches and kernels as users of Triton write and inspect them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..diagnostics import CallError, UnsupportedError
from .binding import bind
from .kernel import Kernel
from .kernels import Kernels
from .splitting import Splitting

if TYPE_CHECKING:
    from .compiled import CompiledAttention

Grid = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Launcher:
    """What `compiled[grid]` is: a launch with raw tensors, inputs and outputs side by side."""

    compiled: CompiledAttention
    grid: Grid | None

    def __call__(self, *args: Tensor, **kwargs: Any) -> Kernel:
        """Writes o and lse; the kernel that did.

        Args:
            args: the tensors of the spec in declared order, then o, then lse, which may be left away.
            kwargs: tensors and parameters by name.

        Raises CallError (E270 to E279; E324 for another grid than the plan's), UnsupportedError (E281 without kernels).
        """
        count = len([tensor for tensor in self.compiled.spec.tensors if tensor.name not in kwargs])
        inputs, buffers = args[:count], args[count:]
        if not 1 <= len(buffers) <= 2:
            names = [tensor.name for tensor in self.compiled.spec.tensors if tensor.name not in kwargs]
            message = f"{len(args)} tensors given by position, expected {', '.join([*names, 'o'])} and maybe lse"
            raise CallError.of("E270", message)
        kernel, extents = kernel_of(self.compiled, inputs, kwargs)
        expected = kernel.signature.grid(extents)
        if isinstance(kernel.function, Splitting):
            expected = expected[0], kernel.function.count, expected[2]
        given = None if self.grid is None else tuple(self.grid) + (1,) * (3 - len(self.grid))
        if given not in (None, expected):
            message = f"grid {self.grid}; the plan of this kernel launches {expected}"
            raise CallError.of("E324", message, hint="give None: the plan knows its grid")
        self.compiled(*inputs, out=buffers[0], lse=buffers[1] if len(buffers) > 1 else None, **kwargs)
        return kernel


def kernel_of(
    compiled: CompiledAttention, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Kernel, Mapping[str, int]]:
    """The kernel that a call of these arguments runs, compiled if it has to be, and the extents of the call's axes.

    Raises UnsupportedError (E281) for a target without kernels, and what a call raises.
    """
    backend = _kernels(compiled)
    call = bind(compiled.spec, args, kwargs)
    kernel = backend.kernel_for(call)
    if kernel is None:
        raise CallError.of("E325", f"no kernel runs for outputs without elements: {dict(call.extents)}")
    return kernel, call.extents


def only_kernel(compiled: CompiledAttention) -> Kernel:
    """The one kernel that `compiled` has. Raises CallError (E325), UnsupportedError (E281) for a target without any."""
    backend = _kernels(compiled)
    kernels = list(backend.loaded.values())
    if len(kernels) != 1:
        dims = ", ".join(f"dim {shape.dim}, dim_v {shape.dim_v}" for shape in backend.loaded)
        has = f"{len(kernels)} kernels ({dims})" if kernels else "no kernel yet"
        hint = "warmup(q, k, v, ...) gives the kernel that a call of these tensors runs"
        raise CallError.of("E325", f"{compiled.spec.name} has {has}", hint=hint)
    return kernels[0]


def _kernels(compiled: CompiledAttention) -> Kernels:
    if not isinstance(compiled.backend, Kernels):
        message = f"target '{compiled.target}' has no kernels"
        raise UnsupportedError.of("E281", message, hint="target='sm90' and target='sm100' have")
    return compiled.backend
