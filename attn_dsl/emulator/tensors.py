"""CPU tensors presented as device tensors: their DLPack description says CUDA device 0, the memory is the same."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch.overrides import TorchFunctionMode

_CUDA = 2  # kDLCUDA (DLPack, DLDeviceType)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Head(ctypes.Structure):
    """The first fields of a DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device", _Device)]


class Presented:
    """A CPU tensor as a consumer of DLPack sees it: on CUDA device 0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, **_options: object) -> object:
        capsule = torch._C._to_dlpack(self.tensor)
        head = _Head.from_address(_pointer(capsule, b"dltensor"))
        head.device.type, head.device.id = _CUDA, 0
        return capsule


class OnDevice(TorchFunctionMode):
    """Code written for a GPU says device="cuda": inside the device context that is the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if active_fake_mode() is None:  # fake tensors have no memory and may be on any device
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.to:
                args = (args[0], *(_host(value) for value in args[1:]))
            if "device" in kwargs:
                kwargs = {**kwargs, "device": _host(kwargs["device"])}
        return func(*args, **kwargs)


def _host(device: Any) -> Any:
    """`device`, or the CPU where it names a CUDA device."""
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("cpu")
    return device


def is_host_tensor(value: object) -> bool:
    """A real CPU tensor (fake tensors and those on a real device stay as they are)."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and not isinstance(value, FakeTensor)


def convert(value: Any, present: Callable[[torch.Tensor], object]) -> Any:
    """`value` with every CPU tensor in it, in tuples, lists and dataclasses as well, replaced by `present(tensor)`."""
    if isinstance(value, torch.Tensor):
        return present(value) if is_host_tensor(value) else value
    if isinstance(value, tuple):
        items = [convert(item, present) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [convert(item, present) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for field in fields(value):
            before = getattr(value, field.name)
            after = convert(before, present)
            if after is not before and field.init:
                changed[field.name] = after
        return replace(value, **changed) if changed else value
    return value
