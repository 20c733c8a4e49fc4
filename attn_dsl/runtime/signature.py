"""How a compiled kernel is called: what a launch needs to know of its plan, and what the kernel is like to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, grid


@dataclass(frozen=True)
class Signature:
    """The arguments of a kernel after q, k, v, o and lse, in their order, and what some of them are computed from."""

    target: str  # "sm90" | "sm100"
    arch: str  # that it is compiled for: "sm_90a"
    slots_k: str  # axis of k whose extent is the first argument: "seq_k" | "total_k" | "page_size"
    pages: str | None  # tensor whose last axis counts the pages, each with as many slots
    captures: tuple[str, ...]  # names of tensors
    params: tuple[ParamArgument, ...]
    sizes: tuple[str, ...]  # axes whose extents are arguments
    geometry: tuple[str, ...]  # names of tensors
    row_elements: int  # of a key and its value together
    pack: int  # query heads that share a tile
    longest_first: bool  # heads whose keys fit the L2 cache together run side by side
    tile_q: int  # rows of a tile: pairs of query row and packed head
    tile_k: int  # keys of a tile
    packed_q: bool  # whether the rows of all sequences lie behind each other
    threads: int  # of one block
    shared: int  # bytes of shared memory of one block
    stages: int  # tiles of K, and of V, in flight
    blocks: int  # that share a multiprocessor
    tile_blocks: int  # that work on one tile together

    @staticmethod
    def of(plan: ForwardPlan, arch: str) -> Signature:
        return Signature(
            target=plan.target,
            arch=arch,
            slots_k=_slots_axis(plan),
            pages=None if plan.paging is None else plan.paging.table or plan.paging.indices,
            captures=tuple(capture.name for capture in plan.captures),
            params=plan.params,
            sizes=plan.sizes,
            geometry=plan.geometry,
            row_elements=plan.dim + plan.dim_v,
            pack=plan.pack,
            longest_first=plan.order == "longest_first",
            tile_q=plan.tile_q,
            tile_k=plan.tile_k,
            packed_q=plan.lengths_q.cu_seqlens is not None,
            threads=plan.threads,
            shared=plan.shared_bytes,
            stages=plan.stages,
            blocks=plan.blocks,
            tile_blocks=plan.tile_blocks,
        )

    @staticmethod
    def of_join(target: str, arch: str) -> Signature:
        """Of a kernel that joins parts: it has no arguments after its outputs."""
        return Signature(
            target=target,
            arch=arch,
            slots_k="",
            pages=None,
            captures=(),
            params=(),
            sizes=(),
            geometry=(),
            row_elements=0,
            pack=1,
            longest_first=False,
            tile_q=0,
            tile_k=0,
            packed_q=False,
            threads=0,
            shared=0,
            stages=0,
            blocks=0,
            tile_blocks=1,
        )

    def grid(self, extents: Mapping[str, int]) -> tuple[int, int, int]:
        """Thread blocks of a launch with axes of `extents`: one for each tile of queries of the heads that share it, or
        as many as share the work of a tile, along the last axis."""
        slots = extents["total_q" if self.packed_q else "seq_q"]
        return grid.blocks(self, self.packed_q, extents["heads"], extents["batch"], slots), 1, self.tile_blocks

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Signature:
        """Raises TypeError or KeyError if `plain` is not what `as_dict` gives."""
        values: dict[str, Any] = {n: tuple(item) if isinstance(item, list) else item for n, item in plain.items()}
        values["params"] = tuple(ParamArgument(**item) for item in plain["params"])
        return Signature(**values)


def _slots_axis(plan: ForwardPlan) -> str:
    if plan.paging is not None:
        return "page_size"
    return "seq_k" if plan.lengths_k.cu_seqlens is None else "total_k"
