"""Building an artifact: a plan compiled by CuTe DSL, written out, and linked. Needs no GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .artifact import CUBIN, OBJECT, PTX, SHARED, Artifact, seal
from .cubin import resources
from .library import FUNCTION
from .signature import Signature
from .versions import check_dsl, compiler_facts

_ENTRY = re.compile(r"^\s*(?:\.visible )?\.entry (\S+?)\(", re.MULTILINE)
_compiling = threading.Lock()  # CuTe DSL traces into state of its own: one compilation at a time in a process


class Template(Protocol):
    """What compiles a plan: `compile_forward` of a target."""

    def __call__(self, plan: Any, options: str = "") -> Any: ...


class Planned(Protocol):
    """The plan of a kernel, as far as it is looked at here."""

    @property
    def target(self) -> str: ...


def compile_plan(plan: Planned, template: Callable[[], Template], options: str = "") -> Any:
    """What CuTe DSL makes of `plan`, callable in this process. Raises UnsupportedError (E282) as `check_dsl`."""
    check_dsl(plan.target)
    with _compiling:
        return template()(plan, options)


@dataclass(frozen=True)
class About:
    """What an artifact says of itself."""

    spec: str  # name
    dim: int  # elements of a row of q and k
    dim_v: int  # elements of a row of v and o
    signature: Signature


def build(plan: Planned, about: About, template: Callable[[], Template], folder: Path, key: str) -> Artifact:
    """Compiles `plan` and fills the empty folder `folder` with its artifact."""
    with tempfile.TemporaryDirectory(prefix="attn_dsl_") as dump:
        made = compile_plan(plan, template, f"--keep-ptx --keep-cubin --dump-dir {dump}")
        made.export_to_c(str(folder / OBJECT), FUNCTION, export_only_tvm_ffi_symbols=True)
        ptx, cubin = made.artifacts.PTX, made.artifacts.CUBIN
    (folder / PTX).write_text(ptx, "utf-8")
    (folder / CUBIN).write_bytes(cubin)
    link(folder)
    found = resources(cubin)
    entry = _ENTRY.search(ptx)
    assert entry is not None
    seal(
        folder,
        {
            "key": key,
            "spec": about.spec,
            "dim": about.dim,
            "dim_v": about.dim_v,
            "entry": entry[1],
            "signature": about.signature,
            "registers": found.registers,
            "stack": found.stack,
            "facts": compiler_facts(),
        },
    )
    return Artifact.open(folder, key)


def link(folder: Path) -> bool:
    """Makes kernel.so of kernel.o with the system's C compiler; False where there is none or it fails."""
    compiler = linker()
    if compiler is None:
        return False
    # the runtime's symbols stay undefined: they are looked up in what the process has loaded
    command = [compiler, "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-o", SHARED, OBJECT]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        (folder / SHARED).unlink(missing_ok=True)
    return made.returncode == 0


def linker() -> str | None:
    """The path of the C compiler: $CC or cc."""
    return shutil.which(os.environ.get("CC") or "cc")
