"""Named barriers of a thread block (PTX ISA, `bar` / `barrier`): 16 ids, of which 0 belongs to `__syncthreads`.

A template asks for its barriers here, so that no two of them share an id, and states who arrives. A barrier whose
arrivals are fewer than its count deadlocks, one with more releases early: both are refused while tracing, on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RESERVED = 1  # id 0
MAX_BARRIERS = 16  # ids of one thread block
WARP = 32  # threads
WARPGROUP = 128  # threads


@dataclass(frozen=True)
class NamedBarrier:
    """One barrier: `threads` arrivals, waits included, complete a phase."""

    name: str
    id: int
    threads: int


class BarrierError(ValueError):
    """A template's barriers do not add up."""


class BarrierIds:
    """Gives ids to the barriers of one template, in the order they are asked for."""

    def __init__(self) -> None:
        self._taken: dict[str, NamedBarrier] = {}

    def allocate(self, name: str, threads: int, arrivals: Mapping[str, int]) -> NamedBarrier:
        """A barrier of `threads` arrivals, which come from `arrivals` (role -> threads that arrive or wait)."""
        if name in self._taken:
            raise BarrierError(f"barrier '{name}' is allocated twice")
        number = RESERVED + len(self._taken)
        if number >= MAX_BARRIERS:
            raise BarrierError(f"barrier '{name}' would be number {number}; a thread block has {MAX_BARRIERS}")
        if threads % WARP:
            raise BarrierError(f"barrier '{name}' counts {threads} threads, which is no multiple of a warp ({WARP})")
        total = sum(arrivals.values())
        if total != threads:
            said = ", ".join(f"{role} {count}" for role, count in arrivals.items())
            fate = "deadlocks" if total < threads else "releases early"
            raise BarrierError(f"barrier '{name}' counts {threads} threads but {total} arrive ({said}): it {fate}")
        self._taken[name] = NamedBarrier(name, number, threads)
        return self._taken[name]


@dataclass(frozen=True)
class ForwardBarriers:
    """The barriers of a forward kernel with `len(turn)` consumer warpgroups."""

    turn: tuple[NamedBarrier, ...]  # turn[i]: warpgroup i may issue its matrix products; i - 1 arrives, i waits
    output: tuple[NamedBarrier, ...]  # output[i]: the rows of warpgroup i are staged in shared memory
    consumers: NamedBarrier  # every consumer has read its queries


def forward_barriers(consumers: int) -> ForwardBarriers:
    """The barriers of a forward kernel. With one consumer there are no turns to take."""
    ids = BarrierIds()
    places = range(consumers)
    turn = tuple(
        ids.allocate(
            f"turn{place}",
            2 * WARPGROUP,
            {f"consumer {place} waits": WARPGROUP, f"consumer {(place - 1) % consumers} arrives": WARPGROUP},
        )
        for place in places
        if consumers > 1
    )
    output = tuple(ids.allocate(f"output{place}", WARPGROUP, {f"consumer {place}": WARPGROUP}) for place in places)
    every = ids.allocate("consumers", consumers * WARPGROUP, {f"consumer {place}": WARPGROUP for place in places})
    return ForwardBarriers(turn, output, every)
