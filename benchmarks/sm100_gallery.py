"""Which specs of examples/ a kernel computes on its virtual device, by dtype and head dimension: one table.

A cell is one kernel and up to eleven launches of other lengths, under random schedules, with outputs full of NaN before
and every finding an error (tests/support/kernel_matrix.py says when a launch is right). It shows how many passed, or
`-` where a spec fixes another head dimension. Below the table: what failed, and what the target refuses, with the
reason.

    python benchmarks/sm100_gallery.py [--target sm90] [--columns bf16:64,f16:128] [--lengths 4] [SPEC]
    python benchmarks/sm100_gallery.py --jobs 16 --minutes 9 --kept FILE
    python benchmarks/sm100_gallery.py --table --kept FILE [FILE]

Cells come in an order shuffled by a fixed seed, so what a time limit leaves is an even sample. With `--kept` results
are appended to FILE, a line of JSON each, and cells that are in it are not run again; `--table` prints what several
such files hold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
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
    """By cell. Kept in the first of `paths`, read from all."""

    paths: list[Path]
    found: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.paths:
            for line in path.read_text().splitlines() if path.exists() else ():
                kept = json.loads(line)
                cell = kept.pop("cell")
                self.found[cell] = Result(**kept)

    def keep(self, cell: Cell, result: Result) -> None:
        self.found[str(cell)] = result
        if self.paths:
            with self.paths[0].open("a") as file:
                file.write(json.dumps({"cell": str(cell), **vars(result)}) + "\n")


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
        result.wrong = result.wrong or str(error)
    sender.send(vars(result))


class Pool:
    """Measures cells, several at a time, each in a process of its own."""

    def __init__(self, target: str, seconds: int, count: int) -> None:
        self._fixed = (target, seconds, count)
        self._running: dict[Connection, tuple[Cell, BaseProcess]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, cell: Cell) -> None:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        target, seconds, count = self._fixed
        process = context.Process(target=measure, args=(cell, target, sender, seconds, count))
        process.start()
        sender.close()
        self._running[receiver] = cell, process

    def done(self, seconds: float) -> Iterator[tuple[Cell, Result]]:
        """What ends within `seconds`, as soon as there is anything."""
        for receiver in wait(list(self._running), seconds):
            assert isinstance(receiver, Connection)
            cell, process = self._running.pop(receiver)
            try:
                result = Result(**receiver.recv())
            except EOFError:
                process.join()
                late = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
                limit = f"not done in {self._fixed[1]} s of processor time"
                result = Result(wrong=limit if late else "ended without a result")
            process.join()
            receiver.close()
            yield cell, result

    def stop(self) -> None:
        for _, process in self._running.values():
            process.terminate()
            process.join()


def sweep(chosen: list[Cell], results: Results, pool: Pool, jobs: int, until: float) -> None:
    """Measures what is not kept yet. Cells that are under way at `until` (time.monotonic) are given up."""
    rest = [cell for cell in chosen if str(cell) not in results.found]
    random.Random(4).shuffle(rest)
    while (rest or len(pool)) and time.monotonic() < until:
        while rest and len(pool) < jobs:
            pool.start(rest.pop())
        for cell, result in pool.done(until - time.monotonic()):
            results.keep(cell, result)
            print(f"{cell}: {result.refused or result.wrong or 'ok'}", file=sys.stderr, flush=True)
    pool.stop()


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
    parser.add_argument("--kept", type=Path, nargs="+", default=[], help="files of results; new ones go into the first")
    parser.add_argument("--seconds", type=int, default=300, help="processor time of a cell")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--minutes", type=float, default=1e4, help="time for all")
    parser.add_argument("--table", action="store_true", help="runs nothing, prints the table of what is kept")
    options = parser.parse_args()
    columns = [(dtype, int(dim)) for dtype, _, dim in (name.partition(":") for name in options.columns.split(","))]
    wanted = options.specs or matrix.SPECS
    chosen = [
        cell
        for cell in matrix.cells()
        if cell.spec in wanted and ((cell.dtype, cell.dim) in columns or cell.dim not in matrix.DIMS)
    ]
    results = Results(options.kept)
    if not options.table:
        pool = Pool(options.target, options.seconds, options.lengths)
        sweep(chosen, results, pool, options.jobs, time.monotonic() + 60 * options.minutes)
    print("\n".join(table(chosen, results, columns)))
    return int(any(result.wrong for result in results.found.values()))


if __name__ == "__main__":
    sys.exit(main())
