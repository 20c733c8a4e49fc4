"""A simulated thread block as a trace for Perfetto and chrome://tracing.

The format is Google's "Trace Event Format": complete events (`ph: X`) with times in microseconds, one process for
warps and one for engines, one thread for each track.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from .predict import Prediction

_WARPS, _ENGINES = 1, 2


def _order(track: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", track)]


def trace(prediction: Prediction, title: str) -> dict[str, object]:
    """The whole document. A microsecond of the trace is one of the predicted clock."""
    scale = 1 / prediction.clock_mhz
    tracks: dict[str, int] = {}
    for span in sorted(prediction.outcome.spans, key=lambda span: _order(span.track)):
        tracks.setdefault(span.track, len(tracks) + 1)
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{title}: {what} (predicted)"}}
        for pid, what in ((_WARPS, "waits of warps"), (_ENGINES, "engines"))
    ]
    for track, number in tracks.items():
        pid = _WARPS if track.startswith("slot") else _ENGINES
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": track}})
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": number, "args": {"sort_index": number}}
        )
    for span in prediction.outcome.spans:
        pid = _WARPS if span.track.startswith("slot") else _ENGINES
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "pid": pid,
                "tid": tracks[span.track],
                "ts": span.start * scale,
                "dur": (span.end - span.start) * scale,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write(prediction: Prediction, title: str, path: Path) -> None:
    """Raises OSError if the file cannot be written."""
    path.write_text(json.dumps(trace(prediction, title)), "utf-8")
