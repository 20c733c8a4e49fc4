"""How many tiles of queries there are: one statement, for ints and for values that a template counts with."""

from __future__ import annotations

from typing import Any, Protocol


class Tiled(Protocol):
    """What decides how rows are cut into tiles: a plan, or what a compiled kernel keeps of it."""

    @property
    def tile_q(self) -> int:
        """Rows of a tile: pairs of query and packed head."""

    @property
    def pack(self) -> int:
        """Query heads that share a tile."""


def quotient(plan: Tiled, slots: Any, more: int = 0) -> Any:
    """(slots * pack + more) // tile_q, rounded down: how many tiles the rows of `slots` queries fill.

    No product passes 32 bits.
    """
    if plan.tile_q % plan.pack == 0:
        return (slots + more // plan.pack) // (plan.tile_q // plan.pack)
    return slots // plan.tile_q * plan.pack + (slots % plan.tile_q * plan.pack + more) // plan.tile_q


def places(plan: Tiled, slots: Any, batch: Any) -> Any:
    """How many places the tiles of packed sequences have, counted without reading where sequences begin.

    Sequence i begins at place quotient(cu_seqlens[i]) + i; one place more is for what lies behind the last sequence.
    """
    return quotient(plan, slots) + batch + 1


def blocks(plan: Tiled, packed: bool, heads: Any, batch: Any, slots: Any) -> Any:
    """Thread blocks of a launch: one for each tile of queries of the heads that share it.

    `slots` are those of q's row axis: of one sequence, or of all sequences together if they are `packed`.
    """
    if packed:
        return places(plan, slots, batch) * (heads // plan.pack)
    return quotient(plan, slots, plan.tile_q - 1) * (heads // plan.pack) * batch
