"""Decoded instructions before registers have slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .isa import SINK


@dataclass(frozen=True, slots=True)
class Register:
    """A data register. `slots` 32-bit words; 0 for a predicate."""

    index: int  # among the data registers, or among the predicates
    bits: int  # 1 for a predicate
    name: str = ""

    @property
    def slots(self) -> int:
        return 0 if self.bits == 1 else max(1, self.bits // 32)


@dataclass(frozen=True, slots=True)
class Raw:
    """An operand whose numbers are final: a constant (`~index`), the sink, a literal predicate."""

    reg: int
    off: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """A register with a displacement (memory) or a negation (predicate, off = 1)."""

    register: Register
    off: int = 0


@dataclass(frozen=True, slots=True)
class Elements:
    """A vector operand."""

    items: tuple[Register | Raw, ...]


@dataclass(slots=True)
class Target:
    """A branch target, filled in when all labels are known."""

    label: object
    index: int = -1
    reconvergence: int = -1


Op: TypeAlias = "Raw | Use | Elements | Target"
SINK_OP = Raw(SINK)


@dataclass(slots=True)
class Ins:
    handler: str
    cls: int
    flags: int
    mods: tuple[int, int, int, int]
    ops: list[Op]
    line: int
    guard: Use | Raw
    defs: list[Register] = field(default_factory=list)
    uses: list[Register] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    block: int = 0

    @property
    def guarded(self) -> bool:
        return isinstance(self.guard, Use)
