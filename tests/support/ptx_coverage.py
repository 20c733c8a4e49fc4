"""Which rows of the opcode table, with which modifiers, the tests execute: a pytest plugin.

    PTX_COVERAGE=OUT.json pytest -p ptx_coverage tests/emulator ...

writes the executed parts, in the words of `required`. An instruction counts when a lane executed it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from attn_dsl.emulator import cache, decoder, gpu, native, ptx
from attn_dsl.emulator.forms import Choices, Form
from attn_dsl.emulator.opcodes import TABLE

OUTPUT = "PTX_COVERAGE"
# Handlers whose meaning is a combination of types: every combination is wanted, not only every type.
_TOGETHER = {
    "cvt": ("dt", "st"),
    "wgmma": ("dt", "at", "bt"),
    "tcgen05_mma": ("kind", "cg"),
    "tcgen05_cp": ("shape", "cg"),
    "atom": ("op", "t"),
    "red": ("op", "t"),
    "bulk_reduce": ("op", "t"),
}


# A text for each part of a pattern that is a regular expression.
_SAMPLES = {
    r"L1::\w+": "L1::no_allocate",
    r"L2::evict_\w+": "L2::evict_first",
    r"L2::\d+B": "L2::128B",
    r"collector::a::\w+": "collector::a::discard",
    r"sync_restrict::shared::c(?:ta|luster)": "sync_restrict::shared::cta",
    r"xorsign\.abs": "xorsign.abs",
    ".*": "x",
    **{rf"m64n\d+k{k}": f"m64n64k{k}" for k in (8, 16, 32)},
}


@dataclass(frozen=True)
class Part:
    """One part of a pattern: what it is called, and the texts that may stand there ("" if it is optional)."""

    name: str
    options: tuple[str, ...]
    any_text: bool = False  # a regular expression: one text of many


@lru_cache(maxsize=4096)
def _parts(pattern: str) -> tuple[Part, ...]:
    found = []
    for part in re.findall(r"(?:/[^/]*/|[^.])+", pattern):
        name, equals, alternatives = part.rstrip("?").partition("=")
        options = tuple(alternatives.split("|")) if equals else (name,)
        any_text = alternatives.startswith("/") and alternatives.strip("/") in _SAMPLES
        if any_text:
            options = (_SAMPLES[alternatives.strip("/")],)
        elif alternatives.startswith("/"):
            options = tuple(alternatives.strip("/").split("|"))
        found.append(Part(name, (*options, *([""] if part.endswith("?") else [])), any_text))
    return tuple(found)


def _items(form: Form, choices: Choices) -> set[str]:
    """What one instruction shows: its row, each modifier of its handler, a combination of types."""
    handler = form.handler.format_map(choices)
    found = {f"row {form.pattern} [{form.operands}]", f"{handler}:"}
    for part in _parts(form.pattern):
        if len(part.options) > 1:
            text = choices.get(part.name, "")
            found.add(f"{handler}: {part.name}={'*' if text and part.any_text else text}")
    if together := _TOGETHER.get(handler):
        found.add(f"{handler}: " + " ".join(choices.get(name, "") for name in together))
    return found


def required() -> set[str]:
    """Everything of the table: each row, each modifier with each handler, each combination of types."""
    found = set()
    for form in TABLE:
        if not form.handler:
            continue
        parts = _parts(form.pattern)
        crossed = {*re.findall(r"{(\w+)}", form.handler), *_TOGETHER.get(form.handler, ())}
        crossed |= {"t"} if crossed & {"b", "wide"} else set()
        first = [part.options[:1] for part in parts]
        for part in parts:
            # All of one part and of those that name handlers and types, the others as they come first.
            spread = [p.options if p is part or p.name in crossed else first[k] for k, p in enumerate(parts)]
            for texts in product(*spread):
                opcode = ".".join(text for text in texts if text)
                choices = form.match(opcode)
                assert choices is not None, opcode
                found |= _items(form, choices)
    return found


_rows: dict[tuple[tuple[str, ...], str], list[tuple[Form, Choices] | None]] = {}
_seen: Counter[str] = Counter()


def pytest_configure() -> None:
    """Note the row of every decoded instruction, and what every launch executes."""
    emit, program, launch = decoder._Decoder.emit, decoder._Decoder.program, native.Program.launch

    def noting_emit(self: Any, form: Form, choices: Choices, *rest: Any) -> None:
        emit(self, form, choices, *rest)
        self.__dict__.setdefault("rows", []).append((form, choices))

    def noting_program(self: Any) -> Any:
        made = program(self)
        _rows[made.lines, made.name] = [*self.__dict__.get("rows", []), None]  # the return that `finish` adds
        return made

    def noting_launch(self: Any, given: Any, *rest: Any) -> Any:
        result = launch(self, replace(given, trace=True), *rest)
        flags = ctypes.create_string_buffer(self.decoded.n_instructions)
        native._core().emu_executed_get(self._handle, flags)
        for row, flag in zip(_rows[self.decoded.lines, self.decoded.name], flags.raw, strict=True):
            if row is not None and flag:
                _seen.update(_items(*row))
        return result

    decoder._Decoder.emit = noting_emit  # type: ignore[method-assign]
    decoder._Decoder.program = noting_program  # type: ignore[method-assign]
    native.Program.launch = noting_launch  # type: ignore[method-assign]
    fresh = lru_cache(maxsize=64)(decoder.decode)  # not from the cache on disk
    for module in (cache, ptx, gpu):
        module.decoded = fresh  # type: ignore[attr-defined]


def pytest_unconfigure() -> None:
    if target := os.environ.get(OUTPUT):
        Path(target).write_text(json.dumps(_seen, indent=0, sort_keys=True))
