"""Predicted against measured time of the kernels of `timing_cases`, and the fit of what micro-benchmarks do not give.

    python benchmarks/timing_sample.py FOLDER      # once, without a GPU
    python benchmarks/timing_calibrate.py FOLDER [--measured benchmarks/timing_measured.json] [--fit] [--set NAME=VALUE]

Every kernel is predicted at the clock it was measured at. Only kernels marked `fit` are looked at by --fit, which
tries the values of `TRIED` one parameter at a time.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from timing_cases import KERNELS, fitted, name_of

from attn_dsl.timing.predict import Sampled, predict
from attn_dsl.timing.tables import Table, table

TRIED: dict[str, tuple[float, ...]] = {
    "mma.queue": (1, 2, 3),
    "memory.l2": (34.7, 48, 62),
    "memory.hbm_gb_s": (4300, 4470, 4600),
    "block_start": (80, 500, 1200, 1800),
}
Errors = dict[str, float]  # predicted / measured - 1, by kernel


def errors(
    samples: Mapping[str, Sampled], measured: Mapping[str, dict[str, float]], numbers: Table, names: Iterable[str]
) -> Errors:
    found = {}
    for name in names:
        clock = replace(numbers, values={**numbers.values, "clock_mhz": measured[name]["mhz"]})
        found[name] = predict(samples[name], clock).microseconds / (measured[name]["ms"] * 1000) - 1
    return found


def summary(found: Errors) -> str:
    sizes = [abs(error) for error in found.values()]
    return f"{len(sizes)} kernels: median {statistics.median(sizes):.1%}, largest {max(sizes):.1%}"


def ordered(
    found: Errors, measured: Mapping[str, dict[str, float]], pairs: Iterable[tuple[str, str]]
) -> tuple[int, int]:
    """Pairs of which the model names the faster one, and pairs."""
    right = total = 0
    for a, b in pairs:
        if a in found and b in found:
            times = [measured[name]["ms"] for name in (a, b)]
            guesses = [time * (1 + found[name]) for time, name in zip(times, (a, b), strict=True)]
            right += (times[0] < times[1]) == (guesses[0] < guesses[1])
            total += 1
    return right, total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--measured", type=Path, default=Path(__file__).parent / "timing_measured.json")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text())["kernels"]
    samples: dict[str, Sampled] = {}
    for case, who in KERNELS:
        path = options.folder / f"{case.name}-{who}.pickle"
        if path.exists():
            samples[name_of(case, who)] = pickle.loads(path.read_bytes())
    changed = {name: float(value) for name, _, value in (given.partition("=") for given in options.set)}
    numbers = table("sm90")
    numbers = replace(numbers, values={**numbers.values, **changed})
    if options.fit:
        own = [name for name in samples if fitted(name)]
        for parameter, values in TRIED.items():
            for value in values:
                tried = replace(numbers, values={**numbers.values, parameter: value})
                print(f"{parameter} = {value:g}: {summary(errors(samples, measured, tried, own))}", flush=True)
        return
    found = errors(samples, measured, numbers, samples)
    print("| kernel | used for | measured, us | predicted, us | error |\n|---|---|---|---|---|")
    for name, error in found.items():
        us = measured[name]["ms"] * 1000
        print(f"| {name} | {'fit' if fitted(name) else 'test'} | {us:.1f} | {us * (1 + error):.1f} | {error:+.1%} |")
    print()
    print("fit, " + summary({name: error for name, error in found.items() if fitted(name)}))
    print("test, " + summary({name: error for name, error in found.items() if not fitted(name)}))
    makers = [(f"{case.name}/ours", f"{case.name}/fa4") for case, _ in KERNELS if case.fa4 is not None]
    for what, pairs in (("ours and flash-attn-4", sorted(set(makers))), ("any two", list(combinations(found, 2)))):
        right, total = ordered(found, measured, pairs)
        print(f"faster of {what} named right: {right} of {total}")


if __name__ == "__main__":
    main()
