"""Decoded kernels on disk, keyed by the PTX text and by the decoder's own source."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from functools import lru_cache
from pathlib import Path

from .build import cache_dir
from .decoder import decode
from .program import DecodedProgram


@lru_cache(maxsize=1)
def _decoder_version() -> bytes:
    """Changes with every change of the decoder, its tables and the encoding."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in (*sorted(folder.glob("*.py")), folder / "csrc" / "emu_isa.h"):
        digest.update(path.read_bytes())
    return digest.digest()


@lru_cache(maxsize=64)
def decoded(text: str, kernel: str | None = None) -> DecodedProgram:
    """`decode(text, kernel)`, from the cache if it was decoded before. Raises PtxError like `decode`."""
    key = hashlib.sha256(_decoder_version() + (kernel or "").encode() + b"\0" + text.encode()).hexdigest()
    path = cache_dir() / "decoded" / f"{key}.pickle"
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError, IndexError):
        program = pickle.loads(path.read_bytes())
        if isinstance(program, DecodedProgram):
            return program
    program = decode(text, kernel)
    with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(pickle.dumps(program, protocol=5))
        temporary.replace(path)
    return program
