"""Lowering: from a typed spec to the tiles a kernel visits and the frozen plan it follows."""
