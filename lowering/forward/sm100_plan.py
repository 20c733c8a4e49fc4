"""The plan of an SM100 forward kernel: what it adds to a forward plan, and what follows from that.

A thread block works on two tiles of 128 queries of one head against the same keys. Scores, weights and outputs of both
tiles lie in tensor memory; roles hand them over by mbarriers, whose arrival counts follow from the roles.
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_dsl.lowering.forward.plan import BARRIER_BYTES, ELEMENT_BYTES, SHARED_ALIGNMENT, ForwardPlan

WARP = 32  # threads
QUERY_TILES = 2  # of one thread block, in turn
ROWS = 128  # queries of a tile: the m of one tcgen05.mma and the lanes of tensor memory
COLUMNS = 512  # of tensor memory
SLOT = 128  # columns between the scores of both tiles
STATISTICS = 2  # f32 per row from softmax to correction: a factor, or a maximum and a sum


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


@dataclass(frozen=True)
class Edge:
    """One mbarrier per slot: who completes a phase of it, and what that says."""

    name: str
    slots: int
    arrivals: tuple[tuple[str, int], ...]  # role -> arrivals of one phase; a copy or a matrix product counts 1
    says: str

    @property
    def count(self) -> int:
        """Arrivals that complete a phase."""
        return sum(count for _, count in self.arrivals)


@dataclass(frozen=True, repr=False)
class Sm100Plan(ForwardPlan):
    """`tile_q` counts the rows of both query tiles; `registers_consumer` is softmax's, `registers_producer` that of the
    warps that load, multiply and store."""

    registers_correction: int  # per thread, setmaxnreg
    threshold: float  # in base 2: how far scores may rise above a row's reference before the output is rescaled

    @property
    def roles(self) -> tuple[WarpRole, ...]:
        """Who does what, by warps. Both warpgroups of softmax have one role name: each serves one query tile."""
        other = self.registers_producer
        return (
            WarpRole("softmax", 0, 4, self.registers_consumer),
            WarpRole("softmax", 4, 4, self.registers_consumer),
            WarpRole("correction", 8, 4, self.registers_correction),
            WarpRole("mma", 12, 1, other),
            WarpRole("load", 13, 1, other),
            WarpRole("epilogue", 14, 1, other),
            WarpRole("idle", 15, 1, other),
        )

    def role(self, name: str) -> WarpRole:
        """The first role of that name."""
        return next(role for role in self.roles if role.name == name)

    @property
    def threads(self) -> int:
        return sum(role.threads for role in self.roles)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The mbarriers in their order in shared memory."""
        softmax, correction = self.role("softmax").threads, self.role("correction").threads
        return (
            Edge("q_full", QUERY_TILES, (("load", 1),), "queries have landed"),
            Edge("k_full", self.stages, (("load", 1),), "keys have landed"),
            Edge("k_empty", self.stages, (("mma", 1),), "keys are used up"),
            Edge("v_full", self.stages, (("load", 1),), "values have landed"),
            Edge("v_empty", self.stages, (("mma", 1),), "values are used up"),
            Edge("s_full", QUERY_TILES, (("mma", 1),), "scores are there, and the output before them is complete"),
            Edge(
                "p_full",
                QUERY_TILES,
                (("softmax", softmax), ("correction", correction)),
                "weights are there and the output is rescaled",
            ),
            Edge("stats_full", QUERY_TILES, (("softmax", softmax),), "statistics of rows are there"),
            Edge("stats_empty", QUERY_TILES, (("correction", correction),), "statistics are read"),
            Edge("o_full", QUERY_TILES, (("mma", 1),), "the output is complete"),
            Edge("o_staged", QUERY_TILES, (("correction", correction),), "the output lies in shared memory"),
        )

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
    def query_elements(self) -> int:
        """Elements of shared memory that a query tile, and later its output, has."""
        return ROWS * max(self.dim_padded, self.dim_v_padded)

    @property
    def shared_map(self) -> tuple[tuple[str, int], ...]:
        size = ELEMENT_BYTES[self.dtype]
        regions = (
            ("barriers", BARRIER_BYTES * self.barriers + BARRIER_BYTES),  # and the address of tensor memory
            ("statistics", 4 * STATISTICS * QUERY_TILES * ROWS),
            ("q, then o", QUERY_TILES * self.query_elements * size),
            ("k ring", self.stages * self.tile_k * self.dim_padded * size),
            ("v ring", self.stages * self.tile_k * self.dim_v_padded * size),
        )
        return tuple((name, -(-bytes_ // SHARED_ALIGNMENT) * SHARED_ALIGNMENT) for name, bytes_ in regions)

    @property
    def tmem_map(self) -> tuple[tuple[str, int, int], ...]:
        """(name, first column, columns) of tensor memory. Weights lie over the upper half of the scores' slot."""
        found = []
        for tile in range(QUERY_TILES):
            found.append((f"s{tile}", tile * SLOT, self.tile_k))
            found.append((f"p{tile}", tile * SLOT + SLOT // 2, self.tile_k // 2))
        for tile in range(QUERY_TILES):
            found.append((f"o{tile}", QUERY_TILES * SLOT + tile * self.dim_v_padded, self.dim_v_padded))
        return tuple(found)

    def column(self, name: str) -> int:
        """The first column of a region of tensor memory."""
        return next(first for region, first, _ in self.tmem_map if region == name)
