"""The reference: attention as `docs/language.md` defines it, on torch tensors. The oracle of every other backend."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..diagnostics import CallError, Diagnostics
from ..expr import children_first
from ..expr.torch_values import TorchAlgebra, saturated
from ..spec.model import AttentionSpec, Axis, Param, Slice
from ..spec.model import Tensor as SpecTensor
from ..spec.shapes import solve_extents
from .blockwise import BlockwiseAttention, Problem, exact_products
from .geometry import Geometry, read_geometry
from .leaves import Leaves, visible_pairs

PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
_ROW_AXES = {"q": (("batch", "seq_q"), ("total_q",)), "k": (("batch", "seq_k"), ("total_k",), ("pages", "page_size"))}
_INNER = ("dim", "dim_v")

Value = int | float | Tensor


def attention(
    spec: AttentionSpec,
    tensors: Mapping[str, Tensor],
    params: Mapping[str, Value],
    *,
    precision: str = "float32",
    block_q: int | None = None,
    block_k: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse) in their declared axis order, not rounded: both have the dtype `precision`.

    `tensors`: every declared tensor, of any dtype; `params`: every parameter without a default. Inputs are converted
    to `precision` ("float32" or "float64") before any arithmetic. Blocks of `block_q` query rows and `block_k` keys
    (chosen to fit memory when None) change rounding only. Autocast is off inside; on CUDA, float32 products are as
    exact as `torch.backends.cuda.matmul` is set to make them. Without a declared `lse` its axes are
    [batch, heads, seq_q], or [heads, total_q] when q is packed.

    Differentiable in q, k, v (or what they are views of), float captures, float parameters given as tensors, and
    sinks, through o and lse; the backward recomputes each block. Not twice differentiable.

    Raises CallError: something missing (E270), shapes that do not fit (E271, E249, E243), or geometry out of range
    (E275, E276, E277).
    """
    with exact_products(next((tensor.device for tensor in tensors.values()), torch.device("cpu"))):
        return _attention(spec, tensors, params, PRECISIONS[precision], block_q, block_k)


def _attention(
    spec: AttentionSpec,
    tensors: Mapping[str, Tensor],
    params: Mapping[str, Value],
    dtype: torch.dtype,
    block_q: int | None,
    block_k: int | None,
) -> tuple[Tensor, Tensor]:
    leaves = _leaves(spec, tensors, params, dtype)
    bases = {"q", "k", "v", *(view.base for view in spec.views)} & set(tensors)
    # converted before they are cut, so that the gradients of two views of one tensor are added unrounded
    converted = {name: tensors[name].to(leaves.algebra.float_dtype) for name in bases}
    q, k, v = (_operand(spec, converted, name) for name in ("q", "k", "v"))
    names = tuple(leaves.values)
    problem = Problem(leaves, names, block_q, block_k)
    scale = leaves.scalar(spec.scale)
    sink = None if spec.sink is None else leaves.per_row(spec.sink)
    o, lse = BlockwiseAttention.apply(  # type: ignore[no-untyped-call]
        problem, q, k, v, scale, sink, *(leaves.values[name] for name in names)
    )
    if spec.descale_v is not None:
        o = o * _per_storage_row(leaves, leaves.per_row(spec.descale_v), o)
    if spec.lse_base == "2":
        lse = lse / math.log(2.0)
    row_axes = _row_axes(spec.tensor("q"), "q")
    row_shape = [leaves.extents[axis] for axis in row_axes]
    o = _in_order(o.unflatten(0, row_shape), (*row_axes, "heads", "dim"), spec.output.axes)
    return o, _in_order(lse.unflatten(0, row_shape), (*row_axes, "heads"), lse_axes(spec))


def _per_storage_row(leaves: Leaves, values: Tensor, o: Tensor) -> Tensor:
    """`values`[batch, heads] at the rows of `o` in storage order, [rows, heads, 1]; 1 on rows of no sequence."""
    owners = torch.full(o.shape[:1], -1, device=o.device)
    for b, length in enumerate(leaves.geometry.q.lengths):
        owners[leaves.geometry.q.rows(range(b, b + 1), range(length), o.device)] = b
    return torch.where((owners < 0)[:, None], 1.0, values[owners])[..., None]


def lse_axes(spec: AttentionSpec) -> tuple[Axis, ...]:
    """The axes of LSE: as declared, or [batch, heads, seq_q], or [heads, total_q] when q is packed."""
    if spec.lse is not None:
        return spec.lse.axes
    packed = spec.tensor("q").axis_index("total_q") is not None
    return tuple(Axis(name) for name in (("heads", "total_q") if packed else ("batch", "heads", "seq_q")))


def sequence_lengths(spec: AttentionSpec, tensors: Mapping[str, Tensor]) -> tuple[list[int], list[int]]:
    """Rows of q and rows of k of each sequence (`seq_q` and `seq_k` of expressions). Raises CallError."""
    geometry = _extents_and_geometry(spec, tensors)[1]
    return geometry.q.lengths, geometry.k.lengths


def mask_block(
    spec: AttentionSpec,
    tensors: Mapping[str, Tensor],
    params: Mapping[str, Value],
    *,
    batch: int,
    head: int,
    rows: slice,
    cols: slice,
) -> Tensor:
    """bool[rows, cols]: who sees whom at one batch entry and head, by indices local to the sequence.

    Slices are cut to the sequence's lengths. Raises CallError as `attention` does.
    """
    leaves = _leaves(spec, tensors, params, torch.float64)
    seq_q, seq_k = leaves.geometry.q.lengths[batch], leaves.geometry.k.lengths[batch]
    block = leaves.block(range(batch, batch + 1), range(seq_q)[rows], range(seq_k)[cols])
    return visible_pairs(leaves, block).expand(block.shape)[0, head]


def mask_pairs(
    spec: AttentionSpec, tensors: Mapping[str, Tensor], params: Mapping[str, Value], *, rows: slice, cols: slice
) -> Tensor:
    """The mask of every sequence and head at once: bool that broadcasts to [batch, heads, rows, cols].

    For calls whose sequences have one length; ValueError otherwise. Raises CallError as `attention` does.
    """
    leaves = _leaves(spec, tensors, params, torch.float64)
    lengths = {*zip(leaves.geometry.q.lengths, leaves.geometry.k.lengths, strict=True)}
    if len(lengths) > 1:
        raise ValueError(f"sequences of {len(lengths)} different lengths have no common rows and columns")
    seq_q, seq_k = next(iter(lengths), (0, 0))
    return visible_pairs(leaves, leaves.block(range(leaves.geometry.batch), range(seq_q)[rows], range(seq_k)[cols]))


def _leaves(
    spec: AttentionSpec, tensors: Mapping[str, Tensor], params: Mapping[str, Value], dtype: torch.dtype
) -> Leaves:
    extents, geometry = _extents_and_geometry(spec, tensors)
    algebra = TorchAlgebra(dtype, tensors[spec.tensors[0].name].device)
    operands = {"q", "k", "v", *(view.base for view in spec.views)}
    read = {str(node.attr) for node in children_first(spec.roots) if node.op == "read"}
    values = {tensor.name: tensors[tensor.name] for tensor in spec.tensors if tensor.name in read - operands}
    values |= {param.name: _parameter(param, params.get(param.name, param.default), algebra) for param in spec.params}
    return Leaves(spec, extents, geometry, values, algebra)


def _extents_and_geometry(spec: AttentionSpec, tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], Geometry]:
    problems = Diagnostics()
    for tensor in spec.tensors:
        if tensor.name not in tensors:
            problems.error("E270", f"{tensor.name} is missing")
    extents = solve_extents(spec, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, problems)
    geometry = None if problems.errors else read_geometry(spec, tensors, extents, problems)
    if geometry is None:
        raise CallError(problems.errors)
    return extents, geometry


def _parameter(param: Param, value: Value | None, algebra: TorchAlgebra) -> Tensor:
    """A parameter as a tensor; the contents of a given tensor are moved into the parameter's range."""
    if value is None:
        raise CallError.of("E270", f"parameter '{param.name}' has no default and no value was given")
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=algebra.dtype(param.type), device=algebra.device)
    return saturated(value.to(algebra.dtype(param.type)), param.type, param.low, param.high)


def _operand(spec: AttentionSpec, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """q, k or v as rows in storage order: [rows, heads, dim]."""
    view = next((view for view in spec.views if view.name == name), None)
    tensor = tensors[name] if view is None else tensors[view.base][tuple(_index(part) for part in view.slices)]
    declared = spec.tensor(name)
    row_axes = _row_axes(declared, "q" if name == "q" else "k")
    heads = "heads" if name == "q" else spec.kv_heads_axis
    inner = next(axis for axis in _INNER if declared.axis_index(axis) is not None)
    names = [axis.name for axis in declared.axes]
    order = [names.index(axis) for axis in (*row_axes, heads, inner)]
    return tensor.permute(order).flatten(0, len(row_axes) - 1)


def _index(part: Slice) -> slice | int:
    if part.kind == "select":
        return part.start
    return slice(None) if part.kind == "keep" else slice(part.start, part.stop)


def _row_axes(tensor: SpecTensor, operand: str) -> tuple[str, ...]:
    return next(axes for axes in _ROW_AXES[operand] if tensor.axis_index(axes[0]) is not None)


def _in_order(tensor: Tensor, axes: tuple[str, ...], wanted: tuple[Axis, ...]) -> Tensor:
    """`tensor` with its `axes` permuted to `wanted`; `dim` stands for the inner axis whatever its name."""
    names = ["dim" if axis.name in _INNER else axis.name for axis in wanted]
    return tensor.permute([axes.index(str(name)) for name in names])
