"""What the tests call in a process of its own."""

from __future__ import annotations

import os

import torch


def add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> int:
    """out = a + b on the device, natively, and again through TVM-FFI; the process it ran in.

    The runtime that comes with CuTe DSL is loaded first, globally, as some libraries do: it must not get the calls.
    """
    import ctypes
    from pathlib import Path

    import cute_kernels
    import cutlass.cute as cute
    import nvidia_cutlass_dsl
    from cutlass.cute.runtime import from_dlpack

    [real] = Path(nvidia_cutlass_dsl.__path__[0]).glob("*/lib/libcute_dsl_runtime.so")
    ctypes.CDLL(str(real), mode=ctypes.RTLD_GLOBAL)
    cute_kernels.add(from_dlpack(a), from_dlpack(b), from_dlpack(out), a.numel())
    tensors = [from_dlpack(tensor, enable_tvm_ffi=True) for tensor in (a, b, out)]
    cute.compile(cute_kernels.add, *tensors, a.numel(), options="--enable-tvm-ffi")(a, b, out, a.numel())
    return os.getpid()


def store_far(out: torch.Tensor, index: int) -> None:
    """Writes behind the end."""
    import cute_kernels
    from cutlass.cute.runtime import from_dlpack

    cute_kernels.store_far(from_dlpack(out), index)


def die() -> None:
    """Ends the process without a word."""
    os._exit(3)
