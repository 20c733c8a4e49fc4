"""The connection to the stand-in runtime library (`csrc/shim`): its calls arrive here as Python calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from .build import runtime_library
from .hostcode import runtime_names

OK, INVALID_VALUE, LAUNCH_FAILURE = 0, 1, 719


class _Launch(ctypes.Structure):
    _fields_ = [
        ("library", ctypes.c_uint64),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("dyn_smem", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("programmatic", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
    ]


_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64))
_FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p)
_ATTRIBUTE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))
_ALLOCATED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)


class _Table(ctypes.Structure):
    _fields_ = [
        ("load", _LOAD),
        ("find", _FIND),
        ("attribute", _ATTRIBUTE),
        ("launch", _LAUNCH),
        ("allocated", _ALLOCATED),
        ("device_attributes", ctypes.POINTER(ctypes.c_int32)),
    ]


@dataclass(frozen=True)
class HostLaunch:
    """A launch as host code asked for it."""

    library: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dyn_smem: int  # bytes
    stream: int
    programmatic: bool  # programmatic dependent launch (PDL)
    cooperative: bool
    argument: Callable[[int, int], bytes]  # (ordinal, size) -> bytes of a kernel parameter


class Driver(Protocol):
    """What the runtime calls. An exception becomes an error code; `fail` gets it first."""

    attributes: dict[int, int]  # CUdevice_attribute -> value

    def load(self, image: bytes) -> int: ...
    def find(self, library: int, kernel: str) -> None: ...
    def attribute(self, library: int, kernel: str, attribute: int) -> int: ...
    def launch(self, launch: HostLaunch) -> None: ...
    def allocated(self, address: int, size: int) -> None: ...
    def fail(self, error: BaseException) -> None: ...


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(runtime_library()))
    lib.attn_emu_connect.argtypes = [ctypes.POINTER(_Table)]
    lib.attn_emu_connect.restype = None
    return lib


def _triple(values: Any) -> tuple[int, int, int]:
    return values[0], values[1], values[2]


@lru_cache(maxsize=1)
def addresses() -> dict[str, int]:
    """Addresses of the runtime functions, by the names host code knows them by."""
    lib = _library()
    names = runtime_names(runtime_library().read_bytes())
    return {name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0 for name in names}


@contextmanager
def connected(driver: Driver) -> Iterator[str]:
    """While open, host code linked against the library reaches `driver`. Yields the library's path."""

    def guarded(function: Callable[..., object], *args: object) -> int:
        try:
            function(*args)
        except BaseException as error:  # nothing may unwind through generated host code
            driver.fail(error)
            return LAUNCH_FAILURE
        return OK

    def load(image: int, out: Any) -> int:
        def work() -> None:
            out[0] = driver.load(_elf_of(image))

        return guarded(work)

    def attribute(library: int, kernel: bytes, which: int, out: Any) -> int:
        def work() -> None:
            out[0] = driver.attribute(library, kernel.decode(), which)

        return guarded(work)

    def launch(pointer: Any) -> int:
        raw = pointer[0]
        args = raw.args

        def argument(ordinal: int, size: int) -> bytes:
            return ctypes.string_at(args[ordinal], size)

        return guarded(
            driver.launch,
            HostLaunch(
                raw.library,
                raw.kernel.decode(),
                _triple(raw.grid),
                _triple(raw.block),
                _triple(raw.cluster),
                raw.dyn_smem,
                raw.stream,
                bool(raw.programmatic),
                bool(raw.cooperative),
                argument,
            ),
        )

    pairs = [value for pair in driver.attributes.items() for value in pair]
    attributes = (ctypes.c_int32 * (len(pairs) + 2))(*pairs, 0, 0)
    table = _Table(
        _LOAD(load),
        _FIND(lambda library, kernel: guarded(driver.find, library, kernel.decode())),
        _ATTRIBUTE(attribute),
        _LAUNCH(launch),
        _ALLOCATED(lambda address, size: guarded(driver.allocated, address, size)),
        ctypes.cast(attributes, ctypes.POINTER(ctypes.c_int32)),
    )
    lib = _library()
    lib.attn_emu_connect(ctypes.byref(table))
    try:
        yield str(runtime_library())
    finally:
        lib.attn_emu_connect(None)


_FATBIN_MAGIC = 0xBA55ED50


def _elf_of(address: int) -> bytes:
    """The ELF image behind a pointer given to cudaLibraryLoadData: a fatbin with one uncompressed entry, or an ELF."""
    head = ctypes.string_at(address, 16)
    if int.from_bytes(head[:4], "little") != _FATBIN_MAGIC:
        size = _elf_size(address)
        return ctypes.string_at(address, size)
    total = int.from_bytes(head[8:16], "little")
    body = ctypes.string_at(address + 16, total)
    entry_header = int.from_bytes(body[4:8], "little")
    size = int.from_bytes(body[8:16], "little")
    return body[entry_header : entry_header + size]


def _elf_size(address: int) -> int:
    """End of the section header table, which the assembler writes last."""
    head = ctypes.string_at(address, 64)
    offset = int.from_bytes(head[40:48], "little")
    return offset + int.from_bytes(head[58:60], "little") * int.from_bytes(head[60:62], "little")
