"""Random inputs that fit a spec: tensors, geometry and parameters, for tests, examples and the command line."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..diagnostics import CallError, Diagnostics, did_you_mean
from ..expr import INT
from ..spec.model import AttentionSpec, DType, Lengths, Param, Role
from ..spec.model import Tensor as SpecTensor
from ..spec.shapes import axis_extent, check_limits, depends_on, solve_extents
from .dtypes import TORCH_DTYPES

Value = int | float | Tensor
_PAGE_SIZE = 16  # rows of a page nobody chose
_SPARE_PAGES = 2  # pages of the pool that no sequence uses
_OPERANDS = (Role.QUERY, Role.KEY, Role.VALUE, Role.POOL)
_ROWS = ("seq_q", "seq_k", "total_q", "total_k")


@dataclass(frozen=True)
class Inputs:
    """Everything one call needs: `compiled(**inputs.tensors, **inputs.params)`."""

    tensors: dict[str, Tensor]
    params: dict[str, Value]
    extents: dict[str, int]  # axis name -> extent, in elements
    notes: tuple[str, ...]  # what was invented, in words


def random_inputs(
    spec: AttentionSpec,
    extents: Mapping[str, int],
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    given: Mapping[str, Value] | None = None,
    operands: bool = True,
) -> Inputs:
    """Valid inputs of `spec`, the same for the same seed.

    `extents`: axis name -> extent. Where q or k is packed or paged, `seq_q` or `seq_k` is the longest sequence (its
    slots, left padding included), and lengths vary; `total_q` or `total_k` may be given instead. Left-out axes:
    `batch` is 1, `kv_heads` is `heads`, `dim_v` is `dim`, pages have 16 rows, and the pool is as large as needed.
    `given`: tensors and parameters that are not to be invented. Without `operands`, q, k, v and their pools are zeros
    that take no memory: for callers that look at the mask alone.

    Floats are normally distributed. Int captures: along rows they are ids that never decrease (documents); per batch
    entry they are lengths up to `seq_k`; otherwise 0 to 127. A parameter without a default gets a small value of its
    range.

    Raises CallError: an axis that neither `extents` nor a given tensor decides, or extents that contradict each other
    (E271), extents out of range (E249, E243), or a name that the spec does not have (E270).
    """
    with torch.device("cpu"):  # drawn there, so that every device gets the same numbers
        return _Maker(spec, extents, seed, dict(given or {}), operands).make(torch.device(device))


class _Maker:
    def __init__(
        self, spec: AttentionSpec, extents: Mapping[str, int], seed: int, given: dict[str, Value], operands: bool
    ) -> None:
        self.spec, self.given, self.operands = spec, given, operands
        self.random = torch.Generator().manual_seed(seed)
        self.notes: list[str] = []
        self.tensors: dict[str, Tensor] = {name: v for name, v in given.items() if isinstance(v, Tensor)}
        self.asked = extents
        self.extents = self._extents()

    def make(self, device: torch.device) -> Inputs:
        params = {param.name: self._param(param) for param in self.spec.params if self._must_give(param)}
        self._side("q", self.spec.lengths_q)
        self._side("k", self.spec.lengths_k)
        for tensor in self.spec.tensors:
            if tensor.name not in self.tensors:
                self.tensors[tensor.name] = self._tensor(tensor)
        self._check_result()
        ordered = {t.name: self.tensors[t.name].to(device) for t in self.spec.tensors}
        moved = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in params.items()}
        return Inputs(ordered, moved, self.extents, tuple(self.notes))

    def _extents(self) -> dict[str, int]:
        problems = Diagnostics()
        names = {tensor.name for tensor in self.spec.tensors}
        known = names | {param.name for param in self.spec.params}
        for name in self.given:
            if name not in known:
                problems.error("E270", f"the spec has no tensor or parameter '{name}'", hint=did_you_mean(name, known))
        axes = {name for tensor in self.spec.tensors for axis in tensor.axes for name in depends_on(axis)}
        axes |= {"batch", "seq_q", "seq_k"}  # of packed and paged tensors
        for name in set(self.asked) - axes:
            problems.error("E270", f"no tensor has an axis '{name}'", hint=did_you_mean(name, axes))
        shapes = {name: tuple(value.shape) for name, value in self.tensors.items() if name in names}
        found = solve_extents(self.spec, shapes, problems)
        for name, extent in self.asked.items():
            if found.setdefault(name, extent) != extent:
                problems.error(
                    "E271", f"axis '{name}' is {found[name]} in the given tensors or the spec; asked for {extent}"
                )
        found.setdefault("batch", 1)
        if "heads" in found:
            found.setdefault("kv_heads", found["heads"])
        if "dim" in found:
            found.setdefault("dim_v", found["dim"])
        check_limits(self.spec, found, problems)
        if problems.errors:
            raise CallError(problems.errors)
        return found

    def _check_result(self) -> None:
        """Whether the tensors fit each other and what was asked for."""
        problems = Diagnostics()
        shapes = {tensor.name: tuple(self.tensors[tensor.name].shape) for tensor in self.spec.tensors}
        made = solve_extents(self.spec, shapes, problems)
        for name, extent in self.asked.items():
            if made.get(name, extent) != extent:
                problems.error("E271", f"axis '{name}' is {made[name]} in these tensors; asked for {extent}")
        if problems.errors:
            raise CallError(problems.errors)

    def _extent(self, name: str, what: str) -> int:
        if name not in self.extents:
            raise CallError.of(
                "E271",
                f"{what} needs the extent of axis '{name}'",
                hint=f"give it, for example {name}=64",
            )
        return self.extents[name]

    # -- lengths and pages ------------------------------------------------------------------------------------------

    def _side(self, side: str, lengths: Lengths) -> None:
        """cu_seqlens, used, left_pad and page lists of one side."""
        if lengths == Lengths():
            return
        slots = self._packed_slots(side, lengths.cu_seqlens) if lengths.cu_seqlens else None
        if slots is None:
            slots = [self._extent(f"seq_{side}", f"lengths {side}")] * self.extents["batch"]
        used = slots
        if lengths.used is not None:
            if lengths.used not in self.tensors:
                used = [self._upto(n) if b else n for b, n in enumerate(slots)]
                self._geometry(lengths.used, used, "random, the first sequence uses all its slots")
            used = self.tensors[lengths.used].tolist()
        if lengths.left_pad is not None and lengths.left_pad not in self.tensors:
            self._geometry(lengths.left_pad, [self._upto(n // 2) for n in used], "random, at most half of the slots")
        if side == "k" and self.spec.paging is not None:
            self._pages(used)

    def _packed_slots(self, side: str, name: str) -> list[int]:
        total, batch = self.extents.get(f"total_{side}"), self.extents["batch"]
        if name in self.tensors:
            cumulative = self.tensors[name].tolist()
        elif total is not None:
            cuts = torch.randint(0, total + 1, (max(0, batch - 1),), generator=self.random).sort().values.tolist()
            cumulative = [0, *cuts, total] if batch else [0]
        else:
            longest = self._extent(f"seq_{side}", f"packed {side}")
            lengths = [self._upto(longest) if b else longest for b in range(batch)]
            cumulative = [0, *itertools.accumulate(lengths)]
        if name not in self.tensors:
            self._geometry(name, cumulative, f"{batch} sequences of random lengths")
        self.extents.setdefault(f"total_{side}", cumulative[-1])
        return [after - before for before, after in itertools.pairwise(cumulative)]

    def _pages(self, used: list[int]) -> None:
        paging = self.spec.paging
        assert paging is not None
        page_size = self.extents.setdefault("page_size", _PAGE_SIZE)
        counts = [-(-n // page_size) for n in used]
        pool = self.extents.setdefault("pages", sum(counts) + _SPARE_PAGES)
        if (paging.table or paging.indices) in self.tensors:
            return
        if pool < sum(counts):
            raise CallError.of("E271", f"axis 'pages' is {pool}, and these sequences fill {sum(counts)} pages")
        shuffled = torch.randperm(pool, generator=self.random).tolist()
        starts = [0, *itertools.accumulate(counts)]
        lists = [shuffled[start:stop] for start, stop in itertools.pairwise(starts)]
        if paging.table is not None:
            axis, needed = self.spec.tensor(paging.table).axes[1], max([1, *counts])
            if axis.name is not None:
                self.extents.setdefault(axis.name, needed)
            width = axis_extent(axis, self.extents)
            if width is None or width < needed:
                raise CallError.of("E271", f"axis '{axis}' is {width}, and a sequence fills {needed} pages")
            rows = [[*pages, *[-1] * (width - len(pages))] for pages in lists]
            self._geometry(paging.table, rows, "shuffled pages, -1 past the last used one", (len(rows), width))
        if paging.indptr is not None and paging.indptr not in self.tensors:
            self._geometry(paging.indptr, starts, "pages of each sequence")
        if paging.indices is not None:
            self._geometry(paging.indices, shuffled[: starts[-1]], "shuffled pages")

    def _geometry(
        self, name: str, values: list[int] | list[list[int]], note: str, shape: tuple[int, ...] | None = None
    ) -> None:
        tensor = torch.tensor(values, dtype=torch.int32)
        self.tensors[name] = tensor if shape is None else tensor.view(shape)
        self.notes.append(f"{name}: {note}")

    def _upto(self, most: int) -> int:
        """A random int from 0 to `most`, both included."""
        return int(torch.randint(0, most + 1, (), generator=self.random))

    # -- other tensors and parameters -------------------------------------------------------------------------------

    def _tensor(self, tensor: SpecTensor) -> Tensor:
        shape: list[int] = []
        for axis in tensor.axes:
            for name in depends_on(axis):
                self._extent(name, tensor.name)
            extent = axis_extent(axis, self.extents)
            assert extent is not None
            shape.append(extent)
        if not self.operands and tensor.role in _OPERANDS:
            return torch.zeros((), dtype=TORCH_DTYPES[tensor.dtype]).expand(shape)
        if tensor.dtype is DType.BOOL:
            self.notes.append(f"{tensor.name}: true for three of four elements, at random")
            return torch.rand(shape, generator=self.random) < 0.75
        if tensor.dtype.value_type is INT:
            return self._ints(tensor, shape).to(TORCH_DTYPES[tensor.dtype])
        if tensor.role is Role.CAPTURE:
            self.notes.append(f"{tensor.name}: normally distributed")
        return torch.randn(shape, generator=self.random).to(TORCH_DTYPES[tensor.dtype])

    def _ints(self, tensor: SpecTensor, shape: list[int]) -> Tensor:
        last = tensor.axes[-1].name
        if last in _ROWS:
            self.notes.append(f"{tensor.name}: 4 ids that never decrease along {last}")
            return torch.randint(0, 4, shape, generator=self.random).sort(-1).values
        top = 127
        if last == "batch":
            top = max(0, self.extents.get("seq_k", top))
        self.notes.append(f"{tensor.name}: random, 0 to {top}")
        return torch.randint(0, top + 1, shape, generator=self.random)

    def _must_give(self, param: Param) -> bool:
        return param.default is None or param.name in self.given

    def _param(self, param: Param) -> Value:
        if param.name in self.given:
            return self.given[param.name]
        wish: int | float = max(1, self.extents.get("seq_k", 64) // 4) if param.type is INT else 1.0
        value = wish if param.low is None else max(param.low, wish)
        value = value if param.high is None else min(param.high, value)
        self.notes.append(f"{param.name}: {value}")
        return value
