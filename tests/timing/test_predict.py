"""A launch from recording to predicted time, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("cutlass")  # CuTe DSL is an extra

import attn_dsl
from attn_dsl.diagnostics import UnsupportedError
from attn_dsl.emulator import RecordedLaunch
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM90, Kernels
from attn_dsl.timing import predict as module
from attn_dsl.timing import record, table
from attn_dsl.timing.chrome import trace
from attn_dsl.timing.machine_code import of_cubin

SPEC = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\nmask = kv_idx <= q_pos\n"
EXTENTS = {"batch": 1, "seq_q": 1500, "seq_k": 1500, "heads": 2, "dim": 64}


@pytest.fixture(scope="module")
def launch() -> RecordedLaunch:
    spec = attn_dsl.parse(SPEC, name="causal")
    inputs = random_inputs(spec, EXTENTS, seed=1)
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    (found,) = record.recorded("sm90", lambda: Kernels(spec, SM90).launch(call, None, None))
    return found


def changed(**values: float):
    known = table("sm90")
    return replace(known, values={**known.values, **values})


@pytest.fixture(scope="module")
def sampled(launch):
    return module.sample(launch, table("sm90"), 10**6)


def test_a_prediction_hangs_together(sampled):
    found = module.predict(sampled, table("sm90"), spans=True)
    assert found.cycles / found.clock_mhz + table("sm90")["launch_us"] == pytest.approx(found.microseconds)
    assert all(0 <= share <= 1.0001 for share in found.busy.values())
    assert found.busy[found.bound] == max(found.busy.values())
    assert all(share <= 1 for waits in found.waits.values() for share in waits.values())
    events = trace(found, "causal")["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == len(found.outcome.spans) > 0


def test_causal_blocks_differ(sampled):
    assert max(sampled.work.values()) > 3 * min(sampled.work.values())
    assert len(sampled.blocks) == 3


@pytest.mark.parametrize(
    ("parameter", "factor"),
    [("mma.cycles_per_column", 4), ("rate.xu", 4), ("tma.latency", 20), ("memory.l2", 0.05), ("block_start", 20)],
)
def test_a_slower_machine_takes_longer(sampled, parameter, factor):
    known = table("sm90")
    slower = changed(**{parameter: known[parameter] * factor})
    assert module.predict(sampled, slower).cycles > 1.1 * module.predict(sampled, known).cycles


def test_a_clock_scales_the_time_alone(sampled):
    slow, fast = (module.predict(sampled, changed(clock_mhz=clock)) for clock in (1000.0, 2000.0))
    assert slow.cycles == pytest.approx(fast.cycles, rel=0.01)
    assert slow.microseconds > 1.8 * fast.microseconds


def test_clusters_are_refused(launch):
    pair = replace(launch, config=replace(launch.config, cluster=(2, 1, 1)))
    with pytest.raises(UnsupportedError, match="clusters of"):
        module.sample(pair, table("sm90"), 0)


def test_machine_code_without_lines_is_refused(launch, monkeypatch):
    """It would be simulated without events and loops, whatever the call."""
    code = of_cubin(launch.image, launch.kernel)
    monkeypatch.setattr(module, "of_cubin", lambda *_: tuple(replace(instruction, line=0) for instruction in code))
    with pytest.raises(UnsupportedError, match=r"E281.*does not say which PTX line"):
        module.sample(launch, table("sm90"), 0)


def test_instructions_without_an_event_are_refused(launch, monkeypatch):
    monkeypatch.setattr(module, "UNTIMED", frozenset({"tma_load", "tcgen05_mma"}))
    with pytest.raises(UnsupportedError, match="not timed: tma_load"):
        module.sample(launch, table("sm90"), 0)
