"""The plan of absorbed multi-head latent attention on SM100, where rows of V are the first elements of rows of K.

Head dimensions are large: of DeepSeek's 64 + 512, O alone has 512 columns in f32, all of tensor memory for 128 rows. So
a tile has 64 rows. A matrix product of 64 rows fills every other 16 lanes of tensor memory (PTX ISA, tcgen05.mma data
path layout F), and starts at lane 0 or 16: both halves of the columns of O lie over the same columns, interleaved by
lanes, and leave half of tensor memory to scores and weights. Two tiles of 64 keys then fit shared memory beside the
queries, and stay there for both products: V is never loaded.

Alternatives: with 128 rows and half of d_v per thread block, scores are computed twice and shared memory holds one tile
of keys. With O in two passes, K is loaded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_dsl.lowering.forward.paging import SWIZZLE_ROWS, box_rows
from attn_dsl.lowering.forward.plan import BARRIER_BYTES, ELEMENT_BYTES, SHARED_ALIGNMENT, WARPGROUP
from attn_dsl.lowering.forward.sm100_plan import SLOTS, STATISTICS, WARP, Edge, Sm100Plan, commit, copy, each

ROWS = 64  # of a tile: the m of one tcgen05.mma
KEYS = 64  # of a tile
PART = 64  # elements of a row of K: 128 bytes, the width of the swizzle
TILES = 2  # of keys in flight
HALVES = 2  # of the columns of O
THREADS = 128  # of a warpgroup: two hold one row
HALF_LANES = 16  # lanes of tensor memory from one half of O to the other
SCORES, WEIGHTS, OUTPUT = 0, SLOTS * KEYS, 256  # first columns of tensor memory


@dataclass(frozen=True)
class KeyGroup:
    """Neighbouring parts of a tile of keys that are loaded and given back together."""

    name: str
    first: int  # part
    parts: int


@dataclass(frozen=True, repr=False)
class MlaPlan(Sm100Plan):
    """`tile_q` counts the rows of all thread blocks of a cluster, `stages` tiles of keys in flight; `part` is the width
    of a box of K. Heads come in packs that divide the rows of a tile, so all rows go by TMA."""

    cluster: int  # thread blocks that share keys, of which each loads its part for all

    @property
    def tile_blocks(self) -> int:
        return self.cluster

    @property
    def by_tma(self) -> bool:
        return True

    @property
    def box_heads(self) -> int:
        """Query heads of one tile."""
        return min(self.pack, ROWS)

    @property
    def groups(self) -> tuple[KeyGroup, ...]:
        """In the order in which both products are done with them: what is no value, then the halves of the values."""
        half, values = self.dim_v_padded // PART // HALVES, self.dim_v_padded // PART
        rest = self.dim_padded // PART - values
        return (
            *((KeyGroup("rest", values, rest),) if rest else ()),
            *(KeyGroup(f"half {place}", place * half, half) for place in range(HALVES)),
        )

    @property
    def key_parts(self) -> int:
        """Parts of a tile of keys."""
        return self.dim_padded // PART

    @property
    def part_elements(self) -> int:
        return KEYS * PART

    @property
    def half_columns(self) -> int:
        """Columns of a half of O."""
        return self.dim_v_padded // HALVES

    @property
    def clears(self) -> bool:
        return super().clears or self.paging is not None

    @property
    def rows_loaded(self) -> int:
        """Keys of a tile that one thread block of the cluster loads."""
        return self.tile_k // self.cluster

    @property
    def key_box(self) -> int:
        """Rows of the boxes in which keys come: parts of pages, where they lie in pages. A kernel that is compiled for
        no page size takes all that such boxes make up."""
        if self.page_size:
            return box_rows(self.rows_loaded, self.page_size)
        return self.rows_loaded if self.paging is None else SWIZZLE_ROWS

    @property
    def loads_rows(self) -> bool:
        return False

    @property
    def thread_keys(self) -> int:
        """Columns of scores that a thread holds: half of a row."""
        return self.tile_k // 2

    @property
    def output_columns(self) -> int:
        return 64

    @property
    def edges(self) -> tuple[Edge, ...]:
        groups, lands = self.stages * len(self.groups), ("mma", "load") if self.clears else ("mma",)
        stores = ("epilogue",) if self.stores_boxes else ("correction",)
        weights = (each("softmax"), each("correction"))
        ready = "weights are there, statistics are read and the output is rescaled"
        used = "every thread block of the cluster has used up a group"
        return (
            Edge("q_full", 1, 1, (copy("load"),), ("mma",), "queries have landed"),
            Edge("kv_full", groups, 1, (copy("load"),), lands, "a group of columns of keys has landed"),
            Edge("kv_empty", groups, self.cluster, (commit("mma"),), ("load",), used, blocks=self.cluster),
            Edge("s_full", SLOTS, 1, (commit("mma"),), ("softmax",), "scores are there; older weights are used up"),
            Edge("p_full", SLOTS, 2 * WARPGROUP, weights, ("mma", "softmax"), ready),
            Edge("stats_full", SLOTS, WARPGROUP, (each("softmax"),), ("correction",), "statistics of rows are there"),
            *((Edge("v_clear", 1, WARP, (each("load"),), ("mma",), "keys end with zeros"),) if self.clears else ()),
            Edge("o_full", 1, 1, (commit("mma"),), ("correction",), "the output so far is complete"),
            Edge("o_staged", 1, WARPGROUP, (each("correction"),), stores, "the output lies in shared memory"),
        )

    @property
    def shared_map(self) -> tuple[tuple[str, int], ...]:
        size, o_size = ELEMENT_BYTES[self.dtype], 4 if self.partial else ELEMENT_BYTES[self.o_dtype]
        words = 4 * STATISTICS * SLOTS * THREADS + 16  # and the address of tensor memory
        q, ring = ROWS * self.dim_padded * size, self.stages * self.tile_k * self.dim_padded * size
        o = ROWS * self.dim_v_padded * o_size
        regions = (
            ("barriers and statistics", BARRIER_BYTES * self.barriers + words),
            ("q, then o" if o <= q else "q, then the first rows of o", q),
            ("k ring" if o <= q else "k ring, then the other rows of o", max(ring, o - q)),
        )
        return tuple((name, -(-bytes_ // SHARED_ALIGNMENT) * SHARED_ALIGNMENT) for name, bytes_ in regions)

    @property
    def tmem_map(self) -> tuple[tuple[str, int, int], ...]:
        """(name, first column, columns) of tensor memory. Scores have the lower 16 of every 32 lanes, weights and the
        output both halves: weights twice, as each half of the output needs them in its own lanes."""
        scores = [(f"s{slot}", SCORES + slot * self.tile_k, self.tile_k) for slot in range(SLOTS)]
        weights = [(f"p{slot}", WEIGHTS + slot * self.tile_k // 2, self.tile_k // 2) for slot in range(SLOTS)]
        return (*scores, *weights, ("o0", OUTPUT, self.half_columns))
