"""Tensors from files: `.npy` through numpy, `.pt` through torch (weights only: a file cannot run code)."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ..diagnostics import did_you_mean
from ..expr import FLOAT, INT
from ..runtime.dtypes import TORCH_DTYPES, spelling
from ..spec import AttentionSpec, DType
from .console import FileError, UsageError
from .values import pairs


def load_tensors(spec: AttentionSpec, items: Iterable[str]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of `--tensor NAME=FILE` in their declared dtypes, and a sentence for each that was converted.

    A float file serves any float tensor (rounded to it), an integer file any integer tensor that holds its values:
    .npy knows no bf16 and numpy's integers are i64.
    """
    declared = {tensor.name: tensor for tensor in spec.tensors}
    found: dict[str, Tensor] = {}
    notes: list[str] = []
    for name, path in pairs("--tensor", items, "NAME=FILE").items():
        if name not in declared:
            raise UsageError.say(
                f"--tensor {name}={path}: the spec has no tensor '{name}'", did_you_mean(name, declared)
            )
        raw = _read(path)
        found[name] = _converted(name, path, raw, declared[name].dtype)
        if found[name].dtype != raw.dtype:
            notes.append(f"{name}: converted from {spelling(raw.dtype)} to {declared[name].dtype}")
    return found, notes


def _read(path: str) -> Tensor:
    kind = Path(path).suffix
    if kind not in (".npy", ".pt"):
        raise UsageError.say(f"--tensor {path}: '{kind}' is no tensor file this command reads", "use .npy or .pt")
    try:
        if kind == ".npy":
            return torch.from_numpy(_numpy_array(path))
        value = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FileError.say(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError.say(f"{path} holds no tensor: {reason}") from error
    if not isinstance(value, Tensor):
        raise FileError.say(
            f"{path} holds a {type(value).__name__}, not a tensor", "save one tensor: torch.save(t, path)"
        )
    return value.detach()


def _numpy_array(path: str) -> object:
    try:
        import numpy  # optional: only .npy files need it
    except ImportError:
        raise UsageError.say(f"--tensor {path}: reading .npy files needs numpy", "pip install numpy") from None
    return numpy.load(path, allow_pickle=False)


def _converted(name: str, path: str, raw: Tensor, dtype: DType) -> Tensor:
    wanted = TORCH_DTYPES[dtype]
    if raw.dtype == wanted:
        return raw
    fits = raw.dtype.is_floating_point if dtype.value_type is FLOAT else False
    if dtype.value_type is INT and not (raw.dtype.is_floating_point or raw.dtype.is_complex or raw.dtype == torch.bool):
        limits = torch.iinfo(wanted)
        fits = raw.numel() == 0 or (limits.min <= int(raw.min()) and int(raw.max()) <= limits.max)
        if not fits:
            raise UsageError.say(
                f"--tensor {name}={path}: values from {int(raw.min())} to {int(raw.max())} do not fit {dtype}"
            )
    if not fits:
        raise UsageError.say(f"--tensor {name}={path}: the file holds {spelling(raw.dtype)}, '{name}' is {dtype}")
    return raw.to(wanted)
