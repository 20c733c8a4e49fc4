"""Named barriers: ids that differ, counts that add up, and on the virtual devices everyone sees what was written."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain

import pytest

from attn_dsl.kernels.named_barrier import (
    MAX_BARRIERS,
    WARPGROUP,
    BarrierError,
    BarrierIds,
    NamedBarrier,
    backward_barriers,
    check_arrivals,
    forward_barriers,
    sm100_backward_barriers,
)

SETS = {
    "forward 1": forward_barriers(1),
    "forward 2": forward_barriers(2),
    "forward 3": forward_barriers(3),
    "forward 3, copied queries": forward_barriers(3, loaders=2),
    "backward 2": backward_barriers(2),
    "backward 3": backward_barriers(3),
    "backward sm100": sm100_backward_barriers(),
}

SAMPLE = {("sm_90a", "forward 2"), ("sm_90a", "backward 3"), ("sm_100a", "backward sm100")}


def barriers_of(found: object) -> list[NamedBarrier]:
    values = [getattr(found, field.name) for field in fields(found)]
    return list(chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in values))


def test_ids_differ_and_leave_syncthreads_its_own() -> None:
    ids = BarrierIds()
    given = [ids.allocate(f"b{place}", 64, {"everyone": 64}).id for place in range(MAX_BARRIERS - 1)]
    assert given == list(range(1, MAX_BARRIERS))
    with pytest.raises(BarrierError, match="'one more' would be number 16"):
        ids.allocate("one more", 64, {"everyone": 64})


@pytest.mark.parametrize(
    ("threads", "waits", "arrives", "message"),
    [
        (256, {"first": 128}, {}, r"counts 256 threads but 128 arrive \(first 128\): it deadlocks"),
        (128, {"first": 128}, {"second": 32}, r"but 160 arrive \(first 128, second 32\): it releases early"),
        (100, {"first": 100}, {}, "counts 100 threads of turn, which is no multiple of a warp"),
        (128, {"first": 80}, {"second": 48}, "counts 80 threads of first, which is no multiple of a warp"),
        (128, {}, {"first": 128}, "nobody waits"),
        (256, {"first": 128}, {"first": 128}, "'first' arrives twice"),
    ],
)
def test_counts_that_do_not_add_up(threads: int, waits: dict[str, int], arrives: dict[str, int], message: str) -> None:
    with pytest.raises(BarrierError, match=message):
        BarrierIds().allocate("turn", threads, waits, arrives)


def test_arrivals_of_any_barrier_can_be_checked() -> None:
    check_arrivals("p_full", 256, {"softmax": 128, "correction": 128})
    with pytest.raises(BarrierError, match="'p_full' counts 256 threads but 128 arrive"):
        check_arrivals("p_full", 256, {"softmax": 128})


def test_a_name_is_given_once() -> None:
    ids = BarrierIds()
    ids.allocate("turn", 64, {"everyone": 64})
    with pytest.raises(BarrierError, match="allocated twice"):
        ids.allocate("turn", 64, {"everyone": 64})


@pytest.mark.parametrize("name", SETS)
def test_sets_of_barriers(name: str) -> None:
    found = SETS[name]
    every = barriers_of(found)
    assert sorted(barrier.id for barrier in every) == list(range(1, len(every) + 1))
    # templates add a warpgroup's number to the id of the first
    for field in fields(found):
        family = getattr(found, field.name)
        if isinstance(family, tuple) and family:
            assert [barrier.id for barrier in family] == [family[0].id + place for place in range(len(family))]


def test_who_waits_for_whom() -> None:
    turn = forward_barriers(3).turn
    assert [(one.waits[0][0], one.arrives[0][0]) for one in turn] == [
        ("consumer 0", "consumer 2"),
        ("consumer 1", "consumer 0"),
        ("consumer 2", "consumer 1"),
    ]
    assert forward_barriers(1).turn == ()
    assert forward_barriers(2).consumers.threads == 2 * WARPGROUP
    back = backward_barriers(2)
    for full, empty in zip(back.dq_full, back.dq_empty, strict=True):
        assert (full.waits, full.arrives) == (empty.arrives, empty.waits)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        pytest.param(arch, name, marks=() if (arch, name) in SAMPLE else pytest.mark.slow)
        for arch in ("sm_90a", "sm_100a")
        for name in SETS
    ],
)
def test_everyone_sees_what_was_written_before(arch: str, name: str) -> None:
    """In every schedule tried; a barrier that counts a warp less lets someone read too early, one more never opens."""
    pytest.importorskip("cutlass")
    import cute_barriers
    import torch
    from cutlass.cute.runtime import from_dlpack

    from attn_dsl import emulator

    every = barriers_of(SETS[name])
    threads = max(barrier.threads for barrier in every)
    for seed in (1, 2):
        out = torch.zeros(len(every), threads, dtype=torch.int32)
        with emulator.device(arch, seed=seed):
            cute_barriers.phases(from_dlpack(out), tuple(every), threads)
        for place, barrier in enumerate(every):
            waiting = sum(count for _, count in barrier.waits)
            assert (out[place, :waiting] == (place + 1) * barrier.threads).all()
            assert not out[place, waiting:].any()
    for wrong in (-32, 32):
        changed = replace(every[-1], threads=every[-1].threads + wrong)
        with emulator.device(arch, seed=1, findings="collect") as gpu:
            cute_barriers.phases(from_dlpack(out), (changed,), threads)
        kinds = {finding.kind for finding in gpu.findings}
        assert kinds & ({"race-shared", "barrier-count", "deadlock"} if wrong < 0 else {"deadlock"}), kinds
