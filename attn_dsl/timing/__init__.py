"""Predicted time of kernels: a discrete-event model of a multiprocessor on top of the emulator. See docs/timing.md.

prediction = predicted("sm90", lambda: call(q, k, v), [q, k, v, out])[0] print(prediction.microseconds,
prediction.bound)
"""

from .predict import Prediction
from .record import ARCHITECTURES, predicted, recorded
from .tables import Table, table

__all__ = [
    "ARCHITECTURES",
    "Prediction",
    "Table",
    "predicted",
    "recorded",
    "table",
]
