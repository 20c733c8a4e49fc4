"""A grid on all multiprocessors: thread blocks start in order, each where there is room first.

Blocks of one multiprocessor share it: `slower` is how much longer a block takes when all `resident` places are taken
than alone; in between it is linear. So the last blocks of a grid, which run alone, are faster.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class _Place:
    """One multiprocessor: blocks by what is left of them, in cycles alone."""

    now: float
    left: list[float]


@dataclass(frozen=True)
class Grid:
    """`of_cta`: cycles that some blocks take alone; the others are like the nearest of them."""

    of_cta: Mapping[int, float]
    blocks: int
    multiprocessors: int
    resident: int
    slower: float

    def cycles(self) -> float:
        """Until the last block has ended."""
        places = [_Place(0.0, []) for _ in range(min(self.multiprocessors, self.blocks))]
        work = self._work()
        started = 0
        for _ in range(self.resident):  # round robin, as far as the grid goes
            for place in places:
                if started < self.blocks:
                    place.left.append(work[started])
                    started += 1
        heap = [(self._next(place), index) for index, place in enumerate(places)]
        heapq.heapify(heap)
        end = 0.0
        while heap:
            at, index = heapq.heappop(heap)
            place = places[index]
            done = (at - place.now) / self._factor(len(place.left))
            place.left = [rest - done for rest in place.left]
            place.left.remove(min(place.left))
            place.now = end = at
            if started < self.blocks:
                place.left.append(work[started])
                started += 1
            if place.left:
                heapq.heappush(heap, (self._next(place), index))
        return end

    def _factor(self, running: int) -> float:
        return 1.0 + (self.slower - 1.0) * (running - 1) / max(1, self.resident - 1)

    def _next(self, place: _Place) -> float:
        """When the first of its blocks ends."""
        return place.now + min(place.left) * self._factor(len(place.left))

    def _work(self) -> list[float]:
        known = sorted(self.of_cta)
        found, place = [], 0
        for cta in range(self.blocks):
            while place + 1 < len(known) and abs(known[place + 1] - cta) <= abs(known[place] - cta):
                place += 1
            found.append(self.of_cta[known[place]])
        return found
