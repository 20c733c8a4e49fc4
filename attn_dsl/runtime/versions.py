"""What compiled code depends on besides its plan: sources and versions, and which versions are known to work."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import attn_dsl.lowering

from .. import expr
from .._version import __version__
from ..diagnostics import UnsupportedError

DSL = "nvidia-cutlass-dsl"
TESTED = ("4.8.",)  # releases of CuTe DSL that the templates are tested with
_INSTALL = "pip install 'attn-dsl[cute]'"


def check_dsl(target: str) -> None:
    """Raises UnsupportedError (E282) if CuTe DSL is missing or of a release the templates were not tested with."""
    found = version_of(DSL)
    if found is None or find_spec("cutlass") is None:
        message = f"target '{target}' compiles with CuTe DSL, which is not installed"
        raise UnsupportedError.of("E282", message, hint=_INSTALL)
    if not found.startswith(TESTED):
        tested = ", ".join(f"{release}*" for release in TESTED)
        message = f"target '{target}' compiles with CuTe DSL {tested}, and {found} is installed"
        raise UnsupportedError.of("E282", message, hint=_INSTALL)


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def compiler_facts() -> tuple[tuple[str, str], ...]:
    """(name, version) of everything that compiled code may depend on."""
    names = (DSL, "nvidia-cutlass-dsl-libs-core", "apache-tvm-ffi", "torch")
    return (
        ("attn-dsl", __version__),
        ("python", f"{sys.implementation.cache_tag}"),
        ("platform", f"{sys.platform}-{platform.machine()}"),
        *((name, version_of(name) or "absent") for name in names),
    )


def source_files() -> list[Path]:
    """The sources that a kernel is made from: plans, templates, and the meaning of expressions."""
    rooms = [Path(attn_dsl.lowering.__path__[0]), Path(expr.__path__[0])]
    # templates are found, not imported: importing them would load CuTe DSL
    kernels = find_spec("attn_dsl.kernels")
    assert kernels is not None
    assert kernels.submodule_search_locations is not None
    rooms.append(Path(next(iter(kernels.submodule_search_locations))))
    return sorted(path for room in rooms for path in room.rglob("*.py"))


def read_sources() -> str:
    """A digest of the sources as they are on disk now."""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(f"{path.parent.name}/{path.name}".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


# Taken when the plans' modules are imported: what a process compiles is what it imported, whatever is edited later.
SOURCES = read_sources()
