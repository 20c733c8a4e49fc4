"""Run as a program: calls a bundle's kernel on the virtual device, in a process that cannot import CuTe DSL.

    python bundle_on_device.py BUNDLE TARGET

The virtual device stands in the place of the runtime library and the GPU; loading and calling are the package's own.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

for blocked in ("cutlass", "cuda"):
    sys.modules[blocked] = None  # type: ignore[assignment]

import pytest  # noqa: E402
import torch  # noqa: E402

import attn_dsl  # noqa: E402
from attn_dsl import reference  # noqa: E402
from attn_dsl.emulator.gpu import Device, Options  # noqa: E402
from attn_dsl.emulator.runtime import connected  # noqa: E402
from attn_dsl.emulator.tensors import Presented, convert  # noqa: E402
from attn_dsl.runtime import kernels, random_inputs  # noqa: E402

SIZES = {"batch": 2, "seq_q": 70, "seq_k": 150, "heads": 4, "kv_heads": 2, "dim": 64}


def main(folder: Path, target: str) -> None:
    device = Device(kernels.KERNEL_TARGETS[target].arch, Options(), record=True)
    with connected(device) as library:
        os.environ["CUTE_DSL_LIBS"] = library
        compiled = attn_dsl.load_bundle(folder, target=target)
        # tensors of the CPU are let in, and presented as the device's
        kernels.check_here = lambda target, device: target
        backend = compiled.backend
        assert isinstance(backend, kernels.Kernels)
        found = backend.bundled
        assert found is not None

        def presenting(shape: Any) -> Any:
            kernel = found(shape)
            assert kernel.artifact is not None
            device.compiled(kernel.artifact.ptx, kernel.artifact.cubin)
            return replace(kernel, function=lambda *args: _call(device, kernel.function, args))

        compiled = replace(compiled, backend=replace(backend, bundled=presenting))
        for window in (9, 1000):
            inputs = random_inputs(compiled.spec, SIZES, seed=window)
            values: dict[str, Any] = {**inputs.tensors, "window": window}
            o, lse = compiled(**values, return_lse=True)
            exact, exact_lse = reference.attention(
                compiled.spec, inputs.tensors, {"window": window}, precision="float64"
            )
            assert not device.findings, device.report()
            (kernel,) = compiled.backend.loaded.values()
            assert device.launches.pop().config.grid == kernel.signature.grid(inputs.extents)
            # weights of Blackwell come in part from a polynomial of relative error 2^-13
            assert (lse - exact_lse).abs()[torch.isfinite(exact_lse)].max() < (1e-5 if target == "sm90" else 2**-13)
            assert (o.double() - exact).abs().max() < 2**-7 * exact.abs().max()
        _refuses_addresses(compiled, device)
    assert sys.modules["cutlass"] is None
    sys.stdout.write(f"{len(device.reports)} launches without findings\n")


def _refuses_addresses(compiled: Any, device: Device) -> None:
    """Host code raises ValueError for an operand that TMA cannot read, and launches nothing: shortcuts rely on it."""
    tensors = random_inputs(compiled.spec, SIZES).tensors
    (kernel,) = compiled.backend.loaded.values()
    q = tensors["q"]
    given = {**tensors, "o": torch.empty_like(q), "lse": torch.empty(2, 4, 70)}
    for name in ("q", "k", "v", "o"):
        size = given[name].numel()
        odd = torch.zeros(size + 1, dtype=q.dtype)[1:].view(given[name].shape)
        assert odd.data_ptr() % 16
        with pytest.raises(ValueError, match="alignment=16 bytes"):
            kernel.function(*{**given, name: odd}.values(), (150, 1, 9))
    assert not device.launches


def _call(device: Device, function: Any, args: tuple[Any, ...]) -> None:
    import tvm_ffi

    def present(tensor: torch.Tensor) -> object:
        device.note(tensor)
        return tvm_ffi.from_dlpack(Presented(tensor))

    with device.calling():
        function(*convert(args, present))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
