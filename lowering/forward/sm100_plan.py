"""The plan of an SM100 forward kernel: what it adds to a forward plan, and what follows from that.

A thread block works on one or two tiles of 128 queries of one head against the same keys. Scores, weights and outputs
lie in tensor memory; roles hand them over by mbarriers, whose arrival counts follow from the roles.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_dsl.lowering.forward.plan import BARRIER_BYTES, ELEMENT_BYTES, SHARED_ALIGNMENT, WARPGROUP, ForwardPlan
from attn_dsl.spec.model import Lengths

WARP = 32  # threads
ROWS = 128  # queries of a tile: the m of one tcgen05.mma and the lanes of tensor memory
COLUMNS = 512  # of tensor memory
SLOTS = 2  # of scores
SLOT = 128  # columns of tensor memory, of one slot
STATISTICS = 2  # f32 per row and slot from softmax to correction: a factor, or a maximum and a sum
NARROW_TILES = 2  # of keys, and of values, whose bytes are in flight where they are widened
PAIRS = 16  # neighbouring pairs of weights, of which `exp2_on_fma` counts


@dataclass(frozen=True)
class WarpRole:
    """Neighbouring warps that run one function."""

    name: str
    first: int  # warp
    warps: int
    registers: int  # per thread, setmaxnreg

    @property
    def threads(self) -> int:
        return self.warps * WARP


def each(role: str) -> tuple[str, str]:
    """A producer of an edge: every thread of a role arrives."""
    return role, "thread"


def copy(role: str) -> tuple[str, str]:
    """A producer of an edge: one thread arrives and announces bytes, which a copy completes."""
    return role, "copy"


def commit(role: str) -> tuple[str, str]:
    """A producer of an edge: matrix products that one thread issued arrive once as they are done."""
    return role, "commit"


@dataclass(frozen=True)
class Edge:
    """One mbarrier per slot: who completes a phase of it, who waits for that, and what it says."""

    name: str
    slots: int
    count: int  # arrivals that complete a phase
    producers: tuple[tuple[str, str], ...]  # (role, by what it arrives): `each`, `copy`, `commit`
    consumers: tuple[str, ...]  # roles that wait
    says: str
    blocks: int = 1  # thread blocks of a cluster whose producers arrive


@dataclass(frozen=True, repr=False)
class Sm100Plan(ForwardPlan):
    """`tile_q` counts the rows of all query tiles; `stages` counts parts of K and V in flight, in one ring;
    `registers_consumer` is softmax's, `registers_producer` that of the warps that load, multiply and store."""

    arch: str  # that it is compiled for: "sm_100a" | "sm_103a"
    query_tiles: int  # of a thread block: 2 use their slot of scores in turn; 1 has both slots, in turn
    part: int  # elements: rows of K and V pass through shared memory in parts of at most this width
    registers_correction: int  # per thread, setmaxnreg
    threshold: (
        float  # in base 2: how far scores may rise above a row's reference before the output is rescaled; 0: exact
    )
    score_columns: int  # that a thread takes from dot products to scores at a time
    exp2_on_fma: int  # of 16 neighbouring pairs of weights, those whose exponentials are a polynomial on FMA units

    @property
    def roles(self) -> tuple[WarpRole, ...]:
        """Who does what, by warps. Both warpgroups of softmax have one role name: each serves one query tile."""
        other, loads = self.registers_producer, self.load_warps
        first = 4 * self.query_tiles
        # warpgroups are whole, and all warps of one have as many registers (PTX ISA, setmaxnreg)
        idle = -(loads + 2) % 4
        return (
            *(WarpRole("softmax", 4 * tile, 4, self.registers_consumer) for tile in range(self.query_tiles)),
            WarpRole("correction", first, 4, self.registers_correction),
            WarpRole("mma", first + 4, 1, other),
            WarpRole("load", first + 5, loads, other),
            WarpRole("epilogue", first + 5 + loads, 1, other),
            *((WarpRole("idle", first + 6 + loads, idle, other),) if idle else ()),
        )

    def role(self, name: str) -> WarpRole:
        """The first role of that name."""
        return next(role for role in self.roles if role.name == name)

    @property
    def threads(self) -> int:
        return sum(role.threads for role in self.roles)

    @property
    def thread_keys(self) -> int:
        """Scores of a row that a thread of softmax holds."""
        return self.tile_k

    @property
    def keys_ahead(self) -> bool:
        """Whether keys run one tile ahead of values: with one query tile, the next scores are made before an output."""
        return self.query_tiles == 1

    @property
    def by_tma(self) -> bool:
        """Whether rows of Q come by TMA: if a query tile ends with all packed heads of a query."""
        return ROWS % self.pack == 0

    @property
    def loads_rows(self) -> bool:
        """Whether keys and values are copied row by row by all threads that load, and not by TMA."""
        return self.widens or (self.paging is not None and not self.page_size)

    @property
    def load_warps(self) -> int:
        """Warps that load: of rows two keep up with memory, and four where they widen what they have copied."""
        return 4 if self.widens else 2 if self.loads_rows else 1

    @property
    def stages_output(self) -> bool:
        """Whether O goes through shared memory: parts of it, in f32, go from registers to where they belong."""
        return not self.partial

    @property
    def stores_boxes(self) -> bool:
        """Whether rows of O go by TMA: as those of Q come, unless rows of another sequence follow."""
        return self.by_tma and self.lengths_q.cu_seqlens is None

    @property
    def q_ends_early(self) -> bool:
        """Whether an axis of queries can have slots without a query."""
        return self.lengths_q != Lengths()

    @property
    def clears(self) -> bool:
        """Whether rows of V that belong to no key of the sequence can follow its last one. Those of tiles that are
        copied row by row are zeros, as is the tile in which a sequence in pages ends."""
        dense = self.paging is None and not self.loads_rows
        return dense and (self.lengths_k.cu_seqlens is not None or self.lengths_k.used is not None)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The mbarriers in their order in shared memory."""
        q_producer, q_count = (copy("load"), 1) if self.by_tma else (each("correction"), WARPGROUP)
        kv_producer, kv_count = (each("load"), WARP * self.load_warps) if self.loads_rows else (copy("load"), 1)
        lands = ("mma", "load") if self.clears else ("mma",)  # who waits for copies: zeros are written over them
        stores = ("epilogue",) if self.stores_boxes else ("correction",)
        weights = (each("softmax"), each("correction"))
        ready = "weights are there, statistics are read and the output is rescaled"
        tiles, one = self.query_tiles, self.keys_ahead
        before, so_far = ("", "so far") if one else (", and the output before them", "of all keys")
        return (
            Edge("q_full", tiles, q_count, (q_producer,), ("mma",), "queries have landed"),
            Edge("kv_full", self.stages, kv_count, (kv_producer,), lands, "a part of keys or values has landed"),
            Edge("kv_empty", self.stages, 1, (commit("mma"),), ("load",), "a part of keys or values is used up"),
            Edge("s_full", SLOTS, 1, (commit("mma"),), ("softmax",), f"scores are there{before}"),
            Edge("p_full", SLOTS, 2 * WARPGROUP, weights, ("mma", "softmax"), ready),
            Edge("stats_full", SLOTS, WARPGROUP, (each("softmax"),), ("correction",), "statistics of rows are there"),
            *((Edge("v_clear", 1, WARP, (each("load"),), ("mma",), "values end with zeros"),) if self.clears else ()),
            Edge("o_full", tiles, 1, (commit("mma"),), ("correction",), f"the output {so_far} is complete"),
            *(
                (Edge("o_staged", tiles, WARPGROUP, (each("correction"),), stores, "the output lies in shared memory"),)
                if self.stages_output
                else ()
            ),
        )

    def arrivals(self, edge: Edge) -> dict[str, int]:
        """How often each role arrives in a phase of one mbarrier of `edge`."""
        by_role = {}
        for role, by in edge.producers:
            by_role[role] = edge.blocks * (self.role(role).threads if by == "thread" else 1)
        return by_role

    def barrier(self, name: str) -> int:
        """The place of an edge's first mbarrier among all."""
        place = 0
        for edge in self.edges:
            if edge.name == name:
                return place
            place += edge.slots
        raise KeyError(name)

    @property
    def barriers(self) -> int:
        """Mbarriers of a thread block."""
        return sum(edge.slots for edge in self.edges)

    @property
    def k_part(self) -> int:
        """Elements of a row of K in one part."""
        return min(self.part, self.dim_padded)

    @property
    def v_part(self) -> int:
        """Elements of a row of V in one part."""
        return min(self.part, self.dim_v_padded)

    @property
    def k_parts(self) -> int:
        return self.dim_padded // self.k_part

    @property
    def v_parts(self) -> int:
        return self.dim_v_padded // self.v_part

    @property
    def part_elements(self) -> int:
        """Elements of shared memory of one part of K or V."""
        return self.tile_k * max(self.k_part, self.v_part)

    @property
    def query_elements(self) -> int:
        """Elements of shared memory that a query tile, and later its output, has."""
        return ROWS * max(self.dim_padded, self.dim_v_padded)

    @property
    def output_columns(self) -> int:
        """Columns of an output that a thread of the correction takes from tensor memory at a time."""
        return 32 if self.dim_v_padded % 32 == 0 else 16

    @property
    def shared_map(self) -> tuple[tuple[str, int], ...]:
        size = ELEMENT_BYTES[self.dtype]
        words = 4 * STATISTICS * SLOTS * ROWS + 16  # and the address of tensor memory
        regions = (
            ("barriers and statistics", BARRIER_BYTES * self.barriers + words),
            ("q, then o", self.query_tiles * self.query_elements * size),
            ("k and v ring", self.stages * self.part_elements * size),
            *(self._bytes_to_widen if self.widens else ()),
        )
        return tuple((name, -(-bytes_ // SHARED_ALIGNMENT) * SHARED_ALIGNMENT) for name, bytes_ in regions)

    @property
    def _bytes_to_widen(self) -> tuple[tuple[str, int], ...]:
        """Regions of shared memory in which keys and values lie as they come."""
        size = NARROW_TILES * self.tile_k * ELEMENT_BYTES[self.kv_dtype]
        return (
            ("k before it is widened", size * self.dim_padded),
            ("v before it is widened", size * self.dim_v_padded),
        )

    @property
    def tmem_map(self) -> tuple[tuple[str, int, int], ...]:
        """(name, first column, columns) of tensor memory. Weights lie over the upper half of the scores' slot."""
        found = []
        for slot in range(SLOTS):
            found.append((f"s{slot}", slot * SLOT, self.tile_k))
            found.append((f"p{slot}", slot * SLOT + SLOT // 2, self.tile_k // 2))
        for tile in range(self.query_tiles):
            found.append((f"o{tile}", SLOTS * SLOT + tile * self.dim_v_padded, self.dim_v_padded))
        return tuple(found)

    def column(self, name: str) -> int:
        """The first column of a region of tensor memory."""
        return next(first for region, first, _ in self.tmem_map if region == name)
