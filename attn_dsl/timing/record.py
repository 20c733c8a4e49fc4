"""Launches of CuTe DSL code, recorded without a GPU and ready to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import emulator
from ..emulator import RecordedLaunch
from .predict import Prediction, predict, sample
from .tables import ARCHITECTURES, table

if TYPE_CHECKING:
    import torch


def recorded(target: str, run: Callable[[], object]) -> list[RecordedLaunch]:
    """The launches of `run`, which compiles its kernels inside and calls them on CPU tensors.

    Of each launch only the first cluster runs here, so results are not computed. Raises what `emulator.device` raises.
    """
    with emulator.device(ARCHITECTURES[target], findings="off", record=True, only=(0,), lines=True) as gpu:
        run()
    return list(gpu.launches)


def predicted(
    target: str, run: Callable[[], object], tensors: list[torch.Tensor], *, spans: bool = False
) -> list[Prediction]:
    """The predicted time of each launch of `run`; `tensors` are what it reads and writes in global memory.

    Raises UnsupportedError (E281) for a target without a table and for launches that the model has no events for.
    """
    found = table(target)
    unique = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return [predict(sample(launch, found, unique), found, spans=spans) for launch in recorded(target, run)]
