"""A launch prepared once for a layout of arguments, and repeated for as long as calls have that layout.

What a call may change without a new recipe: addresses, contents, and the values of numbers. Everything else, from the
names of the arguments to the device of each, is part of the layout, so a recipe that is found was checked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter, mul
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ..diagnostics import CallError, Diagnostics
from ..expr import INT
from ..expr.operators import I32_MAX, I32_MIN
from ..reference import lse_axes
from ..spec.model import MAX_SEQUENCE, Param, Slice
from .binding import Call
from .dtypes import TORCH_DTYPES
from .parameters import F32_MAX
from .signature import Signature

TMA_BYTES = 16  # alignment of addresses and strides (PTX ISA, tensor maps)
SINK_BYTES = 2**20  # of the largest lse that is thrown away without memory of its own
L2_BYTES = 32 * 2**20  # of keys and values that heads running side by side may share; an H200 has 50 MiB
_ALIGNMENT = TMA_BYTES - 1
Layout = tuple[Any, ...]
Strides = tuple[int, ...]


def layout_of(args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None) -> Layout | None:
    """What a recipe depends on, hashable; None for arguments that no recipe is made for."""
    recording = torch.is_grad_enabled()
    try:
        found: list[Any] = [*kwargs]
        for value in (*args, *kwargs.values(), out, lse):
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                if recording and value.requires_grad:
                    return None
                found += (value.shape, value.stride(), value.dtype, value.device)
            elif value is None or kind is int or kind is float:
                found.append(kind)
            else:
                return None
    except RuntimeError:  # a layout without strides
        return None
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Operand:
    """One of q, k, v, as TMA takes it."""

    place: int  # among the values of the call
    view: tuple[tuple[int, ...], Strides, int] | None  # its shape, strides and offset in elements; None: as it comes
    stand_in: Tensor | None  # instead of a tensor without elements


class Buffer(NamedTuple):
    """An output."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    contiguous: Strides
    strides: Strides | None  # to launch with; None: the buffer's own
    bytes: int  # from its first element to its last

    def make(self, device: torch.device) -> Tensor:
        return torch.empty_strided(self.shape, self.contiguous, dtype=self.dtype, device=device)


@dataclass(frozen=True, eq=False)
class Number:
    """A parameter given as a number, which is checked at every call. (An infinite one is, in full.)"""

    place: int  # among the values of the call
    low: int | float
    high: int | float

    @staticmethod
    def of(param: Param, place: int) -> Number:
        low, high = (I32_MIN, I32_MAX) if param.type is INT else (-F32_MAX, F32_MAX)
        return Number(
            place,
            max(low, low if param.low is None else param.low),
            min(high, high if param.high is None else param.high),
        )


class Arguments(NamedTuple):
    """What a launch gets after lse: values of the call and constants of its layout, some of them changed."""

    pick: Callable[[Sequence[Any]], tuple[Any, ...]]  # of the call's values and the constants behind them
    constants: tuple[Any, ...]
    changes: tuple[tuple[int, Callable[[Any], Any]], ...]  # (place among the arguments, what becomes of it)
    fixed: tuple[Any, ...] | None  # all of them, if no call changes any

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if self.fixed is not None:
            return self.fixed
        picked = self.pick((*values, *self.constants))
        if not self.changes:
            return picked
        changed = list(picked)
        for place, change in self.changes:
            changed[place] = change(changed[place])
        return tuple(changed)


class Recipe(NamedTuple):
    """How calls of one layout run. New layouts make one, and a tuple is made in a fraction of a dataclass's time."""

    function: Callable[..., Any] | None  # None: the outputs have no elements
    device: torch.device
    operands: tuple[Operand, Operand, Operand]
    places: tuple[int, int, int] | None  # of q, k and v, if they are launched with as they are
    out: Buffer
    out_like_q: bool  # o is as q in shape, strides and dtype
    lse: Buffer
    arguments: Arguments | None  # None: as for `function`
    numbers: tuple[Number, ...]
    # (place, bytes from first to last element) of every tensor, if buffers are given
    inputs: tuple[tuple[int, int], ...]
    sink: Tensor | None  # memory for an lse that nobody reads; None: it gets memory like any other

    def __call__(
        self, values: Sequence[Any], out: Tensor | None, lse: Tensor | None, wants_lse: bool = True
    ) -> tuple[Tensor, Tensor] | None:
        """o and lse; None if something that the layout does not say is wrong: the caller then finds out what.

        Without `wants_lse`, and unless there is a buffer for it, what is in lse means nothing.
        """
        for number in self.numbers:
            if not number.low <= values[number.place] <= number.high:
                return None
        q, k, v = self.operands_of(values)
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & _ALIGNMENT:
            return None
        if (out is not None or lse is not None) and not self.apart(values, out, lse):
            return None
        return self._run(q, k, v, values, out, lse, wants_lse)

    def run(self, values: Sequence[Any], out: Tensor | None, lse: Tensor | None) -> tuple[Tensor, Tensor]:
        """o and lse of a call that was checked in full."""
        q, k, v = self.operands_of(values)
        return self._run(q, k, v, values, out, lse, True)

    def operands_of(self, values: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as a launch takes them."""
        if self.places is None:
            q, k, v = (_presented(operand, values) for operand in self.operands)
            return q, k, v
        place_q, place_k, place_v = self.places
        return values[place_q], values[place_k], values[place_v]

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        values: Sequence[Any],
        out: Tensor | None,
        lse: Tensor | None,
        wants_lse: bool,
    ) -> tuple[Tensor, Tensor]:
        if out is None:
            out = torch.empty_like(q) if self.out_like_q else self.out.make(self.device)
        if lse is None:
            lse = self.lse.make(self.device) if wants_lse or self.sink is None else self.sink
        if self.function is not None and self.arguments is not None:
            o = out if self.out.strides is None else out.as_strided(self.out.shape, self.out.strides)
            self.function(q, k, v, o, lse, self.arguments(values))
        return out, lse

    def apart(self, values: Sequence[Any], out: Tensor | None, lse: Tensor | None) -> bool:
        """Whether the buffers start where TMA can write and share no memory with anything."""
        o = 0 if out is None else out.data_ptr()
        o_end = o if out is None else o + self.out.bytes
        logs = o_end if lse is None else lse.data_ptr()
        logs_end = logs if lse is None else logs + self.lse.bytes
        if o & _ALIGNMENT or (o < logs_end and logs < o_end):
            return False
        for place, size in self.inputs:
            first = values[place].data_ptr()
            if (o < first + size and first < o_end) or (logs < first + size and first < logs_end):
                return False
        return True


def _presented(operand: Operand, values: Sequence[Any]) -> Tensor:
    if operand.stand_in is not None:
        return operand.stand_in
    tensor: Tensor = values[operand.place]
    if operand.view is None:
        return tensor
    shape, strides, offset = operand.view
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def make_recipe(
    call: Call,
    signature: Signature | None,
    function: Callable[..., Any] | None,
    places: Mapping[str, int],
    out: Tensor | None,
    lse: Tensor | None,
) -> Recipe:
    """The recipe for calls like `call`, whose tensors and parameters are given at `places` among their values.

    `signature` and `function` are None where there is nothing to launch. Raises CallError (E279) for a memory layout
    that TMA cannot read.
    """
    spec = call.spec
    problems = Diagnostics()
    operands = [_operand(call, name, places, problems) for name in ("q", "k", "v")]
    out_shape = tuple(call.extents[str(axis.name)] for axis in spec.output.axes)
    lse_shape = tuple(call.extents[str(axis.name)] for axis in lse_axes(spec))
    o_buffer = buffer_of(out_shape, TORCH_DTYPES[spec.output.dtype], None if out is None else out.stride())
    axes = [str(axis.name) for axis in spec.output.axes]
    o_strides = _tma_strides(
        "out", out_shape, o_buffer.contiguous if out is None else out.stride(), axes, o_buffer.dtype, problems
    )
    if out is not None and out.data_ptr() & _ALIGNMENT:
        _report_address("out", problems)
    if problems.errors:
        raise CallError(problems.errors)
    given = {**call.tensors, **{name: value for name, value in call.params.items() if isinstance(value, Tensor)}}
    lse_buffer = buffer_of(lse_shape, torch.float32, None if lse is None else lse.stride())
    plain = all(operand.view is None and operand.stand_in is None for operand in operands)
    q = call.tensors["q"]
    return Recipe(
        function=function,
        device=call.device,
        operands=(operands[0], operands[1], operands[2]),
        places=(operands[0].place, operands[1].place, operands[2].place) if plain else None,
        out=Buffer(out_shape, o_buffer.dtype, o_buffer.contiguous, o_strides, o_buffer.bytes),
        out_like_q=plain
        and o_strides is None
        and (q.shape, q.stride(), q.dtype) == (out_shape, o_buffer.contiguous, o_buffer.dtype),
        lse=lse_buffer,
        arguments=None if signature is None else _arguments(call, signature, places),
        numbers=tuple(
            Number.of(param, places[param.name])
            for param in spec.params
            if param.name in places and not isinstance(call.params[param.name], Tensor)
        ),
        inputs=tuple(
            (places[name], reach(tensor.shape, tensor.stride()) * tensor.element_size())
            for name, tensor in given.items()
            if tensor.numel() and (out is not None or lse is not None)
        ),
        sink=sink_of(lse_buffer, call.device),
    )


@lru_cache(maxsize=256)
def sink_of(lse: Buffer, device: torch.device) -> Tensor | None:
    """Memory for an `lse` that nobody reads; None if it is too large."""
    return _sink(device).as_strided(lse.shape, lse.contiguous) if lse.bytes <= SINK_BYTES else None


@cache
def _sink(device: torch.device) -> Tensor:
    """Memory that kernels of every stream write at once and nobody reads. It lives as long as the process, so that a
    CUDA graph may keep writing there."""
    return torch.empty(SINK_BYTES // 4, dtype=torch.float32, device=device)


@lru_cache(maxsize=256)
def buffer_of(shape: tuple[int, ...], dtype: torch.dtype, given: Strides | None) -> Buffer:
    """An output of `shape`: with strides `given`, or dense."""
    contiguous, step = [], 1
    for extent in reversed(shape):
        contiguous.append(step)
        step *= max(extent, 1)
    contiguous.reverse()
    elements = 0 if 0 in shape else step if given is None else reach(shape, given)
    return Buffer(shape, dtype, tuple(contiguous), None, elements * dtype.itemsize)


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor that has some."""
    span: int = sum(map(mul, strides, shape))
    return 1 + span - sum(strides)


def _operand(call: Call, name: str, places: Mapping[str, int], problems: Diagnostics) -> Operand:
    view = next((view for view in call.spec.views if view.name == name), None)
    given = call.tensors[name if view is None else view.base]
    tensor = given if view is None else given[tuple(_index(part) for part in view.slices)]
    place = places[name if view is None else view.base]
    if tensor.numel() == 0:
        # a tensor map has no extent of 0; the kernel is told the extent and visits no tile of this
        shape = [max(extent, 1) for extent in tensor.shape]
        return Operand(place, None, torch.zeros(shape, dtype=tensor.dtype, device=tensor.device))
    axes = [str(axis.name) for axis in call.spec.tensor(name).axes]
    strides = _tma_strides(name, tuple(tensor.shape), tensor.stride(), axes, tensor.dtype, problems)
    if tensor.data_ptr() & _ALIGNMENT:
        _report_address(name, problems)
    if view is None and strides is None:
        return Operand(place, None, None)
    offset = int(tensor.storage_offset() - given.storage_offset())
    return Operand(place, (tuple(tensor.shape), strides or tensor.stride(), offset), None)


def _index(part: Slice) -> slice | int:
    if part.kind == "select":
        return part.start
    return slice(None) if part.kind == "keep" else slice(part.start, part.stop)


def _report_address(name: str, problems: Diagnostics) -> None:
    message = f"{name} starts at an address that is no multiple of {TMA_BYTES} bytes"
    problems.error("E279", message, hint=f"{name}.clone() starts at one")


def _dense(name: str, inner: int, axes: int) -> str:
    """How to write a copy of a tensor of `axes` axes whose axis `inner` lies innermost in memory."""
    if inner == axes - 1:
        return f"{name}.contiguous()"
    return f"{name}.movedim({inner}, -1).contiguous().movedim(-1, {inner})"


def _tma_strides(
    name: str, shape: tuple[int, ...], given: Strides, axes: list[str], dtype: torch.dtype, problems: Diagnostics
) -> Strides | None:
    """Strides that TMA takes, None if `given` are such: axes of extent 1 may have any. Reports what cannot be read."""
    step = TMA_BYTES // dtype.itemsize
    inner = next(place for place, axis in enumerate(axes) if axis in ("dim", "dim_v"))
    strides = list(given)
    for place, extent in enumerate(shape):
        wrong = strides[place] != 1 if place == inner else strides[place] % step
        if extent == 1 and wrong:
            strides[place] = 1 if place == inner else shape[inner]
    if strides[inner] != 1:
        message = f"{name} has stride {strides[inner]} along {axes[inner]}, expected 1"
        problems.error(
            "E279", message, hint=f"make that axis the innermost in memory: {_dense(name, inner, len(axes))}"
        )
        return None
    for place, stride in enumerate(strides):
        if place != inner and stride % step:
            message = f"{name} has stride {stride} along {axes[place]}, expected a multiple of {step} elements"
            problems.error(
                "E279", f"{message} ({TMA_BYTES} bytes)", hint=f"{_dense(name, inner, len(axes))} has such strides"
            )
            return None
    return None if tuple(strides) == tuple(given) else tuple(strides)


def _arguments(call: Call, signature: Signature, places: Mapping[str, int]) -> Arguments:
    slots_k = slots_of(call, signature)
    constants: list[Any] = []
    found: list[int] = []  # place of each argument, among values and constants
    changes: list[tuple[int, Callable[[Any], Any]]] = []

    def constant(value: Any) -> None:
        found.append(len(places) + len(constants))
        constants.append(value)

    def given(name: str, change: Callable[[Any], Any] | None = None) -> None:
        if change is not None:
            changes.append((len(found), change))
        found.append(places[name])

    def tensor(name: str) -> None:
        value = call.tensors[name]
        is_bool = value.dtype is torch.bool
        if value.numel() == 0:
            one = torch.zeros(1, dtype=torch.uint8 if is_bool else value.dtype, device=value.device)
            constant(one.as_strided([1] * value.dim(), [0] * value.dim()))
        else:
            given(name, _as_bytes if is_bool else None)

    constant(slots_k)
    constant(pairs_per_section(call, signature)(slots_k))
    for name in signature.captures:
        tensor(name)
    for argument in signature.params:
        value = call.params[argument.name]
        kind = int if argument.is_int else float
        if argument.name not in places:
            constant(kind(value))
        elif isinstance(value, Tensor):
            given(argument.name, None if value.dim() else _as_vector)
        else:
            given(argument.name, None if type(value) is kind else kind)
    for axis in signature.sizes:
        constant(call.extents[axis])
    for name in signature.geometry:
        tensor(name)
    fixed = tuple(constants) if len(constants) == len(found) else None
    return Arguments(itemgetter(*found), tuple(constants), tuple(changes), fixed)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _as_vector(tensor: Tensor) -> Tensor:
    return tensor.reshape(1)


def slots_of(call: Call, signature: Signature) -> int:
    """The slots of k that a sequence, or all together, may have."""
    pages = None if signature.pages is None else call.tensors[signature.pages].shape[-1]
    return slots(signature, call.extents, pages)


def slots(signature: Signature, extents: Mapping[str, int], pages: int | None) -> int:
    """As `slots_of`; `pages` is the last extent of the tensor that has their numbers."""
    found = extents[signature.slots_k]
    return found if pages is None else min(found * pages, MAX_SEQUENCE)


def pairs_per_section(call: Call, signature: Signature) -> Callable[[int], int]:
    """From the slots of k to how many query heads run side by side, so that their keys and values stay in L2."""
    if not signature.longest_first:
        return lambda _: 1
    shared = call.extents["heads"] // call.extents[call.spec.kv_heads_axis] // signature.pack
    row = signature.row_elements * TORCH_DTYPES[call.spec.tensor("k").dtype].itemsize
    return lambda slots_k: shared * max(1, L2_BYTES // max(1, slots_k * row))
