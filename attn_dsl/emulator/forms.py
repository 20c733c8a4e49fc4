"""What a row of the opcode table is: a pattern of modifiers, operands, a handler, and the numbers the handler gets.

Pattern: the opcode's dot-separated parts. A part is a literal (`sync`), an optional literal (`ftz?`), a choice with a
name (`t=s32|u32`) or an optional choice (`rnd=rn|rz?`); `/regex/` may stand for the alternatives. Operands, in order:

    d:T  s:T       destination and source register of type T (a source may be an immediate)
    dp  sp         destination and source predicate
    d|p:T          `d|p`: two operands; with `?` behind, a single one and a sink for p
    p|q            `p|q` or `p`: two operands
    m              memory; mc: memory with coordinates, two operands
    dv:T  sv:T     destination and source vector (a single register counts as one element); dv:T*4 has 4 elements
    xv:T           vector that is read and written
    i              an immediate
    label          a branch target
    _  true        an operand that is not in the text: the sink, the predicate that is always true

`?` behind an operand: it may be missing (only at the end). `{t}` in a type or a handler is a choice of the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from .isa import isa
from .syntax import TYPE_BITS

Choices: TypeAlias = Mapping[str, str]  # parts of the pattern that were there
Number: TypeAlias = int | str | Callable[[Choices], int]

TYPES = {name.lower(): value for name, value in isa.names("T_").items()}
_FLAGS = {name.lower(): value for name, value in isa.names("FF_").items()}
_ROUNDING = {name: getattr(isa, name.upper()) for name in ["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"]}
_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}

SPACES = {
    "": isa.S_GENERIC,
    "global": isa.S_GLOBAL,
    "shared": isa.S_SHARED,
    "shared::cta": isa.S_SHARED,
    "shared::cluster": isa.S_SHARED_CLUSTER,
    "local": isa.S_LOCAL,
    "param": isa.S_PARAM,
    "param::entry": isa.S_PARAM,
    "const": isa.S_CONST,
}
_TABLES: dict[str, Mapping[str, int]] = {
    "T": TYPES,
    "RND": {"": isa.RN, **_ROUNDING},
    "RNDC": {"": isa.RNONE, **_ROUNDING},  # of a conversion: exact, or truncating to an integer, unless it says how
    "CMP": {name.lower(): value for name, value in isa.names("CMP_").items()}
    | {"lo": isa.CMP_LT, "ls": isa.CMP_LE, "hi": isa.CMP_GT, "hs": isa.CMP_GE},
    "BOOL": {"": isa.BOOL_NONE, "and": isa.BOOL_AND, "or": isa.BOOL_OR, "xor": isa.BOOL_XOR},
    "SPACE": SPACES,
    "SEM": {
        "": isa.SEM_WEAK,
        "weak": isa.SEM_WEAK,
        "volatile": isa.SEM_RELAXED,
        "relaxed": isa.SEM_RELAXED,
        "acquire": isa.SEM_ACQUIRE,
        "release": isa.SEM_RELEASE,
        "acq_rel": isa.SEM_ACQ_REL,
    },
    "A": {name.lower(): value for name, value in isa.names("A_").items()},
    "SHFL": {name.lower(): value for name, value in isa.names("SHFL_").items()},
    "VOTE": {name.lower(): value for name, value in isa.names("VOTE_").items()},
    "K": {name.lower(): value for name, value in isa.names("K_").items()},
    "TS": {name.lower(): value for name, value in isa.names("TS_").items()},
    "CP": {name.lower(): value for name, value in isa.names("CP_").items()},
}


def number(spec: Number, choices: Choices) -> int:
    """`"T:t"` looks choice t up in table T; `"FF:ftz+sat"` adds flags; `"INT:n"` is the number in choice n."""
    if isinstance(spec, int):
        return spec
    if callable(spec):
        return spec(choices)
    table, _, key = spec.partition(":")
    if table == "FF":
        return sum(_FLAGS[name.lower()] for name in key.split("+") if choices.get(name))
    if table == "HAS":
        return int(bool(choices.get(key)))
    if table == "INT":
        return int("".join(filter(str.isdigit, choices[key])))
    text = choices.get(key, "")
    values = _TABLES[table]
    return values[text] if text in values else values[text.rpartition("::")[2]]


@dataclass(frozen=True)
class Form:
    """One row."""

    pattern: str
    handler: str
    operands: str
    cls: str | Callable[[Choices], str]  # counter class: EMU_C_<cls>
    mods: tuple[Number, ...] = ()
    flags: int = 0
    hint: str = ""  # set where the form is known and not modelled

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile("".join(_part(part, first=i == 0) for i, part in enumerate(_split(self.pattern))))

    @property
    def opcode(self) -> str:
        return _split(self.pattern)[0]

    def match(self, opcode: str) -> dict[str, str] | None:
        """The choices `opcode` makes, or None if it is no instance of this form."""
        found = self.regex.fullmatch(opcode)
        if found is None:
            return None
        choices = {_unmangle(name): text for name, text in found.groupdict().items() if text is not None}
        kind = choices.get("t", "")
        if kind in _WIDE:
            choices["wide"] = _WIDE[kind]
        if kind in TYPE_BITS:
            choices["b"] = f"b{TYPE_BITS[kind]}"
        return choices


def _split(pattern: str) -> list[str]:
    return re.findall(r"(?:/[^/]*/|[^.])+", pattern)


def _mangle(name: str) -> str:
    return name.replace("::", "__")


def _unmangle(name: str) -> str:
    return name.replace("__", "::")


def _part(part: str, *, first: bool) -> str:
    optional = part.endswith("?")
    part = part.rstrip("?")
    name, equals, alternatives = part.partition("=")
    if equals:
        body = alternatives[1:-1] if alternatives[0] == "/" else "|".join(map(re.escape, alternatives.split("|")))
    else:
        body = re.escape(part)
    if equals or optional:
        body = f"(?P<{_mangle(name)}>{body})"
    text = body if first else rf"\.{body}"
    return f"(?:{text})?" if optional else text
