"""What a notebook shows of a spec: its mask, its formula, what a call gives, and its plans."""

from .page import html

__all__ = ["html"]
