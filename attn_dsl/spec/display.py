"""How a notebook shows a spec. This room does not know; whoever does says so here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import AttentionSpec


@dataclass
class Display:
    """`html` makes a fragment of HTML of a spec; None: a notebook shows the spec as any other object."""

    html: Callable[[AttentionSpec], str] | None = None


DISPLAY = Display()
