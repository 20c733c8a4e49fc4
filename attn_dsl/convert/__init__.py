"""Specs from other tools: FlexAttention's functions, helper functions of Triton kernels, lists of blocks."""

from .blocks import block_lists
from .flex import from_flex
from .sheet import Converted
from .triton import from_triton

__all__ = ["Converted", "block_lists", "from_flex", "from_triton"]
