"""Spec files named on the command line: `-` is standard input, a folder is every `.attn` file below it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..diagnostics import Source, SpecError
from ..spec import AttentionSpec, Checked, check
from ..syntax import parse_source, read_source
from ..syntax.source import MAX_BYTES, decode_source
from .console import UsageError

STDIN = "-"


def expand(names: Iterable[str]) -> list[str]:
    """The files meant by the arguments, each once, in the order given; a folder's in the order of their paths."""
    found: dict[str, None] = {}
    for name in names:
        if name != STDIN and Path(name).is_dir():
            below = sorted(str(path) for path in Path(name).rglob("*.attn"))
            if not below:
                raise UsageError.say(f"folder '{name}' holds no .attn file")
            found.update(dict.fromkeys(below))
        else:
            found[name] = None
    return list(found)


def source(name: str) -> Source:
    """The text of one file or of standard input. Raises AttnSyntaxError (E200, E201)."""
    if name != STDIN:
        return read_source(name)
    return decode_source("<stdin>", sys.stdin.buffer.read(MAX_BYTES + 1))


def examine(name: str, constants: Mapping[str, bool | int | float | str]) -> Checked:
    """Reads, parses and checks one file. Raises AttnSyntaxError; what else is wrong is in the result."""
    folder = None if name == STDIN else Path(name).parent
    return check(parse_source(source(name)), name=Path(name).stem, folder=folder, constants=constants)


def spec(name: str, constants: Mapping[str, bool | int | float | str]) -> AttentionSpec:
    """The spec in one file. Raises AttnSyntaxError or SpecError with all that is wrong."""
    return spec_of(name, examine(name, constants))


def spec_of(name: str, checked: Checked) -> AttentionSpec:
    """The spec of a checked file. Raises SpecError with all that is wrong, or because it is a library (E240)."""
    if checked.errors:
        raise SpecError(checked.errors)
    if checked.spec is None:
        raise SpecError.of("E240", f"{name} is a library: it declares no q, k and v, so there is no attention in it")
    return checked.spec
