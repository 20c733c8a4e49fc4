"""How far a result may be from the float64 reference, and how far it is. `docs/cli.md` states the bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..spec import DType

# u: half the distance from 1 to the next number of the dtype, the largest relative error of one rounding
ROUNDOFF = {DType.F32: 2**-24, DType.F16: 2**-11, DType.BF16: 2**-8, DType.E4M3: 2**-4, DType.E5M2: 2**-3}


@dataclass(frozen=True)
class Measure:
    """One error with its bound."""

    name: str  # "norm" or "max"
    error: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.error <= self.bound  # NaN is no error that a bound holds for


@dataclass(frozen=True)
class Comparison:
    """One output against the reference."""

    output: str  # "o" or "lse"
    measures: tuple[Measure, ...]  # over the elements that are finite in both
    misplaced: int  # elements where only one of both is finite, or both are not and differ

    @property
    def ok(self) -> bool:
        return self.misplaced == 0 and all(measure.ok for measure in self.measures)

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "output": self.output,
            "ok": self.ok,
            "misplaced": self.misplaced,
            "errors": {
                measure.name: {
                    "error": measure.error if math.isfinite(measure.error) else None,
                    "bound": measure.bound,
                }
                for measure in self.measures
            },
        }


def compare_output(given: Tensor, exact: Tensor, dtype: DType, weights: DType | None = None) -> Comparison:
    """o against the unrounded float64 reference, relative to its 2-norm and to its largest element.

    `weights` is the dtype that weights are rounded to before they meet the values, where a target does so.
    """
    difference, expected, misplaced = _finite(given, exact)
    roundoff = max(ROUNDOFF[dtype], ROUNDOFF[weights or dtype])
    size, largest = float(expected.norm()), _largest(expected)
    norm = Measure("norm", _ratio(float(difference.norm()), size), 2 * roundoff + 1e-5)
    maximum = Measure("max", _ratio(_largest(difference), largest), 4 * roundoff + 1e-4)
    return Comparison("o", (norm, maximum), misplaced)


def compare_lse(given: Tensor, exact: Tensor) -> Comparison:
    """lse against the float64 reference: absolute below 1, relative above."""
    difference, expected, misplaced = _finite(given, exact)
    return Comparison("lse", (Measure("max", _largest(difference / expected.abs().clamp(min=1.0)), 1e-4),), misplaced)


def _finite(given: Tensor, exact: Tensor) -> tuple[Tensor, Tensor, int]:
    """Differences and expected values where both are finite, and how many elements disagree on what is not."""
    given, exact = given.detach().to("cpu", torch.float64), exact.detach().to("cpu", torch.float64)
    both = given.isfinite() & exact.isfinite()
    same = both | (given == exact) | (given.isnan() & exact.isnan())
    return (given - exact)[both], exact[both], int((~same).sum())


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _ratio(error: float, size: float) -> float:
    return 0.0 if error == 0.0 else error / size if size > 0.0 else math.inf
