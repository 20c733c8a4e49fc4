"""The mbarriers of a thread block, by the names that its plan gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Numeric

from attn_dsl.lowering.forward.sm100_plan import Sm100Plan


@dataclass(frozen=True, eq=False)
class Barriers:
    """Pointers to the mbarriers of `plan.edges`. A phase is waited for by its parity."""

    plan: Sm100Plan
    first: Any  # pointer to the first of them

    def at(self, name: str, slot: Any = 0) -> Any:
        """The mbarrier of an edge; `slot` is an int or an Int32."""
        place = self.plan.barrier(name)
        return self.first + (Int32(place) + slot if isinstance(slot, Numeric) else place + slot)

    def init(self) -> None:
        """Sets every count. One thread does it, before a fence and a barrier of the thread block."""
        for edge in self.plan.edges:
            for slot in range(edge.slots):
                cute.arch.mbarrier_init(self.at(edge.name, slot), edge.count)

    def wait(self, name: str, slot: Any, parity: Any) -> None:
        """Waits for the phase of that parity; 1 is over from the start, as what a producer waits for first."""
        cute.arch.mbarrier_wait(self.at(name, slot), parity)

    def arrive(self, name: str, slot: Any) -> None:
        """One arrival of this thread."""
        cute.arch.mbarrier_arrive(self.at(name, slot))
