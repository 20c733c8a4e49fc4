"""The multiprocessor, on programs whose time is known in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attn_dsl.emulator.native import Step
from attn_dsl.timing.blocks import Cost, ThreadBlock
from attn_dsl.timing.follow import Event, Walk
from attn_dsl.timing.pipes import UNITS
from attn_dsl.timing.simulate import Multiprocessor, Stuck
from attn_dsl.timing.tables import Table, table

SUPPLY = 50.0  # bytes a cycle
BARRIER = 0x400
ALL = 0xFFFFFFFF


def numbers(**changed: float) -> Table:
    known = table("sm90")
    plain = {
        "block_start": 0.0,
        "mbarrier.wake": 50.0,
        "barrier.latency": 10.0,
        "barrier.per_warp": 1.0,
        "tma.rate": 100.0,
        "tma.latency": 500.0,
        "memory.burst": 0.0,
        "mma.queue": 1.0,
    }
    return replace(known, values={**known.values, **plain, **changed})


def cost(unit: str = "fma", cycles: float = 1, **fields: object) -> Cost:
    known = {
        "unit": UNITS.index(unit),
        "cycles": cycles,
        "stall": 1,
        "waits": (),
        "writes": -1,
        "reads": -1,
        "latency": 0.0,
        "read_latency": 0.0,
        "name": unit,
        "product": 0.0,
        "after": 0.0,
        "waits_products": False,
        "commits": False,
        "groups_left": 0,
        "beside": 0.0,
    }
    return Cost(**{**known, **fields})  # type: ignore[arg-type]


def event(handler: str, *operands: int, amount: int = 0, flags: int = 0, lanes: int = 1) -> Event:
    return Event(handler, Step(0, lanes, (*operands, *[0] * (6 - len(operands))), amount), (0, flags, 0, 0))


def block(code: list[Cost], *walks: Walk) -> ThreadBlock:
    return ThreadBlock(tuple(code), walks, tuple(f"role {i}" for i in range(len(walks))), 0)


def cycles(code: list[Cost], *walks: Walk, **changed: float) -> float:
    return Multiprocessor(numbers(**changed), SUPPLY).run([[block(code, *walks)]]).cycles


@pytest.mark.parametrize(("warps", "expected"), [(1, 100), (4, 100), (8, 200), (12, 300)])
def test_a_sub_partition_issues_one_instruction_a_cycle(warps: int, expected: int) -> None:
    assert cycles([cost()], *(Walk([0] * 100) for _ in range(warps))) == expected


@pytest.mark.parametrize(("unit", "rate"), [("alu", 2), ("xu", 8)])
def test_units_have_rates(unit: str, rate: int) -> None:
    found = cycles([cost(unit, rate)], *(Walk([0] * 50) for _ in range(8)))
    assert rate * 99 < found <= rate * 100


def test_different_units_work_side_by_side() -> None:
    code = [cost("alu", 2), cost("fma", 1)]
    # 100 x 2 cycles of one unit, and lost races for the issue slot; one after the other it would be 300
    assert 200 <= cycles(code, Walk([0] * 100), *(Walk([]) for _ in range(3)), Walk([1] * 100)) < 260


def test_a_stall_holds_the_warp_alone() -> None:
    code = [cost(stall=5), cost()]
    assert cycles(code, Walk([0] * 20)) == 100
    assert 100 <= cycles(code, Walk([0] * 20), *(Walk([]) for _ in range(3)), Walk([1] * 60)) < 130  # and not 160


def test_a_scoreboard_makes_a_chain_of_latencies() -> None:
    code = [cost("xu", 8, writes=0, latency=17.0, waits=(0,))]
    assert cycles(code, Walk([0] * 10)) == 9 * 17 + 1


def test_other_units_are_slower_beside_the_tensor_core() -> None:
    code = [cost("tensor", 0, product=1000.0), cost(beside=1.0)]
    alone = cycles(code, Walk([1] * 100))
    beside = cycles(code, Walk([0]), *(Walk([]) for _ in range(3)), Walk([1] * 100))
    assert alone == 100
    assert beside == pytest.approx(200, abs=2)


@pytest.mark.parametrize("count", [1, 8, 24])
def test_products_queue_and_are_waited_for(count: int) -> None:
    code = [cost("tensor", 0, product=64.0, commits=True, after=40.0), cost(waits_products=True)]
    assert cycles(code, Walk([0] * count + [1])) == pytest.approx(64 * count + 40, abs=2)


def test_products_of_two_warps_share_a_tensor_core() -> None:
    code = [cost("tensor", 0, product=64.0, commits=True, after=40.0), cost(waits_products=True)]
    walks = [Walk([0] * 10 + [1]), *(Walk([]) for _ in range(3)), Walk([0] * 10 + [1])]
    assert cycles(code, *walks) == pytest.approx(64 * 20 + 40, abs=2)


def test_a_group_may_stay_in_flight() -> None:
    code = [cost("tensor", 0, product=64.0, commits=True, after=40.0), cost(waits_products=True, groups_left=1)]
    assert cycles(code, Walk([0, 0, 1])) == pytest.approx(64 + 40, abs=2)


def initialised(count: int) -> tuple[list[Cost], Walk]:
    """A walk that initialises the mbarrier and then takes `stall` 200."""
    return [cost("memory"), cost(stall=200)], Walk([0, 1, 0], {0: event("mbar_init", BARRIER, count)})


def test_an_arrival_wakes_who_waits() -> None:
    code, first = initialised(1)
    first.events[2] = event("mbar_arrive", 0, BARRIER)
    second = Walk([0], {0: event("mbar_try_wait", 0, BARRIER, 0)})
    assert cycles(code, first, second) == pytest.approx(201 + 50, abs=2)


def test_a_phase_that_is_over_is_not_waited_for() -> None:
    code, first = initialised(1)
    first.events[2] = event("mbar_arrive", 0, BARRIER)
    second = Walk([1, 1, 0], {2: event("mbar_try_wait", 0, BARRIER, 0)})
    assert cycles(code, first, second) == pytest.approx(401, abs=2)


@pytest.mark.parametrize("arrivals", [1, 2])
def test_an_mbarrier_counts(arrivals: int) -> None:
    code, first = initialised(2)
    first.events[2] = event("mbar_arrive", 0, BARRIER, lanes=3 if arrivals == 2 else 1)
    second = Walk([0], {0: event("mbar_try_wait", 0, BARRIER, 0)})
    if arrivals == 2:
        assert cycles(code, first, second) > 200
    else:
        with pytest.raises(Stuck, match="1 thread blocks"):
            cycles(code, first, second)


@pytest.mark.parametrize("size", [1000, 16000])
def test_a_copy_takes_its_latency_and_what_the_memory_supplies(size: int) -> None:
    code, walk = initialised(1)
    walk.events[2] = event("mbar_arrive", 0, BARRIER, size, flags=1)
    walk.places += [0, 0]
    walk.events[3] = event("tma_load", 0, 0, 0, BARRIER, amount=size)
    walk.events[4] = event("mbar_try_wait", 0, BARRIER, 0)
    assert cycles(code, walk) == pytest.approx(202 + size / SUPPLY + 500 + 50, abs=3)
    # alone, the engine is the limit for as long as the credit lasts
    assert cycles(code, walk, **{"memory.burst": 1e6}) == pytest.approx(202 + size / 100 + 500 + 50, abs=3)


def test_a_barrier_waits_for_the_last() -> None:
    code = [cost("memory"), cost(stall=300)]
    late = Walk([1, 0], {1: event("bar_sync", 1, 64, lanes=ALL)})
    early = Walk([0], {0: event("bar_sync", 1, 64, lanes=ALL)})
    assert cycles(code, late, early) == pytest.approx(300 + 10 + 2, abs=2)
    with pytest.raises(Stuck):
        cycles(code, early)


def test_blocks_follow_each_other_in_a_place_and_share_between_places() -> None:
    one = block([cost("alu", 2)], Walk([0] * 100))
    machine = numbers(block_start=30.0)
    # an instruction issues in one cycle, its unit is free one later
    assert Multiprocessor(machine, SUPPLY).run([[one] * 3]).cycles == pytest.approx(3 * (30 + 199), abs=3)
    assert Multiprocessor(machine, SUPPLY).run([[one], [one]]).cycles == pytest.approx(30 + 399, abs=3)


def test_waits_are_counted_by_role_and_reason() -> None:
    code, first = initialised(1)
    first.events[2] = event("mbar_arrive", 0, BARRIER)
    second = Walk([0], {0: event("mbar_try_wait", 0, BARRIER, 0)})
    machine = Multiprocessor(numbers(), SUPPLY, spans=True)
    out = machine.run([[block(code, first, second)]])
    assert out.waits["role 1", "mbarrier"] == pytest.approx(250, abs=2)
    assert [span.name for span in out.spans] == ["mbarrier"]


def test_a_limit_ends_the_simulation() -> None:
    out = Multiprocessor(numbers(), SUPPLY, limit=50).run([[block([cost()], Walk([0] * 100))]])
    assert not out.whole
    assert out.issued == pytest.approx(50, abs=1)
