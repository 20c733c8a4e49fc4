"""For every spec of examples/: a call on small random inputs, and the result by a plain dense computation."""

from . import layouts, masks, scores
from .problem import CASES, Case, Problem

__all__ = ["CASES", "Case", "Problem", "layouts", "masks", "scores"]
