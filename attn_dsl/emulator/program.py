"""What the decoder hands to the execution core: a program encoded as in `csrc/emu_isa.h`, and what reports need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodedProgram:
    name: str
    code: bytes  # EmuInstrImage records
    handlers: tuple[str, ...]  # names, indexed by EmuInstrImage.handler
    pool: bytes  # int32, elements of vector operands
    consts: bytes  # uint32
    n_slots: int
    n_preds: int
    local_bytes: int  # per thread
    static_smem: int  # bytes of .shared variables
    param_bytes: int
    params: tuple[tuple[int, int], ...]  # (offset, size) in bytes of each kernel parameter
    target: int  # 90 or 100
    max_regs: int  # .maxnreg, 0 if not given
    lines: tuple[str, ...]  # the PTX text
    block: tuple[int, int, int] | None  # .reqntid
    cluster: tuple[int, int, int] | None  # .reqnctapercluster
    globals: bytes  # initial contents of the module's .global and .const variables
    relocations: tuple[tuple[int, int], ...]  # (constant slot, offset in globals): a 64-bit address to fill in

    @property
    def n_instructions(self) -> int:
        return len(self.code) // 120
