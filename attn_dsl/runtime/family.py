"""Recipes of layouts that are like one before in all but extents and strides: a longer K/V, another batch.

A call that was checked in full says which extents have to be equal, which decide the kernel, and what a launch is told
of the others. So the recipe of the next such layout takes some comparisons of integers. Whatever is not plain has none
of this and is checked in full: views, tensors without elements, strides that TMA does not take as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import chain
from operator import itemgetter, or_
from typing import Any

import torch
from torch import Tensor

from ..reference import lse_axes
from ..spec.model import AttentionSpec, Axis, largest_extent, smallest_extent
from ..spec.shapes import axis_extent, depends_on
from .binding import Call
from .dtypes import TORCH_DTYPES
from .kernel import Kernel
from .outputs import overlaps_itself
from .recipe import TMA_BYTES, Arguments, Layout, Recipe, buffer_of, pairs_per_section, reach, sink_of, slots
from .signature import Signature
from .splitting import parts_of

DECIDE = ("dim", "dim_v", "heads", "kv_heads", "page_size")  # axes whose extents are part of a family
_PER_TENSOR = 4  # entries of a layout: shape, strides, dtype, device

Places = Callable[[Sequence[Any]], tuple[Any, ...]]
Extents = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Running:
    """The kernel of a family."""

    kernel: Kernel  # of whole calls, or of parts
    whole: Signature | None  # says into how many parts a call is split; None: into one, whatever its sizes are
    split: Callable[[int], Callable[..., Any]] | None  # from the number of parts to what runs them; None: it is whole
    known: dict[int, Callable[..., Any]] = field(default_factory=dict)  # a cache of `split`

    def function(self, spec: AttentionSpec, extents: Extents, slots_k: int, device: torch.device) -> Any:
        """What runs a call of these sizes; None if that is another kernel."""
        count = 1 if self.whole is None else parts_of(spec, self.whole, extents, slots_k, device)
        if self.split is None or count == 1:
            return self.kernel.function if self.split is None and count == 1 else None
        if count not in self.known:
            self.known[count] = self.split(count)
        return self.known[count]


@dataclass(frozen=True, eq=False)
class Family:
    """Layouts with the same kernel. All extents of a call, one tensor behind the other, are one row of integers, behind
    the extents that decide the kernel."""

    spec: AttentionSpec
    length: int  # entries of a layout
    others: Places  # of a layout: all but shapes and strides
    same: tuple[Any, ...]  # what these are
    shapes: Places  # of a layout
    strides: Places  # likewise
    ranks: tuple[int, ...]
    decided: tuple[int, ...]  # extents that decide the kernel
    again: Places  # of the row: extents that have to be equal to
    first: Places  # these
    names: tuple[str, ...]  # axes
    places: Places  # of their extents in the row
    batch: int | None  # place of an extent of batch + 1 which alone says what batch is
    limits: tuple[tuple[str, int, int], ...]  # axis, smallest and largest extent
    formulas: tuple[tuple[int, Callable[[Extents], int | None]], ...]  # place in the row, and what is expected there
    pages: int | None  # place in the row of the last extent of the tensor with the numbers of pages
    # (tensor, inner axis, strides of the other axes, bits they may not have)
    tma: tuple[tuple[int, int, Places, int], ...]
    tensors: tuple[tuple[int, int], ...]  # (place among the values, bytes of an element) of each tensor
    out_shape: Callable[[Extents], tuple[int, ...]]
    lse_shape: Callable[[Extents], tuple[int, ...]]
    has_out: bool
    has_lse: bool
    casts: bool  # o has another dtype than q
    running: Running
    like: Recipe  # what stays
    pairs: Callable[[int], int]  # as `pairs_per_section` says
    defaults: tuple[Any, ...]  # arguments between the slots of k and extents

    def recipe(self, layout: Layout, out: Tensor | None, lse: Tensor | None) -> Recipe | None:
        """That of a layout; None if it is of another family, or something about it is unusual or wrong."""
        if len(layout) != self.length or self.others(layout) != self.same:
            return None
        shapes = self.shapes(layout)
        if tuple(map(len, shapes)) != self.ranks:
            return None
        row = (*self.decided, *chain.from_iterable(shapes))
        if 0 in row or self.again(row) != self.first(row):
            return None
        extents = self._extents(row)
        if extents is None:
            return None
        strides = self.strides(layout)
        for tensor, inner, outer, mask in self.tma:
            given = strides[tensor]
            if given[inner] != 1 or reduce(or_, outer(given)) & mask:
                return None
        for buffer in (out, lse):
            if buffer is not None and not buffer.is_contiguous() and overlaps_itself(buffer):
                return None
        return self._made(row, extents, shapes, strides)

    def _extents(self, row: tuple[int, ...]) -> Extents | None:
        extents = dict(zip(self.names, self.places(row), strict=True))
        if self.batch is not None:
            extents["batch"] = row[self.batch] - 1
        for name, low, high in self.limits:
            if not low <= extents[name] <= high:
                return None
        for place, expected in self.formulas:
            if row[place] != expected(extents):
                return None
        return extents

    def _made(
        self, row: tuple[int, ...], extents: Extents, shapes: Sequence[Any], strides: Sequence[Any]
    ) -> Recipe | None:
        spec, like, signature = self.spec, self.like, self.running.kernel.signature
        slots_k = slots(signature, extents, None if self.pages is None else row[self.pages])
        function = self.running.function(spec, extents, slots_k, like.device)
        if function is None or like.arguments is None:
            return None
        constants = (slots_k, self.pairs(slots_k), *self.defaults, *[extents[axis] for axis in signature.sizes])
        fixed = None if like.arguments.fixed is None else constants
        count = len(self.tensors)
        out = buffer_of(self.out_shape(extents), like.out.dtype, strides[count] if self.has_out else None)
        lse = buffer_of(self.lse_shape(extents), like.lse.dtype, strides[-1] if self.has_lse else None)
        inputs: list[tuple[int, int]] = []
        if self.has_out or self.has_lse:
            each = zip(self.tensors, shapes, strides, strict=False)  # buffers are behind them
            inputs += ((place, reach(shape, given) * size) for (place, size), shape, given in each)
        query = self.tma[0][0]
        return Recipe(
            function=function,
            device=like.device,
            operands=like.operands,
            places=like.places,
            out=out,
            out_like_q=not self.casts and shapes[query] == out.shape and strides[query] == out.contiguous,
            lse=lse,
            arguments=Arguments(like.arguments.pick, constants, like.arguments.changes, fixed),
            numbers=like.numbers,
            inputs=tuple(inputs),
            sink=None if self.has_lse else sink_of(lse, like.device),
        )


def make_family(
    call: Call,
    layout: Layout,
    values: Sequence[Any],
    places: Mapping[str, int],
    out: Tensor | None,
    lse: Tensor | None,
    like: Recipe,
    running: Running,
) -> Family | None:
    """The family of a checked call with the recipe `like`; None if something about it is unusual.

    `values` are its tensors and parameters, which `places` finds by name, and `layout` is theirs and the buffers'.
    """
    spec, signature = call.spec, running.kernel.signature
    if like.places is None or like.arguments is None or like.out.strides is not None or spec.views:
        return None
    names = {place: name for name, place in places.items()}
    entry = len(layout) - sum(_PER_TENSOR if isinstance(each, Tensor) else 1 for each in (*values, out, lse))
    starts: list[int] = []  # of tensors, in the layout
    tensors: list[tuple[str, Tensor, tuple[Axis, ...]]] = []
    for place, value in enumerate((*values, out, lse)):
        if isinstance(value, Tensor):
            name = names.get(place, "out" if place == len(values) else "lse")
            starts.append(entry)
            tensors.append((name, value, _axes(spec, name, value)))
        entry += _PER_TENSOR if isinstance(value, Tensor) else 1
    others = [place for place in range(len(layout)) if not any(place in (start, start + 1) for start in starts)]
    row = _Row(spec, call.extents)
    for name, _, axes in tensors:
        row.add(name, axes)
    batch = row.close()
    if not {*row.places, *(() if batch is None else ("batch",))} >= {*call.extents}:
        return None
    given = [name for name, _, _ in tensors]
    operands = [name for name in ("q", "k", "v", "out") if name in given]
    family = Family(
        spec=spec,
        length=len(layout),
        others=itemgetter(*others),
        same=itemgetter(*others)(layout),
        shapes=itemgetter(*starts),
        strides=itemgetter(*[start + 1 for start in starts]),
        ranks=tuple(value.dim() for _, value, _ in tensors),
        decided=row.decided,
        again=itemgetter(*row.again),
        first=itemgetter(*row.first),
        names=tuple(row.places),
        places=itemgetter(*row.places.values()),
        batch=batch,
        limits=row.limits(batch),
        formulas=tuple(row.formulas),
        pages=None if signature.pages is None else row.last[signature.pages],
        tma=tuple(_tma(given.index(name), *tensors[given.index(name)][1:]) for name in operands),
        tensors=tuple((places[name], value.element_size()) for name, value, _ in tensors if name in places),
        out_shape=itemgetter(*[str(axis.name) for axis in spec.output.axes]),
        lse_shape=itemgetter(*[str(axis.name) for axis in lse_axes(spec)]),
        has_out=out is not None,
        has_lse=lse is not None,
        casts=TORCH_DTYPES[spec.output.dtype] != call.tensors["q"].dtype,
        running=running,
        like=like._replace(sink=None),
        pairs=pairs_per_section(call, signature),
        defaults=like.arguments.constants[2 : len(like.arguments.constants) - len(signature.sizes)],
    )
    return None if family.recipe(layout, out, lse) is None else family


def _axes(spec: AttentionSpec, name: str, value: Tensor) -> tuple[Axis, ...]:
    if name == "out":
        return spec.output.axes
    if name == "lse":
        return lse_axes(spec)
    param = next((param for param in spec.params if param.name == name), None)
    if param is None:
        return spec.tensor(name).axes
    return (Axis(param.per),) if value.dim() else ()


def _tma(tensor: int, value: Tensor, axes: tuple[Axis, ...]) -> tuple[int, int, Places, int]:
    inner = next(place for place, axis in enumerate(axes) if axis.name in ("dim", "dim_v"))
    outer = itemgetter(*[place for place in range(len(axes)) if place != inner])
    return tensor, inner, outer, TMA_BYTES // value.element_size() - 1


class _Row:
    """What is known of the row of a family's extents."""

    def __init__(self, spec: AttentionSpec, extents: Extents) -> None:
        fixed = {*DECIDE, spec.kv_heads_axis, spec.dim_v_axis, *(name for name, _ in spec.fixed_axes)}
        decided = {name: extent for name, extent in extents.items() if name in fixed}
        self.decided = tuple(decided.values())
        self.places = {name: place for place, name in enumerate(decided)}  # of axes
        self.last: dict[str, int] = {}  # of the last extent of each tensor
        self.again: list[int] = []
        self.first: list[int] = []
        self.formulas: list[tuple[int, Callable[[Extents], int | None]]] = []
        self._cumulative = {spec.lengths_q.cu_seqlens, spec.lengths_k.cu_seqlens}
        if spec.paging is not None:
            self._cumulative.add(spec.paging.indptr)
        self._counts: list[int] = []  # places of batch + 1
        self._length = len(decided)

    def add(self, tensor: str, axes: Sequence[Axis]) -> None:
        """Appends the extents of a tensor."""
        for axis in axes:
            name = str(axis.name)
            if axis.extent is not None:
                if tensor not in self._cumulative:
                    self.formulas.append((self._length, _formula(axis)))
            elif name in self.places:
                self.again.append(self._length)
                self.first.append(self.places[name])
            else:
                self.places[name] = self._length
            self.last[tensor] = self._length
            self._length += 1
        if tensor in self._cumulative:
            self._counts.append(self._length - 1)

    def close(self) -> int | None:
        """After all tensors: the place of the extent that alone says what batch is, which is one less."""
        alone = self._counts[0] if self._counts and "batch" not in self.places else None
        self.formulas += ((place, _one_more) for place in self._counts if place != alone)
        return alone

    def limits(self, batch: int | None) -> tuple[tuple[str, int, int], ...]:
        """Of extents that a call may choose. (Those of 0 have no recipe from here.)"""
        chosen = [name for name, place in self.places.items() if place >= len(self.decided)]
        names = chosen if batch is None else [*chosen, "batch"]
        return tuple((name, max(1, smallest_extent(name)), largest_extent(name)) for name in names)


def _one_more(extents: Extents) -> int:
    return extents["batch"] + 1


def _formula(axis: Axis) -> Callable[[Extents], int | None]:
    names = depends_on(axis)

    @lru_cache(maxsize=256)
    def known(*values: int) -> int | None:
        return axis_extent(axis, dict(zip(names, values, strict=True)))

    return lambda extents: known(*[extents[name] for name in names])
