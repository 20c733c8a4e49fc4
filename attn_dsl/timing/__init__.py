"""Predicted time of kernels: a discrete-event model of a multiprocessor on top of the emulator.

    prediction = predicted("sm90", lambda: call(q, k, v), [q, k, v, out])[0]
    print(prediction.microseconds, prediction.bound)

How it works, and how far to trust it: docs/timing.md.
"""

from .predict import Prediction
from .record import predicted, recorded
from .tables import ARCHITECTURES, Table, table

__all__ = [
    "ARCHITECTURES",
    "Prediction",
    "Table",
    "predicted",
    "recorded",
    "table",
]
