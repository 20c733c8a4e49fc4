"""The execution core as Python sees it: load a decoded program, launch it, read findings and counters.

Mirrors ``csrc/emu_abi.h``; the core itself is C and is built on first use by :mod:`attn_dsl.emulator.build`.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .build import core_library
from .errors import EmulatorError
from .isa import INSTRUCTION, isa

if TYPE_CHECKING:
    from .program import DecodedProgram


def _by_value(prefix: str) -> tuple[str, ...]:
    """Names of an enum in the order of their values, 0 first."""
    names = {value: name for name, value in isa.names(prefix).items()}
    return tuple(names.get(i, "").lower() for i in range(max(names) + 1))


CLASSES = _by_value("C_")
ENGINES = _by_value("E_")
FINDING_KINDS = tuple(name.replace("_", "-") for name in _by_value("FIND_"))


class _ProgramImage(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_char_p),
        ("handlers", ctypes.POINTER(ctypes.c_char_p)),
        ("pool", ctypes.c_char_p),
        ("consts", ctypes.c_char_p),
        *((name, ctypes.c_uint32) for name in ("n_instr", "n_handlers", "n_pool", "n_consts", "n_slots", "n_preds")),
        *((name, ctypes.c_uint32) for name in ("local_bytes", "static_smem", "param_bytes", "target", "max_regs")),
    ]


class _Alloc(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in ("dyn_smem", "checks", "collect", "late", "threads", "exact", "trace")),
        ("strict", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("budget", ctypes.c_uint64),
        ("only", ctypes.POINTER(ctypes.c_uint64)),
        ("n_only", ctypes.c_uint64),
        ("path", ctypes.c_uint64),
        ("before", ctypes.c_void_p),
    ]


class _Finding(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("kind", "line", "site", "pc", "warp", "lanes")),
        ("ctaid", ctypes.c_uint32 * 3),
        ("times", ctypes.c_uint64),
        ("text", ctypes.c_char * 512),
    ]


class _MbarUse(ctypes.Structure):
    _fields_ = [
        ("line", ctypes.c_uint32),
        ("off", ctypes.c_uint32),
        ("cta", ctypes.c_uint32),
        ("phase", ctypes.c_uint32),
        ("executed", ctypes.c_uint64),
        ("depended", ctypes.c_uint64),
        ("n_after", ctypes.c_uint32),
        ("after", ctypes.c_uint32 * 6),
    ]


class _Result(ctypes.Structure):
    _fields_ = [
        ("n_findings", ctypes.c_uint32),
        ("stopped", ctypes.c_uint32),
        ("instructions", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("n_roles", "smem_bytes", "tmem_columns", "reserved")),
    ]


class _Path(ctypes.Structure):
    _fields_ = [
        ("cta", ctypes.c_uint64),
        ("warp", ctypes.c_uint32),
        ("n", ctypes.c_uint32),
        ("steps", ctypes.c_void_p),
    ]


_STEP = struct.Struct("<8IQ")


@dataclass(frozen=True)
class Alloc:
    """A range of host memory a kernel may touch; ``size`` in bytes."""

    base: int
    size: int
    writable: bool = True


@dataclass(frozen=True)
class LaunchConfig:
    """Shape and mode of one launch.

    ``dyn_smem`` in bytes; ``late``: 0 asynchronous work completes at issue, 1 as late as legal, 2 at random times;
    ``threads`` 0 is one per core; ``seed`` 0 is round-robin; ``budget`` in warp-instructions of one cluster, 0: none;
    ``exact``: MMAs, ex2 and rcp give the bits of the hardware (slower), else sums are in f32;
    ``trace`` records which instruction used which mbarrier; ``path`` what every warp executed (`WarpPath`);
    ``only``: the clusters to run, as positions in the grid; none: all of them;
    ``strict``: tensor memory is handed from thread to thread as PTX prescribes (see `device`).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    dyn_smem: int = 0
    checks: bool = True
    collect: bool = False
    late: int = 0
    threads: int = 0
    seed: int = 0
    budget: int = 0
    exact: bool = False
    trace: bool = False
    path: bool = False
    only: tuple[int, ...] = ()
    strict: bool = False

    def check(self) -> None:
        """Raise E312 if a mode has a value there is none for."""
        for name, highest in (("late", 2), ("threads", 2**31 - 1), ("seed", 2**64 - 1), ("budget", 2**64 - 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value <= highest:
                raise EmulatorError.of("E312", f"{name}={value!r}", hint=f"an integer from 0 to {highest}")


@dataclass(frozen=True)
class RawFinding:
    """What the core reports.

    ``kind`` is a stable word, ``line`` a PTX line (0: the end of a CTA), ``times`` how often it happened.
    """

    kind: str
    text: str
    line: int
    warp: int
    lanes: int
    ctaid: tuple[int, int, int]
    times: int


@dataclass(frozen=True)
class MbarrierUse:
    """How often the instruction of a PTX line used one mbarrier: that of a CTA (linear) at a shared-memory offset.

    Phases count from 1. Of arrivals, ``phase`` is the first they counted for. Of waits, ``depended`` passed because a
    phase had completed (and not because the barrier was fresh), ``phase`` is the last of those, and ``after`` has the
    lines of instructions with an effect beyond registers that the waiting warps executed later; None: too many.
    """

    line: int
    offset: int
    cta: int
    phase: int
    executed: int
    depended: int
    after: frozenset[int] | None


class Step(NamedTuple):
    """An executed instruction that others can see, or (`lanes` 0) the entry of a basic block."""

    pc: int  # index in the decoded program
    lanes: int  # bit mask
    operands: tuple[int, ...]  # low words of its first six operands in its lowest lane, displacements added
    amount: int  # bytes or floating-point operations it counted


@dataclass(frozen=True)
class WarpPath:
    """What a warp executed, in order."""

    cta: int  # linear, x first
    warp: int
    raw: bytes = field(repr=False)

    @property
    def length(self) -> int:
        """How many steps there are."""
        return len(self.raw) // _STEP.size

    def steps(self) -> Iterator[Step]:
        for pc, lanes, *operands, amount in _STEP.iter_unpack(self.raw):
            yield Step(pc, lanes, tuple(operands), amount)


@dataclass(frozen=True)
class LaunchResult:
    """Outcome of a launch. ``classes`` and ``engines``: counters by warp of the CTA; ``seconds`` of host time."""

    findings: tuple[RawFinding, ...]
    stopped: bool
    instructions: int
    seconds: float
    classes: tuple[dict[str, int], ...]
    engines: tuple[dict[str, int], ...]
    smem_bytes: int
    tmem_columns: int
    printed: str = ""
    mbarrier_uses: tuple[MbarrierUse, ...] = ()
    executed_lines: frozenset[int] = frozenset()
    paths: tuple[WarpPath, ...] = ()


@lru_cache(maxsize=1)
def _core() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(core_library()))
    lib.emu_program_new.restype = ctypes.c_void_p
    lib.emu_program_new.argtypes = [ctypes.POINTER(_ProgramImage), ctypes.c_char_p, ctypes.c_uint32]
    lib.emu_program_free.argtypes = [ctypes.c_void_p]
    lib.emu_launch.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_Options),
        ctypes.c_char_p,
        ctypes.c_uint32,
        ctypes.POINTER(_Alloc),
        ctypes.POINTER(_Result),
        ctypes.c_char_p,
        ctypes.c_uint32,
    ]
    lib.emu_finding_get.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(_Finding)]
    counters = ctypes.POINTER(ctypes.c_uint64)
    lib.emu_counts_get.argtypes = [ctypes.c_void_p, ctypes.c_uint32, counters, counters]
    lib.emu_printf_get.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64]
    lib.emu_printf_get.restype = ctypes.c_uint64
    lib.emu_executed_get.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.emu_mbar_uses_get.argtypes = [ctypes.c_void_p, ctypes.POINTER(_MbarUse), ctypes.c_uint32]
    lib.emu_mbar_uses_get.restype = ctypes.c_uint32
    lib.emu_path_get.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(_Path)]
    lib.emu_path_get.restype = ctypes.c_uint32
    lib.emu_written_take.argtypes = [ctypes.c_void_p]
    lib.emu_written_take.restype = ctypes.c_void_p
    lib.emu_written_free.argtypes = [ctypes.c_void_p]
    lib.emu_handler_names.restype = ctypes.c_char_p
    return lib


class Written:
    """Global memory a launch wrote that let the next grid start early (griddepcontrol.launch_dependents)."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        _core().emu_written_free(self.handle)


def handler_names() -> frozenset[str]:
    """Names of the instruction handlers the core has."""
    return frozenset(_core().emu_handler_names().decode().split())


def _mbarrier_use(u: _MbarUse) -> MbarrierUse:
    after = frozenset(u.after[: u.n_after]) if u.n_after <= len(u.after) else None
    return MbarrierUse(u.line, u.off, u.cta, u.phase, u.executed, u.depended, after)


def _line_of(code: bytes, index: int) -> int:
    """PTX line of an instruction."""
    return int(struct.unpack_from(INSTRUCTION, code, index * struct.calcsize(INSTRUCTION))[6])


@dataclass
class Program:
    """A decoded kernel inside the core. Launches from several threads run one after the other."""

    decoded: DecodedProgram
    _handle: int = field(init=False, repr=False, default=0)
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        d = self.decoded
        names = (ctypes.c_char_p * len(d.handlers))(*(h.encode() for h in d.handlers))
        image = _ProgramImage(
            code=d.code,
            handlers=names,
            pool=d.pool,
            consts=d.consts,
            n_instr=len(d.code) // struct.calcsize(INSTRUCTION),
            n_handlers=len(d.handlers),
            n_pool=len(d.pool) // 4,
            n_consts=len(d.consts) // 4,
            n_slots=d.n_slots,
            n_preds=d.n_preds,
            local_bytes=d.local_bytes,
            static_smem=d.static_smem,
            param_bytes=d.param_bytes,
            target=d.target,
            max_regs=d.max_regs,
        )
        error = ctypes.create_string_buffer(512)
        handle = _core().emu_program_new(ctypes.byref(image), error, len(error))
        if not handle:
            raise EmulatorError.of("E312", f"{d.name}: {error.value.decode()}")
        self._handle = handle

    def __del__(self) -> None:
        if self._handle:
            _core().emu_program_free(self._handle)
            self._handle = 0

    def written(self) -> Written | None:
        """What the last launch wrote, once, if it let the next grid start early."""
        handle = _core().emu_written_take(self._handle)
        return Written(handle) if handle else None

    def launch(
        self, config: LaunchConfig, params: bytes, allocations: list[Alloc], before: Written | None = None
    ) -> LaunchResult:
        """Runs the grid to its end and returns what was seen. It may overlap with the launch that wrote `before`.

        Raises:
            EmulatorError: the launch shape, its mode or the amount of shared memory is not possible.
        """
        config.check()
        lib = _core()
        if len(params) != self.decoded.param_bytes:
            raise EmulatorError.of(
                "E312",
                f"{self.decoded.name}: {len(params)} bytes of parameters, the kernel takes {self.decoded.param_bytes}",
            )
        options = _Options(
            (ctypes.c_uint32 * 3)(*config.grid),
            (ctypes.c_uint32 * 3)(*config.block),
            (ctypes.c_uint32 * 3)(*config.cluster),
            config.dyn_smem,
            config.checks,
            config.collect,
            config.late,
            config.threads,
            config.exact,
            config.trace,
            config.strict,
            config.seed,
            config.budget,
            (ctypes.c_uint64 * len(config.only))(*config.only) if config.only else None,
            len(config.only),
            config.path,
            before.handle if before else None,
        )
        table = (_Alloc * max(1, len(allocations)))(
            *(_Alloc(a.base, a.size, a.writable, i) for i, a in enumerate(allocations))
        )
        result = _Result()
        error = ctypes.create_string_buffer(512)
        with self._lock:  # what a launch found stays in the core until it is collected
            rc = lib.emu_launch(
                self._handle,
                ctypes.byref(options),
                params,
                len(allocations),
                table,
                ctypes.byref(result),
                error,
                len(error),
            )
            if rc == 2:
                raise EmulatorError.of("E312", f"{self.decoded.name}: {error.value.decode()}")
            return self._collect(lib, result)

    def _collect(self, lib: ctypes.CDLL, result: _Result) -> LaunchResult:
        findings = []
        raw = _Finding()
        for i in range(result.n_findings):
            lib.emu_finding_get(self._handle, i, ctypes.byref(raw))
            findings.append(
                RawFinding(
                    kind=FINDING_KINDS[raw.kind],
                    text=raw.text.decode(errors="replace"),
                    line=raw.line,
                    warp=raw.warp,
                    lanes=raw.lanes,
                    ctaid=(raw.ctaid[0], raw.ctaid[1], raw.ctaid[2]),
                    times=raw.times,
                )
            )
        classes, engines = [], []
        class_counts, engine_counts = (ctypes.c_uint64 * len(CLASSES))(), (ctypes.c_uint64 * len(ENGINES))()
        for role in range(result.n_roles):
            lib.emu_counts_get(self._handle, role, class_counts, engine_counts)
            classes.append(dict(zip(CLASSES, class_counts, strict=True)))
            engines.append(dict(zip(ENGINES, engine_counts, strict=True)))
        length = lib.emu_printf_get(self._handle, None, 0)
        text = ctypes.create_string_buffer(length + 1)
        lib.emu_printf_get(self._handle, text, length)
        uses = (_MbarUse * lib.emu_mbar_uses_get(self._handle, None, 0))()
        lib.emu_mbar_uses_get(self._handle, uses, len(uses))
        path, paths = _Path(), []
        for i in range(lib.emu_path_get(self._handle, 0, ctypes.byref(path))):
            lib.emu_path_get(self._handle, i, ctypes.byref(path))
            paths.append(WarpPath(path.cta, path.warp, ctypes.string_at(path.steps, path.n * _STEP.size)))
        executed = ctypes.create_string_buffer(self.decoded.n_instructions)
        lib.emu_executed_get(self._handle, executed)
        return LaunchResult(
            findings=tuple(findings),
            stopped=bool(result.stopped),
            instructions=result.instructions,
            seconds=result.nanoseconds * 1e-9,
            classes=tuple(classes),
            engines=tuple(engines),
            smem_bytes=result.smem_bytes,
            tmem_columns=result.tmem_columns,
            printed=text.value.decode(errors="replace"),
            executed_lines=frozenset(_line_of(self.decoded.code, i) for i, b in enumerate(executed.raw) if b),
            mbarrier_uses=tuple(map(_mbarrier_use, uses)),
            paths=tuple(sorted(paths, key=lambda path: (path.cta, path.warp))),
        )
