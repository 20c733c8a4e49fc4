"""Specs from other tools: FlexAttention's functions, helper functions of Triton kernels, lists of blocks."""

from .flex import from_flex
from .sheet import Converted
from .triton import from_triton

__all__ = ["Converted", "from_flex", "from_triton"]
