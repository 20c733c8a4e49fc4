"""What the SM100 kernels move and execute in a decode step, beside flash-attn-4's, on the virtual device: no GPU.

Same tensors, same emulator: bf16, head dimension 128, 8 query heads for 2 of K and V, one query, pages in random order.
Instructions are warp-instructions of PTX, without `mov`, of all kernels of a call, for each tile of 128 keys of a K/V
head. The least bytes are K, V and the page table once per K/V head. Neither call splits its keys.

    python benchmarks/sm100_serving.py [--length 1024] [--batch 2] [--pages 0,1,16,64,128]
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import fa4

import attn_dsl
from attn_dsl import emulator
from attn_dsl.emulator import LaunchReport
from attn_dsl.runtime import bind
from attn_dsl.runtime.kernels import SM100, Kernels

HEADS, KV_HEADS, DIM, KEYS = 8, 2, 128, 128
DENSE = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
schedule { splits = 1 }
"""
PAGED = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[pages, page_size, kv_heads, dim]
page_table: i32[batch, max_pages]
used: i32[batch]
paged { table = page_table }
lengths k { used = used }
schedule { splits = 1 }
"""


@dataclass(frozen=True)
class Counts:
    """One call."""

    moved: int  # bytes from and to global memory
    instructions: int

    @staticmethod
    def of(reports: Sequence[LaunchReport]) -> Counts:
        engines = ("tma_load", "tma_store", "cpasync", "global_bytes")
        moved = sum(report.engines.get(name, 0) for report in reports for name in engines)
        return Counts(moved, sum(sum(warp.values()) - warp["move"] for report in reports for warp in report.roles))


def ours(case: fa4.Case, tensors: dict[str, Tensor]) -> Counts:
    spec = attn_dsl.parse(PAGED if case.page else DENSE, name="decode")
    call = bind(spec, (), {tensor.name: tensors[tensor.name] for tensor in spec.tensors}, False)
    with emulator.device("sm_100a") as gpu:
        Kernels(spec, SM100).launch(call, None, None)
    return Counts.of(gpu.reports)


def theirs(case: fa4.Case, given: fa4.Inputs) -> Counts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with fa4.device("sm_100a", findings="collect") as gpu:
            fa4.run(case, given)
    return Counts.of(gpu.reports)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=1024, help="keys of a sequence")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--pages", default="0,1,16,64,128", help="rows of a page; 0: no pages")
    options = parser.parse_args()
    print("| pages | bytes / least | flash-attn-4 | instructions a tile | flash-attn-4 |")
    print("|---|---|---|---|---|", flush=True)
    for page in map(int, options.pages.split(",")):
        shape = {"batch": options.batch, "seq_q": 1, "seq_k": options.length, "heads": HEADS, "kv_heads": KV_HEADS}
        case = fa4.Case("decode", "sm_100a", dim=DIM, page=page, **shape)
        given = fa4.inputs(case)
        used = torch.full((options.batch,), options.length, dtype=torch.int32)
        tensors = {"q": given.q, "k": given.k, "v": given.v, "used": used}
        table = 0
        if page:
            given.call["seqused_k"] = used
            tensors |= fa4.paged(case, given)
            table = tensors["page_table"].numel() * 4 * KV_HEADS
        least = options.batch * options.length * KV_HEADS * DIM * 2 * 2 + table
        tiles = options.batch * KV_HEADS * -(-options.length // KEYS)
        line = [str(page) if page else "none"]
        found = [ours(case, tensors), theirs(case, given)]
        line += [f"{counts.moved / least:.3f}" for counts in found]
        line += [f"{counts.instructions / tiles:,.0f}" for counts in found]
        print(f"| {' | '.join(line)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
