"""`attn-dsl run --device emulator`: one call of a compiled kernel on the virtual device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .console import UsageError, plural

if TYPE_CHECKING:
    import torch

    from ..runtime import CompiledAttention

DEVICE = "emulator"


@dataclass(frozen=True)
class Emulation:
    """What the virtual device counted. A run with a finding ends in an error, so there were none."""

    arch: str
    launches: int
    instructions: int  # warp-instructions

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"arch": self.arch, "launches": self.launches, "instructions": self.instructions, "findings": 0}

    def line(self) -> str:
        """The text form."""
        kernels = plural(self.launches, "kernel")
        return f"device  {kernels} on an emulated {self.arch}, {self.instructions:,} warp-instructions, no findings"


def call_emulated(compiled: CompiledAttention, named: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, Emulation]:
    """o, lse and what was counted. Raises UsageError for a target without kernels, EmulatorError for findings."""
    from .. import emulator
    from ..runtime import bind
    from ..runtime.kernels import Kernels

    backend = compiled.backend
    if not isinstance(backend, Kernels):
        message = f"--device {DEVICE}: target '{compiled.target}' has no kernel to run on it"
        raise UsageError.say(message, "--target sm90 and --target sm100 have")
    arch = backend.target.arch
    with emulator.device(arch) as gpu:
        result = backend.launch(bind(compiled.spec, (), named), None, None)
    instructions = sum(report.instructions for report in gpu.reports)
    return *result, Emulation(arch, len(gpu.reports), instructions)
