"""The compiled object: a spec on a target, called with tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import reference
from ..diagnostics import CallError, Diagnostics
from ..expr import INT
from ..spec import plan_key
from ..spec.model import AttentionSpec, Axis, DType, Param
from ..spec.model import Tensor as SpecTensor
from . import torch_op
from .binding import Call, bind
from .dtypes import TORCH_DTYPES
from .kernel import Assembly, Kernel, KernelMetadata
from .launcher import Grid, Launcher, kernel_of, only_kernel
from .outputs import check_buffer
from .shortcut import Filler, Shortcut
from .torch_op import is_compiling


class Backend(Protocol):
    """What computes calls on a target."""

    @property
    def recent(self) -> Sequence[Shortcut]:
        """Shortcuts of calls without buffers; each tells whether it fits a call."""

    @property
    def recent_into(self) -> Sequence[Filler]:
        """Shortcuts of calls with buffers."""

    def quick(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None, wants_lse: bool
    ) -> tuple[Tensor, Tensor] | None:
        """o and lse of a call that needs no checks because it is like one before; None if it does.

        Without `wants_lse`, what is in lse means nothing unless it is a buffer.
        """

    def __call__(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """o and lse of the bound call of `args` and `kwargs`, dense unless they are the buffers, which are written."""

    @property
    def differentiable(self) -> bool:
        """Whether what a call returns has gradients of its own."""


@dataclass(frozen=True)
class ReferenceBackend:
    """PyTorch on any device."""

    precision: str  # of the arithmetic: "float32" or "float64"

    @property
    def differentiable(self) -> bool:
        return True

    @property
    def recent(self) -> Sequence[Shortcut]:
        return ()

    @property
    def recent_into(self) -> Sequence[Filler]:
        return ()

    def quick(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Tensor | None,
        lse: Tensor | None,
        wants_lse: bool,
    ) -> None:
        """The reference checks every call."""

    def __call__(
        self,
        call: Call,
        args: Sequence[Any],  # noqa: ARG002 - the call holds them
        kwargs: Mapping[str, Any],  # noqa: ARG002
        out: Tensor | None,
        lse: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        spec = call.spec
        o_value, lse_value = reference.attention(spec, call.tensors, call.params, precision=self.precision)
        o_value, lse_value = o_value.to(TORCH_DTYPES[spec.output.dtype]), lse_value.to(torch.float32)
        o_value = o_value.contiguous() if out is None else out.copy_(o_value)
        return o_value, lse_value.contiguous() if lse is None else lse.copy_(lse_value)


@dataclass(frozen=True, repr=False)
class CompiledAttention:
    """A spec on a target. Made by `attn_dsl.compile`; calling it never changes it. Threads may share it."""

    spec: AttentionSpec
    target: str  # as given to `attn_dsl.compile`
    backend: Backend

    def __call__(
        self,
        *args: Tensor,
        return_lse: bool | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        debug: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """o, or (o, lse): o in its declared dtype and axis order, lse in f32.

        Args:
            args: tensors in declared order.
            kwargs: tensors and parameters by name. A parameter is a number or a device tensor (see `docs/language.md`).
            return_lse: whether to return lse too; None: if the spec declares it or a buffer for it is given.
            out, lse: buffers to write into, of the declared dtype and shape. They are written only when nothing is
                wrong, and not while autograd records.
            debug: also check the contents of lengths, page tables and parameter tensors. Waits for the device. On the
                reference lengths and page tables are checked always.

        Gradients of targets with kernels are those of the reference, computed when they are asked for.

        Raises:
            CallError: everything that does not fit the spec, in one error (E270 to E279, E249, E243).
            UnsupportedError, PlanError: what the target cannot do for this call (E281, E282, E29x).
        """
        if return_lse is None:
            return_lse = self.spec.lse is not None or lse is not None
        if not (debug or is_compiling() or forward_ad._current_level >= 0):
            if out is None and lse is None:
                for shortcut in self.backend.recent:
                    quick = shortcut(args, kwargs, return_lse)
                    if quick is not None:
                        return quick
            else:
                for fill in self.backend.recent_into:
                    quick = fill(args, kwargs, out, lse, return_lse)
                    if quick is not None:
                        return quick
        found = self._longer(args, kwargs, out, lse, debug, return_lse)
        return found if return_lse else found[0]

    def _longer(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Tensor | None,
        lse: Tensor | None,
        debug: bool,
        wants_lse: bool,
    ) -> tuple[Tensor, Tensor]:
        """o and lse of a call that no shortcut fits."""
        if torch_op.has_to_dispatch():
            return torch_op.dispatch(self, args, kwargs, out, lse, debug)
        quick = None if debug else self.backend.quick(args, kwargs, out, lse, wants_lse)
        return self.checked(args, kwargs, out, lse, debug) if quick is None else quick

    def checked(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None, debug: bool
    ) -> tuple[Tensor, Tensor]:
        """o and lse of a call of which nothing is known yet."""
        if torch_op.looks_inside((*args, *kwargs.values())):
            return torch_op.dispatch(self, args, kwargs, out, lse, debug)
        call = bind(self.spec, args, kwargs, debug)
        self._check_buffers(call, out, lse)
        if not self.backend.differentiable and torch.is_grad_enabled() and _requires_grad(call):
            return torch_op.dispatch(self, args, kwargs, out, lse, debug)
        return self.backend(call, args, kwargs, out, lse)

    def _check_buffers(self, call: Call, out: Tensor | None, lse: Tensor | None) -> None:
        if out is None and lse is None:
            return
        problems = Diagnostics()
        tensors = {**call.tensors, **{name: v for name, v in call.params.items() if isinstance(v, Tensor)}}
        if out is not None:
            check_buffer("out", out, self.spec.output.dtype, self.spec.output.axes, call, tensors, problems)
            tensors["out"] = out
        if lse is not None:
            check_buffer("lse", lse, DType.F32, reference.lse_axes(self.spec), call, tensors, problems)
        if problems.errors:
            raise CallError(problems.errors)

    def __getitem__(self, grid: Grid | None) -> Launcher:
        """`compiled[grid](q, k, v, ..., o, lse, **params)`: a launch into given buffers, written as Triton's are.

        `grid` is None or the grid of the plan; another one is an error (E324).
        """
        return Launcher(self, grid)

    def warmup(self, *args: Tensor, **kwargs: Any) -> Kernel:
        """The kernel that a call of these arguments runs, compiled and not launched: needs no GPU.

        Raises UnsupportedError (E281) for a target without kernels, and what a call raises.
        """
        return kernel_of(self, args, kwargs)[0]

    @property
    def kernel(self) -> Kernel:
        """The kernel of this object, if calls and `warmup` have needed exactly one so far. Raises CallError (E325)."""
        return only_kernel(self)

    @property
    def asm(self) -> Assembly:
        """`asm["ptx"]`, `asm["cubin"]` and `asm["sass"]` of `kernel`."""
        return self.kernel.asm

    @property
    def metadata(self) -> KernelMetadata:
        """Name, target, warps, stages and shared memory of `kernel`."""
        return self.kernel.metadata

    @property
    def n_regs(self) -> int:
        """Registers per thread of `kernel` at launch."""
        return self.kernel.n_regs

    @property
    def n_spills(self) -> int:
        """32-bit words of local memory per thread of `kernel`."""
        return self.kernel.n_spills

    @cached_property
    def key(self) -> str:
        """Equal for compiled objects that compute the same: the name under which torch's graphs know them."""
        return f"{self.spec.name}/{self.target}/{plan_key(self.spec)[:16]}"

    def __repr__(self) -> str:
        inputs = [_tensor_text(tensor) for tensor in self.spec.tensors]
        inputs += [_param_text(param) for param in self.spec.params]
        output = f"o: {self.spec.output.dtype}[{_axes_text(self.spec.output.axes)}]"
        return f"CompiledAttention({self.spec.name!r}, target={self.target!r}: ({', '.join(inputs)}) -> {output})"


def _requires_grad(call: Call) -> bool:
    values = (*call.tensors.values(), *call.params.values())
    return any(isinstance(value, Tensor) and value.requires_grad for value in values)


def _axes_text(axes: tuple[Axis, ...]) -> str:
    return ", ".join(str(axis) for axis in axes)


def _tensor_text(tensor: SpecTensor) -> str:
    return f"{tensor.name}: {tensor.dtype}[{_axes_text(tensor.axes)}]"


def _param_text(param: Param) -> str:
    kind = "int" if param.type is INT else "float"
    per = f"[{param.per}]" if param.per else ""
    default = "" if param.default is None else f" = {param.default}"
    return f"{param.name}: {kind}{per}{default}"
