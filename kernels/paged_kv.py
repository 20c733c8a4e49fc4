"""Keys and values that lie in pages: from a sequence's page list to a swizzled tile in shared memory.

Two ways, which a template may mix:

- *rows*: `find_rows` looks up the page of every row of a tile, each lane of a warp those of its own share; `copy_rows`
  hands them round by shuffles, and every lane copies 16 bytes a step (PTX ISA, `cp.async`, which fills with zeros what
  it does not read). Any page size from 1, any first slot, any strides that are multiples of 16 bytes. Rows past the
  length and columns past `dim` become zeros, so that nothing in an unused slot reaches an output.
- *boxes*: `find_boxes` and `copy_boxes` move whole pages, or equal parts of them, by TMA. It cannot stop at a row, so
  the tile in which a sequence ends goes by rows.

Entries of the list past the last row in use are never read. `cp.async` writes through the generic proxy: before a
matrix instruction or TMA reads such a tile, who waited for the copies needs `fence.proxy.async` (PTX ISA, "Async
proxy").
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr
from cutlass.cute.nvgpu import cpasync

from attn_dsl.kernels.common.launch import tma_copy
from attn_dsl.kernels.named_barrier import WARP
from attn_dsl.lowering.forward import ForwardPlan
from attn_dsl.lowering.forward.paging import MAX_BOX_ROWS, SWIZZLE_ROWS, box_rows, makes_boxes

CHUNK_BYTES = 16  # of one copy of one lane
MAX_LANES = 8  # lanes side by side in a row: 128 bytes, a row of the widest swizzle, so that no two share a bank
UNROLLED = 4  # steps of a warp whose copies are issued together


class PagingError(ValueError):
    """Tiles that no warps can copy, or pages that no boxes fit."""


@dataclass(frozen=True)
class PagedRows:
    """How warps share the rows of a tile. Warp w copies rows w * rows_per_warp and the following."""

    rows: int  # keys of a tile
    columns: int  # elements of a row in shared memory
    dim: int  # elements of a row in a page; the columns past it are zeros
    bits: int  # of an element
    threads: int  # that copy: whole warps

    def __post_init__(self) -> None:
        if self.threads % WARP or not self.threads:
            raise PagingError(f"{self.threads} threads copy; they are whole warps of {WARP}")
        if self.rows % self.warps:
            raise PagingError(f"a tile of {self.rows} rows is not shared evenly by {self.warps} warps")
        for name, value in (("columns", self.columns), ("dim", self.dim)):
            if value % self.chunk or not value:
                raise PagingError(f"{name} is {value}; one copy moves {self.chunk} elements of {self.bits} bits")

    @property
    def warps(self) -> int:
        return self.threads // WARP

    @property
    def chunk(self) -> int:
        """Elements of one copy."""
        return CHUNK_BYTES * 8 // self.bits

    @property
    def lanes(self) -> int:
        """Lanes side by side in a row: a power of two."""
        return min(MAX_LANES, 1 << (self.columns // self.chunk - 1).bit_length())

    @property
    def rows_per_warp(self) -> int:
        return self.rows // self.warps

    @property
    def rows_per_step(self) -> int:
        """Rows a warp copies a part of at once."""
        return WARP // self.lanes

    @property
    def entries(self) -> int:
        """Rows whose pages one lane looks up."""
        return -(-self.rows_per_warp // WARP)


@dataclass(frozen=True)
class PagedBoxes:
    """How boxes of TMA make up a tile: each is a page or one of its equal parts."""

    rows: int  # keys of a tile
    page_size: int  # rows

    def __post_init__(self) -> None:
        if not makes_boxes(self.rows, self.page_size):
            raise PagingError(
                f"pages of {self.page_size} rows make no boxes of a tile of {self.rows}: a box divides both, and has a "
                f"multiple of {SWIZZLE_ROWS} rows, at most {MAX_BOX_ROWS}"
            )

    @property
    def box(self) -> int:
        """Rows of a box."""
        return box_rows(self.rows, self.page_size)

    @property
    def count(self) -> int:
        """Boxes of a tile."""
        return self.rows // self.box


@dataclass(frozen=True, eq=False)
class Pages:
    """The pages of one sequence."""

    numbers: Any  # cute.Tensor i32, in order
    size: Any  # rows, as a divisor
    slots: Any  # Int32: of all its pages


def pages_of(plan: ForwardPlan, arguments: Any, b: Any, size: Any, slots: Any) -> Pages:
    """The pages of sequence `b`; `slots` is what a row of the table, or all lists together, have room for."""
    paging = plan.paging
    assert paging is not None
    if paging.table is not None:
        return Pages(arguments.lengths(paging.table)[b, None], size, slots)
    starts = arguments.lengths(paging.indptr)
    most = slots // size.divisor
    inside = cutlass.min(b, Int32(starts.shape[0]) - 2)  # what lies behind the last sequence has no pages
    first = cutlass.max(cutlass.min(starts[inside], most), Int32(0))
    stop = cutlass.max(cutlass.min(starts[inside + 1], most), first)
    numbers = cute.domain_offset(first, arguments.lengths(paging.indices))
    return Pages(numbers, size, (stop - first) * size.divisor)


def empty_entries(count: int) -> cute.Tensor:
    """Registers for what a lane looks up: (page, place in it) x count."""
    return cute.make_rmem_tensor((2, count), Int32)


@cute.jit
def find_rows(
    plan: cutlass.Constexpr[PagedRows],
    pages: cute.Tensor,
    page_size: cute.FastDivmodDivisorV2,
    first_slot: Int32,
    count: Int32,
    thread: Int32,
    entries: cute.Tensor,
) -> None:
    """Looks up where the rows of one tile lie. Every thread that copies calls it.

    Args:
        pages: i32, the pages of this sequence in order; only those of the `count` rows are read.
        page_size: rows of a page, as a divisor prepared on the host.
        first_slot: of the tile's first row, left padding included.
        count: rows of the tile that exist; may be negative, or more than the tile has.
        thread: 0 to plan.threads - 1.
        entries: `empty_entries(plan.entries)`; written. Page -1 stands for a row that does not exist, and so does any
            negative page of the list.
    """
    lane = thread % WARP
    first = thread // WARP * plan.rows_per_warp
    for entry in cutlass.range_constexpr(plan.entries):
        place = entry * WARP + lane
        entries[0, entry] = Int32(-1)
        entries[1, entry] = Int32(0)
        if (place < plan.rows_per_warp) & (first + place < count):
            number, within = divmod(first_slot + first + place, page_size)
            entries[0, entry] = pages[Int32(number)]
            entries[1, entry] = Int32(within)


@cute.jit
def number_rows(
    plan: cutlass.Constexpr[PagedRows], first_row: Int32, count: Int32, thread: Int32, entries: cute.Tensor
) -> None:
    """As `find_rows` where the rows of a sequence lie behind each other: they are one page.

    Args:
        first_row: of the tile.
        count: rows of the tile that exist; may be negative, or more than the tile has.
    """
    first = thread // WARP * plan.rows_per_warp
    for entry in cutlass.range_constexpr(plan.entries):
        place = entry * WARP + thread % WARP
        is_there = (place < plan.rows_per_warp) & (first + place < count)
        entries[0, entry] = cutlass.select_(is_there, Int32(0), Int32(-1))
        entries[1, entry] = cutlass.select_(is_there, first_row + first + place, Int32(0))


@cute.jit
def copy_rows(
    plan: cutlass.Constexpr[PagedRows], pool: cute.Tensor, target: cute.Tensor, entries: cute.Tensor, thread: Int32
) -> None:
    """Starts the copies of one tile. Every thread that copies calls it, all lanes of a warp together.

    The copies are asynchronous: wait for them by groups, or let them arrive on an mbarrier.

    Args:
        pool: (page_size, dim, pages) of one K/V head; stride 1 along dim, other strides multiples of 16 bytes.
        target: (plan.rows, plan.columns) in shared memory, 16 bytes of a row together, whatever its swizzle.
        entries: what `find_rows` found for this tile.
    """
    atom = cute.make_copy_atom(
        cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL), pool.element_type, num_bits_per_copy=CHUNK_BYTES * 8
    )
    chunk = cute.make_layout(((plan.chunk, 1),))
    chunks = plan.columns // plan.chunk
    lane = thread % WARP
    first = thread // WARP * plan.rows_per_warp
    filled = cute.make_rmem_tensor(1, Boolean)
    for entry in cutlass.range_constexpr(plan.entries):
        count = min(WARP, plan.rows_per_warp - entry * WARP)
        for start in cutlass.range(0, count, plan.rows_per_step, unroll=UNROLLED):
            place = start + lane // plan.lanes
            page = cute.arch.shuffle_sync(entries[0, entry], place)
            within = cute.arch.shuffle_sync(entries[1, entry], place)
            rows = pool[None, None, cutlass.max(page, Int32(0))]
            for beside in cutlass.range_constexpr(0, chunks, plan.lanes):
                column = beside + lane % plan.lanes
                filled[0] = (page >= 0) & (column * plan.chunk < plan.dim)
                source = cute.local_tile(rows, (1, plan.chunk), (within, column))
                here = cute.local_tile(target, (1, plan.chunk), (first + entry * WARP + place, column))
                inside = (place < count) & (column < chunks)
                if const_expr(count % plan.rows_per_step == 0 and beside + plan.lanes <= chunks):
                    inside = Boolean(True)
                if inside:
                    cute.copy(
                        atom,
                        cute.make_tensor(source.iterator, chunk),
                        cute.make_tensor(here.iterator, chunk),
                        pred=filled,
                    )


def page_boxes(plan: PagedBoxes, pool: cute.Tensor, columns: int, layout: Any) -> tuple[cute.CopyAtom, cute.Tensor]:
    """(atom, tensor) of TMA copies from `pool`, on the host.

    Args:
        pool: (page_size, dim, kv_heads, pages); stride 1 along dim, other strides multiples of 16 bytes.
        columns: elements of a row in shared memory.
        layout: of a box in shared memory, (plan.box, columns), swizzled as the tile is.
    """
    load = cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(load, pool, layout, (plan.box, columns))


@cute.jit
def find_boxes(
    plan: cutlass.Constexpr[PagedBoxes], pages: cute.Tensor, first_slot: Int32, lane: Int32, entries: cute.Tensor
) -> None:
    """Looks up the pages of a tile that is full, one box per lane. A whole warp calls it.

    Args:
        pages: i32, the pages of this sequence in order.
        first_slot: of the tile's first row: a multiple of the rows of a box.
        entries: `empty_entries(1)`; written: the page of box `lane`, and which of the boxes of that page it is.
    """
    entries[0, 0] = Int32(0)
    entries[1, 0] = Int32(0)
    if lane < plan.count:
        slot = first_slot + lane * plan.box
        entries[0, 0] = pages[slot // plan.page_size]
        entries[1, 0] = slot % plan.page_size // plan.box


@cute.jit
def copy_boxes(
    plan: cutlass.Constexpr[PagedBoxes],
    atom: cute.CopyAtom,
    pool: cute.Tensor,
    target: cute.Tensor,
    entries: cute.Tensor,
    full: cute.Pointer,
    part: cutlass.Constexpr[int] = 0,
) -> None:
    """Starts the copies of a full tile; they complete on the mbarrier `full`, which expects the bytes of a whole tile.

    A whole warp calls it.

    Args:
        atom: of `page_boxes`.
        pool: (page_size, dim, pages) of one K/V head, of the tensor that `page_boxes` made.
        target: (plan.rows, columns) in shared memory.
        entries: what `find_boxes` found for this tile.
        part: which of the boxes side by side, if rows in a page are wider than `columns`.
    """
    columns = cute.size(target, mode=[1])
    boxes = cute.local_tile(pool, (plan.box, columns), (None, part, None))  # (box, columns, boxes of a page, pages)
    parts = cute.local_tile(target, (plan.box, columns), (None, 0))  # (box, columns, boxes of the tile)
    source, here = tma_copy(atom, boxes, parts)
    for box in cutlass.range_constexpr(plan.count):
        page = cute.arch.shuffle_sync(entries[0, 0], box)
        within = cute.arch.shuffle_sync(entries[1, 0], box)
        cute.copy(atom, source[None, within, page], here[None, box], tma_bar_ptr=full)
