"""Targets with kernels: from a bound call to a compiled kernel and its launch.

A kernel serves every value outside of its shape class: head dimensions, how many query heads share a tile, and whether
a parameter comes as a number or as a tensor. Everything else that it has built in is the spec's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, ShapeClass, sm90, sm100

from ..diagnostics import CallError, Diagnostic, Diagnostics, UnsupportedError
from ..expr import INT
from ..reference import lse_axes
from ..spec.model import AttentionSpec, Param
from .binding import Call, Value
from .dtypes import TORCH_DTYPES, spelling

TMA_BYTES = 16  # alignment of addresses and strides (PTX ISA, tensor maps)
L2_BYTES = 32 * 2**20  # of keys and values that heads running side by side may share; an H200 has 50 MiB
_REFERENCE = "target='reference' runs everywhere"
_PARAM_DTYPES = {torch.int32: "i32", torch.int64: "i64", torch.float64: "f64"}


@dataclass(frozen=True, eq=False)
class KernelTarget:
    """What one architecture has of its own."""

    name: str
    capability: tuple[int, int]  # compute capability
    hardware: str  # as messages name it
    arch: str  # that its kernels are compiled for
    refusals: Callable[[AttentionSpec], tuple[Diagnostic, ...]]
    select: Callable[[AttentionSpec, ShapeClass], ForwardPlan]
    pack_of: Callable[[AttentionSpec, int], int]
    build: Callable[[ForwardPlan], Callable[..., None]]  # needs CuTe DSL


def _build_sm90(plan: ForwardPlan) -> Callable[..., None]:
    from attn_dsl.kernels.sm90.build import compile_forward

    return compile_forward(plan)


def _build_sm100(plan: ForwardPlan) -> Callable[..., None]:
    from attn_dsl.kernels.sm100.build import compile_forward

    assert isinstance(plan, sm100.Sm100Plan)
    return compile_forward(plan)


SM90 = KernelTarget("sm90", (9, 0), "a Hopper GPU", "sm_90a", sm90.refusals, sm90.select, sm90.pack_of, _build_sm90)
SM100 = KernelTarget(
    "sm100", (10, 0), "a Blackwell GPU", "sm_100a", sm100.refusals, sm100.select, sm100.pack_of, _build_sm100
)
KERNEL_TARGETS = {target.name: target for target in (SM90, SM100)}


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of one spec on one target, compiled when a call first needs them."""

    spec: AttentionSpec
    target: KernelTarget
    compiled: dict[ShapeClass, Kernel] = field(default_factory=dict, repr=False)  # a cache: changes no result

    def __call__(self, call: Call, out: Tensor | None, lse: Tensor | None) -> tuple[Tensor, Tensor]:
        """o and lse of a bound call, written into the buffers that are given.

        Raises UnsupportedError (E281, E282) for what is not built or not here, CallError (E279) for a memory layout
        that TMA cannot read.
        """
        _check_here(self.target, call.device)
        _check_no_grad(self.target, call)
        with torch.cuda.device(call.device):
            return self.launch(call, out, lse)

    def launch(self, call: Call, out: Tensor | None, lse: Tensor | None) -> tuple[Tensor, Tensor]:
        """As calling, on whatever device CuTe DSL launches to."""
        spec = self.spec
        o_axes, l_axes = spec.output.axes, lse_axes(spec)
        if out is None:
            shape = [call.extents[str(axis.name)] for axis in o_axes]
            out = torch.empty(shape, dtype=TORCH_DTYPES[spec.output.dtype], device=call.device)
        if lse is None:
            shape = [call.extents[str(axis.name)] for axis in l_axes]
            lse = torch.empty(shape, dtype=torch.float32, device=call.device)
        if out.numel() and lse.numel():
            kernel = self.kernel(shape_class(call, self.target))
            operands = _operands(call, out)
            kernel(*operands, lse, _arguments(kernel, call))
        return out, lse

    def kernel(self, shape: ShapeClass) -> Kernel:
        """The kernel of a shape class. Raises PlanError and UnsupportedError as `select` does."""
        if shape not in self.compiled:
            self.compiled[shape] = Kernel.of(self.spec, shape, self.target)
        return self.compiled[shape]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled plan."""

    plan: ForwardPlan
    function: Callable[..., None]

    @staticmethod
    def of(spec: AttentionSpec, shape: ShapeClass, target: KernelTarget) -> Kernel:
        plan = target.select(spec, shape)
        if find_spec("cutlass") is None:
            message = f"target '{target.name}' compiles with CuTe DSL, which is not installed"
            raise UnsupportedError.of("E282", message, hint="pip install 'attn-dsl[cute]'")
        return Kernel(plan, target.build(plan))

    def __call__(self, *args: Any) -> None:
        self.function(*args)


def shape_class(call: Call, target: KernelTarget) -> ShapeClass:
    """What a call decides at compile time."""
    spec = call.spec
    params = tuple(
        _param_argument(param, call.params[param.name]) for param in spec.params if param.name in call.params
    )
    group = call.extents["heads"] // call.extents[spec.kv_heads_axis]
    return ShapeClass(call.extents["dim"], call.extents[spec.dim_v_axis], params, target.pack_of(spec, group))


def _param_argument(param: Param, value: Value) -> ParamArgument:
    is_int = param.type is INT
    form, dtype = "number", "i32" if is_int else "f32"
    if isinstance(value, Tensor):
        form = "axis_tensor" if value.dim() else "scalar_tensor"
        dtype = _PARAM_DTYPES.get(value.dtype) or spelling(value.dtype)
    return ParamArgument(param.name, is_int, param.per, form, dtype, param.low, param.high)


def _check_here(target: KernelTarget, device: torch.device) -> None:
    if device.type != "cuda":
        message = f"target '{target.name}' runs on CUDA tensors of {target.hardware}, not on {device}"
        raise UnsupportedError.of("E282", message, hint=_REFERENCE)
    found = _capability(device)
    if found != target.capability:
        needed = ".".join(map(str, target.capability))
        message = f"target '{target.name}' needs compute capability {needed}, {device} has {found[0]}.{found[1]}"
        raise UnsupportedError.of("E282", message, hint=_REFERENCE)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _check_no_grad(target: KernelTarget, call: Call) -> None:
    if not torch.is_grad_enabled():
        return
    values = {**call.tensors, **{name: value for name, value in call.params.items() if isinstance(value, Tensor)}}
    wanting = [name for name, value in values.items() if value.requires_grad]
    if wanting:
        message = f"target '{target.name}' has no backward, and {wanting[0]} requires a gradient"
        raise UnsupportedError.of("E281", message, hint="call under torch.no_grad(), or use target='reference'")


def _operands(call: Call, out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and o as TMA takes them."""
    problems = Diagnostics()
    spec = call.spec
    found = []
    for name, tensor in (("q", call.tensors["q"]), ("k", call.tensors["k"]), ("v", call.tensors["v"]), ("out", out)):
        axes = [str(axis.name) for axis in (spec.output.axes if name == "out" else spec.tensor(name).axes)]
        if name in ("k", "v") and tensor.numel() == 0:
            # a tensor map has no extent of 0; the kernel is told the extent and visits no tile of this
            tensor = tensor.new_zeros([max(extent, 1) for extent in tensor.shape])
        found.append(_tma_tensor(name, tensor.detach(), axes, problems))
    if problems.errors:
        raise CallError(problems.errors)
    q, k, v, o = found
    return q, k, v, o


def _tma_tensor(name: str, tensor: Tensor, axes: list[str], problems: Diagnostics) -> Tensor:
    """`tensor` with strides that TMA takes, where axes of extent 1 get some; reports what cannot be read."""
    step = TMA_BYTES // tensor.element_size()
    inner = next(place for place, axis in enumerate(axes) if axis in ("dim", "dim_v"))
    strides = list(tensor.stride())
    for place, extent in enumerate(tensor.shape):
        if extent == 1:
            strides[place] = 1 if place == inner else tensor.shape[inner]
    if strides[inner] != 1:
        message = f"{name} has stride {strides[inner]} along {axes[inner]}, expected 1"
        problems.error("E279", message, hint=f"make that axis the innermost in memory: {name}.contiguous()")
        return tensor
    for place, stride in enumerate(strides):
        if place != inner and stride % step:
            message = f"{name} has stride {stride} along {axes[place]}, expected a multiple of {step} elements"
            problems.error("E279", f"{message} ({TMA_BYTES} bytes)", hint=f"{name}.contiguous() has such strides")
            return tensor
    if tensor.data_ptr() % TMA_BYTES:
        message = f"{name} starts at an address that is no multiple of {TMA_BYTES} bytes"
        problems.error("E279", message, hint=f"{name}.clone() starts at one")
    return tensor if strides == list(tensor.stride()) else tensor.as_strided(tensor.shape, strides)


def _arguments(kernel: Kernel, call: Call) -> tuple[Any, ...]:
    plan = kernel.plan
    slots_k = call.extents["seq_k" if plan.lengths_k.cu_seqlens is None else "total_k"]
    return (
        slots_k,
        _pairs_per_section(plan, call, slots_k),
        *(_capture(call.tensors[capture.name]) for capture in plan.captures),
        *(_parameter(argument, call.params[argument.name]) for argument in plan.params),
        *(call.extents[axis] for axis in plan.sizes),
        *(_capture(call.tensors[name]) for name in plan.geometry),
    )


def _pairs_per_section(plan: ForwardPlan, call: Call, slots_k: int) -> int:
    """How many query heads run side by side so that their keys and values stay in the L2 cache."""
    if plan.order != "longest_first":
        return 1
    group = call.extents["heads"] // call.extents[call.spec.kv_heads_axis]
    one = max(1, slots_k * (plan.dim + plan.dim_v) * call.tensors["k"].element_size())
    return group // plan.pack * max(1, L2_BYTES // one)


def _capture(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.dtype is torch.bool:
        tensor = tensor.view(torch.uint8)
    if tensor.numel() == 0:
        return tensor.new_zeros(1).as_strided([1] * tensor.dim(), [0] * tensor.dim())
    return tensor


def _parameter(argument: ParamArgument, value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.detach().reshape(-1)
    return int(value) if argument.is_int else float(value)
