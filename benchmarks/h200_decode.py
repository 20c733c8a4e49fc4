"""Decoding speed of compiled specs on a Hopper GPU, beside flash-attn-4: dense and paged K/V, and one long sequence.

    python benchmarks/h200_decode.py [--repeat 30] [--case NAME] [--no-peers]

TB/s are the bytes of K and V, once, over the median time of a call, measured with CUDA events around `BURST` calls that
alternate with everyone else's. Results are compared with the float64 reference on the first sequence before anything is
timed; then a captured CUDA graph is replayed with other lengths and another page table, and compared again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import attn_dsl
from attn_dsl.runtime.compiled import CompiledAttention
from attn_dsl.runtime.kernels import SM90, Kernels

Tensor = torch.Tensor
DEVICE = "cuda"
BURST = 5  # calls in a row
HEADS, KV_HEADS, DIM = 32, 8, 128
DENSE = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\nmask = kv_idx <= q_pos\n"
PAGED = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[pages, page_size, kv_heads, dim]
page_table: i32[batch, max_pages]
used: i32[batch]
paged { table = page_table }
lengths k { used = used }
mask = kv_idx <= q_pos
"""


@dataclass(frozen=True)
class Case:
    """One query for each of `batch` sequences of `seq` keys."""

    name: str
    batch: int
    seq: int
    page_size: int = 0  # rows; 0: dense
    schedule: str = ""
    by_rows: bool = False  # copied row by row even where pages make boxes

    @property
    def bytes(self) -> int:
        return self.batch * self.seq * KV_HEADS * DIM * 2 * 2


THREE = "schedule { stages = 3 }\n"
CASES = (
    Case("dense", 64, 8192),
    Case("page 16", 64, 8192, 16),
    Case("page 64", 64, 8192, 64),
    Case("page 128", 64, 8192, 128),
    Case("page 1, rows", 64, 8192, 1, by_rows=True),
    Case("page 16, rows", 64, 8192, 16, by_rows=True),
    Case("page 128, rows", 64, 8192, 128, by_rows=True),
    Case("dense, 3 stages", 64, 8192, 0, THREE),
    Case("page 16, 3 stages", 64, 8192, 16, THREE),
    Case("page 1, 3 stages", 64, 8192, 1, THREE, by_rows=True),
    Case("page 16, rows, 3", 64, 8192, 16, THREE, by_rows=True),
    Case("dense, 64 rows", 64, 8192, 0, "schedule { tile_q = 64 }\n"),
    Case("one of 128k", 1, 131072),
    Case("one, page 16", 1, 131072, 16),
    *(
        Case(f"one, {count} parts", 1, 131072, 0, f"schedule {{ splits = {count} }}\n")
        for count in (1, 32, 48, 66, 132)
    ),
)


def inputs(case: Case) -> dict[str, Tensor]:
    make = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16, generator=make)

    found = {"q": random(case.batch, 1, HEADS, DIM)}
    if not case.page_size:
        return found | {name: random(case.batch, case.seq, KV_HEADS, DIM) for name in "kv"}
    pages = case.batch * case.seq // case.page_size
    found |= {name: random(pages, case.page_size, KV_HEADS, DIM) for name in "kv"}
    order = torch.randperm(pages, device=DEVICE, generator=make).int()
    found["page_table"] = order.reshape(case.batch, -1)
    found["used"] = torch.full((case.batch,), case.seq, device=DEVICE, dtype=torch.int32)
    return found


def ours(case: Case) -> CompiledAttention:
    spec = attn_dsl.parse((PAGED if case.page_size else DENSE) + case.schedule, name="decode")
    target = replace(SM90, page_size_of=lambda *_: 0) if case.by_rows else SM90
    return CompiledAttention(spec, "sm90", Kernels(spec, target))


def fa4(case: Case, given: dict[str, Tensor]) -> Callable[[], Tensor]:
    from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

    def run() -> Tensor:
        if case.page_size:
            found = flash_attn_varlen_func(
                given["q"],
                given["k"],
                given["v"],
                seqused_k=given["used"],
                page_table=given["page_table"],
                causal=True,
            )
        else:
            found = flash_attn_func(given["q"], given["k"], given["v"], causal=True)
        return found[0] if isinstance(found, tuple) else found

    return run


def error(case: Case, given: dict[str, Tensor], o: Tensor) -> float:
    """Of the first sequence, relative in the norm."""
    spec = attn_dsl.parse(PAGED if case.page_size else DENSE, name="decode")
    one = {n: x if case.page_size and n in "kv" else x[:1] for n, x in given.items()}
    if case.page_size:
        own = given["page_table"][0].long()
        one |= {n: given[n][own] for n in "kv"}
        one["page_table"] = torch.arange(len(own), device=DEVICE, dtype=torch.int32)[None]
    exact = attn_dsl.compile(spec, target="reference-f64")(**one)
    return float((o[:1].double() - exact.double()).norm() / exact.double().norm())


def graph_error(case: Case, given: dict[str, Tensor], attention: CompiledAttention) -> float:
    """Of a captured call, replayed after the lengths and the page table have changed."""
    out = torch.empty_like(given["q"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(**given, out=out)
    given["page_table"].copy_(given["page_table"].flip(0))
    given["used"].copy_(given["used"] - torch.arange(case.batch, device=DEVICE, dtype=torch.int32) - 5)
    graph.replay()
    return error(case, given, out)


def medians_us(functions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name, function in functions.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(BURST):
                function()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000 / BURST)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {options.repeat}")
    print(f"{'case':<20}{'error':>10}{'replayed':>10}{'us':>9}{'TB/s':>7}{'fa4 us':>9}{'TB/s':>7}")
    for case in CASES:
        if not options.case or case.name in options.case:
            print(_row(case, options.repeat, not options.no_peers), flush=True)


def _row(case: Case, repeat: int, peers: bool) -> str:
    given = inputs(case)
    attention = ours(case)
    out = torch.full_like(given["q"], float("nan"))
    wrong = error(case, given, attention(**given, out=out))
    functions: dict[str, Callable[[], object]] = {"ours": lambda: attention(**given, out=out)}
    if peers and not case.by_rows and not case.schedule:
        try:
            peer = fa4(case, given)
            peer()
            functions["fa4"] = peer
        except Exception as problem:  # a peer that fails is a row without its number, and is told
            print(f"{case.name}: fa4 failed: {type(problem).__name__}: {str(problem)[:160]}", file=sys.stderr)
    timed = medians_us(functions, repeat)
    cells = "".join(
        f"{timed[name]:>9.1f}{case.bytes / timed[name] / 1e6:>7.2f}" if name in timed else f"{'-':>9}{'-':>7}"
        for name in ("ours", "fa4")
    )
    replayed = f"{graph_error(case, given, attention):.1e}" if case.page_size else "-"
    return f"{case.name:<20}{wrong:>10.1e}{replayed:>10}{cells}"


if __name__ == "__main__":
    main()
