"""The plan of a forward kernel: every decision of a compilation and no run-time value, so it is also the compile key.

A template asks its plan and never decides. Expressions stay expressions: the kernel evaluates them with the one
evaluator of `attn_dsl.expr`, over CuTe values.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from attn_dsl.expr import Expr
from attn_dsl.expr.text import to_text
from attn_dsl.lowering.forward.distances import DistanceTerm
from attn_dsl.spec.model import Lengths, Paging

WARPGROUP = 128  # threads
# Of one multiprocessor (CUDA C++ Programming Guide, compute capabilities 9.0 and 10.0)
MULTIPROCESSOR_REGISTERS = 65_536
MULTIPROCESSOR_SHARED = 233_472  # bytes
SHARED_RESERVED = 1_024 + 1_024  # bytes of a block that it cannot use, and those an aligned start may cost
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1}  # of q, k, v and o
NARROW_STAGES = (4, 3, 2)  # tiles of K, and of V, of 8 bits that may be in flight
NARROW_STEP = 16  # elements of 8 bits: 16 bytes, of one cp.async
SHARED_ALIGNMENT = 1024  # bytes: the period of the 128-byte swizzle
BARRIER_BYTES = 8  # of one mbarrier


def canonical(value: Any) -> str:
    """`value` as text that is equal for equal values only, in this and in every other process."""
    if isinstance(value, Expr):
        return f"Expr({to_text(value)!r}, {value.digest.hex()})"
    if isinstance(value, frozenset):
        return f"frozenset({sorted(canonical(item) for item in value)})"
    if isinstance(value, tuple):
        return f"({', '.join(canonical(item) for item in value)})"
    if dataclasses.is_dataclass(value):
        inside = ", ".join(f"{f.name}={canonical(getattr(value, f.name))}" for f in dataclasses.fields(value))
        return f"{type(value).__name__}({inside})"
    return repr(value)


@dataclass(frozen=True)
class CaptureArgument:
    """A captured tensor: a pointer and a layout. A `bool` tensor arrives as bytes; one without elements as one element
    that every index finds (strides of 0)."""

    name: str
    dtype: str  # spelling of the language: "f32", "i32", "bool", ...
    rank: int
    packed: tuple[tuple[int, str], ...] = ()  # (axis, "q" or "k"): its index counts from a sequence's first slot


@dataclass(frozen=True)
class ParamArgument:
    """A run-time parameter, as a number or as a device tensor; a tensor's elements are clamped into [low, high]."""

    name: str
    is_int: bool
    per: str | None  # axis of a parameter with one value per element of it: "heads", "kv_heads" or "batch"
    form: str  # "number" | "scalar_tensor" (one element) | "axis_tensor" (one element per element of `per`)
    dtype: str  # of the tensor: "i32" "i64" "f32" "f64" "f16" "bf16"; of a number: "i32" or "f32"
    low: int | float | None  # smallest legal value; None: the type's own
    high: int | float | None  # largest legal value


@dataclass(frozen=True)
class ShapeClass:
    """What a call decides at compile time besides its spec: head dimensions, and in which form parameters come."""

    dim: int  # elements
    dim_v: int  # elements
    params: tuple[ParamArgument, ...] = ()
    pack: int = 1  # query heads of a K/V head whose rows share a tile; 1: none do
    partial: bool = False  # the keys are split, and each part gives a result of its own
    page_size: int = 0  # rows of a page, where whole pages are copied; 0: no pages, or copied row by row


@dataclass(frozen=True)
class Bound:
    """One bound of a column range: an int expression of the row."""

    expr: Expr
    direction: str  # as the row grows: "fixed" | "rising" (never smaller) | "falling" (never larger) | "unknown"


@dataclass(frozen=True)
class PiecePlan:
    """The columns max(low) <= kv_idx < min(high) of rows max(row_low) <= q_idx < min(row_high), under conditions."""

    low: tuple[Bound, ...]  # inclusive
    high: tuple[Bound, ...]  # exclusive
    row_low: tuple[Expr, ...]  # inclusive; the same for all rows
    row_high: tuple[Expr, ...]  # exclusive; the same for all rows
    guard: tuple[Expr, ...]  # bools of the row
    leftover: tuple[Expr, ...]  # bools of row and column; tiles ignore them
    widths: tuple[Expr, ...]  # the same for all rows: the piece is empty if one is not positive


@dataclass(frozen=True)
class MaskPlan:
    """How a mask is applied. A tile of keys is visited if a `seen` piece touches it, and needs no mask code if it ends
    inside the sequence and no `hidden` piece touches it. Both unions may be larger than what the mask says."""

    kind: str  # "none" (always true) | "ranges" (rows see exactly the seen pieces) | "elements" (evaluated per element)
    mask: Expr
    seen: tuple[PiecePlan, ...]
    hidden: tuple[PiecePlan, ...]


@dataclass(frozen=True, repr=False)
class ForwardPlan:
    """The plan of one forward kernel; `repr` is canonical."""

    target: str  # "sm90"
    name: str  # of the spec
    dtype: str  # of q, and of the operands of matrix products: "f16" | "bf16"
    kv_dtype: str  # of k and v: `dtype`, or "e4m3" | "e5m2", which are widened to it
    o_dtype: str  # "f16" | "bf16"
    dim: int  # elements of a row of q and k
    dim_v: int  # elements of a row of v and o
    dim_padded: int  # elements of such a row in shared memory: a multiple of 16, the k of one wgmma
    dim_v_padded: int  # likewise
    tile_q: int  # rows: pairs of query row and packed head
    tile_k: int  # keys
    pack: int  # query heads of a K/V head whose rows share a tile; 1: none do
    stages: int  # tiles of K, and of V, in flight
    consumers: int  # warpgroups that multiply, of tile_q / consumers rows each
    registers_producer: int  # per thread, setmaxnreg
    registers_consumer: int  # per thread, setmaxnreg
    order: str  # of query tiles: "longest_first" | "in_order"
    fold_scale: bool  # score is the dot product times a positive scale: the scale goes into the exponential
    mask: MaskPlan
    score: Expr  # float over the leaf `score`
    logit: Expr  # score * log2(e) over the leaf `score` as the plain dot product, as the kernel computes it
    distances: tuple[DistanceTerm, ...]  # terms of `logit` that rows of one head share; a target may leave them be
    scale: Expr  # float, the same for all rows, heads and batch entries
    sink: Expr | None  # float of head and batch entry
    descale_v: Expr | None  # likewise: what the output is multiplied with
    shift: Expr  # q_pos - q_idx, an int of the batch entry
    lse_base: str  # "e" | "2"
    q_axes: tuple[str, ...]  # axis names in declared order
    k_axes: tuple[str, ...]
    v_axes: tuple[str, ...]
    o_axes: tuple[str, ...]
    lse_axes: tuple[str, ...]
    captures: tuple[CaptureArgument, ...]  # those that an expression of the plan reads
    params: tuple[ParamArgument, ...]  # likewise
    sizes: tuple[str, ...]  # axes whose extents are arguments
    lengths_q: Lengths  # the tensors that say where the rows of a sequence lie; without any they fill their axis
    lengths_k: Lengths
    paging: Paging | None  # the tensors that say in which pages the keys of a sequence lie
    page_size: int  # rows of a page, where TMA copies full tiles in boxes; 0: no pages, or copied row by row
    partial: bool  # a block sees a part of the keys; o and lse have an axis of parts, o is f32, lse in base 2
    wide: frozenset[Expr]  # int nodes that need 64 bits; every other int node of the plan fits 32
    unsigned: frozenset[Expr]  # divisions and remainders whose operands are never negative
    exact: frozenset[Expr]  # float divisions whose last bit a comparison or `floor` sees

    def __repr__(self) -> str:
        return canonical(self)

    @property
    def widens(self) -> bool:
        """Whether keys and values have 8 bits and become operands in shared memory."""
        return self.kv_dtype != self.dtype

    @property
    def geometry(self) -> tuple[str, ...]:
        """The tensors of lengths and paging in the order of arguments: i32, all but the table of one axis."""
        sides = (self.lengths_q, self.lengths_k)
        names = [name for side in sides for name in (side.cu_seqlens, side.used, side.left_pad)]
        if self.paging is not None:
            names += [self.paging.table, self.paging.indptr, self.paging.indices]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def tile_blocks(self) -> int:
        """Thread blocks that work on one tile together: a cluster."""
        return 1

    @property
    def threads(self) -> int:
        """Threads of one block: a warpgroup for the producer, then the consumers."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def blocks(self) -> int:
        """Thread blocks that share a multiprocessor."""
        return max(1, min(self._blocks_of_registers, MULTIPROCESSOR_SHARED // (self.shared_bytes + SHARED_RESERVED)))

    @property
    def _blocks_of_registers(self) -> int:
        """Thread blocks for which a multiprocessor has registers."""
        registers = WARPGROUP * (self.registers_producer + self.consumers * self.registers_consumer)
        return max(1, MULTIPROCESSOR_REGISTERS // registers)

    @property
    def narrow_stages(self) -> int:
        """Tiles of K, and of V, of 8 bits in flight: as many as leave all blocks that have registers their room."""
        room = MULTIPROCESSOR_SHARED // self._blocks_of_registers - SHARED_RESERVED - _sum(self._operand_map)
        return next((count for count in NARROW_STAGES if _sum(self._narrow_map(count)) <= room), NARROW_STAGES[-1])

    def _narrow_map(self, stages: int) -> tuple[tuple[str, int], ...]:
        rows = stages * self.tile_k * ELEMENT_BYTES[self.kv_dtype]
        columns = (("k", self.dim_padded), ("v", self.dim_v_padded))
        return tuple((f"{name} before it is widened", _aligned(rows * count)) for name, count in columns)

    @property
    def shared_map(self) -> tuple[tuple[str, int], ...]:
        """Regions of shared memory in their order, with their bytes."""
        return (*self._operand_map, *(self._narrow_map(self.narrow_stages) if self.widens else ()))

    @property
    def _operand_map(self) -> tuple[tuple[str, int], ...]:
        size, o_size = ELEMENT_BYTES[self.dtype], ELEMENT_BYTES[self.o_dtype]
        barriers = 2 * BARRIER_BYTES * (1 + 2 * self.stages)
        q = self.tile_q * self.dim_padded * size
        o = self.tile_q * self.dim_v_padded * o_size
        regions = (
            ("barriers", barriers),
            ("q, then o", max(q, o)),
            ("k ring", self.stages * self.tile_k * self.dim_padded * size),
            ("v ring", self.stages * self.tile_k * self.dim_v_padded * size),
        )
        return tuple((name, _aligned(bytes_)) for name, bytes_ in regions)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of one block."""
        return _sum(self.shared_map)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression that the kernel evaluates."""
        ends = (root for root in (self.sink, self.descale_v) if root is not None)
        distances = (term.of_distance for term in self.distances)
        return (self.mask.mask, self.logit, *distances, self.scale, *ends, self.shift, *piece_expressions(self.mask))


def _aligned(size: int) -> int:
    """Bytes of a region of shared memory."""
    return -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def _sum(regions: tuple[tuple[str, int], ...]) -> int:
    return sum(size for _, size in regions)


def piece_expressions(mask: MaskPlan) -> tuple[Expr, ...]:
    """The bounds and conditions by which tiles are found."""
    found: list[Expr] = []
    for piece in (*mask.seen, *mask.hidden):
        found += [bound.expr for bound in (*piece.low, *piece.high)]
        found += [*piece.row_low, *piece.row_high, *piece.guard, *piece.widths]
    return tuple(found)
