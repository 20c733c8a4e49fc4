"""Artifacts that load and take no compiling: a library whose host function does nothing, and a text for the rest."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import attn_dsl
from attn_dsl.lowering.forward import ShapeClass, sm90
from attn_dsl.runtime.artifact import CUBIN, OBJECT, PTX, SHARED, Artifact, seal
from attn_dsl.runtime.library import FUNCTION
from attn_dsl.runtime.signature import Signature

# the calling convention of TVM-FFI: (handle, arguments, their number, result); 0 is success
SOURCE = f"int __tvm_ffi_{FUNCTION}(void *self, const void *args, int n, void *result) {{ return 0; }}"
SPEC = attn_dsl.parse("q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]", name="small")
SIGNATURE = Signature.of(sm90.select(SPEC, ShapeClass(128, 128)), "sm_90a")


@lru_cache(maxsize=1)
def library() -> bytes:
    """The shared library."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.so"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(made), "-"]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        return made.read_bytes()


def fill(folder: Path, key: str, name: str = "small", padding: int = 0) -> Artifact:
    """Fills an empty folder with the artifact `key`; `padding` bytes make it larger."""
    (folder / SHARED).write_bytes(library())
    (folder / OBJECT).write_bytes(b"o" * padding)
    (folder / PTX).write_text(".entry small(")
    (folder / CUBIN).write_bytes(b"cubin")
    info = {"key": key, "spec": name, "dim": 128, "dim_v": 128, "entry": "small", "signature": SIGNATURE}
    seal(folder, info | {"registers": 168, "stack": 8, "facts": (("python", "here"),)})
    return Artifact.open(folder, key)


def builder(key: str, calls: list[str], **settings: int) -> Callable[[Path], Artifact]:
    """A `build` for the cache that notes its calls."""

    def build(folder: Path) -> Artifact:
        calls.append(key)
        return fill(folder, key, **settings)  # type: ignore[arg-type]

    return build
