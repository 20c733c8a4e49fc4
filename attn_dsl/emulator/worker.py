"""A device in a process of its own, for code that remembers the first architecture it saw.

The settings of CuTe DSL are put right inside a process by `device`. Libraries on top of it may keep what they learnt
about the hardware (flash-attn-4 does), so code for a second architecture needs a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from .errors import EmulatorError
from .report import LaunchReport


@dataclass(frozen=True)
class WorkerResult:
    value: Any  # what the function returned
    reports: tuple[LaunchReport, ...]  # one for each launch


def run_in_worker(
    function: Callable[..., Any],
    /,
    *args: Any,
    arch: str = "sm_100a",
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> WorkerResult:
    """Call `function(*args, **kwargs)` in a fresh process, inside `device(arch, **options)`.

    `function` is importable (not a lambda, not nested), and so is the main module: guard a script with
    `if __name__ == "__main__":`. CPU tensors among the arguments are moved to shared memory, so that what the function
    writes into them is seen here.

    Raises:
        EmulatorError: as `device` does, and E313 if the process ended without a result.
        Exception: whatever the function raised.
    """
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_inside, function, args, kwargs, arch, options or {}).result()
        except BrokenProcessPool as error:
            raise EmulatorError.of(
                "E313",
                f"the process that ran {getattr(function, '__name__', function)} on an {arch} ended without a result",
                hint='guard the script with if __name__ == "__main__":',
            ) from error


def _inside(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arch: str, options: dict[str, Any]
) -> WorkerResult:
    from .gpu import device

    with device(arch, **options) as gpu:
        value = function(*args, **kwargs)
    return WorkerResult(value, tuple(gpu.reports))
