"""The predicted time of a kernel, in words, and its trace in a file."""

from __future__ import annotations

from pathlib import Path

from ..runtime import Inputs, bind
from ..runtime.kernels import KERNEL_TARGETS, Kernels
from ..spec import AttentionSpec
from ..timing import ARCHITECTURES, Prediction, predicted, table
from ..timing.chrome import write
from .console import FileError, UsageError
from .explanation import Section

_UNITS = {
    "fma": "FP32 multiply-add",
    "imad": "integer multiply-add",
    "alu": "integer, compare, convert",
    "xu": "special functions",
    "uniform": "uniform",
    "memory": "shared-memory and barrier instructions",
    "tensor": "tensor core",
    "memory traffic": "memory traffic",
    "issue": "issue slots",
}
_SHOWN = 0.03  # shares below are not printed


def timed(spec: AttentionSpec, inputs: Inputs, target: str, trace: str | None) -> Section:
    """What the timing model says of a call. Raises UsageError for a target without a table, FileError for the trace."""
    if target not in ARCHITECTURES:
        message = f"--time: there are no parameters of the timing model for {target} yet"
        raise UsageError.say(message, f"--target {' or '.join(ARCHITECTURES)}")
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    backend = Kernels(spec, KERNEL_TARGETS[target])
    held = [*inputs.tensors.values(), inputs.tensors["q"]]  # the output is about as large as q
    found = predicted(target, lambda: backend.launch(call, None, None), held, spans=trace is not None)
    if trace is not None:
        try:
            write(found[0], spec.name, Path(trace))
        except OSError as error:
            raise FileError.say(f"cannot write {trace}: {error.strerror}") from None
    numbers = table(target)
    lines = [line for index, one in enumerate(found) for line in _lines(one, index, len(found))]
    known = numbers.errors
    lines.append(
        f"a prediction for {numbers['clock_mhz']:.0f} MHz, not a measurement: half of {int(known['held_out'])} kernels "
        f"that nothing was fitted to were within {known['median']:.0%}; of all {int(known['kernels'])}, none was off "
        f"by more than {known['largest']:.0%} (docs/timing.md)"
    )
    return Section(f"predicted time on {target}", tuple(lines), {"time": _facts(found, target)})


def _lines(found: Prediction, index: int, count: int) -> list[str]:
    low, high = found.range
    head = f"kernel {index + 1} of {count}: " if count > 1 else ""
    busy = sorted(
        ((share, unit) for unit, share in found.busy.items() if share >= _SHOWN and unit in _UNITS), reverse=True
    )
    lines = [
        f"{head}{found.microseconds:.1f} us predicted (somewhere in {low:.0f} to {high:.0f}), "
        f"{found.cycles:.0f} cycles, {found.waves:.1f} waves of {found.resident} thread blocks a multiprocessor",
        f"busiest: {_UNITS.get(found.bound, found.bound)}; busy: "
        + ", ".join(f"{_UNITS[unit]} {share:.0%}" for share, unit in busy),
    ]
    for role, waits in sorted(found.waits.items()):
        shown = sorted(((share, reason) for reason, share in waits.items() if share >= _SHOWN), reverse=True)
        if shown and role != "other":
            lines.append(f"{role} warps wait: " + ", ".join(f"{reason} {share:.0%}" for share, reason in shown))
    lines.append(f"{found.foreign:.1%} of the simulated instructions are guesses of which way a branch went")
    return lines


def _facts(found: list[Prediction], target: str) -> dict[str, object]:
    return {
        "target": target,
        "prediction": True,
        "table_version": table(target).version,
        "kernels": [
            {
                "microseconds": one.microseconds,
                "range": list(one.range),
                "cycles": one.cycles,
                "clock_mhz": one.clock_mhz,
                "bound": one.bound,
                "busy": one.busy,
                "waits": one.waits,
                "resident": one.resident,
                "waves": one.waves,
                "guessed": one.foreign,
            }
            for one in found
        ],
    }
