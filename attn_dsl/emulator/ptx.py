"""Runs a kernel given as PTX text, without CuTe DSL: `ptx.load(text).launch(grid, block, args)`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from .cache import decoded
from .errors import EmulatorError
from .execute import BUDGET, MODES, Loaded, raise_findings
from .native import Alloc, LaunchConfig
from .program import DecodedProgram
from .report import LaunchReport

if TYPE_CHECKING:
    import torch

Argument: TypeAlias = "int | float | bytes | ctypes.Array[ctypes._CData] | ctypes.Structure | torch.Tensor"


class Kernel:
    """One kernel of a PTX module, loaded."""

    def __init__(self, program: DecodedProgram) -> None:
        self.program = program
        self._loaded = Loaded(program)

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Argument],
        *,
        cluster: tuple[int, int, int] | None = None,
        smem: int = 0,
        findings: str = "error",
        seed: int = 0,
        late: int = 0,
        threads: int = 0,
        budget: int = BUDGET,
        exact: bool = False,
        strict: bool = False,
    ) -> LaunchReport:
        """Run the kernel to its end.

        Args:
            grid, block, cluster: in CTAs, threads and CTAs; `cluster` is what the kernel declares if None.
            args: one for each parameter. A tensor or ctypes array is passed by address, and its memory may be accessed;
                bytes and ctypes structures are passed by value.
            smem: bytes of dynamic shared memory.
            findings: "error" raises the first, "collect" goes on and reports them, "off" does not look.
            seed: 0 for round-robin, else a random schedule.
            late: 0: asynchronous work completes at issue; 1: as late as legal; 2: at random times.
            threads: of the host; 0 is one per core.
            budget: warp-instructions of one cluster, 0 for no limit.
            exact: MMAs, ex2 and rcp give the bits of the hardware (see `device`), slower.
            strict: tensor memory is handed from thread to thread as PTX prescribes (see `device`).

        Raises:
            EmulatorError: E312 if the launch is impossible.
            KernelFinding: E319 with findings="error".
        """
        if findings not in MODES:
            raise EmulatorError.of("E312", f"findings={findings!r}", hint=f"one of {', '.join(MODES)}")
        config = LaunchConfig(
            grid=grid,
            block=block,
            cluster=cluster or self.program.cluster or (1, 1, 1),
            dyn_smem=smem,
            checks=findings != "off",
            collect=findings == "collect",
            late=late,
            threads=threads,
            seed=seed,
            budget=budget,
            exact=exact,
            strict=strict,
        )
        report = self._loaded.run(config, pack_arguments(self.program, args), allocations(args))
        if findings == "error":
            raise_findings(report.findings)
        return report


def load(text: str, kernel: str | None = None) -> Kernel:
    """Decode a kernel of a PTX module (`kernel`: its name; the only one if None). Raises PtxError (E300 to E304)."""
    return Kernel(decoded(text, kernel))


def pack_arguments(program: DecodedProgram, args: Sequence[Argument]) -> bytes:
    """The parameter buffer of a launch."""
    if len(args) != len(program.params):
        raise EmulatorError.of("E312", f"{program.name} takes {len(program.params)} arguments, {len(args)} were given")
    buffer = bytearray(program.param_bytes)
    for i, ((offset, size), value) in enumerate(zip(program.params, args, strict=True)):
        try:
            data = _bytes_of(value, size)
        except (OverflowError, struct.error, KeyError) as error:
            raise EmulatorError.of(
                "E312", f"argument {i} of {program.name} does not fit {size} bytes: {error}"
            ) from None
        if len(data) != size:
            raise EmulatorError.of(
                "E312", f"argument {i} of {program.name} has {len(data)} bytes, the parameter {size}"
            )
        buffer[offset : offset + size] = data
    return bytes(buffer)


def _bytes_of(value: Argument, size: int) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return value.to_bytes(size, "little", signed=value < 0)
    if isinstance(value, float):
        return struct.pack({4: "<f", 8: "<d"}[size], value)
    if isinstance(value, ctypes.Array):
        return ctypes.addressof(value).to_bytes(size, "little")
    if isinstance(value, ctypes.Structure):
        return bytes(value)
    if value.device.type != "cpu":
        raise EmulatorError.of("E312", f"a tensor on {value.device} is an argument", hint="give CPU tensors")
    return value.data_ptr().to_bytes(size, "little")


def allocations(args: Sequence[Argument]) -> list[Alloc]:
    """The memory behind the arguments that are passed by address."""
    found: dict[int, int] = {}
    for value in args:
        if isinstance(value, ctypes.Array):
            found[ctypes.addressof(value)] = ctypes.sizeof(value)
        elif not isinstance(value, int | float | bytes | ctypes.Structure):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return [Alloc(base, size) for base, size in found.items()]
