"""Compiled kernels on disk, shared by all processes of a user.

    <folder>/<key>/          an artifact
    <folder>/locks/<key>     held while one process compiles <key>; the others wait and find the result
    <folder>/building/       artifacts being written; an artifact takes its place by one rename, whole or not at all
    <folder>/quarantine/     damaged artifacts, the newest few

A process that is killed leaves at most a folder below `building`, which the next one that builds removes after a day.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from .artifact import FORMAT, INFO, Artifact, DamagedArtifact, KernelInfo
from .versions import SOURCES, compiler_facts, read_sources

FOLDER_VARIABLE = "ATTN_DSL_CACHE_DIR"
LIMIT_VARIABLE = "ATTN_DSL_CACHE_MB"
DEFAULT_LIMIT = 1024  # MiB
_LOCKS, _BUILDING, _QUARANTINE = "locks", "building", "quarantine"
_SERVICE = (_LOCKS, _BUILDING, _QUARANTINE)
_KEPT_DAMAGED = 8  # artifacts
_ABANDONED = 86_400  # seconds after which a folder below `building` has no process any more
_NOT_COMPILER = ("CUTE_DSL_LIBS", "CUTE_DSL_ARCH", "CUTE_DSL_CACHE_DIR", "CUTE_DSL_DUMP_DIR")


@dataclass(frozen=True)
class Entry:
    """An artifact of the cache, as `attn-dsl cache ls` lists it."""

    info: KernelInfo
    bytes: int
    used: float  # when it was last loaded, in seconds since the epoch


def cache_folder() -> Path:
    """Where kernels are kept: below $ATTN_DSL_CACHE_DIR, or below `attn_dsl` in the user's cache."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn_dsl"
    return base / "kernels"


def cache_limit() -> int:
    """The size the cache is kept below, in bytes: $ATTN_DSL_CACHE_MB, in MiB; 0 keeps nothing."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if text and not text.isdecimal():
        _warn_once(f"{LIMIT_VARIABLE}={text} is no whole number of MiB; {DEFAULT_LIMIT} is used")
    return (int(text) if text.isdecimal() else DEFAULT_LIMIT) << 20


def key_of(plan: object, arch: str) -> str:
    """Equal only for kernels that are equal: the plan, the sources it is compiled by, the compiler and its settings.

    The plan's `repr` says all of it, in every process.
    """
    settings = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith("CUTE_DSL_") and name not in _NOT_COMPILER
    )
    facts = (FORMAT, arch, SOURCES, compiler_facts(), settings, type(plan).__name__, repr(plan))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class KernelCache:
    """The cache in one folder."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit  # bytes

    def load(self, key: str, build: Callable[[Path], Artifact]) -> tuple[Artifact, Callable[..., Any]]:
        """The artifact `key` and its host function; `build` fills an empty folder with it where it is not there.

        A folder that cannot be written costs a warning, once for a process, and the result is not kept.
        """
        found = self._opened(key)
        if found is not None:
            return found
        try:
            if not self.limit:
                raise OSError("its limit is 0")
            with self._locked(key):
                found = self._opened(key)
                if found is not None:
                    return found
                self._build(key, build)
                found = self._opened(key)
        except OSError as error:
            if self.limit:
                _warn_once(f"compiled kernels are not kept: {self.folder}: {error.strerror or error}")
        if found is not None:
            return found
        artifact = build(_private_folder())
        return artifact, artifact.load()

    def _opened(self, key: str) -> tuple[Artifact, Callable[..., Any]] | None:
        """A whole artifact and its function; a damaged one is set aside."""
        folder = self.folder / key
        if not (folder / INFO).exists() and not folder.exists():
            return None
        try:
            artifact = Artifact.open(folder, key)
            function = artifact.load()
        except (DamagedArtifact, OSError):
            self._set_aside(key)
            return None
        with suppress(OSError):
            os.utime(folder / INFO)
        return artifact, function

    def _build(self, key: str, build: Callable[[Path], Artifact]) -> None:
        building = self.folder / _BUILDING
        building.mkdir(parents=True, exist_ok=True)
        self._sweep(building)
        temporary = Path(tempfile.mkdtemp(prefix=f"{key[:12]}-", dir=building))
        try:
            build(temporary)
            if read_sources() != SOURCES:
                return  # edited since this process imported them: the result belongs to no key
            for path in temporary.iterdir():
                _flush(path)
            with suppress(OSError):  # another process was faster, without the lock
                temporary.rename(self.folder / key)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._trim(keep=key)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        locks = self.folder / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / key)
        try:
            lock.acquire()
        except NotImplementedError:  # a file system without locks: several processes may compile the same
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _set_aside(self, key: str) -> None:
        damaged = self.folder / _QUARANTINE
        with suppress(OSError):
            damaged.mkdir(parents=True, exist_ok=True)
            (self.folder / key).rename(damaged / f"{key}-{time.time_ns()}")
            old = sorted(damaged.iterdir(), key=lambda path: path.name.rpartition("-")[2])[:-_KEPT_DAMAGED]
            for path in old:
                shutil.rmtree(path, ignore_errors=True)

    def _sweep(self, building: Path) -> None:
        for path in building.iterdir():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)

    def _trim(self, keep: str) -> None:
        """Removes what was not used for longest until the rest fits the limit."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= self.limit:
                return
            if entry.info.key != keep:
                self.remove(entry.info.key)
                total -= entry.bytes

    # -- what the command line does ---------------------------------------------------------------------------------

    def _keys(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and path.name not in _SERVICE)

    def entries(self) -> list[Entry]:
        """What is in the cache; damaged artifacts are left out."""
        found = []
        for key in self._keys():
            with suppress(DamagedArtifact, OSError):
                info = KernelInfo.read(self.folder / key)
                used = (self.folder / key / INFO).stat().st_mtime
                found.append(Entry(info, Artifact(self.folder / key, info).size, used))
        return found

    def verify(self) -> list[tuple[str, str]]:
        """(key, what is wrong) of damaged artifacts, which are set aside."""
        damaged = []
        for key in self._keys():
            try:
                Artifact.open(self.folder / key, key)
            except DamagedArtifact as problem:
                damaged.append((key, str(problem)))
                self._set_aside(key)
        return damaged

    def remove(self, key: str) -> None:
        """Takes one artifact away; processes that loaded it keep it."""
        (self.folder / _BUILDING).mkdir(parents=True, exist_ok=True)
        gone = Path(tempfile.mkdtemp(dir=self.folder / _BUILDING))
        with suppress(FileNotFoundError):
            (self.folder / key).rename(gone / key)
        shutil.rmtree(gone, ignore_errors=True)

    def clear(self) -> tuple[int, int]:
        """(artifacts, bytes) removed; quarantine and abandoned folders go too."""
        entries = self.entries()
        for key in self._keys():
            self.remove(key)
        for name in (_QUARANTINE, _BUILDING, _LOCKS):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return len(entries), sum(entry.bytes for entry in entries)


def kernel_cache() -> KernelCache:
    """The cache of this process's environment."""
    return KernelCache(cache_folder(), cache_limit())


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attn_dsl_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _flush(path: Path) -> None:
    """A rename may reach the disk before the content does."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
