"""A compiled kernel on disk: one folder with code in three forms, what is to be known of it, and checksums.

kernel.so      host code and cubin, linked: loads without CuTe DSL (absent where there is no C compiler)
kernel.o       the same as a relocatable object
kernel.ptx     the kernel as PTX
kernel.cubin   the kernel as machine code
kernel.json    names, versions, resources, how it is called, and the SHA-256 of the files above
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..diagnostics import UnsupportedError
from .library import load_function, load_object
from .signature import Signature

FORMAT = 1  # of kernel.json
INFO = "kernel.json"
SHARED, OBJECT, PTX, CUBIN = "kernel.so", "kernel.o", "kernel.ptx", "kernel.cubin"


class DamagedArtifact(Exception):
    """A folder that is no whole artifact; the message says what is wrong."""


@dataclass(frozen=True)
class KernelInfo:
    """What kernel.json says."""

    key: str  # of the cache
    spec: str  # name of the spec
    dim: int  # elements of a row of q and k
    dim_v: int  # elements of a row of v and o
    entry: str  # name of the kernel in PTX
    signature: Signature
    registers: int  # per thread at launch
    stack: int  # bytes of local memory per thread
    facts: tuple[tuple[str, str], ...]  # (name, version) of what compiled it
    files: tuple[tuple[str, str, int], ...]  # (name, SHA-256, bytes)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "format": FORMAT,
            "key": self.key,
            "spec": self.spec,
            "dim": self.dim,
            "dim_v": self.dim_v,
            "entry": self.entry,
            "signature": self.signature.as_dict(),
            "registers": self.registers,
            "stack": self.stack,
            "facts": dict(self.facts),
            "files": {name: {"sha256": digest, "bytes": size} for name, digest, size in self.files},
        }

    @staticmethod
    def read(folder: Path) -> KernelInfo:
        """Raises DamagedArtifact."""
        try:
            plain = json.loads((folder / INFO).read_text("utf-8"))
            if plain["format"] != FORMAT:
                raise DamagedArtifact(f"{INFO} has format {plain['format']}, expected {FORMAT}")
            return KernelInfo(
                key=str(plain["key"]),
                spec=str(plain["spec"]),
                dim=int(plain["dim"]),
                dim_v=int(plain["dim_v"]),
                entry=str(plain["entry"]),
                signature=Signature.from_dict(plain["signature"]),
                registers=int(plain["registers"]),
                stack=int(plain["stack"]),
                facts=tuple((str(name), str(version)) for name, version in plain["facts"].items()),
                files=tuple((str(n), str(f["sha256"]), int(f["bytes"])) for n, f in plain["files"].items()),
            )
        except FileNotFoundError:
            raise DamagedArtifact(f"{INFO} is missing") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedArtifact(f"{INFO} cannot be read: {error}") from error


@dataclass(frozen=True)
class Artifact:
    """A whole artifact: every file is there and has its checksum."""

    folder: Path
    info: KernelInfo

    @staticmethod
    def open(folder: Path, key: str | None = None) -> Artifact:
        """The artifact in `folder`, of cache key `key` if one is given. Raises DamagedArtifact."""
        info = KernelInfo.read(folder)
        if key is not None and info.key != key:
            raise DamagedArtifact(f"{INFO} is of {info.key[:12]}, not of {key[:12]}")
        for name, digest, size in info.files:
            try:
                content = (folder / name).read_bytes()
            except OSError as error:
                raise DamagedArtifact(f"{name} cannot be read: {error.strerror}") from error
            if len(content) != size:
                raise DamagedArtifact(f"{name} has {len(content):,} bytes, expected {size:,}")
            if hashlib.sha256(content).hexdigest() != digest:
                raise DamagedArtifact(f"{name} was changed: its SHA-256 is not the one in {INFO}")
        return Artifact(folder, info)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, _, size in self.info.files) + (self.folder / INFO).stat().st_size

    def load(self) -> Callable[..., Any]:
        """The host function. Raises OSError and UnsupportedError as `load_function`."""
        if any(name == SHARED for name, _, _ in self.info.files):
            return load_function(self.folder / SHARED)
        return load_object(self.folder / OBJECT)

    @cached_property
    def ptx(self) -> str:
        return (self.folder / PTX).read_text("utf-8")

    @cached_property
    def cubin(self) -> bytes:
        return (self.folder / CUBIN).read_bytes()


def seal(folder: Path, info: dict[str, Any]) -> None:
    """Writes kernel.json for the files that lie in `folder`."""
    files = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        files.append((path.name, hashlib.sha256(content).hexdigest(), len(content)))
    whole = KernelInfo(files=tuple(files), **info)
    (folder / INFO).write_text(json.dumps(whole.as_dict(), indent=1) + "\n", "utf-8")


def disassemble(cubin: Path, *options: str) -> str:
    """SASS, with `options` for `nvdisasm`. Raises UnsupportedError (E282) without it."""
    tool = shutil.which("nvdisasm") or _triton_tool("nvdisasm")
    if tool is None:
        message = "SASS is read by nvdisasm, which was not found"
        raise UnsupportedError.of("E282", message, hint="install the CUDA toolkit or triton, or put nvdisasm on PATH")
    made = subprocess.run([tool, *options, str(cubin)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise UnsupportedError.of("E282", f"{tool} cannot read {cubin.name}: {made.stderr.strip()}")
    return made.stdout


def _triton_tool(name: str) -> str | None:
    from importlib.util import find_spec

    found = find_spec("triton")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    tools = (Path(folder) / "backends" / "nvidia" / "bin" / name for folder in folders)
    return next((str(tool) for tool in tools if tool.exists()), None)
