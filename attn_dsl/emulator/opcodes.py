"""The opcode table: which forms an opcode may have."""

from __future__ import annotations

from functools import lru_cache

from ..diagnostics import did_you_mean
from . import opcodes_arith, opcodes_memory, opcodes_mma, opcodes_sync
from .forms import Choices, Form

TABLE: tuple[Form, ...] = (*opcodes_arith.FORMS, *opcodes_memory.FORMS, *opcodes_sync.FORMS, *opcodes_mma.FORMS)


def _by_first_part() -> dict[str, list[Form]]:
    table: dict[str, list[Form]] = {}
    for form in TABLE:
        for first in form.opcode.rpartition("=")[2].split("|"):
            table.setdefault(first, []).append(form)
    return table


_INDEX = _by_first_part()


@lru_cache(maxsize=4096)
def lookup(opcode: str) -> tuple[tuple[Form, Choices], ...]:
    """The forms an opcode with all its modifiers matches, best first; empty if it is not modelled."""
    candidates = _INDEX.get(opcode.partition(".")[0], ())
    return tuple((form, choices) for form in candidates if (choices := form.match(opcode)) is not None)


def explain(opcode: str) -> str | None:
    """A hint for an opcode that has no form."""
    first = opcode.partition(".")[0]
    if first in _INDEX:
        return f"'{first}' is modelled, with other modifiers or types"
    return did_you_mean(first, list(_INDEX))
