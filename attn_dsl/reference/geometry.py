"""Where the logical rows of each sequence lie in storage: lengths, cumulative lengths, padding, page lists.

`docs/language.md`, "Lengths" and "Paging", is the meaning. Storage is a tensor's row axes flattened into one:
`batch, seq` or `total` or `pages, page_size`. Reading the geometry checks its contents (E275, E276, E277).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..diagnostics import Diagnostics
from ..spec.model import MAX_SEQUENCE, AttentionSpec, Lengths


@dataclass(frozen=True)
class Side:
    """The rows of q, or of k and v. Lists have one entry per batch entry."""

    starts: list[int]  # slot of logical row 0: left padding is in it, so is cu_seqlens
    lengths: list[int]  # logical rows
    packed_starts: list[int]  # cu_seqlens[b], where packed captures begin; zeros when nothing is packed
    pages: list[Tensor] | None  # paged: page numbers of each sequence, i64; slots then count from the first page
    page_size: int  # rows; 1 when not paged

    def rows(self, batch: range, logical: range, device: torch.device) -> Tensor:
        """Storage rows, i64[len(batch), len(logical)], of logical rows that exist."""
        index = torch.arange(logical.start, logical.stop, device=device)
        slots = index + torch.tensor([self.starts[b] for b in batch], device=device)[:, None]
        if self.pages is None:
            return slots
        pages = torch.stack([self.pages[b][slots[i] // self.page_size] for i, b in enumerate(batch)])
        return pages * self.page_size + slots % self.page_size


@dataclass(frozen=True)
class Geometry:
    """Both sides of a call. `uniform`: every sequence has the same lengths, so batch entries can go together."""

    q: Side
    k: Side
    batch: int
    uniform: bool

    def groups(self, most: int) -> Iterator[range]:
        """Batch entries in order, at most `most` together, and only one where lengths may differ."""
        step = max(1, most) if self.uniform else 1
        for first in range(0, self.batch, step):
            yield range(first, min(first + step, self.batch))


def read_geometry(
    spec: AttentionSpec, tensors: Mapping[str, Tensor], extents: Mapping[str, int], problems: Diagnostics
) -> Geometry | None:
    """The geometry of a call whose shapes fit; None when `problems` got an error about its contents.

    Copies the geometry tensors to the host.
    """
    reader = _Reader(spec, tensors, extents, problems)
    q = reader.side(spec.lengths_q, "q", extents.get("seq_q", 0), extents.get("total_q", 0))
    if spec.paging is None:
        k = reader.side(spec.lengths_k, "k", extents.get("seq_k", 0), extents.get("total_k", 0))
    else:
        k = reader.paged_side(spec.lengths_k)
    if q is None or k is None:
        return None
    plain = Lengths()
    uniform = spec.paging is None and spec.lengths_q == plain and spec.lengths_k == plain
    return Geometry(q, k, reader.batch, uniform)


class _Reader:
    def __init__(
        self, spec: AttentionSpec, tensors: Mapping[str, Tensor], extents: Mapping[str, int], problems: Diagnostics
    ) -> None:
        self.spec, self.tensors, self.extents, self.problems = spec, tensors, extents, problems
        self.batch = extents["batch"]

    def side(self, lengths: Lengths, operand: str, extent: int, total: int) -> Side | None:
        if lengths.cu_seqlens is None:
            packed = [0] * self.batch
            first = [b * extent for b in range(self.batch)]
            capacity = [extent] * self.batch
        else:
            cumulative = self._cumulative(lengths.cu_seqlens, total, f"axis 'total_{operand}'")
            if cumulative is None:
                return None
            packed = first = cumulative[:-1]
            capacity = [after - before for before, after in pairwise(cumulative)]
        inner = self._inner(lengths, capacity)
        if inner is None:
            return None
        padding, sizes = inner
        return Side([a + b for a, b in zip(first, padding, strict=True)], sizes, packed, None, 1)

    def paged_side(self, lengths: Lengths) -> Side | None:
        paging, page_size = self.spec.paging, self.extents["page_size"]
        assert paging is not None
        if paging.table is not None:
            name, lists = paging.table, list(self.tensors[paging.table].long())
        else:
            assert paging.indices is not None
            assert paging.indptr is not None
            name, indices = paging.indices, self.tensors[paging.indices].long()
            cumulative = self._cumulative(paging.indptr, indices.numel(), f"{paging.indices}'s only axis")
            if cumulative is None:
                return None
            lists = [indices[start:stop] for start, stop in pairwise(cumulative)]
        inner = self._inner(lengths, [len(pages) * page_size for pages in lists])
        if inner is None:
            return None
        padding, sizes = inner
        for b, (pages, pad, size) in enumerate(zip(lists, padding, sizes, strict=True)):
            self._check_pages(name, b, pages, range(pad // page_size, -(-(pad + size) // page_size) if size else 0))
        if self.problems.errors:
            return None
        return Side(padding, sizes, [0] * self.batch, lists, page_size)

    def _cumulative(self, name: str, end: int, what: str) -> list[int] | None:
        values: list[int] = self.tensors[name].tolist()
        if values[0] != 0:
            self.problems.error("E275", f"{name}[0] is {values[0]}, expected 0")
            return None
        for i, (before, after) in enumerate(pairwise(values)):
            if after < before:
                self.problems.error(
                    "E275", f"{name}[{i + 1}] is {after}, less than {name}[{i}] = {before}; they never decrease"
                )
                return None
        if values[-1] > end:
            self.problems.error("E275", f"{name} ends at {values[-1]}, past {what}, which has {end} elements")
            return None
        return values

    def _inner(self, lengths: Lengths, capacity: list[int]) -> tuple[list[int], list[int]] | None:
        """Left padding and logical length per sequence of `capacity` slots."""
        capacity = [min(slots, MAX_SEQUENCE) for slots in capacity]
        used = self._bounded(lengths.used, capacity) if lengths.used else capacity
        padding = self._bounded(lengths.left_pad, capacity) if lengths.left_pad else [0] * self.batch
        if used is None or padding is None:
            return None
        return padding, [max(0, stop - pad) for stop, pad in zip(used, padding, strict=True)]

    def _bounded(self, name: str, capacity: list[int]) -> list[int] | None:
        values: list[int] = self.tensors[name].tolist()
        for b, (value, slots) in enumerate(zip(values, capacity, strict=True)):
            if not 0 <= value <= slots:
                self.problems.error("E276", f"{name}[{b}] is {value}, expected 0 to {slots}, the slots of sequence {b}")
                return None
        return values

    def _check_pages(self, name: str, b: int, pages: Tensor, needed: range) -> None:
        pool = self.extents["pages"]
        part = pages[needed.start : needed.stop]
        bad = ((part < 0) | (part >= pool)).nonzero()
        if len(bad):
            at = int(bad[0])
            self.problems.error(
                "E277",
                f"{name}: page {needed.start + at} of sequence {b} is {int(part[at])}, expected 0 to {pool - 1}, "
                f"a page of the pool",
            )
