"""Barriers and mbarriers beyond the common path: reductions, drops, states, remote and relaxed arrivals."""

from __future__ import annotations

import ctypes

import pytest
from ptx_lanes import module, run_lanes

from attn_dsl.emulator import KernelFinding, ptx

START = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; setp.ne.s32 %p1, %r0, 0;"
STORE = "mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1; st.global.b32 [%d2], %r40;"


def run(body: str, threads: int, words: int, *, cluster: int = 1, **options: object) -> list[int]:
    buffer = (ctypes.c_uint32 * words)()
    kernel = ptx.load(module(START + body, shared=1024))
    kernel.launch((cluster, 1, 1), (threads, 1, 1), [buffer], cluster=(cluster, 1, 1), **options)
    return list(buffer)


def wait(address: str, parity: int, label: str) -> str:
    return f"{label}: mbarrier.try_wait.parity.shared.b64 %p8, [{address}], {parity}; @!%p8 bra {label};"


@pytest.mark.parametrize(("op", "want"), [("popc.u32", 20), ("and.pred", 0), ("or.pred", 1)])
def test_barrier_reductions(op: str, want: int) -> None:
    test = "setp.lt.u32 %p2, %r0, 20;"
    if op == "popc.u32":
        body = f"{test} bar.red.popc.u32 %r40, 3, %p2; {STORE}"
    else:
        body = f"{test} bar.red.{op} %p3, 3, %p2; selp.b32 %r40, 1, 0, %p3; {STORE}"
    for seed in range(4):
        assert run(body, 96, 96, seed=seed) == [want] * 96


def test_a_dropped_participant_is_not_waited_for_again() -> None:
    """Two arrivals complete phase 0; one thread drops out, so one arrival completes phase 1."""
    body = (
        "@%p1 bra END; mbarrier.init.shared.b64 [%r9], 2;"
        "mbarrier.arrive_drop.shared.b64 _, [%r9]; mbarrier.arrive.shared.b64 _, [%r9];"
        + wait("%r9", 0, "W0")
        + "mbarrier.arrive.shared.b64 _, [%r9];"
        + wait("%r9", 1, "W1")
        + "st.global.b32 [%d0], 5; END: mov.b32 %r7, 0;"
    )
    assert run(body, 32, 1) == [5]


def test_a_state_names_its_phase() -> None:
    """test_wait with the state of an arrival: true once that phase is over; pending_count: what was missing."""
    body = """
    @%p1 bra END; mbarrier.init.shared.b64 [%r9], 3;
    mbarrier.arrive.shared.b64 %d10, [%r9]; mbarrier.pending_count.b64 %r20, %d10;
    mbarrier.test_wait.shared.b64 %p2, [%r9], %d10; selp.b32 %r21, 1, 0, %p2;
    mbarrier.arrive.shared.b64 _, [%r9], 2;
    mbarrier.test_wait.shared.b64 %p3, [%r9], %d10; selp.b32 %r22, 1, 0, %p3;
    st.global.b32 [%d0], %r20; st.global.b32 [%d0+4], %r21; st.global.b32 [%d0+8], %r22; END: mov.b32 %r7, 0;
    """
    assert run(body, 32, 3) == [3, 0, 1]


def test_an_invalidated_barrier_is_memory_again() -> None:
    body = (
        "@%p1 bra END; mbarrier.init.shared.b64 [%r9], 1; mbarrier.inval.shared.b64 [%r9];"
        "st.shared.b64 [%r9], 9; ld.shared.b32 %r40, [%r9]; st.global.b32 [%d0], %r40; END: mov.b32 %r7, 0;"
    )
    assert run(body, 32, 1) == [9]


REMOTE = """
mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mapa.shared::cluster.u32 %r3, %r9, %r2;
@!%p1 mbarrier.init.shared.b64 [%r9], 1; {fence}
barrier.cluster.arrive{relaxed}.aligned; barrier.cluster.wait.aligned;
@%p1 bra SKIP; add.s32 %r4, %r3, 64; st.shared::cluster.b32 [%r4], %r1;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3]; SKIP:
{wait} ld.shared.b32 %r40, [%r9+64]; mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d0, %d1; @!%p1 st.global.b32 [%d2], %r40;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


def remote(fence: str, relaxed: str) -> list[int]:
    return run(REMOTE.format(fence=fence, relaxed=relaxed, wait=wait("%r9", 0, "W")), 64, 2, cluster=2)


def test_arrivals_from_another_cta() -> None:
    assert remote("fence.mbarrier_init.release.cluster;", "") == [1, 0]


def test_a_relaxed_arrive_publishes_fenced_initialisations() -> None:
    assert remote("fence.mbarrier_init.release.cluster;", ".relaxed") == [1, 0]


@pytest.mark.parametrize("relaxed", ["", ".relaxed"])
def test_an_unfenced_initialisation_is_found(relaxed: str) -> None:
    with pytest.raises(KernelFinding):
        remote("", relaxed)


LEAVE = """
mov.u32 %r1, %cluster_ctarank; setp.eq.s32 %p4, %r1, 0; mov.b32 %r20, 1; mapa.shared::cluster.u32 %r3, %r9, %r20;
@!%p1 mbarrier.init.shared.b64 [%r9], 2; fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@!%p4 bra END; @!%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3]; END: mov.b32 %r7, 0;
"""


def test_a_cta_may_not_leave_while_others_signal_it() -> None:
    run(LEAVE + "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", 32, 1, cluster=2)
    with pytest.raises(KernelFinding) as caught:
        run(LEAVE, 32, 1, cluster=2)
    assert caught.value.findings[0].kind == "async-left"


def test_indexed_branches() -> None:
    body = (
        "T: .branchtargets L0, L1, L2;\nrem.u32 %r50, <A>, 3; brx.idx %r50, T;\n"
        "L0: mov.b32 <D>, 100; bra END;\nL1: mov.b32 <D>, 200; bra END;\nL2: mov.b32 <D>, 300;\n"
        "END: bar.warp.sync -1; add.s32 <D>, <D>, <A>;"
    )
    a = list(range(32))
    assert run_lanes(body, [a], "b32", "b32") == [100 * (v % 3 + 1) + v for v in a]


def test_activemask_sees_the_lanes_of_a_branch() -> None:
    body = "setp.lt.u32 %p1, <A>, 5; mov.b32 <D>, 0; @!%p1 bra END; activemask.b32 <D>; END: bar.warp.sync -1;"
    assert run_lanes(body, [list(range(32))], "b32", "b32") == [31] * 5 + [0] * 27


def test_barrier_number_from_a_register() -> None:
    body = f"shr.u32 %r1, %r0, 6; add.s32 %r2, %r1, 4; bar.sync %r2, 64; mov.b32 %r40, %r2; {STORE}"
    assert run(body, 128, 128) == [4] * 64 + [5] * 64
