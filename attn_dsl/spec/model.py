"""The typed spec: what a file means, with every name resolved and every expression typed. Frozen and hashable.

Nothing here knows a tile, a GPU or a tensor's contents. `docs/language.md` is the normative text for each field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from ..expr import Expr, ValueType
from ..expr.node import Constant
from .display import DISPLAY

if TYPE_CHECKING:
    from pathlib import Path

    from ..syntax import tree

# Limits of the language. They keep every index and every difference of two positions inside i32.
MAX_SEQUENCE = 2**30  # rows of one sequence; q_pos lies in [-MAX_SEQUENCE, MAX_SEQUENCE)
MAX_HEADS = 2**16
MAX_BATCH = 2**24
MAX_EXTENT = 2**31 - 1  # extent of any other axis, in elements
AXIS_LIMITS = {
    "batch": MAX_BATCH,
    "heads": MAX_HEADS,
    "kv_heads": MAX_HEADS,
    "seq_q": MAX_SEQUENCE,
    "seq_k": MAX_SEQUENCE,
}  # largest extents; MAX_EXTENT for every other axis
EMPTY_AXES = ("batch", "seq_q", "seq_k", "total_q", "total_k", "pages")  # axes whose extent may be 0
UNBOUNDED = 2**31 - 1  # the value of the word `unbounded`: larger than any distance of two positions


def largest_extent(axis: str) -> int:
    """The largest extent the axis called `axis` may have."""
    return AXIS_LIMITS.get(axis, MAX_EXTENT)


def smallest_extent(axis: str) -> int:
    """The smallest extent the axis called `axis` may have."""
    return 0 if axis in EMPTY_AXES else 1


class DType(Enum):
    """Element types of tensors: spelling in the language, value type in expressions, bytes."""

    F32 = ("f32", ValueType.FLOAT, 4)
    F16 = ("f16", ValueType.FLOAT, 2)
    BF16 = ("bf16", ValueType.FLOAT, 2)
    E4M3 = ("e4m3", ValueType.FLOAT, 1)
    E5M2 = ("e5m2", ValueType.FLOAT, 1)
    I32 = ("i32", ValueType.INT, 4)
    I8 = ("i8", ValueType.INT, 1)
    U8 = ("u8", ValueType.INT, 1)
    BOOL = ("bool", ValueType.BOOL, 1)

    def __init__(self, spelling: str, value_type: ValueType, bytes: int) -> None:
        self.spelling = spelling
        self.value_type = value_type
        self.bytes = bytes

    def __str__(self) -> str:
        return self.spelling


class Role(Enum):
    """What a tensor of the call is for."""

    QUERY = "q"
    KEY = "k"
    VALUE = "v"
    POOL = "pool"  # storage that `view` cuts k and v from
    CAPTURE = "capture"  # read by an expression
    GEOMETRY = "geometry"  # lengths, cumulative lengths, padding, page tables: i32


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor: a name (`seq_q`), or an extent given as an expression of constants and axis names."""

    name: str | None  # None for an anonymous extent such as `2 * m - 1`
    extent: Expr | None = None  # over `const` and `size` leaves; None for a plain named axis

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        from ..expr.text import to_text

        return to_text(self.extent) if self.extent is not None else "_"


@dataclass(frozen=True)
class Tensor:
    """A tensor of the call, in the order of its declaration."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]
    role: Role

    def axis_index(self, name: str) -> int | None:
        """The place of the axis called `name`, or None."""
        return next((i for i, axis in enumerate(self.axes) if axis.name == name), None)


@dataclass(frozen=True)
class Slice:
    """One index of a view: `keep` the axis, or `select` one element, or cut elements [start, stop)."""

    kind: str  # "keep" | "select" | "range"
    start: int = 0  # element
    stop: int = 0  # element, exclusive; only for "range"


@dataclass(frozen=True)
class View:
    """`view v = k[:, :, :, 0..512]`: tensor `name` is a part of the declared tensor `base`, sharing its memory."""

    name: str  # "k" or "v"
    base: str  # a declared tensor
    slices: tuple[Slice, ...]
    tensor: Tensor  # the view's own axes and dtype, after the slices


@dataclass(frozen=True)
class Param:
    """A run-time parameter. A value may be a number or a device tensor of shape () or [axis]."""

    name: str
    type: ValueType  # INT or FLOAT
    per: str | None  # None, "heads", "kv_heads" or "batch": one value per element of that axis
    low: int | float | None  # smallest legal value, inclusive; None: the type's own limit
    high: int | float | None  # largest legal value, inclusive
    default: int | float | None  # None: must be given at every call


class AlignKind(Enum):
    BOTTOM_RIGHT = "bottom_right"  # q_pos = q_idx + seq_k - seq_q
    TOP_LEFT = "top_left"  # q_pos = q_idx
    OFFSET = "offset"  # q_pos = q_idx + offset


@dataclass(frozen=True)
class Align:
    kind: AlignKind = AlignKind.BOTTOM_RIGHT
    offset: Expr | None = None  # int over b, params, reads at b; only for OFFSET


@dataclass(frozen=True)
class Lengths:
    """Where the rows of one sequence lie in storage. Each field names a geometry tensor, or is None.

    start = cu_seqlens[b] (0 without), stop = cu_seqlens[b + 1], or start + used[b], or the end of the axis;
    row 0 is slot start + left_pad[b]; the length is stop - start - left_pad[b], at least 0.
    """

    cu_seqlens: str | None = None  # i32[batch + 1]: the tensor is packed along total_q or total_k
    used: str | None = None  # i32[batch]: slots in use, left padding included
    left_pad: str | None = None  # i32[batch]: slots skipped at the front; keys only


@dataclass(frozen=True)
class Paging:
    """Slot s of sequence b lies at row s % page_size of page table[b, s // page_size].

    With CSR lists the page is indices[indptr[b] + s // page_size]. `page_size` is the extent of k's axis `page_size`.
    """

    table: str | None = None  # i32[batch, max_pages]
    indptr: str | None = None  # i32[batch + 1]
    indices: str | None = None  # i32[num_pages]


@dataclass(frozen=True)
class Output:
    """An output: `o` in its declared dtype and axes, `lse` in f32."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Origin:
    """The text a spec came from, so that it can be resolved again with other constants."""

    file: tree.File
    folder: Path | None  # where relative imports start
    constants: tuple[tuple[str, Constant | str | DType], ...]  # as given by the caller


@dataclass(frozen=True)
class AttentionSpec:
    """A whole attention variant:  O = sum_j p_j v_j,  p = softmax over visible j of score(scale * q.k_j), plus sink.

    mask and score are over the leaves of `attn_dsl.expr.node`; reads in them are already clamped into their axes. The
    `descale` of q and of k have become factors of the leaf `score`.
    """

    name: str
    tensors: tuple[Tensor, ...]  # inputs in declared order: the positional order of a call
    views: tuple[View, ...]
    params: tuple[Param, ...]
    constants: tuple[tuple[str, Constant | DType], ...]  # compile-time constants with the values in force
    fixed_axes: tuple[tuple[str, int], ...]  # axes whose extent is a compile-time constant
    mask: Expr  # bool; const true when the file has no mask
    score: Expr  # float; the leaf `score` when the file has no score
    scale: Expr  # float over const, size and scalar param leaves
    sink: Expr | None  # float over h, kv_h, b leaves: a logit added to the softmax's denominator
    align: Align
    lengths_q: Lengths
    lengths_k: Lengths
    paging: Paging | None
    output: Output
    lse: Output | None  # declared in the file; a call may always ask for it
    lse_base: str  # "e" or "2"
    pack_gqa: str  # "auto", "on" or "off": may change speed, never meaning
    schedule: tuple[tuple[str, int | str], ...]  # likewise
    wide: frozenset[Expr] = field(compare=False)  # int nodes that need i64; every other int node fits i32
    descale_v: Expr | None = None  # float over h, kv_h, b leaves: the elements of v, and so O, are multiplied with it
    origin: Origin | None = field(default=None, compare=False, repr=False)

    def _repr_html_(self) -> str | None:
        """What a notebook shows; it falls back to the plain text where nobody said how."""
        return None if DISPLAY.html is None else DISPLAY.html(self)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {**{t.name: t for t in self.tensors}, **{v.name: v.tensor for v in self.views}}

    def tensor(self, name: str) -> Tensor:
        """A declared tensor or a view by name; `q`, `k` and `v` always exist."""
        return self._tensors[name]

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)

    def fixed(self, axis: str) -> int | None:
        """The extent of an axis if it is a compile-time constant."""
        return dict(self.fixed_axes).get(axis)

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Every expression of the spec."""
        offset = () if self.align.offset is None else (self.align.offset,)
        sink = () if self.sink is None else (self.sink,)
        descale_v = () if self.descale_v is None else (self.descale_v,)
        return (self.mask, self.score, self.scale, *sink, *offset, *descale_v)

    @property
    def kv_heads_axis(self) -> str:
        """The head axis of k: `kv_heads`, or `heads` when every query head has its own."""
        return "kv_heads" if self.tensor("k").axis_index("kv_heads") is not None else "heads"

    @property
    def dim_v_axis(self) -> str:
        """The inner axis of v: `dim_v`, or `dim` when v is as wide as k."""
        return "dim_v" if self.tensor("v").axis_index("dim_v") is not None else "dim"
