"""Hints of the form "did you mean ...?"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the closest known name, or the known names if there are few, or None."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if 0 < len(names) <= 12:
        return "known here: " + ", ".join(names)
    return None
