"""The virtual device: `with device("sm_100a") as gpu:` runs CuTe DSL code on CPU tensors."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .allocations import Allocations
from .cache import decoded
from .errors import EmulatorError
from .execute import BUDGET, MODES, Loaded, raise_findings
from .native import Alloc, LaunchConfig, Written
from .program import DecodedProgram
from .report import Finding, LaunchReport, short_name
from .runtime import HostLaunch, connected

if TYPE_CHECKING:
    import torch

ARCHITECTURES = {"sm_90a": 132, "sm_100a": 148}  # multiprocessors of an H200 and of a B200
MAX_SHARED = (
    232448  # bytes one CTA may have, static and dynamic (CUDA C++ Programming Guide, compute capability 9.0 and 10.0)
)
MAX_THREADS = 1024

_active: Device | None = None
_lock = threading.Lock()
# By hash of the cubin. Functions compiled in an earlier context keep working, so these outlive the device.
_ptx_of: dict[bytes, str] = {}
_cubin_of: dict[bytes, bytes] = {}
_library_keys: dict[int, bytes] = {}


@dataclass(frozen=True)
class Options:
    """How launches run."""

    findings: str = "error"  # error, collect, off
    seed: int = 0  # 0: round-robin, else a random schedule
    late: int = 0  # asynchronous work completes 0 at issue, 1 as late as legal, 2 at random times
    threads: int = 0  # of the host; 0: one per core
    budget: int = BUDGET  # warp-instructions of one cluster; 0: no limit
    exact: bool = False  # MMAs, ex2 and rcp give the bits of an H200
    strict: bool = False  # tensor memory is handed on as PTX prescribes
    only: tuple[int, ...] = ()  # clusters of every launch that run; none: all


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch that can be run again while the tensors it used are alive (it holds their storages)."""

    ptx: str
    kernel: str
    config: LaunchConfig
    params: bytes
    allocations: tuple[Alloc, ...]
    programmatic: bool  # launched with programmatic stream serialization (PDL)
    image: bytes = field(repr=False)  # the cubin compiled from the PTX
    storages: tuple[object, ...] = field(repr=False)

    @property
    def decoded(self) -> DecodedProgram:
        return decoded(self.ptx, self.kernel)

    def replay(self, ptx_text: str | None = None, **options: Any) -> LaunchReport:
        """Run it again, with other PTX for the same kernel or other fields of `LaunchConfig`."""
        program = _loaded(self.ptx if ptx_text is None else ptx_text, self.kernel)
        return program.run(replace(self.config, **options), self.params, self.allocations)


@lru_cache(maxsize=64)
def _loaded(ptx: str, kernel: str) -> Loaded:
    return Loaded(decoded(ptx, kernel))


class Device:
    """An open virtual device. `reports` has one entry for each launch so far."""

    def __init__(self, arch: str, options: Options, *, record: bool, lines: bool = False) -> None:
        self.arch = arch
        self.lines = lines
        self.options = options
        self.multiprocessors = ARCHITECTURES[arch]
        self.reports: list[LaunchReport] = []
        self.launches: list[RecordedLaunch] = []
        self.attributes = _device_attributes(arch, self.multiprocessors)
        self._record = record
        self._thread = threading.get_ident()
        self._memory = Allocations()
        self._libraries: dict[int, bytes] = {}
        self._storages: dict[int, object] = {}
        self._pending: BaseException | None = None
        self._depth = 0
        self._written: Written | None = None  # by the last launch, if the next may overlap with it

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything found so far, in all launches."""
        return tuple(finding for report in self.reports for finding in report.findings)

    def report(self) -> str:
        """Kernels, counters and findings, as text."""
        if not self.reports:
            return f"{self.arch}: no kernel was launched"
        return "\n".join([f"{self.arch}: {len(self.reports)} launches", *map(str, self.reports)])

    # called by the patches of the DSL

    def note(self, tensor: torch.Tensor) -> None:
        self._memory.note(tensor)
        if self._record or self._depth:
            storage = tensor.untyped_storage()
            self._storages[storage.data_ptr()] = storage

    def note_range(self, base: int, size: int, owner: object) -> None:
        self._memory.note_range(base, size, owner)

    def compiled(self, ptx: str, cubin: bytes) -> None:
        key = hashlib.sha256(cubin).digest()
        _ptx_of[key], _cubin_of[key] = ptx, cubin

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around a call of a compiled function: what went wrong in its launches is raised here, as what it was."""
        self._check_thread()
        self._depth += 1
        try:
            yield
        except Exception as error:
            pending, self._pending = self._pending, None
            if pending is None:
                raise
            raise pending from (None if isinstance(pending, EmulatorError) else error)
        finally:
            self._depth -= 1
            if not self._depth and not self._record:
                self._storages.clear()
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise EmulatorError.of(
                "E313", "the device is used from a thread that did not open it", hint="open and use it in one thread"
            )

    # called by the runtime library

    def fail(self, error: BaseException) -> None:
        if self._pending is None:
            self._pending = error

    def load(self, image: bytes) -> int:
        key = hashlib.sha256(image).digest()
        if key not in _ptx_of:
            raise EmulatorError.of(
                "E313",
                "host code loads a kernel that was not compiled inside a device context",
                hint="compile it inside",
            )
        library = int.from_bytes(key[:8], "little")
        _library_keys[library] = key
        return library

    def find(self, library: int, kernel: str) -> None:
        if f".entry {kernel}(" not in self._ptx(library):
            raise EmulatorError.of("E312", f"the library has no kernel {kernel}")

    def _ptx(self, library: int) -> str:
        return _ptx_of[_library_keys[library]]

    def attribute(self, library: int, kernel: str, attribute: int) -> int:
        program = _loaded(self._ptx(library), kernel).decoded
        # CUfunction_attribute: 0 threads per block, 1 static shared bytes, 3 local bytes
        values = {0: MAX_THREADS, 1: program.static_smem, 3: program.local_bytes}
        if attribute not in values:
            raise EmulatorError.of("E312", f"kernel attribute {attribute} is not modelled")
        return values[attribute]

    def allocated(self, address: int, size: int) -> None:
        self._memory.allocated(address, size)

    def launch(self, launch: HostLaunch) -> None:
        self._check_thread()
        ptx = self._ptx(launch.library)
        loaded = _loaded(ptx, launch.kernel)
        program = loaded.decoded
        name = short_name(launch.kernel)
        self._check_target(name, program)
        params = bytearray(program.param_bytes)
        for ordinal, (offset, size) in enumerate(program.params):
            params[offset : offset + size] = launch.argument(ordinal, size)
        config = LaunchConfig(
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dyn_smem=launch.dyn_smem,
            checks=self.options.findings != "off",
            collect=self.options.findings == "collect",
            late=self.options.late,
            threads=self.options.threads,
            seed=self.options.seed,
            budget=self.options.budget,
            exact=self.options.exact,
            strict=self.options.strict,
            only=self.options.only,
        )
        memory = self._memory.live()
        self._memory.check_pointers(name, bytes(params), memory)
        if self._record:
            self.launches.append(
                RecordedLaunch(
                    ptx,
                    launch.kernel,
                    config,
                    bytes(params),
                    tuple(memory),
                    launch.programmatic,
                    _cubin_of[_library_keys[launch.library]],
                    tuple(self._storages.values()),
                )
            )
        report = loaded.run(config, bytes(params), memory, self._written if launch.programmatic else None)
        self._written = loaded.written()
        self.reports.append(report)
        self._memory.check_unchanged(name, memory)
        if self.options.findings == "error":
            raise_findings(report.findings)

    def _check_target(self, name: str, program: DecodedProgram) -> None:
        if program.target != int(self.arch.removeprefix("sm_").rstrip("a")):
            raise EmulatorError.of("E315", f"{name} is PTX for sm_{program.target}, the device is an {self.arch}")


def _device_attributes(arch: str, multiprocessors: int) -> dict[int, int]:
    """CUdevice_attribute values host code asks for (CUDA driver API)."""
    from .dsl import capability

    major, minor = capability(arch)
    return {
        1: MAX_THREADS,  # threads per block
        2: 1024,  # block dimensions
        3: 1024,
        4: 64,
        5: 2**31 - 1,  # grid dimensions
        6: 65535,
        7: 65535,
        8: 49152,  # shared memory per block without opting in
        10: 32,  # warp size
        12: 65536,  # registers per block
        16: multiprocessors,
        75: major,
        76: minor,
        81: MAX_SHARED + 1024,  # shared memory per multiprocessor
        97: MAX_SHARED,
    }


@contextmanager
def device(
    arch: str = "sm_100a",
    *,
    findings: str = "error",
    seed: int = 0,
    late: int = 0,
    threads: int = 0,
    budget: int = BUDGET,
    exact: bool = False,
    strict: bool = False,
    record: bool = False,
    only: tuple[int, ...] = (),
    lines: bool = False,
) -> Iterator[Device]:
    """Open a virtual GPU: inside, CuTe DSL functions compile for it and run on CPU tensors.

    Args:
        arch: "sm_100a" (a B200) or "sm_90a" (an H200).
        findings: "error" raises the first of a launch, "collect" keeps them in `gpu.findings`, "off" looks for none.
        seed: 0 for a round-robin schedule, else a random one.
        late: asynchronous work completes 0 at issue, 1 as late as legal (destination poisoned), 2 at random times.
        threads: host threads for the CTAs of a launch; 0 is one per core.
        budget: warp-instructions of one cluster before a launch is given up; 0 for no limit.
        exact: wgmma, ex2 and rcp give the bits of an H200, tcgen05.mma those of the published model; else sums are in
            f32 and functions rounded from double, which is faster.
        strict: where tensor memory goes from one thread to another, the waits and fences of PTX's canonical patterns
            must be there (wait::ld and wait::st, then tcgen05.fence::before_thread_sync; after_thread_sync); a register
            dependence on tcgen05.ld is no wait. flash-attn-4 does without.
        record: keep every launch in `gpu.launches` for replay, with its tensors.
        only: run just these clusters of every launch, by their place in the grid: to record launches that are large.
        lines: compile with line information: cubins say which line of the PTX each instruction comes from.

    Raises:
        EmulatorError: E310 no C compiler, E311 CuTe DSL missing or of an unknown release, E313 a device is open
            already, E315 an unknown architecture; inside, what a launch cannot do (E312, E314).
        PtxError: a kernel uses something that is not modelled (E301 to E304).
        KernelFinding: a kernel did something wrong (E319), with findings="error".
    """
    global _active
    if arch not in ARCHITECTURES:
        raise EmulatorError.of("E315", f"there is no device '{arch}'", hint=f"one of {', '.join(ARCHITECTURES)}")
    if findings not in MODES:
        raise EmulatorError.of("E312", f"findings={findings!r}", hint=f"one of {', '.join(MODES)}")
    from .dsl import check_version, patched

    check_version()
    with _lock:
        if _active is not None:
            raise EmulatorError.of(
                "E313", f"an {_active.arch} device is open already", hint="close it before opening another"
            )
        options = Options(findings, seed, late, threads, budget, exact, strict, only)
        gpu = _active = Device(arch, options, record=record, lines=lines)
    try:
        with connected(gpu) as library, patched(gpu, library):
            yield gpu
    finally:
        with _lock:
            _active = None
