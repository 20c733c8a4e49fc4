"""Named barriers: ids that differ, and counts that add up."""

import pytest

from attn_dsl.kernels.named_barrier import MAX_BARRIERS, WARPGROUP, BarrierError, BarrierIds, forward_barriers


def test_ids_differ_and_leave_syncthreads_its_own():
    ids = BarrierIds()
    given = [ids.allocate(f"b{place}", 64, {"everyone": 64}).id for place in range(MAX_BARRIERS - 1)]
    assert given == list(range(1, MAX_BARRIERS))
    with pytest.raises(BarrierError, match="'one more' would be number 16"):
        ids.allocate("one more", 64, {"everyone": 64})


@pytest.mark.parametrize(
    ("threads", "arrivals", "message"),
    [
        (256, {"first": 128}, r"counts 256 threads but 128 arrive \(first 128\): it deadlocks"),
        (128, {"first": 128, "second": 32}, r"but 160 arrive \(first 128, second 32\): it releases early"),
        (100, {"first": 100}, "no multiple of a warp"),
    ],
)
def test_counts_that_do_not_add_up(threads, arrivals, message):
    with pytest.raises(BarrierError, match=message):
        BarrierIds().allocate("turn", threads, arrivals)


def test_a_name_is_given_once():
    ids = BarrierIds()
    ids.allocate("turn", 64, {"everyone": 64})
    with pytest.raises(BarrierError, match="allocated twice"):
        ids.allocate("turn", 64, {"everyone": 64})


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_forward_barriers(consumers):
    found = forward_barriers(consumers)
    every = [*found.turn, *found.output, found.consumers]
    assert len({barrier.id for barrier in every}) == len(every)
    # the template adds the warpgroup's number to the id of the first
    for family in (found.turn, found.output):
        assert [barrier.id for barrier in family] == [family[0].id + place for place in range(len(family))]
    assert len(found.turn) == (consumers if consumers > 1 else 0)
    assert found.consumers.threads == consumers * WARPGROUP
