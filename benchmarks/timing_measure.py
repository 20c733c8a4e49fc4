"""Times the kernels of `timing_cases` on a Hopper GPU, with the clock they ran at.

    python benchmarks/timing_measure.py RESULT.json [--only full/ours,causal/fa4]

Every kernel has a process of its own; all compile at once, then they are timed one after the other. A number is the
median of bursts of about three milliseconds after a pause of thirty, so that the card's power limit does not set the
clock; a second is of calls in a row for half a second. The clock comes from `%clock64` and `%globaltimer`, read on
every multiprocessor before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from timing_cases import KERNELS, Case, name_of

PAUSE, BURST_MS, BURSTS, SUSTAINED = 0.03, 3.0, 9, 0.5
READY, MEASURE = 150, 40  # seconds

_PROBE = """
.version 8.4
.target sm_90a
.address_size 64
.visible .entry probe(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<6>;
    ld.param.u64 %d0, [out];
    mov.u32 %r0, %smid;
    mul.wide.u32 %d1, %r0, 16;
    add.u64 %d1, %d0, %d1;
    mov.u64 %d2, %clock64;
    mov.u64 %d3, %globaltimer;
    st.global.v2.u64 [%d1], {%d2, %d3};
    ret;
}
"""


class Clock:
    """Reads every multiprocessor's cycle counter and the time."""

    def __init__(self) -> None:
        from cuda.bindings import driver
        from hardware_replay import checked

        self._driver, self._checked = driver, checked
        module = checked(driver.cuModuleLoadData(_PROBE.encode() + b"\0"))
        self._function = checked(driver.cuModuleGetFunction(module, b"probe"))
        self.values = torch.zeros(2, 256, 2, dtype=torch.int64, device="cuda")

    def read(self, which: int) -> None:
        import ctypes

        stream = torch.cuda.current_stream().cuda_stream
        arguments = ((self.values[which].data_ptr(),), (ctypes.c_uint64,))
        grid = (132 * 4, 1, 1, 512, 1, 1, 0, stream)
        self._checked((*self._driver.cuLaunchKernel(self._function, *grid, arguments, 0), None))

    def megahertz(self) -> float:
        cycles, nanoseconds = (self.values[1] - self.values[0]).double().unbind(1)
        seen = (self.values[0, :, 1] != 0) & (self.values[1, :, 1] != 0)
        return float((cycles[seen] / nanoseconds[seen]).median()) * 1000


def call_of(case: Case, who: str) -> Callable[[], object]:
    import attn_dsl

    given = case.inputs("cuda")
    if who == "fa4":
        return case.peer(given)
    attention = attn_dsl.compile(case.spec, target="sm90")
    out = torch.empty_like(given["q"])
    lse = torch.empty(case.batch, case.heads, case.seq_q, device="cuda")
    return lambda: attention(**given, **case.values, out=out, lse=lse)


def measured(call: Callable[[], object]) -> dict[str, Any]:
    clock = Clock()

    def burst(run: Callable[[], object], calls: int) -> tuple[float, float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        clock.read(0)
        start.record()
        run()
        end.record()
        clock.read(1)
        end.synchronize()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / calls, clock.megahertz()

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    first, _ = burst(call, 1)
    calls = max(1, min(200, round(BURST_MS / first)))

    def row() -> None:
        for _ in range(calls):
            call()

    run: Callable[[], object] = row
    graphed = True
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            row()
        graph.replay()
        torch.cuda.synchronize()
        run = graph.replay
    except RuntimeError:
        graphed = False
    found = []
    for _ in range(BURSTS):
        time.sleep(PAUSE)
        found.append(burst(run, calls))
    rounds = max(1, round(SUSTAINED * 1000 / (found[0][0] * calls)))
    for _ in range(rounds // 2):
        run()

    def long() -> None:
        for _ in range(rounds // 2):
            run()

    sustained = burst(long, max(1, rounds // 2) * calls)
    return {
        "ms": statistics.median(ms for ms, _ in found),
        "spread": (max(ms for ms, _ in found) - min(ms for ms, _ in found)) / statistics.median(ms for ms, _ in found),
        "mhz": statistics.median(mhz for _, mhz in found),
        "calls": calls,
        "graph": graphed,
        "sustained_ms": sustained[0],
        "sustained_mhz": sustained[1],
    }


def work_on(case: Case, who: str) -> None:
    call = call_of(case, who)
    call()
    torch.cuda.synchronize()
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    print(json.dumps(measured(call)), flush=True)


class Worker:
    """The process of one kernel."""

    def __init__(self, name: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "-", "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._said.put(json.loads(line))
        self._said.put(None)

    def hear(self, seconds: float) -> dict[str, Any] | None:
        try:
            return self._said.get(timeout=max(0.1, seconds))
        except queue.Empty:
            return None

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result")
    parser.add_argument("--only", default="")
    parser.add_argument("--worker", default="")
    options = parser.parse_args()
    known = {name_of(case, who): (case, who) for case, who in KERNELS}
    if options.worker:
        work_on(*known[options.worker])
        return
    chosen = options.only.split(",") if options.only else list(known)
    rows: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "kernels": {}}
    until = time.monotonic() + READY
    workers = {name: Worker(name) for name in chosen}
    ready = [name for name, worker in workers.items() if worker.hear(until - time.monotonic()) is not None]
    for name in chosen:
        found = None
        if name in ready:
            workers[name].go()
            found = workers[name].hear(MEASURE)
        workers[name].process.kill()
        print(name, found, flush=True)
        if found is not None:
            rows["kernels"][name] = found
            with open(options.result, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
