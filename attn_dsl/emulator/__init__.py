"""A virtual GPU: runs the PTX of CuTe DSL kernels for sm_90a and sm_100a on the CPU, and says what they do wrong.

    with attn_dsl.emulator.device("sm_100a") as gpu:
        out = function(q, k, v)  # CuTe DSL code, CPU tensors
    print(gpu.report())

`ptx.load(text).launch(...)` runs a kernel given as PTX text, without CuTe DSL. `run_in_worker(function, ..., arch=...)`
opens the device in a fresh process, for libraries that remember the first architecture they saw.
"""

from . import ptx
from .errors import EmulatorError, KernelFinding, PtxError
from .gpu import Device, RecordedLaunch, device
from .report import Finding, LaunchReport
from .worker import WorkerResult, run_in_worker

__all__ = [
    "Device",
    "EmulatorError",
    "Finding",
    "KernelFinding",
    "LaunchReport",
    "PtxError",
    "RecordedLaunch",
    "WorkerResult",
    "device",
    "ptx",
    "run_in_worker",
]
