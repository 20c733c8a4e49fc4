"""Output buffers a caller gives: shape, dtype, device, and memory of their own (E278)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import Diagnostics
from ..spec.model import Axis, DType
from .binding import Call
from .dtypes import TORCH_DTYPES, spelling


def check_buffer(
    name: str,
    buffer: Any,
    dtype: DType,
    axes: tuple[Axis, ...],
    call: Call,
    others: Mapping[str, Tensor],
    problems: Diagnostics,
) -> None:
    """Reports to `problems` why the result may not be written into `buffer`; `others` are the tensors of the call."""
    if not isinstance(buffer, Tensor) or buffer.layout is not torch.strided:
        problems.error("E278", f"{name} is no strided tensor")
        return
    shape = [call.extents[str(axis.name)] for axis in axes]
    if list(buffer.shape) != shape:
        expected = f"{shape} = [{', '.join(str(axis) for axis in axes)}]"
        problems.error("E278", f"{name} has shape {list(buffer.shape)}, expected {expected}")
    if buffer.dtype != TORCH_DTYPES[dtype]:
        problems.error("E278", f"{name} has dtype {spelling(buffer.dtype)}, expected {dtype}")
    if buffer.device != call.device:
        problems.error("E278", f"{name} is on {buffer.device}, expected {call.device}, where the inputs are")
        return
    if overlaps_itself(buffer):
        problems.error("E278", f"two elements of {name} share memory (strides {list(buffer.stride())})")
    for other_name, other in others.items():
        if may_share(buffer, other):
            problems.error("E278", f"the memory of {name} overlaps the memory of {other_name}")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (buffer, *others.values())):
        problems.error(
            "E278",
            f"{name} cannot be written while autograd records",
            hint=f"leave {name}= away, or call under torch.no_grad()",
        )


def overlaps_itself(buffer: Tensor) -> bool:
    """Whether two elements may lie in the same place."""
    reach = 0  # elements that the axes of smaller stride span
    for stride, extent in sorted(zip(buffer.stride(), buffer.shape, strict=True)):
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def may_share(a: Tensor, b: Tensor) -> bool:
    """Whether the address ranges meet. Interleaved tensors count as sharing."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    (a_first, a_end), (b_first, b_end) = _addresses(a), _addresses(b)
    return a_first < b_end and b_first < a_end


def _addresses(tensor: Tensor) -> tuple[int, int]:
    reach = sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()
