"""The shortest way of a call: tensors that are like those of a call before in everything but address and contents.

One function of torch's compares type, dtype, device, dispatch keys, shape and strides of all tensors, as compiled
graphs are guarded. Only an address can still be wrong then, and host code of kernels checks those before it launches.
This comparison and the allocator are what code written by torch.compile uses. They are private to torch, so where a
release does not have them, calls take the longer way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from .library import as_array
from .recipe import Buffer, Recipe

Outputs = Tensor | tuple[Tensor, Tensor]
Shortcut = Callable[[Sequence[Any], Mapping[str, Any], bool], Outputs | None]
Filler = Callable[[Sequence[Any], Mapping[str, Any], Tensor | None, Tensor | None, bool], Outputs | None]

RECENT = 4  # shortcuts that a call tries

_private: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_guards = getattr(_private, "TensorGuards", None)
_allocate = getattr(_private, "_empty_strided_cuda", None)


def make_shortcut(recipe: Recipe, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shortcut | None:
    """What computes calls like the one of `args` and `kwargs`, which `recipe` was made for; None if nothing can.

    The result is called with the positional and the named arguments of a call without buffers, and whether lse is to be
    returned too. It gives None for a call that is not like that one, and for one with something wrong.
    """
    read = _reader(recipe, args, kwargs, ())
    if read is None or recipe.function is None or recipe.arguments is None:
        return None
    operands = recipe.operands_of if recipe.places is None else itemgetter(*recipe.places)
    function, arguments = recipe.function, recipe.arguments
    fixed = None if arguments.fixed is None else as_array(arguments.fixed)
    make_out, make_lse = _maker(recipe.out, recipe.device), _maker(recipe.lse, recipe.device)
    sink = recipe.sink

    def general(args: Sequence[Any], kwargs: Mapping[str, Any], wants_lse: bool) -> Outputs | None:
        values = read(args, kwargs)
        if values is None:
            return None
        q, k, v = operands(values)
        out = make_out()
        lse = make_lse() if wants_lse or sink is None else sink
        try:
            function(q, k, v, out, lse, arguments(values) if fixed is None else fixed)
        except ValueError:  # an address; the longer way says which
            return None
        return (out, lse) if wants_lse else out

    if recipe.places != (0, 1, 2) or len(args) != 3 or kwargs or fixed is None:
        return general
    check = _guard(args)

    def plain(args: Sequence[Any], kwargs: Mapping[str, Any], wants_lse: bool) -> Outputs | None:
        if kwargs or len(args) != 3 or check is None or not check(*args):
            return None
        q, k, v = args
        out = make_out()
        lse = make_lse() if wants_lse or sink is None else sink
        try:
            function(q, k, v, out, lse, fixed)
        except ValueError:
            return None
        return (out, lse) if wants_lse else out

    return plain


def make_filler(
    recipe: Recipe, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None
) -> Filler | None:
    """As `make_shortcut`, for calls with buffers: like the call of `args` and `kwargs` into `out` and `lse`."""
    read = _reader(recipe, args, kwargs, [buffer for buffer in (out, lse) if buffer is not None])
    if read is None or recipe.function is None or recipe.arguments is None:
        return None
    operands = recipe.operands_of if recipe.places is None else itemgetter(*recipe.places)
    function, arguments, apart = recipe.function, recipe.arguments, recipe.apart
    fixed = None if arguments.fixed is None else as_array(arguments.fixed)
    make_out, make_lse = _maker(recipe.out, recipe.device), _maker(recipe.lse, recipe.device)
    sink, has_out, has_lse = recipe.sink, out is not None, lse is not None

    def fill(
        args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor | None, lse: Tensor | None, wants_lse: bool
    ) -> Outputs | None:
        if (out is not None) is not has_out or (lse is not None) is not has_lse:
            return None
        values = read(args, kwargs, *((out, lse) if has_out and has_lse else (out,) if has_out else (lse,)))
        if values is None or not apart(values, out, lse):
            return None
        q, k, v = operands(values)
        if out is None:
            out = make_out()
        if lse is None:
            lse = make_lse() if wants_lse or sink is None else sink
        try:
            function(q, k, v, out, lse, arguments(values) if fixed is None else fixed)
        except ValueError:
            return None
        return (out, lse) if wants_lse else out

    return fill


def _reader(
    recipe: Recipe, args: Sequence[Any], kwargs: Mapping[str, Any], buffers: Sequence[Tensor]
) -> Callable[..., tuple[Any, ...] | None] | None:
    """From arguments and buffers, if they are like these, to the values of the call; None if nothing can tell."""
    values = (*args, *kwargs.values())
    places = [place for place, value in enumerate(values) if isinstance(value, Tensor)]
    tensors = [*(values[place] for place in places), *buffers]
    if recipe.out.strides is not None or len(places) < 2:
        return None
    if any(type(tensor) is not Tensor or tensor.requires_grad for tensor in tensors):
        return None
    check = _guard(tensors)
    if check is None:
        return None
    count, names = len(args), tuple(kwargs)
    tensors_of: Any = itemgetter(*places) if len(places) < len(values) else None
    numbers = [(number.place, type(values[number.place]), number.low, number.high) for number in recipe.numbers]

    def read(args: Sequence[Any], kwargs: Mapping[str, Any], *buffers: Any) -> tuple[Any, ...] | None:
        if len(args) != count:
            return None
        if kwargs or names:
            if tuple(kwargs) != names:
                return None
            values = (*args, *kwargs.values())
        else:
            values = tuple(args)
        if not check(*(values if tensors_of is None else tensors_of(values)), *buffers):
            return None
        for place, kind, low, high in numbers:
            if type(values[place]) is not kind or not low <= values[place] <= high:
                return None
        return values

    return read


def _guard(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """Whether as many tensors are like `tensors`."""
    if _guards is None:
        return None
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        found: Callable[..., bool] = _guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return found if found(*tensors) else None
    except (TypeError, ValueError):  # a release whose guards are made in another way
        return None


def _maker(buffer: Buffer, device: torch.device) -> Callable[[], Tensor]:
    shape, strides, dtype = buffer.shape, buffer.contiguous, buffer.dtype
    if device.type != "cuda" or _allocate is None:
        return lambda: buffer.make(device)
    if torch.cuda.device_count() == 1:
        return partial(_allocate, shape, strides, dtype)
    allocate, current, index = _allocate, torch._C._cuda_getDevice, device.index

    def make() -> Tensor:
        if current() != index:  # the allocator knows no other
            return buffer.make(device)
        found: Tensor = allocate(shape, strides, dtype)
        return found

    return make
