"""Which specs of examples/ a kernel computes on its virtual device, by dtype and head dimension: one table.

A cell is one kernel and up to eleven launches of other lengths, under random schedules, with outputs full of NaN before
and every finding an error (tests/support/kernel_matrix.py says when a launch is right). It shows how many passed, or
`-` where a spec fixes another head dimension. Below the table: what failed, and what the target refuses, with the
reason.

    python benchmarks/sm100_gallery.py [--target sm90] [--columns bf16:64,f16:128] [--lengths 4] [--json FILE] [SPEC]

Columns are run one after the other. With `--json` results are kept in FILE, and cells that are in it are not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import kernel_matrix as matrix
from kernel_matrix import Cell

import attn_dsl
from attn_dsl.runtime.kernels import KERNEL_TARGETS


@dataclass
class Result:
    """One cell: how many launches passed, and what the first that did not says."""

    passed: int = 0
    of: int = 0
    wrong: str = ""
    refused: str = ""

    @property
    def ok(self) -> bool:
        return self.passed == self.of > 0


@dataclass
class Results:
    """By cell; kept in a file."""

    path: Path | None
    found: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.found = {cell: Result(**values) for cell, values in json.loads(self.path.read_text()).items()}

    def keep(self, cell: Cell, result: Result) -> None:
        self.found[str(cell)] = result
        if self.path is not None:
            self.path.write_text(json.dumps({name: vars(value) for name, value in self.found.items()}, indent=1))


def lengths_of(cell: Cell, count: int) -> list[tuple[int, tuple[int, int]]]:
    """`count` of all lengths, with their places; which, takes turns from cell to cell."""
    first = matrix.SPECS.index(cell.spec) * 3 + cell.dim // 8
    places = {(first + 3 * turn) % len(matrix.LENGTHS) for turn in range(count)}
    return [(place, matrix.LENGTHS[place]) for place in sorted(places)]


def measure(cell: Cell, target: str, sender: Connection, seconds: int, count: int) -> None:
    """Runs in a process of its own, which the system ends when it has used up its processor time."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    torch.set_num_threads(1)
    result = Result()
    try:
        kernels = matrix.kernels_of(cell, target)
        for place, lengths in lengths_of(cell, count):
            result.of += 1
            wrong = matrix.launch(kernels, cell, lengths, seed=place + 1, late=place % 3)
            result.passed += not wrong
            result.wrong = result.wrong or (f"{lengths}: {wrong}" if wrong else "")
    except attn_dsl.UnsupportedError as refusal:
        result.refused = refusal.diagnostics[0].message
    except attn_dsl.AttnDslError as error:
        result.refused = error.diagnostics[0].message
    sender.send(vars(result))


def run(cell: Cell, target: str, seconds: int, count: int) -> Result:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(cell, target, sender, seconds, count))
    process.start()
    sender.close()
    try:
        result = Result(**receiver.recv())
    except EOFError:
        process.join()
        in_time = process.exitcode not in (-signal.SIGXCPU, -signal.SIGKILL)
        result = Result(wrong="ended without a result" if in_time else f"not done in {seconds} s of processor time")
    process.join()
    return result


def table(chosen: list[Cell], results: Results, columns: list[tuple[str, int]]) -> Iterator[str]:
    """Markdown."""
    yield "| spec | " + " | ".join(f"{dtype} {dim}" for dtype, dim in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    refused: dict[str, list[str]] = {}
    wrong, passed, failed = [], 0, 0
    for name in dict.fromkeys(cell.spec for cell in chosen):
        found = {cell: results.found[str(cell)] for cell in chosen if cell.spec == name and str(cell) in results.found}
        texts = {}
        for cell, result in found.items():
            texts[cell.dtype, cell.dim] = "refused" if result.refused else f"{result.passed}/{result.of}"
            if result.refused:
                refused.setdefault(f"{name}: {result.refused}", []).append(f"{cell.dtype} {cell.dim}")
            elif result.wrong:
                wrong.append(f"{cell}: {result.wrong}")
        ran = [result for result in found.values() if not result.refused]
        passed += bool(ran) and all(result.ok for result in ran)
        failed += not all(result.ok for result in ran)
        if any(column in texts for column in columns):
            yield f"| {name} | " + " | ".join(texts.get(column, "-") for column in columns) + " |"
    yield f"\n{passed} specs pass in every cell that was run, {failed} fail somewhere."
    if refused:
        yield "\nRefused:\n"
        yield from (f"- {reason} ({', '.join(where)})" for reason, where in refused.items())
    if wrong:
        yield "\nWrong:\n"
        yield from (f"- {line}" for line in wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="*", help="names of examples (default: all)")
    parser.add_argument("--target", default="sm100", choices=tuple(KERNEL_TARGETS))
    every = ",".join(f"{dtype}:{dim}" for dim in matrix.DIMS for dtype in matrix.DTYPES)
    parser.add_argument("--columns", default=every, help="dtypes and head dimensions")
    parser.add_argument("--lengths", type=int, default=len(matrix.LENGTHS), help="launches of a cell")
    parser.add_argument("--json", type=Path, help="keeps results, and goes on where they end")
    parser.add_argument("--seconds", type=int, default=300, help="processor time of a cell")
    parser.add_argument("--table", action="store_true", help="runs nothing, prints the table of what is kept")
    options = parser.parse_args()
    columns = [(dtype, int(dim)) for dtype, _, dim in (name.partition(":") for name in options.columns.split(","))]
    wanted = options.specs or matrix.SPECS
    chosen = [
        cell
        for cell in matrix.cells()
        if cell.spec in wanted and ((cell.dtype, cell.dim) in columns or cell.dim not in matrix.DIMS)
    ]
    results = Results(options.json)
    order = {column: place for place, column in enumerate(columns)}
    for cell in sorted(chosen, key=lambda cell: order.get((cell.dtype, cell.dim), 0)) if not options.table else ():
        if str(cell) not in results.found:
            result = run(cell, options.target, options.seconds, options.lengths)
            results.keep(cell, result)
            print(f"{cell}: {result.refused or result.wrong or 'ok'}", file=sys.stderr, flush=True)
    print("\n".join(table(chosen, results, columns)))
    return int(any(result.wrong for result in results.found.values()))


if __name__ == "__main__":
    sys.exit(main())
