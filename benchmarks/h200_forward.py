"""Forward speed of compiled specs on a Hopper GPU, beside cuDNN, FlexAttention and flash-attn-4 in the same process.

    python benchmarks/h200_forward.py [--case causal] [--repeat 60] [--peers cudnn,flex,fa4] [--limit 120] [--jobs 16]
                                      [--also 'schedule { tile_k = 96 }']

Each number is a median over CUDA events; everyone's calls alternate, so that all see the same clocks. TFLOP/s count
visible (query, key) pairs alone, 2 (dim + dim_v) operations each, so a kernel that visits fewer tiles gains time and no
work. Our kernels find their tiles inside the measured time; FlexAttention's block mask is made before. A peer that
cannot express a case, or is not installed, has no number. Results of ours are compared with float64 on a sample of rows
before anything is timed.

Every case has a process of its own. `--jobs` of them compile at the same time and then wait; measured is one after the
other. A process that takes longer than `--limit` seconds to compile or to measure shows where it stands and ends; the
row of its case says so. `--also` adds a column of ours with a further statement, such as another schedule.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from h200_cases import CASES, DEVICE, Case, Tensor, visible_pairs
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attn_dsl

BURST = 5  # calls in a row
GRACE = 30  # seconds for the start of Python, and for a process to show where it stands


def medians_ms(functions: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Median time of each function in milliseconds, measured in turns of `BURST` calls after a warm-up.

    Their order is drawn for each turn: a card that its power holds gives the higher clock to who follows a slow one.
    """
    names, orders = list(functions), random.Random(0)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in functions}
    for turn in range(1 + -(-repeat // BURST)):
        orders.shuffle(names)
        for name in names:
            for _ in range(BURST):
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                functions[name]()
                stop.record()
                if turn:
                    events[name].append((start, stop))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(stop) for start, stop in pairs) for name, pairs in events.items()
    }


class Runs:
    """The inputs of one case, and one function for each way to compute it."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        shape = (case.batch, case.seq)
        self.q = torch.randn(*shape, case.heads, case.dim, device=DEVICE, dtype=torch.bfloat16)
        self.k, self.v = (
            torch.randn(*shape, case.kv_heads, dim, device=DEVICE, dtype=torch.bfloat16)
            for dim in (case.dim, case.dim_v or case.dim)
        )
        self.captures = case.captures(case)

    def ours(self, statement: str = "") -> Callable[[], Tensor]:
        case = self.case
        spec = replace(case, text=f"{case.text}\n{statement}").spec if statement else case.spec
        attention = attn_dsl.compile(spec, target="sm90")
        out = torch.full_like(self.q[..., : self.case.dim_v], float("nan"))
        lse = torch.empty(self.case.batch, self.case.heads, self.case.seq, device=DEVICE)
        values = {**self.captures, **self.case.values}
        return lambda: attention(self.q, self.k, self.v, **values, out=out, lse=lse)[0]

    def cudnn(self) -> Callable[[], Tensor] | None:
        if self.case.causal is None:
            return None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))

        def run() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=bool(self.case.causal), enable_gqa=self.case.heads != self.case.kv_heads
                )
            return o.transpose(1, 2)

        return run

    def flex(self) -> Callable[[], Tensor] | None:
        case = self.case
        if case.mask_mod is None and case.score_mod is None and case.text:
            return None
        compiled = torch.compile(flex_attention, dynamic=False)
        block_mask = None
        if case.mask_mod is not None:
            mask_mod = case.mask_mod(self.captures)
            batch = case.batch if case.mask_per_batch else None
            # not compiled: Triton takes minutes for some of the sorts in it
            block_mask = create_block_mask(mask_mod, batch, None, case.seq, case.seq, device=DEVICE)
        score_mod = case.score_mod(self.captures) if case.score_mod is not None else None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        grouped = case.heads != case.kv_heads
        return lambda: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=grouped).transpose(1, 2)

    def fa4(self) -> Callable[[], Tensor] | None:
        if self.case.fa4 is None:
            return None
        from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

        keywords = {key: self.captures[x].bfloat16() if isinstance(x, str) else x for key, x in self.case.fa4.items()}

        starts = None
        if self.case.document:
            starts = torch.arange(0, self.case.seq + 1, self.case.document, device=DEVICE, dtype=torch.int32)
            keywords |= {f"max_seqlen_{side}": self.case.document for side in "qk"}

        def run() -> Tensor:
            if starts is None:
                found = flash_attn_func(self.q, self.k, self.v, **keywords)
            else:
                given = (self.q[0], self.k[0], self.v[0])
                found = flash_attn_varlen_func(*given, cu_seqlens_q=starts, cu_seqlens_k=starts, **keywords)
            return found[0] if isinstance(found, tuple) else found

        return run

    def check(self, o: Tensor) -> float:
        """The relative error of one head and batch entry in the norm, against the float64 reference."""
        case = self.case
        last = slice(case.seq - min(case.seq, 512), case.seq)
        spec = case.spec
        if any("seq_q" in str(axis) for tensor in spec.tensors[3:] for axis in tensor.axes):
            last = slice(0, case.seq)
        group = case.heads // case.kv_heads
        narrow = {"q": self.q[:1, last, :group], "k": self.k[:1, :, :1], "v": self.v[:1, :, :1]}
        captures = {}
        for tensor in spec.tensors:
            if tensor.name in self.captures:
                x = self.captures[tensor.name]
                for place, axis in enumerate(tensor.axes):
                    x = x.narrow(place, 0, {"heads": group, "batch": 1}.get(str(axis), x.shape[place]))
                captures[tensor.name] = x
        exact = attn_dsl.compile(spec, target="reference-f64")(**narrow, **captures, **case.values)
        return float((o[:1, last, :group].double() - exact.double()).norm() / exact.double().norm())


@contextmanager
def _interrupted_after(seconds: int) -> Iterator[None]:
    """Raises TimeoutError inside, as soon as the interpreter has the word again."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not ready after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def work_on(case: Case, peers: list[str], also: list[str], repeat: int, limit: int) -> None:
    """What the process of one case does: compiles, says so, waits for a line, measures. Results are lines of JSON."""

    def say(**fields: Any) -> None:
        print(json.dumps(fields), flush=True)

    faulthandler.dump_traceback_later(limit, exit=True)
    runs = Runs(case)
    ours = runs.ours()
    error = runs.check(ours())
    functions = {"ours": ours}
    makers: dict[str, Callable[[], Callable[[], Tensor] | None]] = {name: getattr(runs, name) for name in peers}
    makers |= {statement: partial(runs.ours, statement) for statement in also}
    for name, make in makers.items():
        try:
            with _interrupted_after(limit * 2 // 3):
                function = make()
                if function is not None:
                    found = function()
                    torch.cuda.synchronize()
                    if name in also and not runs.check(found) < 2 * error:
                        raise ValueError("its results are not as near to float64 as those without it")
                    functions[name] = function
        except Exception as problem:  # a column without its number, and the reason is told
            text = f"{case.name}: {name} failed: {type(problem).__name__}: {str(problem)[:300]}"
            print(text, file=sys.stderr, flush=True)
    torch.cuda.empty_cache()
    faulthandler.cancel_dump_traceback_later()
    say(ready=True)
    sys.stdin.readline()
    faulthandler.dump_traceback_later(limit, exit=True)
    timed = medians_ms(functions, repeat)
    faulthandler.cancel_dump_traceback_later()
    work = 2 * (case.dim + (case.dim_v or case.dim)) * visible_pairs(case)
    say(error=error, ms=timed["ours"], rates={name: work / ms / 1e9 for name, ms in timed.items()})


class Worker:
    """The process of one case, and what it says."""

    def __init__(self, case: Any, arguments: list[str], script: str = __file__) -> None:
        command = [sys.executable, script, "--case", case.name, "--worker", *arguments]
        # one compiling process for each case is enough
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2"}
        self.case = case
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._said.put(json.loads(line))
        self._said.put(None)

    def hear(self, until: float) -> dict[str, Any] | None:
        """The next thing it says; None if it ends or says nothing until then (by time.monotonic)."""
        try:
            return self._said.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            return None

    def measure(self, limit: int) -> dict[str, Any] | None:
        """Lets it measure: what it found, or None."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self.hear(time.monotonic() + limit + GRACE)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--peers", default="cudnn,flex,fa4")
    parser.add_argument("--also", action="append", default=[], help="a statement: ours with it, as a column")
    parser.add_argument("--limit", type=int, default=120, help="seconds to compile a case, and to measure it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases that compile at the same time")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.case or case.name in options.case]
    peers = [name for name in options.peers.split(",") if name]
    if options.worker:
        work_on(cases[0], peers, options.also, options.repeat, options.limit)
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {options.repeat}")
    columns = [*peers, *options.also]
    for place, statement in enumerate(options.also):
        print(f"also {place}: {statement}")
    heads = [*peers, *(f"also {place}" for place in range(len(options.also)))]
    titles = "".join(f"{title:>8}{'ratio':>7}" for title in heads)
    print(f"{'case':<16}{'error':>10}{'ms':>9}{'TFLOP/s':>9}{titles}", flush=True)
    arguments = [f"--{name}={getattr(options, name)}" for name in ("repeat", "peers", "limit")]
    arguments += [f"--also={statement}" for statement in options.also]
    for case, found in measured(cases, arguments, options.jobs, options.limit):
        print(_row(case, found, columns), flush=True)


def measured(cases: list[Any], arguments: list[str], jobs: int, limit: float, script: str = __file__) -> Iterator[Any]:
    """Each case and what its process of `script` measured, None if nothing; `jobs` processes compile at once."""
    for first in range(0, len(cases), jobs):
        workers = [Worker(case, arguments, script) for case in cases[first : first + jobs]]
        try:
            # nothing is measured while others compile
            ready = {worker: worker.hear(worker.started + limit + GRACE) for worker in workers}
            for worker in workers:
                yield worker.case, None if ready[worker] is None else worker.measure(limit)
                worker.end()
        finally:
            for worker in workers:
                worker.end()


def _row(case: Case, found: dict[str, Any] | None, columns: list[str]) -> str:
    if found is None:
        return f"{case.name:<16}  no result: its process ended or took too long, see above"
    rates = found["rates"]
    cells = "".join(
        f"{rates[name]:>8.0f}{rates['ours'] / rates[name]:>6.2f}x" if name in rates else f"{'-':>8}{'':>7}"
        for name in columns
    )
    return f"{case.name:<16}{found['error']:>10.1e}{found['ms']:>9.3f}{rates['ours']:>9.0f}{cells}"


if __name__ == "__main__":
    main()
