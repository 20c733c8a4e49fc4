"""The inputs of a command that evaluates a spec: what the options give, sizes nobody chose, the rest generated."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..diagnostics import Diagnostics, did_you_mean
from ..expr import INT, children_first
from ..runtime import Inputs, random_inputs
from ..spec import AttentionSpec, Role
from ..spec.names import STANDARD_AXES
from ..spec.shapes import axis_extent, depends_on, solve_extents
from . import values
from .console import UsageError
from .tensor_files import load_tensors
from .values import Number

_OPERANDS = (Role.QUERY, Role.KEY, Role.VALUE, Role.POOL)
_DRAWN = 4  # bytes of an element while it is drawn: f32
_OWN_EXTENT = 64  # of an axis that only captures have
_HEADS, _GROUP, _DIM = 8, 4, 64  # query heads, query heads per K/V head, elements: sizes nobody chose


def make_inputs(
    spec: AttentionSpec,
    options: argparse.Namespace,
    *,
    asked: Mapping[str, int | None],
    defaults: Mapping[str, int],
    device: str = "cpu",
    operands: bool = True,
) -> tuple[Inputs, list[str]]:
    """Inputs as `--shape`, `--param`, `--tensor` and `--seed` ask, and sentences on what was converted or invented.

    `asked`: extents from the command's own options, None where an option is not given. `defaults`: extents for axes
    that nothing else decides. Without `operands`, q, k and v are zeros that take no memory.
    Raises UsageError, FileError, CallError.
    """
    chosen = _chosen(spec, values.extents(options.shape), asked)
    tensors, converted = load_tensors(spec, options.tensor)
    params = {name: _param(spec, name, value) for name, value in values.params(spec, options.param).items()}
    settled = solve_extents(spec, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, Diagnostics())
    chosen |= _unsettled(spec, {**settled, **chosen}, defaults)
    own = {name: _OWN_EXTENT for name in _own_axes(spec) if name not in {**settled, **chosen}}
    chosen |= own
    _fits_memory(spec, {**settled, **chosen}, set(tensors), operands)
    inputs = random_inputs(
        spec, chosen, seed=options.seed, device=device, given={**tensors, **params}, operands=operands
    )
    return inputs, [*converted, *(f"{name}: {extent} entries" for name, extent in own.items()), *inputs.notes]


def _chosen(spec: AttentionSpec, shape: dict[str, int], asked: Mapping[str, int | None]) -> dict[str, int]:
    """The extents of `--shape` and of single options, which must name axes and not contradict each other."""
    axes = {name for tensor in spec.tensors for axis in tensor.axes for name in depends_on(axis)}
    axes |= {"batch", "seq_q", "seq_k"}  # of packed and paged tensors
    single = {name: extent for name, extent in asked.items() if extent is not None}
    options = {f"--shape {name}={extent}": name for name, extent in shape.items()}
    options |= {f"--{name.replace('_', '-')} {extent}": name for name, extent in single.items()}
    for option, name in options.items():
        if name not in axes:
            raise UsageError.say(f"{option}: no tensor has an axis '{name}'", did_you_mean(name, axes))
    for name, extent in single.items():
        if shape.get(name, extent) != extent:
            raise UsageError.say(f"--{name.replace('_', '-')} {extent} contradicts --shape {name}={shape[name]}")
    return {**shape, **single}


def notes_on_mask(spec: AttentionSpec, notes: Iterable[str]) -> list[str]:
    """The sentences about tensors and axes that decide who sees whom: what the mask and the alignment read, lengths."""
    roots = [spec.mask] if spec.align.offset is None else [spec.mask, spec.align.offset]
    nodes = list(children_first(roots))
    read = {str(node.attr) for node in nodes if node.op == "read"}
    named = read | {str(node.attr) for node in nodes if node.op == "size"}
    named |= {tensor.name for tensor in spec.tensors if tensor.role is Role.GEOMETRY}
    named |= {name for tensor in read for axis in spec.tensor(tensor).axes for name in depends_on(axis)}
    return [note for note in notes if note.partition(":")[0] in named]


def _own_axes(spec: AttentionSpec) -> list[str]:
    """Axes that only captures have, so that nothing else decides their extents."""
    own: dict[str, None] = {}
    taken = set(STANDARD_AXES)
    for tensor in spec.tensors:
        names = [name for axis in tensor.axes for name in depends_on(axis)]
        if tensor.role is Role.CAPTURE:
            own |= dict.fromkeys(names)
        else:
            taken.update(names)
    return [name for name in own if name not in taken]


def _fits_memory(spec: AttentionSpec, extents: Mapping[str, int], given: set[str], operands: bool) -> None:
    """Refuses to generate more than this machine's memory, instead of being ended by its system half-way."""
    needed = 0
    for tensor in spec.tensors:
        if tensor.name in given or (tensor.role in _OPERANDS and not operands):
            continue
        sizes = [axis_extent(axis, extents) for axis in tensor.axes]
        needed += _DRAWN * math.prod(size for size in sizes if size is not None)
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > present:
        raise UsageError.say(
            f"generating these tensors takes {needed / 2**30:,.1f} GiB, this machine has {present / 2**30:,.1f} GiB",
            "smaller extents need less",
        )


def _param(spec: AttentionSpec, name: str, value: Number | list[Number]) -> Number | Tensor:
    if not isinstance(value, list):
        return value
    return torch.tensor(value, dtype=torch.int32 if spec.param(name).type is INT else torch.float32)


def _unsettled(spec: AttentionSpec, settled: Mapping[str, int], defaults: Mapping[str, int]) -> dict[str, int]:
    """Extents for the axes that nothing settles."""
    found = {name: extent for name, extent in defaults.items() if name not in settled}
    for side, other in (("seq_q", "seq_k"), ("seq_k", "seq_q")):
        if side in found and other in settled:
            found[side] = settled[other]
    for side in ("q", "k"):
        if f"total_{side}" in settled:
            found.pop(f"seq_{side}", None)
    for name, extent in _cuts(spec).items():
        if name not in settled:
            found[name] = max(extent, found.get(name, 0))
    known = {**found, **settled}
    if "heads" not in known:
        known["heads"] = found["heads"] = _GROUP * known["kv_heads"] if "kv_heads" in known else _HEADS
    if "kv_heads" not in known and spec.kv_heads_axis == "kv_heads":
        found["kv_heads"] = known["heads"] // _GROUP if known["heads"] % _GROUP == 0 else 1
    if "dim" not in known:
        found["dim"] = _DIM
    return found


def _cuts(spec: AttentionSpec) -> dict[str, int]:
    """Axis name -> elements that the views need of it."""
    needed: dict[str, int] = {}
    for view in spec.views:
        for axis, part in zip(spec.tensor(view.base).axes, view.slices, strict=True):
            if axis.name is not None and part.kind == "range":
                needed[axis.name] = max(needed.get(axis.name, 0), part.stop)
            elif axis.name is not None and part.kind == "select":
                needed[axis.name] = max(needed.get(axis.name, 0), part.start + 1)
    return needed
