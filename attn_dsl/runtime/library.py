"""Loading compiled kernels: shared libraries that need the runtime library of CuTe DSL and TVM-FFI, and no compiler."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..diagnostics import UnsupportedError

FUNCTION = "attn_dsl_forward"  # the name under which every kernel's host code is exported
_RUNTIME = "libcute_dsl_runtime.so"
_VARIABLE = "CUTE_DSL_LIBS"  # CuTe DSL's own: its runtime libraries, separated by ':'
_loaded: list[object] = []  # libraries stay: host code of a kernel may run until the process ends


def load_function(path: Path) -> Callable[..., Any]:
    """The host function of a kernel's shared library.

    Raises UnsupportedError (E282) without TVM-FFI or the DSL's runtime library, OSError if `path` cannot be loaded.
    """
    if find_spec("tvm_ffi") is None:
        message = "a compiled kernel is called through TVM-FFI, which is not installed"
        raise UnsupportedError.of("E282", message, hint="pip install apache-tvm-ffi")
    import tvm_ffi

    _open_runtime()
    try:
        module = tvm_ffi.load_module(str(path))
        function = module.get_function(FUNCTION)
    except (RuntimeError, AttributeError) as error:
        raise OSError(f"cannot load {path.name}: {error}") from error
    _loaded.append(module)
    return function  # type: ignore[no-any-return]


def load_object(path: Path) -> Callable[..., Any]:
    """The host function of a relocatable object, linked by CuTe DSL: where there is no linker."""
    from cutlass.cute.runtime import load_module

    module = load_module(str(path), enable_tvm_ffi=True)
    _loaded.append(module)
    return getattr(module, FUNCTION)  # type: ignore[no-any-return]


def as_array(values: tuple[Any, ...]) -> Any:
    """Numbers as TVM-FFI's own array, which a call need not convert again; other values as they are."""
    if find_spec("tvm_ffi") is None or not all(isinstance(value, int | float) for value in values):
        return values
    import tvm_ffi

    return tvm_ffi.convert(values)


@lru_cache(maxsize=1)
def _open_runtime() -> None:
    """Makes the symbols of the runtime library visible to kernels."""
    for path in runtime_libraries():
        _loaded.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))


def runtime_libraries() -> tuple[Path, ...]:
    """The runtime library of CuTe DSL: named by CUTE_DSL_LIBS, or of the installed distribution.

    Raises UnsupportedError (E282) if there is none.
    """
    named = tuple(Path(part) for part in os.environ.get(_VARIABLE, "").split(os.pathsep) if part)
    if named:
        missing = [str(path) for path in named if not path.exists()]
        if missing:
            raise UnsupportedError.of("E282", f"{_VARIABLE} names {missing[0]}, which does not exist")
        return named
    installed = find_spec("nvidia_cutlass_dsl")
    folders = [] if installed is None else list(installed.submodule_search_locations or ())
    found = sorted(path for folder in folders for path in Path(folder).glob(f"cu*/lib/{_RUNTIME}"))
    if not found:
        raise UnsupportedError.of(
            "E282",
            f"a compiled kernel needs {_RUNTIME}, and there is none",
            hint=f"pip install nvidia-cutlass-dsl-libs-cu13, or name the file in {_VARIABLE}",
        )
    wanted = f"cu{str(torch.version.cuda or '').partition('.')[0]}"
    return (next((path for path in found if path.parent.parent.name == wanted), found[-1]),)
