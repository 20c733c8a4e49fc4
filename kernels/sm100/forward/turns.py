"""Whose turn it is: places in rings of mbarriers, with the parity of the phase to wait for."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32

from attn_dsl.lowering.forward.sm100_plan import Sm100Plan


def next_part(plan: Sm100Plan, slot: Any, parity: Any) -> tuple[Any, Any]:
    """The place after (slot, parity) in the ring of parts of K and V (Int32)."""
    after = slot + Int32(1)
    wraps = after == Int32(plan.stages)
    return cutlass.select_(wraps, Int32(0), after), cutlass.select_(wraps, parity ^ Int32(1), parity)


def parts(plan: Sm100Plan, slot: Any, parity: Any, count: int) -> tuple[list[tuple[Any, Any]], Any, Any]:
    """`count` places of the ring from (slot, parity) on, and the place after them."""
    found = []
    for _ in range(count):
        found.append((slot, parity))
        slot, parity = next_part(plan, slot, parity)
    return found, slot, parity


def next_scores(plan: Sm100Plan, slot: Any, parity: Any) -> tuple[Any, Any]:
    """The slot of the next scores of a query tile, after (slot, parity) (Int32). Both slots are one tile's, in turn,
    unless each has a tile of its own."""
    if plan.keys_ahead:
        return slot ^ Int32(1), parity ^ slot
    return slot, parity ^ Int32(1)


def last_scores(plan: Sm100Plan, slot: Any, parity: Any) -> tuple[Any, Any]:
    """The slot of the scores before those of (slot, parity)."""
    if plan.keys_ahead:
        before = slot ^ Int32(1)
        return before, parity ^ before
    return slot, parity ^ Int32(1)
