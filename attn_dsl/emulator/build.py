"""Builds the emulator's C libraries with the system compiler, once for each (source, flags, compiler, processor)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from .errors import EmulatorError

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"),
    *("-pthread", "-Wall", "-Wextra"),
)
_LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic", "-pthread")  # symbolic: calls inside a library stay inside it
_CACHE_VARIABLE = "ATTN_DSL_CACHE_DIR"


def cache_dir() -> Path:
    """Where built libraries and decoded kernels are kept: $ATTN_DSL_CACHE_DIR, or a folder in the user's cache."""
    chosen = os.environ.get(_CACHE_VARIABLE)
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn_dsl"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(base, error) from None
    return base


def _unusable(folder: Path, error: OSError) -> Exception:
    return EmulatorError.of(
        "E310",
        f"the cache folder {folder} cannot be made or written: {error.strerror}",
        hint=f"set {_CACHE_VARIABLE} to a folder",
    )


def core_library() -> Path:
    """The execution core, `csrc/*.c`. Raises EmulatorError (E310) if there is no compiler or it fails."""
    return _library("attn_emu", _SOURCES)


def runtime_library() -> Path:
    """The stand-in for the CuTe DSL runtime, `csrc/shim/*.c`. Raises EmulatorError (E310) like `core_library`."""
    return _library("attn_emu_runtime", _SOURCES / "shim")


@lru_cache(maxsize=1)
def _compiler() -> tuple[str, str]:
    """Path and version line of the C compiler."""
    name = os.environ.get("CC") or "cc"
    path = shutil.which(name)
    if path is None:
        raise EmulatorError.of(
            "E310",
            f"the emulator needs a C compiler and there is no '{name}'",
            hint="install gcc or clang (Debian and Ubuntu: apt install gcc), or set CC to a compiler",
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return path, version.partition("\n")[0]


def _processor() -> str:
    """What -march=native depends on."""
    try:
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return platform.machine() + (flags.group(1) if flags else "")


@lru_cache(maxsize=4)
def _library(name: str, folder: Path) -> Path:
    sources = sorted(folder.glob("*.c"))
    compiler, version = _compiler()
    digest = hashlib.sha256()
    for part in (version, *_FLAGS, *_LINK_FLAGS, _processor()):
        digest.update(part.encode() + b"\0")
    for path in (*sources, *sorted(_SOURCES.rglob("*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    target = cache_dir() / "native" / f"lib{name}-{digest.hexdigest()[:24]}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(exist_ok=True)
        with (target.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes started together build once
            if not target.exists():
                _build(compiler, sources, folder, target)
    except OSError as error:
        raise _unusable(target.parent, error) from None
    return target


def _build(compiler: str, sources: list[Path], folder: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        work = Path(temporary)
        objects = [work / f"{path.stem}.o" for path in sources]
        include = {f"-I{folder}", f"-I{_SOURCES}"}
        commands = [
            [compiler, *_FLAGS, *sorted(include), "-c", str(path), "-o", str(made)]
            for path, made in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands))
        built = work / target.name
        _run([compiler, *_LINK_FLAGS, *map(str, objects), "-o", str(built), "-lm", "-ldl"])
        built.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError.of(
            "E310",
            f"the C compiler failed: {' '.join(command)}\n{done.stderr.strip()}",
            hint="gcc 9 or clang 12 is enough",
        )
