"""What a name means at a place of a kernel: registers, variables and labels, by lexical scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .ir import Register
from .isa import isa
from .syntax import TYPE_BITS, Block, BranchTargets, Label, Registers, Variable


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable with its place in its space (bytes)."""

    space: str
    offset: int


@dataclass(eq=False, slots=True)
class LabelKey:
    """One label; two labels of one name in different scopes are different keys."""

    name: str
    targets: tuple[str, ...] | None = None  # of a .branchtargets list


Meaning: TypeAlias = "Register | Symbol | LabelKey | CallParam"


@dataclass(eq=False, slots=True)
class CallParam:
    """A `.param` variable of a body: an argument or the result of a call."""

    name: str
    size: int
    register: Register | None = None


class DuplicateName(Exception):
    """A name is declared twice in one scope."""


@dataclass
class Layout:
    """Places given out so far, per kernel."""

    registers: int = 0
    predicates: int = 0
    local: int = 0  # bytes
    shared: int = 0  # bytes of static shared variables

    def register(self, bits: int, name: str = "") -> Register:
        if bits == 1:
            self.predicates += 1
            return Register(self.predicates - 1, 1, name)
        self.registers += 1
        return Register(self.registers - 1, bits, name)

    def place(self, variable: Variable) -> Symbol:
        """Where a `.shared` or `.local` variable lies."""
        if variable.space == "local":
            self.local = _align(self.local, variable.align) + variable.size
            return Symbol("local", self.local - variable.size)
        if variable.external:  # dynamic shared memory begins behind the static variables (see `dynamic_base`)
            return Symbol("shared", -1)
        self.shared = _align(self.shared, variable.align) + variable.size
        return Symbol("shared", isa.SHARED_BASE + self.shared - variable.size)

    @property
    def dynamic_base(self) -> int:
        """Window offset of dynamic shared memory."""
        return int(isa.SHARED_BASE) + _align(self.shared, 1024)


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


@dataclass
class Scope:
    layout: Layout
    parent: Scope | None = None
    names: dict[str, Meaning] = field(default_factory=dict)
    families: dict[str, Registers] = field(default_factory=dict)  # parameterised names, by prefix

    def declare(self, name: str, meaning: Meaning) -> None:
        if name in self.names or name in self.families:
            raise DuplicateName(name)
        self.names[name] = meaning

    def open(self, block: Block) -> Scope:
        """The scope of a block inside this one, with everything the block declares."""
        scope = Scope(self.layout, self)
        for declared in block.registers:
            if declared.count is None:
                scope.declare(declared.name, self.layout.register(TYPE_BITS[declared.type], declared.name))
            elif declared.name in scope.families or declared.name in scope.names:
                raise DuplicateName(declared.name)
            else:
                scope.families[declared.name] = declared
        for variable in block.variables:
            if variable.space == "param":
                scope.declare(variable.name, CallParam(variable.name, variable.size))
            else:
                scope.declare(variable.name, self.layout.place(variable))
        for statement in block.statements:
            if isinstance(statement, Label):
                scope.declare(statement.name, LabelKey(statement.name))
            elif isinstance(statement, BranchTargets):
                scope.declare(statement.name, LabelKey(statement.name, statement.labels))
        return scope

    def find(self, name: str) -> Meaning | None:
        scope: Scope | None = self
        while scope is not None:
            meaning = scope.names.get(name)
            if meaning is not None:
                return meaning
            if scope.families and (register := scope._member(name)) is not None:
                return register
            scope = scope.parent
        return None

    def _member(self, name: str) -> Register | None:
        """A register of a family `name<count>`, made on first use."""
        end = len(name)
        cut = end
        while cut > 0 and name[cut - 1].isdigit():
            cut -= 1
        for split in range(cut, end):
            family = self.families.get(name[:split])
            if family is None:
                continue
            digits = name[split:]
            if (len(digits) == 1 or digits[0] != "0") and int(digits) < (family.count or 0):
                register = self.layout.register(TYPE_BITS[family.type], name)
                self.names[name] = register
                return register
        return None
