"""Binding: the arguments of one call to the names of a spec, with every rule of a call checked (E270 to E279).

What can be seen without reading a tensor's contents is always checked. Contents (cumulative lengths, page tables,
parameters given as tensors) are read only with `debug=True`, because reading them waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import CallError, Diagnostics, did_you_mean
from ..reference.geometry import read_geometry
from ..spec.model import AttentionSpec, Param, Role
from ..spec.shapes import depends_on, solve_extents
from .dtypes import TORCH_DTYPES, spelling
from .parameters import bind_param, check_param_contents

Value = int | float | Tensor


@dataclass(frozen=True)
class Call:
    """A call that fits its spec."""

    spec: AttentionSpec
    tensors: Mapping[str, Tensor]  # every declared tensor
    params: Mapping[str, Value]  # every parameter, defaults filled in
    extents: Mapping[str, int]  # axis name -> extent, in elements
    device: torch.device


def bind(spec: AttentionSpec, args: Sequence[Any], kwargs: Mapping[str, Any], debug: bool = False) -> Call:
    """The call of `spec` with tensors in `args` in declared order, and tensors and parameters by name in `kwargs`.

    Raises one CallError with everything that is wrong: E270 to E274, E279, E249 and E243, and with `debug` also E275
    to E277 and the range of parameters given as tensors.
    """
    problems = Diagnostics()
    tensors, params = _by_name(spec, args, kwargs, problems)
    tensors = {tensor.name: tensors[tensor.name] for tensor in spec.tensors if tensor.name in tensors}
    readable = {name: value for name, value in tensors.items() if _check_tensor(spec, name, value, problems)}
    extents = solve_extents(spec, {name: tuple(value.shape) for name, value in readable.items()}, problems)
    _check_complete(spec, extents, readable, problems)
    device = next((value.device for value in readable.values()), torch.device("cpu"))
    values = {
        param.name: bind_param(param, params.get(param.name, param.default), extents, problems)
        for param in spec.params
        if param.name in params or param.default is not None
    }
    _check_devices({**readable, **{name: v for name, v in values.items() if isinstance(v, Tensor)}}, problems)
    if debug and not problems.errors:
        read_geometry(spec, readable, extents, problems)
        for param in spec.params:
            check_param_contents(param, values[param.name], problems)
    if problems.errors:
        raise CallError(problems.errors)
    return Call(spec, readable, {name: value for name, value in values.items() if value is not None}, extents, device)


def _by_name(
    spec: AttentionSpec, args: Sequence[Any], kwargs: Mapping[str, Any], problems: Diagnostics
) -> tuple[dict[str, Any], dict[str, Any]]:
    names = [tensor.name for tensor in spec.tensors]
    params = {param.name: param for param in spec.params}
    if len(args) > len(names):
        hint = "parameters are given by name" if params else None
        problems.error(
            "E270",
            f"{len(args)} tensors given by position, expected at most {len(names)}: {', '.join(names)}",
            hint=hint,
        )
    given: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            problems.error("E270", f"{name} is given twice, by position and by name")
        elif name not in names and name not in params:
            problems.error("E270", f"the spec has no tensor or parameter '{name}'", hint=_hint(spec, name))
        given[name] = value
    for tensor in spec.tensors:
        if tensor.name not in given:
            axes = ", ".join(str(axis) for axis in tensor.axes)
            problems.error("E270", f"{tensor.name} is missing, expected {tensor.dtype}[{axes}]")
    for param in spec.params:
        if param.name not in given and param.default is None:
            problems.error("E270", f"parameter '{param.name}' is missing; it has no default", hint=_how_to_give(param))
    return {n: v for n, v in given.items() if n in names}, {n: v for n, v in given.items() if n in params}


def _hint(spec: AttentionSpec, name: str) -> str | None:
    if any(name == constant for constant, _ in spec.constants) or any(name == axis for axis, _ in spec.fixed_axes):
        return f"'{name}' is a compile-time value: attn_dsl.compile(spec, {name}=...)"
    if any(name == view.name for view in spec.views):
        return f"'{name}' is a view of '{next(v.base for v in spec.views if v.name == name)}'; give that tensor"
    return did_you_mean(name, [*(t.name for t in spec.tensors), *(p.name for p in spec.params)])


def _how_to_give(param: Param) -> str:
    return f"give {param.name}= a number" + (f" or a tensor of shape [{param.per}]" if param.per else "")


def _check_tensor(spec: AttentionSpec, name: str, value: Any, problems: Diagnostics) -> bool:
    """Whether `value` is a tensor whose shape can be read; its dtype and layout are checked too."""
    expected = spec.tensor(name).dtype
    if not isinstance(value, Tensor):
        problems.error("E272", f"{name} is a {type(value).__name__}, expected a tensor of {expected}")
        return False
    if value.dtype != TORCH_DTYPES[expected]:
        problems.error(
            "E272",
            f"{name} has dtype {spelling(value.dtype)}, expected {expected}",
            hint=f"convert it ({name}.to({TORCH_DTYPES[expected]})) or declare '{name}' as {spelling(value.dtype)}"
            if value.dtype in TORCH_DTYPES.values() and spec.tensor(name).role is not Role.GEOMETRY
            else f"convert it: {name}.to({TORCH_DTYPES[expected]})",
        )
    if value.layout is not torch.strided:
        problems.error("E279", f"{name} has the layout {value.layout}, expected a strided tensor")
        return False
    return True


def _check_complete(
    spec: AttentionSpec, extents: Mapping[str, int], tensors: Mapping[str, Tensor], problems: Diagnostics
) -> None:
    """Every axis that an extent is computed from is decided by some tensor of the call."""
    if len(tensors) < len(spec.tensors) or problems.errors:
        return
    for tensor in spec.tensors:
        for name in {name for axis in tensor.axes for name in depends_on(axis)} - set(extents):
            problems.error("E271", f"no tensor decides the extent of axis '{name}' that {tensor.name} depends on")


def _check_devices(tensors: Mapping[str, Tensor], problems: Diagnostics) -> None:
    first = next(iter(tensors.items()), None)
    if first is None:
        return
    for name, value in tensors.items():
        if value.device != first[1].device:
            problems.error(
                "E273",
                f"{name} is on {value.device}, expected {first[1].device}, where {first[0]} is",
                hint=f"move it: {name}.to({str(first[1].device)!r})",
            )
        elif value.is_meta:
            problems.error("E279", f"{name} is on the meta device and has no memory to read")
