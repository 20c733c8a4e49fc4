"""Every dense spec of the gallery x dtype x head dimension x lengths on a Hopper GPU against float64, as a table.

    python benchmarks/sm90_matrix.py [--processes 8] [--only llama_causal,gemma2_local] [--json RESULT.json]

A cell counts calls: outputs are full of NaN before each, and the kernel is held to the bounds of `docs/cli.md`. A spec
that fixes its head dimension has that one alone. Needs torch with CUDA and CuTe DSL.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

import attn_dsl
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.runtime import random_inputs
from attn_dsl.spec.shapes import depends_on

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DTYPES = ("bf16", "f16")
DIMS = (*range(8, 129, 8), 192, 256)  # of q and k; 192 with values of 128
VALUES = {192: 128}  # elements of v, where they are not as many
LENGTHS = ((1, 1), (1, 300), (63, 257), (127, 128), (128, 127), (129, 640), (255, 384), (640, 127), (384, 255))
LENGTHS += ((640, 640), (257, 257), (0, 5), (5, 0))
FIRST = (128, 64, 256, 192, 40)
HEADS = ((4, 2), (6, 2), (3, 3), (8, 1), (5, 1))  # by head dimension, so that each is tried with each spec
ROWS = {"batch", "seq_q", "seq_k"}  # which calls of packed specs have too
DERIVED = {"total_q", "total_k"}
OTHER = 10  # extent of an axis that only captures have: nodes of a tree, kinds of distances, blocks
_OPERANDS = re.compile(r"^((?:[qkvo], )*[qkvo]: )(?:bf16|f16|f32)\[", re.MULTILINE)

_VALUES = re.compile(r"^((?:q, )?k), v: (.*)\bdim\]", re.MULTILINE)


@dataclass
class Cell:
    """One spec, dtype and head dimension."""

    name: str
    dtype: str
    dim: int
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    refused: str = ""
    seconds: float = 0.0
    deadline: float = math.inf  # when to begin at the latest, of time.time()

    @property
    def text(self) -> str:
        if self.refused:
            return "refused"
        if not self.seconds:
            return "not run"
        return f"{self.passed}/{self.passed + len(self.failures)}"


def text_of(name: str, dtype: str, dim: int) -> str:
    """The spec with q, k, v (and o) of `dtype`, and values of a length of their own if `VALUES` says so."""
    text = (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8")
    if dim in VALUES:
        text = _VALUES.sub(r"\1: \2dim]\nv: \2dim_v]", text)
    return _OPERANDS.sub(lambda found: f"{found[1]}{dtype}[", text)


def dense_specs() -> list[str]:
    """Specs of the gallery in which sequences fill their axis and keys are not in pages."""
    names = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
    return [name for name in names if "paged {" not in (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8")]


def run(cell: Cell, device: str = "cuda") -> Cell:
    """Fills in the cell, unless its time is over."""
    start = time.perf_counter()
    if time.time() > cell.deadline:
        return cell
    torch.set_num_threads(1)  # the processes share the cores
    spec = attn_dsl.parse(text_of(cell.name, cell.dtype, cell.dim), name=cell.name)
    target = "sm90" if device == "cuda" else "reference"
    try:
        compiled = attn_dsl.compile(spec, target=target)
    except attn_dsl.UnsupportedError as error:
        cell.refused = error.diagnostics[0].message
        return cell
    exact = attn_dsl.compile(spec, target="reference-f64")
    heads, kv_heads = HEADS[(DIMS.index(cell.dim) if cell.dim in DIMS else 0) % len(HEADS)]
    for place, (seq_q, seq_k) in enumerate(LENGTHS):
        extents = {"batch": 2, "heads": heads, "seq_q": seq_q, "seq_k": seq_k, "dim": cell.dim, "kv_heads": kv_heads}
        extents["dim_v"] = VALUES.get(cell.dim, cell.dim)
        try:
            failure = _call(spec, compiled, exact, extents, place, device)
        except attn_dsl.PlanError as error:
            cell.refused = error.diagnostics[0].message
            return cell
        except attn_dsl.CallError as error:
            if error.code in ("E249", "E271"):
                continue  # lengths that the spec's captures forbid
            failure = str(error)
        except Exception as error:  # one cell's crash is a result of the table
            failure = f"{type(error).__name__}: {error}"
        if failure:
            cell.failures.append(f"{seq_q} x {seq_k}: {failure}")
        else:
            cell.passed += 1
    cell.seconds = time.perf_counter() - start
    return cell


def _call(spec, compiled, exact, extents: dict[str, int], seed: int, device: str) -> str:
    """What is wrong with one call, or nothing."""
    axes = {name for tensor in spec.tensors for axis in tensor.axes for name in depends_on(axis)} | ROWS
    wanted = {name: extents.get(name, OTHER) for name in axes if spec.fixed(name) is None and name not in DERIVED}
    inputs = random_inputs(spec, wanted, seed=seed, device=device)
    given = {**inputs.tensors, **inputs.params}
    o_exact, lse_exact = exact(**given, return_lse=True)
    o, lse = torch.full_like(o_exact, math.nan), torch.full_like(lse_exact, math.nan)
    compiled(**given, out=o, lse=lse)
    for found in (compare_output(o, o_exact, spec.output.dtype), compare_lse(lse, lse_exact)):
        if not found.ok:
            return str(found)
    return ""


def cells(only: set[str], dims: tuple[int, ...] = DIMS) -> list[Cell]:
    found = []
    for name in dense_specs():
        if only and name not in only:
            continue
        spec = attn_dsl.load(EXAMPLES / f"{name}.attn")
        fixed = spec.fixed("dim")
        found += [Cell(name, dtype, dim) for dim in ((fixed,) if fixed else dims) for dtype in DTYPES]
    return found


def _turn(cell: Cell) -> tuple[int, str]:
    """Some dimensions of every spec first; the rest so that whatever there is time for has all specs and dimensions."""
    if cell.dim not in DIMS or cell.dim in FIRST:
        return FIRST.index(cell.dim) if cell.dim in FIRST else 0, cell.dtype
    return len(FIRST) + (len(cell.name) + cell.dim // 8) % 7, cell.dtype


def table(results: list[Cell]) -> str:
    """Markdown: a row per spec, a column per head dimension and dtype."""
    by = {(cell.name, cell.dim, cell.dtype): cell for cell in results}
    dims = sorted({cell.dim for cell in results})
    columns = [(dim, dtype) for dim in dims for dtype in DTYPES]
    lines = ["| spec | " + " | ".join(f"{dim} {dtype}" for dim, dtype in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in dict.fromkeys(cell.name for cell in results):
        row = [by[name, *column].text if (name, *column) in by else "" for column in columns]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--only", default="", help="specs, with commas")
    parser.add_argument("--dims", default="", help="head dimensions, with commas, of specs that do not fix theirs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after that many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dims = tuple(int(dim) for dim in options.dims.split(",") if dim) or DIMS
    todo = cells({name for name in options.only.split(",") if name}, dims)
    for cell in todo:
        cell.deadline = time.time() + options.seconds
    todo.sort(key=_turn)
    results = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for cell in pool.imap_unordered(run, todo):
            results.append(cell)
            print(f"{cell.name} {cell.dtype} {cell.dim}: {cell.text}, {cell.seconds:.1f} s", flush=True)
    results.sort(key=lambda cell: (cell.name, cell.dim, cell.dtype))
    print(table(results))
    for name, reason in sorted({(cell.name, cell.refused) for cell in results if cell.refused}):
        print(f"refused: {name}: {reason}")
    for cell in results:
        for failure in cell.failures:
            print(f"failed: {cell.name} {cell.dtype} {cell.dim}: {failure}")
    whole = {c.name for c in results if c.passed} - {c.name for c in results if c.failures}
    calls = sum(cell.passed for cell in results)
    bad = sum(len(cell.failures) for cell in results)
    print(
        f"{len(whole)} of {len({cell.name for cell in results})} specs pass whole; {calls} calls passed, {bad} failed"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) for cell in results], indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
