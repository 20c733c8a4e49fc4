"""The command `attn-dsl`: check, fmt, show, explain, run and capabilities. `docs/cli.md` is its reference."""

from .app import main

__all__ = ["main"]
