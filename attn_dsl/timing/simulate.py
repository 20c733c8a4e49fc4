"""One multiprocessor, executing the machine instructions of the thread blocks it is given: discrete events, in cycles.

A warp issues in order: when its sub-partition has a free issue slot, the unit of the instruction is free, the
scoreboards it waits for are down, and the stall that the instruction before asked for is over. Matrix products,
copies and barriers are queues and counters that warps wait for. What the model leaves out is listed in
docs/timing.md.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .blocks import Cost, ThreadBlock
from .follow import Event
from .pipes import SHARED_UNITS, UNITS
from .tables import Table

SUB_PARTITIONS = 4
# instructions with an effect on others that the model has no event for, by the emulator's handler
UNTIMED = frozenset(
    {
        "tcgen05_mma",
        "tcgen05_commit",
        "tcgen05_cp",
        "tcgen05_ld",
        "tcgen05_st",
        "tcgen05_alloc",
        "bulk_dsmem",
        "st_async",
        "clc_try_cancel",
    }
)
BLOCKED = -1.0
_FIRST_SHARED = min(UNITS.index(unit) for unit in SHARED_UNITS)
_EXPECT, _COUNT = 1, 8  # second modifier of an arrival (emulator/opcodes_sync.py)
_OFFSET = (1 << 24) - 1  # of a shared address in its thread block


@dataclass(frozen=True)
class Span:
    """Something that took time: a wait of a warp, or work of an engine."""

    track: str
    name: str
    start: float  # cycles
    end: float


@dataclass
class Outcome:
    """What a simulation found."""

    cycles: float = 0.0
    block_times: list[tuple[float, float]] = field(default_factory=list)  # start and end of each thread block
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # cycles by unit, all copies of it
    waits: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))  # (role, reason), cycles
    alive: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by role, cycles of its warps
    issued: int = 0
    whole: bool = True  # false: the limit of instructions was reached
    spans: list[Span] = field(default_factory=list)


@dataclass
class _Mbarrier:
    count: int
    pending: int
    bytes: int = 0
    phase: int = 0  # completed phases
    waiters: list[tuple[_Warp, int, float]] = field(default_factory=list)  # warp, parity, since


@dataclass
class _Barrier:
    arrived: int = 0  # threads
    waiters: list[tuple[_Warp, float]] = field(default_factory=list)


class _Warp:
    __slots__ = ("block", "boards", "groups", "index", "open", "place", "products", "role", "stores", "sub", "track")

    def __init__(self, block: _Running, index: int, role: str) -> None:
        self.block, self.index, self.role = block, index, role
        self.sub = index % SUB_PARTITIONS
        self.track = f"slot {block.slot}, warp {index} ({role})"
        self.place = 0
        self.boards = [0.0] * 6
        self.products: list[float] = []  # ends of matrix products
        self.groups: list[float] = []  # when groups of them can be seen
        self.open: tuple[float, float] = (0.0, 0.0)  # stores and cp.async since the last commit: sources read, done
        self.stores: list[tuple[float, float]] = []  # committed groups of them


class _Running:
    __slots__ = ("barriers", "block", "left", "mbarriers", "number", "slot", "start")

    def __init__(self, block: ThreadBlock, number: int, slot: int, start: float) -> None:
        self.block, self.number, self.slot, self.start = block, number, slot, start
        self.left = len(block.warps)
        self.mbarriers: dict[int, _Mbarrier] = {}
        self.barriers: dict[int, _Barrier] = defaultdict(_Barrier)


class Stuck(RuntimeError):
    """Warps wait and nothing runs: the walks do not belong together."""


class Multiprocessor:
    """Runs queues of thread blocks, one queue for each block that may be resident at the same time.

    `supply` is what the memory behind it delivers, in bytes a cycle, when all multiprocessors ask; `limit` ends the
    simulation after so many instructions.
    """

    def __init__(self, table: Table, supply: float, *, spans: bool = False, limit: int = 0) -> None:
        self.table, self.supply, self.limit, self.keep = table, supply, limit, spans
        self.out = Outcome()
        self.heap: list[tuple[float, int, _Warp | Callable[[float], None]]] = []
        self.order = 0
        self.slots = [0.0] * SUB_PARTITIONS
        self.free = [[0.0] * (1 if unit in SHARED_UNITS else SUB_PARTITIONS) for unit in UNITS]
        self.tensor = [0.0] * SUB_PARTITIONS
        self.tma_free = self.memory_free = 0.0
        self.queues: list[list[ThreadBlock]] = []
        self.handlers: dict[str, Callable[[_Warp, Event, float, Cost], float]] = {
            "mbar_init": self._init,
            "mbar_try_wait": self._wait,
            "mbar_arrive": self._arrive,
            "mbar_expect_tx": self._expect,
            "tma_load": self._load,
            "bulk_load": self._load,
            "tma_store": self._store,
            "tma_reduce": self._store,
            "bulk_store": self._store,
            "bulk_commit": self._commit,
            "bulk_wait": self._wait_stores,
            "bar_sync": self._sync,
            "bar_red": self._sync,
            "bar_arrive": self._sync,
            "cp_async": self._cp_async,
            "cp_async_commit": self._commit,
            "cp_async_wait": self._wait_stores,
            "cp_async_mbar_arrive": self._copied,
        }

    def run(self, queues: Sequence[Sequence[ThreadBlock]], stagger: float = 0.0) -> Outcome:
        """Runs the queues to their ends, or to the limit; each starts `stagger` cycles after the one before.

        Raises Stuck if they cannot end.
        """
        self.queues = [list(queue)[::-1] for queue in queues]
        self.left = sum(map(len, self.queues))
        for slot in range(len(self.queues)):
            self._start(slot, slot * stagger)
        self._events()
        if self.left and self.out.whole:
            raise Stuck(f"{self.left} thread blocks do not end")
        return self.out

    def _start(self, slot: int, at: float) -> None:
        if not self.queues[slot]:
            return
        block = self.queues[slot].pop()
        running = _Running(block, len(self.out.block_times), slot, at)
        self.out.block_times.append((at, at))
        for index, role in enumerate(block.roles):
            self._push(_Warp(running, index, role), at + self.table["block_start"])

    def _push(self, what: _Warp | Callable[[float], None], at: float) -> None:
        self.order += 1
        heapq.heappush(self.heap, (at, self.order, what))

    def _end(self, warp: _Warp, at: float) -> None:
        running = warp.block
        at = max(at, warp.open[1], *(done for _, done in warp.stores))
        start, end = self.out.block_times[running.number]
        self.out.block_times[running.number] = (start, max(end, at))
        self.out.cycles = max(self.out.cycles, at)
        self.out.alive[warp.role] += at - running.start
        running.left -= 1
        if not running.left:
            self.left -= 1
            self._start(running.slot, self.out.block_times[running.number][1])

    def _events(self) -> None:
        heap, slots, free, out, busy = self.heap, self.slots, self.free, self.out, [0.0] * len(UNITS)
        handlers, shared, tensor = self.handlers, _FIRST_SHARED, self.tensor
        limit = self.limit or float("inf")
        while heap:
            now, _, warp = heapq.heappop(heap)
            if not isinstance(warp, _Warp):
                warp(now)
                continue
            code, walk = warp.block.block.code, warp.block.block.warps[warp.index]
            places, events = walk.places, walk.events
            sub, boards = warp.sub, warp.boards
            horizon = heap[0][0] if heap else float("inf")
            while True:
                place = warp.place
                if place == len(places):
                    self._end(warp, now)
                    break
                cost = code[places[place]]
                unit = cost[0]
                for board in cost[3]:
                    if boards[board] > now:
                        now = boards[board]
                now = max(now, slots[sub])
                copies = free[unit]
                copy = 0 if unit >= shared else sub
                now = max(now, copies[copy])
                if now > horizon:
                    self._push(warp, now)
                    break
                slots[sub] = now + 1
                taken = cost[1] + cost[14] if tensor[sub] > now else cost[1]
                copies[copy] = now + taken
                busy[unit] += taken
                out.issued += 1
                warp.place = place + 1
                if cost[4] >= 0:
                    boards[cost[4]] = max(boards[cost[4]], now + cost[6])
                if cost[5] >= 0:
                    boards[cost[5]] = max(boards[cost[5]], now + cost[7])
                if cost[9]:
                    now = max(now + cost[2], self._product(warp, now, cost))
                elif cost[11]:
                    now = max(now + cost[2], self._wait_products(warp, now, cost))
                elif place in events and (handler := handlers.get(events[place].handler)):
                    after = handler(warp, events[place], now, cost)
                    if after == BLOCKED:  # whoever ends the wait pushes the warp
                        break
                    now = max(now + cost[2], after)
                    horizon = heap[0][0] if heap else float("inf")
                else:
                    now += cost[2]
                if out.issued >= limit:
                    break
            if out.issued >= limit:
                out.whole = False
                out.cycles = max(out.cycles, now)
                break
        for index, name in enumerate(UNITS):
            out.busy[name] += busy[index]

    def _waited(self, warp: _Warp, reason: str, since: float, until: float) -> None:
        if until > since:
            self.out.waits[warp.role, reason] += until - since
            if self.keep:
                self.out.spans.append(Span(warp.track, reason, since, until))

    def _worked(self, engine: str, name: str, start: float, end: float) -> None:
        if self.keep:
            self.out.spans.append(Span(engine, name, start, end))

    # mbarriers

    def _init(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        address, count = event.step.operands[:2]
        warp.block.mbarriers[address & _OFFSET] = _Mbarrier(count, count)
        return now

    def _mbarrier(self, warp: _Warp, address: int) -> _Mbarrier:
        return warp.block.mbarriers[address & _OFFSET]

    def _wait(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        address, parity = event.step.operands[1:3]
        barrier = self._mbarrier(warp, address)
        if barrier.phase & 1 != parity & 1:
            return now
        barrier.waiters.append((warp, parity & 1, now))
        return BLOCKED

    def _arrive(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        address, value = event.step.operands[1:3]
        barrier = self._mbarrier(warp, address)
        flags, lanes = event.modifiers[1], event.step.lanes.bit_count()
        if flags & _EXPECT:
            barrier.bytes += value
        barrier.pending -= lanes * (value if flags & _COUNT else 1)
        self._check(barrier, now)
        return now

    def _expect(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        address, value = event.step.operands[:2]
        self._mbarrier(warp, address).bytes += value
        return now

    def _check(self, barrier: _Mbarrier, now: float) -> None:
        if barrier.pending > 0 or barrier.bytes:
            return
        barrier.phase += 1
        barrier.pending += barrier.count
        waiting, barrier.waiters = barrier.waiters, []
        for warp, parity, since in waiting:
            if barrier.phase & 1 != parity:
                woken = now + self.table["mbarrier.wake"]
                self._waited(warp, "mbarrier", since, woken)
                self._push(warp, woken)
            else:
                barrier.waiters.append((warp, parity, since))

    # copies

    def _transfer(self, now: float, size: int) -> float:
        """When the last byte arrives. The engine is faster than what all multiprocessors together get, for a while."""
        start = max(now, self.tma_free)
        self.tma_free = start + size / self.table["tma.rate"]
        credit = self.table["memory.burst"] / self.supply
        self.memory_free = max(self.memory_free, now - credit) + size / self.supply
        end = max(self.tma_free, self.memory_free)
        self.out.busy["memory traffic"] += size / self.supply
        self._worked("copies", f"{size} bytes", start, end)
        return end

    def _load(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        barrier, size = self._mbarrier(warp, event.step.operands[3]), event.step.amount

        def arrived(at: float) -> None:
            barrier.bytes -= size
            self._check(barrier, at)

        self._push(arrived, self._transfer(now, size) + self.table["tma.latency"])
        return now

    def _store(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        end = self._transfer(now, event.step.amount)
        read, done = end + self.table["tma.store_read"], end + self.table["tma.store_done"]
        warp.open = (max(warp.open[0], read), max(warp.open[1], done))
        return now

    def _commit(self, warp: _Warp, _event: Event, now: float, _: Cost) -> float:
        warp.stores.append(warp.open)
        warp.open = (0.0, 0.0)
        return now

    def _wait_stores(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        left = event.step.operands[0]
        waited = warp.stores[: len(warp.stores) - left]
        read_only = event.handler == "bulk_wait" and bool(event.modifiers[0])
        until = max([now, *(group[0 if read_only else 1] for group in waited)])
        self._waited(warp, "copies", now, until)
        return until

    def _cp_async(self, warp: _Warp, event: Event, now: float, cost: Cost) -> float:
        done = self._transfer(now, event.step.amount) + cost.latency
        warp.open = (max(warp.open[0], done), max(warp.open[1], done))
        return now

    def _copied(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        barrier, lanes = self._mbarrier(warp, event.step.operands[0]), event.step.lanes.bit_count()

        def arrived(at: float) -> None:
            barrier.pending -= lanes
            self._check(barrier, at)

        self._push(arrived, max([now, warp.open[1], *(done for _, done in warp.stores)]))
        return now

    # matrix products

    def _product(self, warp: _Warp, now: float, cost: Cost) -> float:
        depth = int(self.table["mma.queue"])
        queued = warp.products[-depth] if len(warp.products) >= depth else now
        issued = max(now, queued)
        start = max(issued, self.tensor[warp.sub])
        end = start + cost.product
        self.tensor[warp.sub] = end
        self.out.busy["tensor"] += cost.product
        warp.products.append(end)
        del warp.products[:-depth]
        if cost.commits:
            warp.groups.append(end + cost.after)
        self._waited(warp, "tensor core, to issue", now, issued)
        self._worked(f"tensor core {warp.sub}", "product", start, end)
        return issued

    def _wait_products(self, warp: _Warp, now: float, cost: Cost) -> float:
        waited = warp.groups[: len(warp.groups) - cost.groups_left]
        until = max([now, *waited])
        del warp.groups[: len(waited)]
        self._waited(warp, "matrix products", now, until)
        return until

    # barriers

    def _sync(self, warp: _Warp, event: Event, now: float, _: Cost) -> float:
        operands = event.step.operands
        number, count = operands[1:3] if event.handler == "bar_red" else operands[:2]
        threads = count or 32 * len(warp.block.block.warps)
        barrier = warp.block.barriers[number]
        barrier.arrived += 32
        waits = event.handler != "bar_arrive"
        if barrier.arrived < threads:
            if waits:
                barrier.waiters.append((warp, now))
            return BLOCKED if waits else now
        release = now + self.table["barrier.latency"] + self.table["barrier.per_warp"] * threads / 32
        for other, since in barrier.waiters:
            self._waited(other, "barrier", since, release)
            self._push(other, release)
        del warp.block.barriers[number]
        return release if waits else now
