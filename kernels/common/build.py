"""Compiling a template: from what CuTe DSL traces to a function that takes tensors. Needs no GPU and no tensor."""

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from attn_dsl.kernels.common.launch import SPLIT
from attn_dsl.lowering.forward import ForwardPlan, ParamArgument

OPTIONS = "--enable-tvm-ffi --opt-level 3"
TMA_BYTES = 16  # alignment of addresses and strides (PTX ISA, tensor maps)
STORAGE = {
    "f32": cutlass.Float32,
    "f64": cutlass.Float64,
    "f16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "i64": cutlass.Int64,
    "i32": cutlass.Int32,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
    "i8": cutlass.Int8,
    "u8": cutlass.Uint8,
    "bool": cutlass.Uint8,
}


def operand(dtype: str, axes: tuple[str, ...], inner: str, extent: int) -> Any:
    """A tensor for TMA: axis `inner` of a fixed extent and stride 1, everything else decided at a call."""
    element = STORAGE[dtype]
    step = TMA_BYTES * 8 // element.width
    shape = tuple(extent if axis == inner else cute.sym_int() for axis in axes)
    stride = tuple(1 if axis == inner else cute.sym_int64(divisibility=step) for axis in axes)
    return cute.runtime.make_fake_tensor(element, shape, stride=stride, assumed_align=TMA_BYTES)


def tensor(dtype: str, rank: int) -> Any:
    """A tensor of any shape and strides."""
    element = STORAGE[dtype]
    shape = tuple(cute.sym_int() for _ in range(rank))
    stride = tuple(cute.sym_int64() for _ in range(rank))
    return cute.runtime.make_fake_tensor(element, shape, stride=stride, assumed_align=element.width // 8)


def _parameter(argument: ParamArgument) -> Any:
    if argument.form == "number":
        return Int32(0) if argument.is_int else Float32(0.0)
    return tensor(argument.dtype, 1)


def compile_template(template: Any, plan: ForwardPlan, arch: str, options: str = "") -> Callable[..., None]:
    """`template`, made for `plan`, as a function of (q, k, v, o, lse, arguments), compiled for `arch` ("sm_90a").

    `options` are further options of `cute.compile`, such as `--keep-ptx --dump-dir DIR`.
    """
    dim_v = "dim_v" if "dim_v" in plan.v_axes else "dim"
    first = (SPLIT,) if plan.partial else ()
    arguments = (
        Int32(0),
        Int32(1),
        *(tensor(capture.dtype, capture.rank) for capture in plan.captures),
        *(_parameter(argument) for argument in plan.params),
        *(Int32(0) for _ in plan.sizes),
        *(tensor("i32", 2 if plan.paging and name == plan.paging.table else 1) for name in plan.geometry),
    )
    return cute.compile(
        template,
        operand(plan.dtype, plan.q_axes, "dim", plan.dim),
        operand(plan.kv_dtype, plan.k_axes, "dim", plan.dim),
        operand(plan.kv_dtype, plan.v_axes, dim_v, plan.dim_v),
        operand("f32" if plan.partial else plan.o_dtype, (*first, *plan.o_axes), dim_v, plan.dim_v),
        tensor("f32", len((*first, *plan.lse_axes))),
        arguments,
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        options=f"{OPTIONS} --gpu-arch {arch} {options}".strip(),
    )
