"""The parameters of the timing model: one table for each architecture, every number with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from ..diagnostics import UnsupportedError

ARCHITECTURES = {"sm90": "sm_90a"}  # that have a table, and what their kernels are compiled for


@dataclass(frozen=True)
class Table:
    """One architecture's parameters, in cycles of a multiprocessor and bytes unless the name says otherwise."""

    arch: str
    version: int  # raised when a number changes
    values: Mapping[str, float]
    sources: Mapping[str, str]
    # of predictions against measurements (docs/timing.md): `kernels`, `held_out` of them not fitted to, the `median`
    # error of those and the `largest` of all, relative
    errors: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values[name]


@lru_cache(maxsize=4)
def table(arch: str) -> Table:
    """The table of one of `ARCHITECTURES`. Raises UnsupportedError (E281) for another."""
    if arch not in ARCHITECTURES:
        hint = f"there are for {', '.join(ARCHITECTURES)}"
        raise UnsupportedError.of("E281", f"no parameters of the timing model for {arch}", hint=hint)
    path = Path(__file__).parent / f"{arch}.json"
    whole = json.loads(path.read_text("utf-8"))
    entries = whole["parameters"]
    return Table(
        arch,
        whole["version"],
        MappingProxyType({name: float(entry["value"]) for name, entry in entries.items()}),
        MappingProxyType({name: entry["source"] for name, entry in entries.items()}),
        MappingProxyType(whole["errors"]),
    )
