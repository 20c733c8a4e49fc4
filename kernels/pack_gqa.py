"""Query heads that share keys and values as rows of one tile (GQA packing; FlashAttention-3, arXiv 2407.08608, and
FlashAttention-4 pack them too).

Row r of the packed rows of a K/V head is query row r // pack of head r % pack: all heads of one query row lie side by
side, so a tile of rows reaches over few query rows, and one pass over the keys serves them all. A tile whose rows
divide by the heads is a box of (head, query row) pairs, which TMA copies. Any other tile starts or ends between two
heads; its rows are copied through pointers: a thread works out the addresses of a few rows, and lanes that copy the
same row get them by a shuffle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

VECTOR_BYTES = 16  # of one copy: 128 bits
SHARING = 8  # most lanes that copy one row side by side: 128 bytes, a line of global and a row of shared memory
WARP = 32  # threads


@dataclass(frozen=True)
class Packing:
    """`heads` query heads that share a tile of `rows` rows."""

    heads: int
    rows: int

    @property
    def by_tma(self) -> bool:
        """Whether a tile is a box of heads and query rows."""
        return self.rows % self.heads == 0

    @property
    def box(self) -> tuple[int, int]:
        """A tile as TMA copies it out of rows that are pairs (head, query row)."""
        if not self.by_tma:
            raise ValueError(f"a tile of {self.rows} rows is no box of {self.heads} heads; it is copied by rows")
        return self.heads, self.rows // self.heads

    def place(self, head: Any, tile: Any) -> tuple[Any, Any]:
        """Where the box of tile number `tile` stands among all boxes; `head` is the first of the packed heads."""
        return head // self.heads, tile

    def view(self, tensor: cute.Tensor, head: Any, length: Any = None) -> cute.Tensor:
        """The rows ((pack, seq_q), dim) of the heads from `head` on; `length` query rows of them, all by default.

        `tensor` is ((heads, seq_q), dim), the queries or outputs of one batch entry.
        """
        heads, seq_q = tensor.stride[0]
        extent = tensor.shape[0][1] if length is None else length
        layout = cute.make_layout(((self.heads, extent), tensor.shape[1]), stride=((heads, seq_q), tensor.stride[1]))
        return cute.make_tensor(cute.domain_offset(((head, 0), 0), tensor).iterator, layout)


def row_of(packed: Any, heads: int) -> tuple[Any, Any]:
    """(query row, head counted from the first) of a packed row, an int or an Int32."""
    return packed // heads, packed % heads


@dataclass(frozen=True)
class _Lanes:
    """Which lanes copy which vectors of a tile: `sharing` neighbours a row, all threads one row after the other."""

    elements: int  # of a vector
    vectors: int  # of a row
    sharing: int  # lanes of a row
    rows: int  # that all threads copy at a time
    passes: int  # until the tile is copied

    @staticmethod
    def of(rows: int, columns: int, bits: int, threads: int) -> _Lanes:
        elements = 8 * VECTOR_BYTES // bits
        vectors = columns // elements
        sharing = math.gcd(vectors, SHARING)
        at_once = threads // sharing
        if threads % WARP or rows % at_once:
            raise ValueError(f"{threads} threads copy {at_once} rows at a time, which does not divide {rows} rows")
        return _Lanes(elements, vectors, sharing, at_once, rows // at_once)

    def row_of(self, addresses: list[Any], turn: int, tile: cute.Tensor) -> cute.Tensor:
        """The row (elements of a vector, vectors) that this thread copies in pass `turn`, in global memory.

        Its address comes from the lane that has worked it out.
        """
        within = (WARP - self.sharing) << 8 | WARP - 1  # lanes answer their own neighbours (PTX ISA, shfl)
        known = addresses[turn // self.sharing]
        address = cute.arch.shuffle_sync_op(known, turn % self.sharing, mask_and_clamp=within)
        pointer = cute.make_ptr(tile.element_type, address, cute.AddressSpace.gmem, assumed_align=VECTOR_BYTES)
        return cute.make_tensor(pointer, cute.make_layout((self.elements, self.vectors)))


def _addresses(lanes: _Lanes, rows: cute.Tensor, first: Any, thread: Any) -> list[Any]:
    """Addresses of the rows this thread works out; in pass p that is lane p % sharing, for pass p."""
    found = []
    for start in range(0, lanes.passes, lanes.sharing):
        turn = thread % lanes.sharing + start
        row = first + turn * lanes.rows + thread // lanes.sharing
        offset = cute.crd2idx((row, 0), rows.layout)
        found.append(Int64((rows.iterator + offset).toint()))
    return found


@cute.jit
def load_rows(
    rows: cute.Tensor,
    tile: cute.Tensor,
    first: Int32,
    thread: Int32,
    threads: cutlass.Constexpr[int],
) -> None:
    """Copies packed rows from `first` on into a tile, by cp.async; what lies outside of `rows` becomes 0.

    Args:
        rows: `Packing.view`, ((pack, seq_q), dim), with 16-byte aligned rows; dim is static.
        tile: shared memory (rows of a tile, padded dim), swizzled or not.
        thread: 0 to threads - 1, of whole warps. All of them have to call this.

    The caller waits for its cp.async, and orders the tile before whatever reads it through the async proxy.
    """
    lanes = _Lanes.of(cute.size(tile, mode=[0]), cute.size(tile, mode=[1]), tile.element_type.width, threads)
    inside = rows.shape[1] // lanes.elements
    load = cpasync.CopyG2SOp(cache_mode=cpasync.LoadCacheMode.GLOBAL)
    atom = cute.make_copy_atom(load, tile.element_type, num_bits_per_copy=8 * VECTOR_BYTES)
    zero = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), tile.element_type, num_bits_per_copy=8 * VECTOR_BYTES)
    nothing = cute.make_rmem_tensor(lanes.elements, tile.element_type)
    nothing.fill(0.0)
    addresses = _addresses(lanes, rows, first, thread)
    for turn in cutlass.range_constexpr(lanes.passes):
        place = turn * lanes.rows + thread // lanes.sharing
        source = lanes.row_of(addresses, turn, tile)
        target = cute.flat_divide(tile[place, None], (lanes.elements,))
        for start in cutlass.range_constexpr(0, lanes.vectors, lanes.sharing):
            vector = start + thread % lanes.sharing
            if first + place < cute.size(rows, mode=[0]) and vector < inside:
                cute.copy(atom, source[None, vector], target[None, vector])
            else:
                cute.copy(zero, nothing, target[None, vector])


@cute.jit
def store_rows(
    rows: cute.Tensor,
    tile: cute.Tensor,
    first: Int32,
    thread: Int32,
    threads: cutlass.Constexpr[int],
) -> None:
    """Copies a tile of shared memory to packed rows from `first` on; what lies outside of `rows` is not written.

    Arguments as of `load_rows`. The tile was written through the generic proxy, and the threads are synchronised since.
    """
    lanes = _Lanes.of(cute.size(tile, mode=[0]), cute.size(tile, mode=[1]), tile.element_type.width, threads)
    inside = rows.shape[1] // lanes.elements
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), tile.element_type, num_bits_per_copy=8 * VECTOR_BYTES)
    addresses = _addresses(lanes, rows, first, thread)
    for turn in cutlass.range_constexpr(lanes.passes):
        place = turn * lanes.rows + thread // lanes.sharing
        source = cute.flat_divide(tile[place, None], (lanes.elements,))
        target = lanes.row_of(addresses, turn, tile)
        for start in cutlass.range_constexpr(0, lanes.vectors, lanes.sharing):
            vector = start + thread % lanes.sharing
            if first + place < cute.size(rows, mode=[0]) and vector < inside:
                held = cute.make_rmem_tensor(lanes.elements, tile.element_type)
                cute.copy(atom, source[None, vector], held)
                cute.copy(atom, held, target[None, vector])


@cute.jit
def store_lse(logarithms: cute.Tensor, row: Int32, head: Int32, rows: Int32, value: Float32) -> None:
    """Writes the value of one row of one head to a tensor (rows, heads), if it is one of the first `rows`."""
    if row < rows:
        logarithms[row, head] = value
