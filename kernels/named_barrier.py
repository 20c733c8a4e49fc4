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
    waits: tuple[tuple[str, int], ...]  # role -> threads that arrive and wait
    arrives: tuple[tuple[str, int], ...]  # role -> threads that arrive and go on


class BarrierError(ValueError):
    """A template's barriers do not add up."""


def check_arrivals(name: str, count: int, arrivals: Mapping[str, int]) -> None:
    """Raises BarrierError unless the arrivals of all roles at a barrier are what it counts."""
    total = sum(arrivals.values())
    if total != count:
        said = ", ".join(f"{role} {threads}" for role, threads in arrivals.items())
        fate = "deadlocks" if total < count else "releases early"
        raise BarrierError(f"barrier '{name}' counts {count} threads but {total} arrive ({said}): it {fate}")


class BarrierIds:
    """Gives ids to the barriers of one template, in the order they are asked for."""

    def __init__(self) -> None:
        self._taken: dict[str, NamedBarrier] = {}

    def allocate(
        self, name: str, threads: int, waits: Mapping[str, int], arrives: Mapping[str, int] | None = None
    ) -> NamedBarrier:
        """A barrier of `threads` arrivals.

        Args:
            waits: role -> threads that arrive and wait for the others.
            arrives: role -> threads that arrive and go on.

        Raises:
            BarrierError: no id is left, the name is taken, threads are no whole warps, nobody waits, or the arrivals
                are not what the barrier counts.
        """
        others = arrives or {}
        if name in self._taken:
            raise BarrierError(f"barrier '{name}' is allocated twice")
        number = RESERVED + len(self._taken)
        if number >= MAX_BARRIERS:
            raise BarrierError(f"barrier '{name}' would be number {number}; a thread block has {MAX_BARRIERS}")
        for who, some in {name: threads, **waits, **others}.items():
            if some % WARP:
                message = f"barrier '{name}' counts {some} threads of {who}, which is no multiple of a warp ({WARP})"
                raise BarrierError(message)
        if not waits:
            raise BarrierError(f"nobody waits at barrier '{name}'")
        if twice := set(waits) & set(others):
            raise BarrierError(f"'{min(twice)}' arrives twice in one phase of barrier '{name}'")
        check_arrivals(name, threads, {**waits, **others})
        self._taken[name] = NamedBarrier(name, number, threads, tuple(waits.items()), tuple(others.items()))
        return self._taken[name]


@dataclass(frozen=True)
class ForwardBarriers:
    """The barriers of a Hopper forward kernel, whose consumers are warpgroups. Ids of a tuple follow each other."""

    turn: tuple[NamedBarrier, ...]  # turn[i]: warpgroup i may issue its matrix products; i - 1 arrives, i waits
    output: tuple[NamedBarrier, ...]  # output[i]: the rows of warpgroup i are staged in shared memory
    consumers: NamedBarrier  # every consumer has read its queries
    queries: tuple[NamedBarrier, ...]  # queries[0]: the queries are copied; none where TMA does that


def forward_barriers(consumers: int, loaders: int = 0) -> ForwardBarriers:
    """The barriers of a Hopper forward kernel. With one consumer there are no turns to take.

    `loaders`: warps that copy queries; none where TMA does.
    """
    ids = BarrierIds()
    names = _consumers(consumers)
    turn = tuple(
        ids.allocate(f"turn{place}", 2 * WARPGROUP, {name: WARPGROUP}, {names[place - 1]: WARPGROUP})
        for place, name in enumerate(names)
        if consumers > 1
    )
    output = tuple(ids.allocate(f"output{place}", WARPGROUP, {name: WARPGROUP}) for place, name in enumerate(names))
    every = ids.allocate("consumers", consumers * WARPGROUP, _each(names))
    everyone = consumers * WARPGROUP + loaders * WARP
    queries = (ids.allocate("queries", everyone, _each(names), {"loaders": loaders * WARP}),) if loaders else ()
    return ForwardBarriers(turn, output, every, queries)


@dataclass(frozen=True)
class BackwardBarriers:
    """The barriers of a Hopper backward kernel: consumer warpgroups that multiply, and a warp that adds dQ to global
    memory. Ids of a tuple follow each other."""

    weights: NamedBarrier  # P and dS of all consumers lie in shared memory, for the products that read all rows
    dq_full: tuple[NamedBarrier, ...]  # dq_full[i]: the part of dQ of consumer i is staged; the writer waits
    dq_empty: tuple[NamedBarrier, ...]  # dq_empty[i]: the writer has read that part; consumer i waits
    output: NamedBarrier  # dK and dV of all consumers are staged


def backward_barriers(consumers: int) -> BackwardBarriers:
    """The barriers of a Hopper backward kernel."""
    ids = BarrierIds()
    names = _consumers(consumers)
    writer, both = {"dq writer": WARP}, WARPGROUP + WARP
    return BackwardBarriers(
        weights=ids.allocate("weights", consumers * WARPGROUP, _each(names)),
        dq_full=tuple(ids.allocate(f"dq_full of {name}", both, writer, {name: WARPGROUP}) for name in names),
        dq_empty=tuple(ids.allocate(f"dq_empty of {name}", both, {name: WARPGROUP}, writer) for name in names),
        output=ids.allocate("output", consumers * WARPGROUP, _each(names)),
    )


@dataclass(frozen=True)
class Sm100BackwardBarriers:
    """The barriers of a Blackwell backward kernel: two warpgroups compute P and dS, one reduces dQ. Ids of a tuple
    follow each other."""

    tensor_memory: NamedBarrier  # the address of tensor memory is in shared memory; the MMA warp wrote it
    compute: NamedBarrier  # both warpgroups are done with a tile of P and dS
    dq: NamedBarrier  # a part of dQ is staged for the bulk reduction
    output: tuple[NamedBarrier, ...]  # output[i]: dK and dV of warpgroup i are staged


def sm100_backward_barriers() -> Sm100BackwardBarriers:
    """The barriers of a Blackwell backward kernel."""
    ids = BarrierIds()
    compute, reduce = _each(["compute 0", "compute 1"]), {"reduce": WARPGROUP}
    readers = {**compute, **reduce}
    return Sm100BackwardBarriers(
        tensor_memory=ids.allocate("tensor_memory", 3 * WARPGROUP + WARP, readers, {"mma": WARP}),
        compute=ids.allocate("compute", 2 * WARPGROUP, compute),
        dq=ids.allocate("dq", WARPGROUP, reduce),
        output=tuple(ids.allocate(f"output of {name}", WARPGROUP, {name: WARPGROUP}) for name in compute),
    )


def _consumers(count: int) -> list[str]:
    return [f"consumer {place}" for place in range(count)]


def _each(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, WARPGROUP)
