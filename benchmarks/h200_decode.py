"""Decoding speed of compiled specs on a Hopper GPU, beside flash-attn-4 and FlexAttention.

K and V are dense or in pages, for many sequences or one long one, of 16 bits or of 8.

    python benchmarks/h200_decode.py [--repeat 30] [--case NAME] [--peers fa4,flex] [--limit 120] [--jobs 16]

TB/s are the bytes of K and V, once, over the median time of a call, measured with CUDA events around `BURST` calls that
alternate with everyone else's. Results are compared with the float64 reference on the first sequence before anything is
timed; then a captured CUDA graph is replayed with other lengths and another page table, and compared again. Every case
has a process of its own, as in `h200_forward.py`: they compile side by side and are measured one after the other.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from h200_forward import measured
from torch.nn.attention.flex_attention import flex_attention

import attn_dsl
from attn_dsl.runtime.compiled import CompiledAttention
from attn_dsl.runtime.kernels import SM90, Kernels

Tensor = torch.Tensor
DEVICE = "cuda"
BURST = 5  # calls in a row
HEADS, KV_HEADS, DIM = 32, 8, 128
DENSE = """
q: bf16[batch, seq_q, heads, dim]
k, v: {kind}[batch, seq_k, kv_heads, dim]
mask = kv_idx <= q_pos
"""
PAGED = """
q: bf16[batch, seq_q, heads, dim]
k, v: {kind}[pages, page_size, kv_heads, dim]
page_table: i32[batch, max_pages]
used: i32[batch]
paged {{ table = page_table }}
lengths k {{ used = used }}
mask = kv_idx <= q_pos
"""
DESCALES = """
k_descale, v_descale: f32[batch, kv_heads]
descale k = k_descale[b, kv_h]
descale v = v_descale[b, kv_h]
"""
DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Case:
    """One query for each of `batch` sequences of `seq` keys."""

    name: str
    batch: int
    seq: int
    page_size: int = 0  # rows; 0: dense
    schedule: str = ""
    by_rows: bool = False  # copied row by row even where pages make boxes
    kind: str = "bf16"  # of K and V

    @property
    def bytes(self) -> int:
        return self.batch * self.seq * KV_HEADS * DIM * 2 * DTYPES[self.kind].itemsize

    @property
    def text(self) -> str:
        text = (PAGED if self.page_size else DENSE).format(kind=self.kind)
        return text if self.kind == "bf16" else text + DESCALES


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
    Case("e4m3, dense", 64, 8192, kind="e4m3"),
    Case("e4m3, page 1", 64, 8192, 1, kind="e4m3"),
    Case("e4m3, page 16", 64, 8192, 16, kind="e4m3"),
    Case("e4m3, page 64", 64, 8192, 64, kind="e4m3"),
    Case("e4m3, 128 rows", 64, 8192, 16, "schedule { tile_q = 128, tile_k = 96 }\n", kind="e4m3"),
    Case("one, e4m3", 1, 131072, kind="e4m3"),
    *(
        Case(f"one, {count} parts", 1, 131072, 0, f"schedule {{ splits = {count} }}\n")
        for count in (1, 32, 48, 66, 132)
    ),
)


def inputs(case: Case) -> dict[str, Tensor]:
    make = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16, generator=make)

    kind = DTYPES[case.kind]
    found = {"q": random(case.batch, 1, HEADS, DIM)}
    if case.kind != "bf16":
        for name in ("k_descale", "v_descale"):
            found[name] = torch.rand(case.batch, KV_HEADS, device=DEVICE, generator=make) + 0.5
    if not case.page_size:
        return found | {name: random(case.batch, case.seq, KV_HEADS, DIM).to(kind) for name in "kv"}
    pages = case.batch * case.seq // case.page_size
    found |= {name: random(pages, case.page_size, KV_HEADS, DIM).to(kind) for name in "kv"}
    order = torch.randperm(pages, device=DEVICE, generator=make).int()
    found["page_table"] = order.reshape(case.batch, -1)
    found["used"] = torch.full((case.batch,), case.seq, device=DEVICE, dtype=torch.int32)
    return found


def ours(case: Case) -> CompiledAttention:
    spec = attn_dsl.parse(case.text + case.schedule, name="decode")
    target = replace(SM90, page_size_of=lambda *_: 0) if case.by_rows else SM90
    return CompiledAttention(spec, "sm90", Kernels(spec, target))


def fa4(case: Case, given: dict[str, Tensor]) -> Callable[[], Tensor]:
    from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

    paged = {name: given.get(name) for name in ("page_table", "used")}

    def run() -> Tensor:
        q, k, v = (given[name] for name in "qkv")
        if case.page_size:
            pages = {"seqused_k": paged["used"], "page_table": paged["page_table"]}
            found = flash_attn_varlen_func(q, k, v, causal=True, **pages)
        else:
            found = flash_attn_func(q, k, v, causal=True)
        return found[0] if isinstance(found, tuple) else found

    return run


def flex(case: Case, given: dict[str, Tensor]) -> Callable[[], Tensor] | None:
    """One query sees every key: there is nothing to mask. Its pages are another interface and are not timed."""
    if case.page_size:
        return None
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = (given[name].transpose(1, 2) for name in "qkv")
    return lambda: compiled(q, k, v, enable_gqa=True).transpose(1, 2)


PEERS = {"fa4": fa4, "flex": flex}


def error(case: Case, given: dict[str, Tensor], o: Tensor) -> float:
    """Of the first sequence, relative in the norm."""
    spec = attn_dsl.parse(case.text, name="decode")
    one = {n: x if case.page_size and n in "kv" else x[:1] for n, x in given.items()}
    if case.page_size:
        own = given["page_table"][0].long()
        one |= {n: given[n].view(torch.uint8)[own].view(given[n].dtype) for n in "kv"}
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


def work_on(case: Case, peers: list[str], repeat: int, limit: int) -> None:
    """What the process of one case does: compiles, says so, waits for a line, measures. Results are lines of JSON."""

    def say(**fields: Any) -> None:
        print(json.dumps(fields), flush=True)

    faulthandler.dump_traceback_later(limit, exit=True)
    given = inputs(case)
    attention = ours(case)
    out = torch.full_like(given["q"], float("nan"))
    wrong = error(case, given, attention(**given, out=out))
    functions: dict[str, Callable[[], object]] = {"ours": lambda: attention(**given, out=out)}
    for name in peers if not (case.by_rows or case.schedule or case.kind != "bf16") else ():
        try:
            peer = PEERS[name](case, given)
            if peer is not None:
                peer()
                torch.cuda.synchronize()
                functions[name] = peer
        except Exception as problem:  # a column without its number, and the reason is told
            text = f"{case.name}: {name} failed: {type(problem).__name__}: {str(problem)[:160]}"
            print(text, file=sys.stderr, flush=True)
    faulthandler.cancel_dump_traceback_later()
    say(ready=True)
    sys.stdin.readline()
    faulthandler.dump_traceback_later(limit, exit=True)
    timed = medians_us(functions, repeat)
    replayed = graph_error(case, given, attention) if case.page_size else None
    say(error=wrong, replayed=replayed, us=timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--peers", default="fa4,flex")
    parser.add_argument("--limit", type=int, default=120, help="seconds to compile a case, and to measure it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases that compile at the same time")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.case or case.name in options.case]
    peers = [name for name in options.peers.split(",") if name]
    if options.worker:
        work_on(cases[0], peers, options.repeat, options.limit)
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {options.repeat}")
    titles = "".join(f"{name + ' us':>9}{'TB/s':>7}" for name in ("ours", *peers))
    print(f"{'case':<20}{'error':>10}{'replayed':>10}{titles}", flush=True)
    arguments = [f"--{name}={getattr(options, name)}" for name in ("repeat", "peers", "limit")]
    for case, found in measured(cases, arguments, options.jobs, options.limit, __file__):
        print(_row(case, found, peers), flush=True)


def _row(case: Case, found: dict[str, Any] | None, peers: list[str]) -> str:
    if found is None:
        return f"{case.name:<20}  no result: its process ended or took too long, see above"
    cells = "".join(
        f"{found['us'][name]:>9.1f}{case.bytes / found['us'][name] / 1e6:>7.2f}"
        if name in found["us"]
        else f"{'-':>9}{'-':>7}"
        for name in ("ours", *peers)
    )
    replayed = "-" if found["replayed"] is None else f"{found['replayed']:.1e}"
    return f"{case.name:<20}{found['error']:>10.1e}{replayed:>10}{cells}"


if __name__ == "__main__":
    main()
