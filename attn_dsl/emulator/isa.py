"""The numbers of the program encoding, read from `csrc/emu_isa.h`, the one place that states them."""

from __future__ import annotations

import re
from pathlib import Path

HEADER = Path(__file__).parent / "csrc" / "emu_isa.h"


class _Isa:
    """`isa.T_F32` is EMU_T_F32."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        self._values = {name: int(value, 0) for name, value in re.findall(r"\bEMU_(\w+)\s*=\s*(-?\w+)", text)}

    def __getattr__(self, name: str) -> int:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"emu_isa.h has no EMU_{name}") from None

    def names(self, prefix: str) -> dict[str, int]:
        """All values whose name starts with EMU_<prefix>, keyed by the rest of the name."""
        return {name[len(prefix) :]: value for name, value in self._values.items() if name.startswith(prefix)}


isa = _Isa(HEADER.read_text())

SINK = -(2**31)  # INT32_MIN
MAX_OPERANDS = 10
INSTRUCTION = "<QiBBBBII4I20i"
