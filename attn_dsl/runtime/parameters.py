"""Values of run-time parameters: numbers and tensors, their types and ranges (E274)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import Diagnostics
from ..expr import INT
from ..expr.operators import I32_MAX, I32_MIN
from ..spec.model import UNBOUNDED, Param

_TENSOR_DTYPES = {
    True: (torch.int32, torch.int64),
    False: (torch.float32, torch.float64, torch.float16, torch.bfloat16),
}
F32_MAX = torch.finfo(torch.float32).max


def bind_param(
    param: Param, value: Any, extents: Mapping[str, int], problems: Diagnostics
) -> int | float | Tensor | None:
    """`value` as an int, a float or a tensor that fits `param`; None when `problems` got an error."""
    if isinstance(value, Tensor):
        return _tensor(param, value, extents, problems)
    wanted = Integral if param.type is INT else Real
    if isinstance(value, bool) or not isinstance(value, wanted):
        hint = None
        if param.type is INT and isinstance(value, Real) and not isinstance(value, bool):
            hint = f"give a whole number: {param.name}={math.floor(value)}" if math.isfinite(value) else _UNBOUNDED_HINT
        problems.error(
            "E274", f"{_label(param)} is {value!r} ({type(value).__name__}), expected {_domain(param)}", hint=hint
        )
        return None
    number = int(value) if isinstance(value, Integral) else float(value)
    if not _fits(param, number):
        hint = _UNBOUNDED_HINT if param.type is INT and param.high is None and number < 0 else None
        problems.error("E274", f"{_label(param)} is {number}, expected {_domain(param)}", hint=hint)
        return None
    return number


_UNBOUNDED_HINT = f"for no limit give attn_dsl.UNBOUNDED ({UNBOUNDED})"


def check_param_contents(param: Param, value: int | float | Tensor | None, problems: Diagnostics) -> None:
    """Whether every element of a parameter given as a tensor lies in its range. Waits for the device."""
    if not isinstance(value, Tensor):
        return
    for place, number in enumerate(value.detach().flatten().tolist()):
        if not _fits(param, number):
            name = param.name if value.dim() == 0 else f"{param.name}[{place}]"
            problems.error("E274", f"parameter tensor {name} holds {number}, expected {_domain(param)}")
            return


def _fits(param: Param, number: int | float) -> bool:
    low, high = (I32_MIN, I32_MAX) if param.type is INT else (-math.inf, math.inf)
    if param.type is not INT and abs(number) > F32_MAX and not math.isinf(number):
        return False
    return (low if param.low is None else param.low) <= number <= (high if param.high is None else param.high)


def _tensor(param: Param, value: Tensor, extents: Mapping[str, int], problems: Diagnostics) -> Tensor | None:
    sound = True
    dtypes = _TENSOR_DTYPES[param.type is INT]
    if value.dtype not in dtypes:
        expected = ", ".join(str(dtype) for dtype in dtypes)
        problems.error("E274", f"{_label(param)} is a tensor of {value.dtype}, expected one of {expected}")
        sound = False
    shapes: list[tuple[int, ...]] = [()]
    if param.per is not None and param.per in extents:
        shapes.append((extents[param.per],))
    if tuple(value.shape) not in shapes and (param.per is None or param.per in extents):
        expected = "[]" if param.per is None else f"[] or [{param.per}] = [{extents[param.per]}]"
        problems.error("E274", f"{_label(param)} is a tensor of shape {list(value.shape)}, expected shape {expected}")
        sound = False
    return value if sound else None


def _label(param: Param) -> str:
    return f"parameter '{param.name}'"


def _domain(param: Param) -> str:
    """The parameter's type and range, as its declaration spells them."""
    if param.low is None and param.high is None:
        return f"{param.type}"
    low = "" if param.low is None else f"{param.low}"
    high = "" if param.high is None else f"={param.high}"
    return f"{param.type} in {low}..{high}"
