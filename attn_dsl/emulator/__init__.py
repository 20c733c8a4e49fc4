"""A virtual GPU: runs the PTX of CuTe DSL kernels for sm_90a and sm_100a on the CPU, and says what they do wrong.

    with attn_dsl.emulator.device("sm_100a") as gpu:
        out = function(q, k, v)  # CuTe DSL code, CPU tensors
    print(gpu.report())

`ptx.load(text).launch(...)` runs a kernel given as PTX text, without CuTe DSL.
"""

from . import ptx
from .errors import EmulatorError, KernelFinding, PtxError
from .gpu import Device, RecordedLaunch, device
from .report import Finding, LaunchReport

__all__ = [
    "Device",
    "EmulatorError",
    "Finding",
    "KernelFinding",
    "LaunchReport",
    "PtxError",
    "RecordedLaunch",
    "device",
    "ptx",
]
