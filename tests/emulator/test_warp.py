"""Divergence and reconvergence, warp-wide instructions, barriers and mbarriers."""

from __future__ import annotations

import ctypes
import random

import pytest
from ptx_lanes import module, run_lanes

from attn_dsl.emulator import ptx
from attn_dsl.emulator.decoder import decode
from attn_dsl.emulator.native import LaunchConfig, Program

LANE = "mov.u32 %r40, %laneid; "


def test_divergent_branches_meet_again() -> None:
    body = (
        LANE + "and.b32 %r41, <A>, 1; setp.eq.s32 %p1, %r41, 0; @%p1 bra EVEN; mul.lo.s32 %r42, <A>, 3; bra MEET;\n"
        "EVEN: add.s32 %r42, <A>, 100;\nMEET: vote.sync.ballot.b32 %r43, %p1, 0xffffffff; add.s32 <D>, %r42, %r43;"
    )
    a = list(range(32))
    ballot = sum(1 << i for i in range(0, 32, 2))
    want = [((v + 100 if v % 2 == 0 else v * 3) + ballot) & 0xFFFFFFFF for v in a]
    assert run_lanes(body, [a], "b32", "b32") == want


def test_loops_with_different_trip_counts() -> None:
    body = (
        "mov.b32 <D>, 0; mov.b32 %r41, <A>;\nLOOP: setp.eq.s32 %p1, %r41, 0; @%p1 bra OUT; "
        "add.s32 <D>, <D>, %r41; sub.s32 %r41, %r41, 1; bra LOOP;\nOUT: bar.warp.sync -1;"
    )
    a = random.Random(1).choices(range(20), k=32)
    assert run_lanes(body, [a], "b32", "b32") == [v * (v + 1) // 2 for v in a]


def test_nested_divergence() -> None:
    body = (
        "setp.lt.s32 %p1, <A>, 16; @!%p1 bra HIGH; setp.lt.s32 %p2, <A>, 8; @!%p2 bra MID; "
        "mov.b32 <D>, 1; bra JOIN;\n"
        "MID: mov.b32 <D>, 2;\nJOIN: add.s32 <D>, <D>, 10; bra END;\nHIGH: mov.b32 <D>, 3;\nEND: bar.warp.sync -1;"
    )
    assert run_lanes(body, [list(range(32))], "b32", "b32") == [11] * 8 + [12] * 8 + [3] * 16


def test_lanes_of_one_warp_can_wait_for_each_other() -> None:
    """One side of a branch spins on a word of shared memory that the other side sets: both must progress."""
    body = """
    ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; setp.eq.s32 %p1, %r0, 5;
    @%p1 mbarrier.init.shared.b64 [%r9], 1; bar.warp.sync -1;
    @%p1 bra SET;
    { .reg .pred P; W: mbarrier.try_wait.parity.shared.b64 P, [%r9], 0; @P bra GO; bra W; GO: }
    bra MEET;
    SET: mbarrier.arrive.shared.b64 %d3, [%r9];
    MEET: bar.warp.sync -1;
    mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1; st.global.b32 [%d2], 77;
    """
    buffer = (ctypes.c_uint32 * 32)()
    ptx.load(module(body, shared=64)).launch((1, 1, 1), (32, 1, 1), [buffer])
    assert list(buffer) == [77] * 32


@pytest.mark.parametrize("mode", ["idx", "bfly", "up", "down"])
def test_shuffle(mode: str) -> None:
    rng = random.Random(2)
    a = [rng.getrandbits(32) for _ in range(32)]
    amount, width = 3, 8
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    got = run_lanes(f"shfl.sync.{mode}.b32 <D>|%p1, <A>, {amount}, {clamp}, -1;", [a], "b32", "b32")
    want = []
    for lane in range(32):
        base, inside = lane - lane % width, lane % width
        j = {"idx": amount, "bfly": inside ^ amount, "up": inside - amount, "down": inside + amount}[mode]
        want.append(a[base + j] if 0 <= j < width else a[lane])
    assert got == want


def test_votes_and_election() -> None:
    a = [1] * 31 + [0]
    text = "setp.ne.s32 %p1, <A>, 0; vote.sync.{} %p2, %p1, -1; selp.b32 <D>, 1, 0, %p2;"
    assert set(run_lanes(text.format("all.pred"), [a], "b32", "b32")) == {0}
    assert set(run_lanes(text.format("any.pred"), [a], "b32", "b32")) == {1}
    got = run_lanes("elect.sync %r41|%p1, 0xffffffff; selp.b32 <D>, %r41, 99, %p1;", [a], "b32", "b32")
    assert got == [0] + [99] * 31


@pytest.mark.parametrize(("op", "want"), [("add.s32", sum), ("min.s32", min), ("max.s32", max)])
def test_redux(op: str, want) -> None:
    a = random.Random(3).choices(range(-1000, 1000), k=32)
    assert set(run_lanes(f"redux.sync.{op} <D>, <A>, -1;", [a], "b32", "b32")) == {want(a) & 0xFFFFFFFF}


def test_match_groups_equal_values() -> None:
    a = [i % 3 for i in range(32)]
    got = run_lanes("match.any.sync.b32 <D>, <A>, -1;", [a], "b32", "b32")
    assert got == [sum(1 << j for j in range(32) if a[j] == a[i]) for i in range(32)]


def test_named_barriers_mix_arrive_and_sync() -> None:
    """Warp 0 publishes through barrier 2 without waiting; warp 1 waits for it."""
    body = """
    ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31;
    shl.b32 %r3, %r2, 2;
    add.s32 %r4, %r9, %r3; setp.eq.s32 %p1, %r1, 0; @!%p1 bra READ;
    mul.lo.s32 %r5, %r2, 7; st.shared.b32 [%r4], %r5; bar.arrive 2, 64; bra END;
    READ: bar.sync 2, 64; ld.shared.b32 %r6, [%r4]; mul.wide.u32 %d1, %r2, 4; add.s64 %d2, %d0, %d1;
    st.global.b32 [%d2], %r6;
    END: mov.b32 %r7, 0;
    """
    for seed in range(6):
        buffer = (ctypes.c_uint32 * 32)()
        ptx.load(module(body, shared=128)).launch((1, 1, 1), (64, 1, 1), [buffer], seed=seed)
        assert list(buffer) == [7 * i for i in range(32)]


def test_mbarrier_phases_hand_a_value_back_and_forth() -> None:
    """Two warps take turns on one word, eight rounds, through a full and an empty mbarrier."""
    wait = "{{ .reg .pred P; W: mbarrier.try_wait.parity.shared.b64 P, [{}], {}; @P bra GO; bra W; GO: }}"
    body = f"""
    ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; shr.u32 %r1, %r0, 5; setp.ne.s32 %p3, %r0, 0;
    @%p3 bra INIT; mbarrier.init.shared.b64 [%r9], 32; mbarrier.init.shared.b64 [%r9+8], 32;
    INIT: bar.sync 0; add.s32 %r10, %r9, 8; and.b32 %r20, %r0, 31; shl.b32 %r21, %r20, 2; add.s32 %r22, %r9, %r21;
    mov.b32 %r2, 0; mov.b32 %r3, 0; setp.eq.s32 %p1, %r1, 0; @!%p1 bra CONSUMER;
    PRODUCER: and.b32 %r4, %r2, 1; xor.b32 %r5, %r4, 1; {wait.format("%r10", "%r5")}
    mad.lo.s32 %r6, %r2, %r2, %r20; st.shared.b32 [%r22+64], %r6; mbarrier.arrive.shared.b64 _, [%r9];
    add.s32 %r2, %r2, 1; setp.lt.s32 %p2, %r2, 8; @%p2 bra PRODUCER; bra END;
    CONSUMER: and.b32 %r4, %r2, 1; {wait.format("%r9", "%r4")}
    ld.shared.b32 %r6, [%r22+64]; add.s32 %r3, %r3, %r6; mbarrier.arrive.shared.b64 _, [%r10];
    add.s32 %r2, %r2, 1; setp.lt.s32 %p2, %r2, 8; @%p2 bra CONSUMER;
    mul.wide.u32 %d1, %r20, 4; add.s64 %d2, %d0, %d1; st.global.b32 [%d2], %r3;
    END: mov.b32 %r7, 0;
    """
    for seed in range(6):
        buffer = (ctypes.c_uint32 * 32)()
        report = ptx.load(module(body, shared=512)).launch(
            (1, 1, 1), (64, 1, 1), [buffer], seed=seed, findings="collect"
        )
        assert [f.text for f in report.findings] == []
        assert list(buffer) == [140 + 8 * i for i in range(32)]


def test_a_seed_replays_exactly() -> None:
    body = (
        "ld.param.b64 %d0, [p0]; atom.global.add.u32 %r1, [%d0], 1; mov.u32 %r0, %tid.x; "
        "mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1; st.global.b32 [%d2+64], %r1;"
    )
    kernel = ptx.load(module(body))

    def order(seed: int) -> list[int]:
        buffer = (ctypes.c_uint32 * 300)()
        kernel.launch((1, 1, 1), (256, 1, 1), [buffer], seed=seed, threads=1)
        return list(buffer)

    assert order(3) == order(3)
    assert order(3)[0] == 256
    assert len({tuple(order(s)) for s in range(1, 9)}) > 1


def test_exited_lanes_do_not_hold_back_the_others() -> None:
    body = (
        "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; setp.lt.s32 %p1, %r0, 20; @!%p1 ret; "
        "bar.warp.sync -1; bar.sync 0; mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1; "
        "st.global.b32 [%d2], 5;"
    )
    buffer = (ctypes.c_uint32 * 64)()
    ptx.load(module(body)).launch((1, 1, 1), (64, 1, 1), [buffer])
    assert list(buffer) == [5] * 20 + [0] * 44


def test_atomics_add_up_over_ctas() -> None:
    body = "ld.param.b64 %d0, [p0]; red.global.add.u32 [%d0], 3; red.global.max.s32 [%d0+4], 9;"
    buffer = (ctypes.c_uint32 * 4)()
    ptx.load(module(body)).launch((50, 1, 1), (64, 1, 1), [buffer])
    assert list(buffer)[:2] == [3 * 64 * 50, 9]


def test_cluster_barrier_and_remote_shared_memory() -> None:
    """Each CTA writes its rank into the next CTA's shared memory."""
    body = """
    ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; mov.u32 %r1, %cluster_ctarank;
    add.s32 %r2, %r1, 1; and.b32 %r3, %r2, 3;
    mapa.shared::cluster.u32 %r4, %r9, %r3; setp.ne.s32 %p1, %r0, 0;
    @%p1 bra SKIP; st.shared::cluster.b32 [%r4], %r1; SKIP:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p1 bra END; ld.shared.b32 %r6, [%r9]; mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d0, %d1; st.global.b32 [%d2], %r6;
    END: mov.b32 %r7, 0;
    """
    buffer = (ctypes.c_uint32 * 4)()
    ptx.load(module(body, shared=64)).launch((4, 1, 1), (64, 1, 1), [buffer], cluster=(4, 1, 1))
    assert list(buffer) == [3, 0, 1, 2]


def test_a_trace_tells_which_waits_depended_on_a_phase() -> None:
    """One wait passes on the fresh barrier, one because a phase has completed, one is never executed."""
    body = """
    mov.u32 %r0, %tid.x; mov.b32 %r9, smem; setp.ne.s32 %p1, %r0, 0;
    @!%p1 mbarrier.init.shared.b64 [%r9], 32; bar.warp.sync -1;
    mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 1;
    mbarrier.arrive.shared.b64 _, [%r9];
    mbarrier.try_wait.parity.shared.b64 %p3, [%r9], 0;
    bra END;
    mbarrier.try_wait.parity.shared.b64 %p4, [%r9], 0;
    END: mov.b32 %r7, 0;
    """
    text = module(body, params=0, shared=64)
    config = LaunchConfig((1, 1, 1), (32, 1, 1), trace=True)
    result = Program(decode(text)).launch(config, b"", [])
    waits = [i for i, line in enumerate(text.split("\n"), 1) if "try_wait" in line]
    assert [sum(u.depended for u in result.mbarrier_uses if u.line == line) for line in waits] == [0, 1, 0]
    assert [line in result.executed_lines for line in waits] == [True, True, False]
