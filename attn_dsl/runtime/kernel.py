"""One compiled kernel, and what there is to see of it, under the names Triton's compiled kernels have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..diagnostics import UnsupportedError
from .artifact import CUBIN, Artifact, disassemble
from .signature import Signature

_FORMS = ("ptx", "cubin", "sass")


@dataclass(frozen=True)
class GpuTarget:
    """What a kernel is compiled for."""

    backend: str  # "cuda"
    arch: int  # 90, 100
    warp_size: int  # threads


@dataclass(frozen=True)
class KernelMetadata:
    """As `metadata` of a Triton kernel."""

    name: str  # of the entry in PTX
    target: GpuTarget
    num_warps: int  # of one block
    num_stages: int  # tiles of K, and of V, in flight
    shared: int  # bytes of shared memory of one block


class Assembly(Mapping[str, Any]):
    """`asm["ptx"]` and `asm["sass"]` are texts, `asm["cubin"]` is bytes. SASS is disassembled when it is asked for."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    def __getitem__(self, form: str) -> Any:
        if form == "ptx":
            return self._artifact.ptx
        if form == "cubin":
            return self._artifact.cubin
        if form == "sass":
            return disassemble(self._artifact.folder / CUBIN)
        raise KeyError(f"{form!r}: there are {', '.join(_FORMS)}")

    def __iter__(self) -> Iterator[str]:
        return iter(_FORMS)

    def __len__(self) -> int:
        return len(_FORMS)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled plan."""

    signature: Signature
    function: Callable[..., Any]  # of (q, k, v, o, lse, arguments)
    artifact: Artifact | None  # None: compiled in this process and not written out

    @property
    def asm(self) -> Assembly:
        """The kernel as PTX, machine code and SASS."""
        return Assembly(self._artifact)

    @property
    def metadata(self) -> KernelMetadata:
        """Name, target, warps, stages and shared memory."""
        signature = self.signature
        target = GpuTarget("cuda", int(signature.arch.removeprefix("sm_").rstrip("af")), 32)
        entry = self._artifact.info.entry
        return KernelMetadata(entry, target, signature.threads // 32, signature.stages, signature.shared)

    @property
    def n_regs(self) -> int:
        """Registers per thread at launch."""
        return self._artifact.info.registers

    @property
    def n_spills(self) -> int:
        """32-bit words of local memory per thread: spilled registers and arrays."""
        return self._artifact.info.stack // 4

    @property
    def _artifact(self) -> Artifact:
        if self.artifact is None:
            raise UnsupportedError.of("E282", "this kernel was compiled in this process alone, and not written out")
        return self.artifact
