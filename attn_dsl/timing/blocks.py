"""Thread blocks ready to be simulated: machine code with what each instruction takes, and the walk of every warp."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..emulator.native import WarpPath
from .follow import Follower, Walk
from .machine_code import Instruction
from .pipes import UNITS, class_of, use_of
from .tables import Table

_SHAPE = re.compile(r"\.(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)")
_WAIT_PRODUCTS = "WARPGROUP.DEPBAR"
_GROUPS_LEFT = re.compile(r"gsb0, 0x(?P<left>[0-9a-f]+)")


class Cost(NamedTuple):
    """What the simulation reads of a machine instruction, in cycles."""

    unit: int  # index in UNITS
    cycles: float  # until the unit is free
    stall: int
    waits: tuple[int, ...]
    writes: int
    reads: int
    latency: float  # of the result
    read_latency: float  # of reading the sources
    name: str  # of the unit
    product: float  # of the tensor core, for an asynchronous matrix product
    after: float  # from the end of a product until a wait for it is over
    waits_products: bool
    commits: bool  # a product that ends a group
    groups_left: int  # what a wait for groups of products leaves in flight
    beside: float  # cycles more while the tensor core works


def costs(code: Sequence[Instruction], table: Table) -> tuple[Cost, ...]:
    """Of every instruction, with the parameters of `table`."""
    made = []
    for instruction in code:
        use = use_of(instruction, table.values)
        product = after = 0.0
        if use.unit == "tensor" and (shape := _SHAPE.search(instruction.opcode)):
            in_registers = not instruction.operands.partition(",")[2].lstrip().startswith("gdesc")
            kind = "rs" if in_registers else "ss"
            product = max(int(shape["n"]) * table["mma.cycles_per_column"], table[f"mma.least.{kind}"])
            after = table[f"mma.latency.{kind}"]
        left = _GROUPS_LEFT.search(instruction.operands) if instruction.opcode.startswith(_WAIT_PRODUCTS) else None
        made.append(
            Cost(
                UNITS.index(use.unit),
                use.cycles,
                max(1, instruction.stall),
                instruction.waits,
                instruction.writes,
                instruction.reads,
                use.latency,
                table["latency.sources"],
                use.unit,
                product,
                after,
                left is not None,
                "gsb0" in instruction.operands,
                int(left["left"], 16) if left else 0,
                use.beside,
            )
        )
    return tuple(made)


@dataclass(frozen=True)
class ThreadBlock:
    """One thread block: what its warps execute."""

    code: tuple[Cost, ...]
    warps: tuple[Walk, ...]
    roles: tuple[str, ...]  # by warp
    cta: int  # linear

    @property
    def instructions(self) -> int:
        return sum(len(walk.places) for walk in self.warps)

    @property
    def loaded(self) -> int:
        """Bytes that its copies bring into shared memory."""
        copies = ("tma_load", "bulk_load", "cp_async")
        return sum(e.step.amount for walk in self.warps for e in walk.events.values() if e.handler in copies)


def role_of(walk: Walk, code: Sequence[Instruction]) -> str:
    """A name for what a warp does, by its events and products."""
    handlers = {event.handler for event in walk.events.values()}
    if any(class_of(code[place].opcode) == "mma" for place in walk.places):
        return "consumer"
    for handler, role in (
        ("tcgen05_mma", "mma"),
        ("tma_load", "load"),
        ("cp_async", "load"),
        ("tcgen05_ld", "softmax"),
        ("tma_store", "epilogue"),
    ):
        if handler in handlers:
            return role
    return "other"


def thread_blocks(follower: Follower, paths: Sequence[WarpPath], code: tuple[Cost, ...]) -> list[ThreadBlock]:
    """One for each thread block with a path, in the order of the grid; `code` is what each of them gets."""
    by_cta: dict[int, list[WarpPath]] = {}
    for path in paths:
        by_cta.setdefault(path.cta, []).append(path)
    made = []
    for cta, own in sorted(by_cta.items()):
        walks = tuple(follower.walk(path) for path in sorted(own, key=lambda path: path.warp))
        made.append(ThreadBlock(code, walks, tuple(role_of(walk, follower.code) for walk in walks), cta))
    return made
