"""Each finding: a small kernel with the mistake is reported, the same kernel without it is not."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import pytest
from ptx_lanes import module

from attn_dsl.emulator import Finding, ptx
from attn_dsl.emulator.native import FINDING_KINDS

WAIT = """
{{ .reg .pred P; LOOP: mbarrier.try_wait.parity.shared.b64 P, [{at}], {parity}; @P bra DONE; bra LOOP; DONE: }}
"""


def kinds(
    body: str, *, warps: int = 1, shared: int = 4096, target: str = "sm_100a", cluster: int = 1, **options: object
) -> list[str]:
    """Kinds of the findings of one run of `body` (parameter p0: 4096 bytes of zeroed memory)."""
    buffer = (ctypes.c_uint32 * 1024)()
    kernel = ptx.load(module(body, shared=shared, target=target))
    report = kernel.launch(
        (cluster, 1, 1), (32 * warps, 1, 1), [buffer], cluster=(cluster, 1, 1), findings="collect", **options
    )
    return sorted({f.kind for f in report.findings})


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    bad: str
    good: str
    warps: int = 1


@dataclass(frozen=True)
class Place:
    """What a finding must say."""

    source: str  # its instruction; "" is the end of the CTA
    words: str  # of its sentence
    warp: int = 0


ADDRESS = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; "
FIRST = "setp.ne.s32 %p1, %r0, 0;"  # true except in thread 0

CASES = [
    Case(
        "out of bounds", "oob", ADDRESS + "ld.global.b32 %r1, [%d0+4096];", ADDRESS + "ld.global.b32 %r1, [%d0+4092];"
    ),
    Case("misaligned", "misaligned", ADDRESS + "ld.global.b32 %r1, [%d0+2];", ADDRESS + "ld.global.b32 %r1, [%d0+4];"),
    Case("shared window", "oob", ADDRESS + "st.shared.b32 [%r9+262144], %r0;", ADDRESS + "st.shared.b32 [%r9+16], 1;"),
    Case(
        "shared memory nobody wrote",
        "uninit-shared",
        ADDRESS + "ld.shared.b32 %r1, [%r9];",
        ADDRESS + "st.shared.b32 [%r9], 1; ld.shared.b32 %r1, [%r9];",
    ),
    Case(
        "a byte nobody wrote",
        "uninit-shared",
        ADDRESS + "st.shared.b8 [%r9], 1; ld.shared.b8 %r1, [%r9+1];",
        ADDRESS + "st.shared.b8 [%r9+1], 1; ld.shared.b8 %r1, [%r9+1];",
    ),
    Case(
        "two warps write one byte",
        "race-shared",
        ADDRESS + "st.shared.b8 [%r9+1], 1;",
        ADDRESS + "shr.u32 %r1, %r0, 5; add.s32 %r9, %r9, %r1; st.shared.b8 [%r9], 1; ld.shared.b8 %r2, [%r9];",
        warps=2,
    ),
    Case(
        "reads what another warp still adds to",
        "race-shared",
        ADDRESS + FIRST + "@!%p1 st.shared.b32 [%r9], 0; bar.sync 0; setp.lt.s32 %p2, %r0, 32;"
        "@%p2 red.shared.add.u32 [%r9], 1; @!%p2 ld.shared.b32 %r5, [%r9];",
        ADDRESS + FIRST + "@!%p1 st.shared.b32 [%r9], 0; bar.sync 0; setp.lt.s32 %p2, %r0, 32;"
        "red.shared.add.u32 [%r9], 1; @!%p2 ld.relaxed.cta.shared.b32 %r5, [%r9]; bar.sync 0;"
        "ld.shared.b32 %r5, [%r9];",
        warps=2,
    ),
    Case(
        "stores an unwritten register",
        "uninit-register",
        ADDRESS + "st.global.b32 [%d0], %r5;",
        ADDRESS + "st.global.b32 [%d0], %r0;",
    ),
    Case(
        "an unwritten register reaches an address through arithmetic",
        "uninit-register",
        ADDRESS + "cvt.u64.u32 %d5, %r5; add.s64 %d6, %d0, %d5; ld.global.b32 %r1, [%d6];",
        ADDRESS + "mul.wide.u32 %d5, %r0, 4; add.s64 %d6, %d0, %d5; ld.global.b32 %r1, [%d6];",
    ),
    Case(
        "branches on an unwritten predicate",
        "uninit-register",
        ADDRESS + "@%p7 bra OUT; mov.b32 %r1, 0; OUT: mov.b32 %r2, 0;",
        ADDRESS + FIRST + "@%p1 bra OUT; mov.b32 %r1, 0; OUT: mov.b32 %r2, 0;",
    ),
    Case(
        "race between warps",
        "race-shared",
        ADDRESS + "shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; shl.b32 %r2, %r0, 2; and.b32 %r3, %r2, 127; "
        "add.s32 %r4, %r9, %r3;"
        "@%p2 st.shared.b32 [%r4], %r0; @!%p2 ld.shared.b32 %r5, [%r4];",
        ADDRESS + "shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; shl.b32 %r2, %r0, 2; and.b32 %r3, %r2, 127; "
        "add.s32 %r4, %r9, %r3;"
        "@%p2 st.shared.b32 [%r4], %r0; bar.sync 0; @!%p2 ld.shared.b32 %r5, [%r4];",
        warps=2,
    ),
    Case(
        "overwrites what another warp still reads",
        "race-shared",
        ADDRESS + "shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; shl.b32 %r2, %r0, 2; and.b32 %r3, %r2, 127; "
        "add.s32 %r4, %r9, %r3;"
        "@%p2 st.shared.b32 [%r4], %r0; bar.sync 0; @!%p2 ld.shared.b32 %r5, [%r4]; @%p2 st.shared.b32 [%r4], %r1;",
        ADDRESS + "shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; shl.b32 %r2, %r0, 2; and.b32 %r3, %r2, 127; "
        "add.s32 %r4, %r9, %r3;"
        "@%p2 st.shared.b32 [%r4], %r0; bar.sync 0; @!%p2 ld.shared.b32 %r5, [%r4]; bar.sync 0; "
        "@%p2 st.shared.b32 [%r4], %r1;",
        warps=2,
    ),
    Case(
        "an mbarrier that never completes",
        "deadlock",
        ADDRESS
        + "mbarrier.init.shared.b64 [%r9], 33; mbarrier.arrive.shared.b64 %d3, [%r9];"
        + WAIT.format(at="%r9", parity=0),
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 32; bar.warp.sync -1; mbarrier.arrive.shared.b64 %d3, [%r9];"
        + WAIT.format(at="%r9", parity=0),
    ),
    Case(
        "too many arrivals",
        "mbar-over-arrival",
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 8; bar.warp.sync -1; mbarrier.arrive.shared.b64 %d3, [%r9], 9;",
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 32; bar.warp.sync -1; mbarrier.arrive.shared.b64 %d3, [%r9];",
    ),
    Case(
        "arrivals of one instruction that count for two phases",
        "mbar-over-arrival",
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 31; bar.warp.sync -1; mbarrier.arrive.shared.b64 %d3, [%r9];",
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 16; bar.warp.sync -1; and.b32 %r5, %r0, 1; setp.eq.s32 %p2, %r5, 1;"
        + "@%p2 mbarrier.arrive.shared.b64 %d3, [%r9]; @!%p2 mbarrier.arrive.shared.b64 %d3, [%r9];",
    ),
    Case(
        "transaction bytes that never come",
        "mbar-tx",
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 1; @!%p1 mbarrier.arrive.expect_tx.shared.b64 %d3, [%r9], 64;"
        + "bar.warp.sync -1;"
        + WAIT.format(at="%r9", parity=0),
        ADDRESS
        + FIRST
        + "@!%p1 mbarrier.init.shared.b64 [%r9], 1; @!%p1 mbarrier.arrive.shared.b64 %d3, [%r9]; bar.warp.sync -1;"
        + WAIT.format(at="%r9", parity=0),
    ),
    Case("no such mbarrier", "mbar-invalid", ADDRESS + "mbarrier.arrive.shared.b64 %d3, [%r9+64];", ADDRESS),
    Case(
        "data over a live mbarrier",
        "mbar-invalid",
        ADDRESS + FIRST + "@!%p1 mbarrier.init.shared.b64 [%r9], 1; @!%p1 st.shared.b32 [%r9+4], 7;",
        ADDRESS + FIRST + "@!%p1 mbarrier.init.shared.b64 [%r9], 1; @!%p1 st.shared.b32 [%r9+8], 7;",
    ),
    Case(
        "counts of a named barrier disagree",
        "barrier-count",
        ADDRESS + "shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; @%p2 bra A; bar.sync 3, 96; bra B; "
        "A: bar.sync 3, 64; B: mov.b32 %r2, 0;",
        ADDRESS + "shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; @%p2 bra A; bar.sync 3, 64; bra B; "
        "A: bar.sync 3, 64; B: mov.b32 %r2, 0;",
        warps=2,
    ),
    Case(
        "an aligned barrier in divergent code",
        "divergence",
        ADDRESS + FIRST + "@%p1 bra OUT; bar.sync 1, 32; OUT: mov.b32 %r2, 0;",
        ADDRESS + FIRST + "bar.sync 1, 32; @%p1 bra OUT; mov.b32 %r3, 0; OUT: mov.b32 %r2, 0;",
    ),
    Case(
        "bulk store of generic writes without a proxy fence",
        "proxy-fence",
        ADDRESS + FIRST + "@!%p1 st.shared.v4.b32 [%r9], {1, 2, 3, 4};"
        "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r9], 16;"
        "@!%p1 cp.async.bulk.commit_group; @!%p1 cp.async.bulk.wait_group 0;",
        ADDRESS + FIRST + "@!%p1 st.shared.v4.b32 [%r9], {1, 2, 3, 4}; fence.proxy.async.shared::cta;"
        "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r9], 16;"
        "@!%p1 cp.async.bulk.commit_group; @!%p1 cp.async.bulk.wait_group 0;",
    ),
    Case(
        "ends before its bulk store has been waited for",
        "async-left",
        ADDRESS + FIRST + "@!%p1 st.shared.v4.b32 [%r9], {1, 2, 3, 4}; fence.proxy.async.shared::cta;"
        "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r9], 16; @!%p1 cp.async.bulk.commit_group;",
        ADDRESS + FIRST + "@!%p1 st.shared.v4.b32 [%r9], {1, 2, 3, 4}; fence.proxy.async.shared::cta;"
        "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r9], 16;"
        "@!%p1 cp.async.bulk.commit_group; @!%p1 cp.async.bulk.wait_group.read 0;",
    ),
    Case(
        "an un-elected reduction",
        "unelected",
        ADDRESS + FIRST + "@!%p1 st.shared.v4.b32 [%r9], {0, 0, 0, 0}; fence.proxy.async.shared::cta; bar.warp.sync -1;"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r9], 16;"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        ADDRESS + FIRST + "@!%p1 st.shared.v4.b32 [%r9], {0, 0, 0, 0}; fence.proxy.async.shared::cta; bar.warp.sync -1;"
        "@!%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r9], 16;"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
    ),
    Case(
        "more registers than an SM has",
        "register-budget",
        "setmaxnreg.inc.sync.aligned.u32 240;",
        "setmaxnreg.inc.sync.aligned.u32 128;",
        warps=16,
    ),
]


PLACES = {
    "out of bounds": Place("ld.global.b32 %r1, [%d0+4096];", "outside every known allocation"),
    "misaligned": Place("ld.global.b32 %r1, [%d0+2];", "is not a multiple of 4"),
    "shared window": Place("st.shared.b32 [%r9+262144], %r0;", "outside the CTA's memory"),
    "shared memory nobody wrote": Place("ld.shared.b32 %r1, [%r9];", "which nobody has written"),
    "a byte nobody wrote": Place("ld.shared.b8 %r1, [%r9+1];", "0x401 of CTA rank 0, which nobody has written"),
    "two warps write one byte": Place("st.shared.b8 [%r9+1], 1;", "0x401 of CTA rank 0 by warp 1", 1),
    "reads what another warp still adds to": Place(
        "@%p2 red.shared.add.u32 [%r9], 1;", "is not ordered after the read by warp 1"
    ),
    "stores an unwritten register": Place("st.global.b32 [%d0], %r5;", "nobody wrote for a store"),
    "an unwritten register reaches an address through arithmetic": Place(
        "ld.global.b32 %r1, [%d6];", "nobody wrote for an address"
    ),
    "branches on an unwritten predicate": Place("@%p7 bra OUT;", "was never written"),
    "race between warps": Place("@!%p2 ld.shared.b32 %r5, [%r4];", "is not ordered after the write by warp 0", 1),
    "overwrites what another warp still reads": Place(
        "@%p2 st.shared.b32 [%r4], %r1;", "is not ordered after the read by warp 1"
    ),
    "an mbarrier that never completes": Place(
        "LOOP: mbarrier.try_wait.parity.shared.b64 P, [%r9], 0;", "32 arrivals of 33 seen"
    ),
    "too many arrivals": Place("mbarrier.arrive.shared.b64 %d3, [%r9], 9;", "expects only 8 more"),
    "arrivals of one instruction that count for two phases": Place(
        "mbarrier.arrive.shared.b64 %d3, [%r9];", "counts for the next phase"
    ),
    "transaction bytes that never come": Place(
        "LOOP: mbarrier.try_wait.parity.shared.b64 P, [%r9], 0;", "64 transaction bytes are still expected"
    ),
    "no such mbarrier": Place("mbarrier.arrive.shared.b64 %d3, [%r9+64];", "no mbarrier was initialised"),
    "data over a live mbarrier": Place("@!%p1 st.shared.b32 [%r9+4], 7;", "holds a live mbarrier"),
    "counts of a named barrier disagree": Place("bar.sync 3, 96;", "named barrier 3 expects 96 threads", 1),
    "an aligned barrier in divergent code": Place("bar.sync 1, 32;", "of the live lanes ffffffff"),
    "bulk store of generic writes without a proxy fence": Place(
        "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r9], 16;", "with no fence.proxy.async in between"
    ),
    "ends before its bulk store has been waited for": Place("", "has seen its bulk store of line"),
    "an un-elected reduction": Place(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r9], 16;",
        "one elected thread must issue it",
    ),
    "more registers than an SM has": Place("setmaxnreg.inc.sync.aligned.u32 240;", "an SM has 65536", 15),
}


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_mistake_is_found(case: Case) -> None:
    """With its kernel, its warp, its instruction and a sentence."""
    text = module(case.bad.replace(";", ";\n"), shared=4096)
    buffer = (ctypes.c_uint32 * 1024)()
    report = ptx.load(text).launch((1, 1, 1), (32 * case.warps, 1, 1), [buffer], findings="collect")
    place = PLACES[case.name]
    finding = next(finding for finding in report.findings if finding.kind == case.kind)
    assert (finding.kernel, finding.warp, finding.ctaid) == ("k", place.warp, (0, 0, 0))
    assert finding.source == place.source
    assert finding.source == (text.splitlines()[finding.line - 1].strip() if finding.line else "")
    assert place.words in finding.text


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_no_finding_without_the_mistake(case: Case) -> None:
    assert kinds(case.good, warps=case.warps) == []


def test_a_kernel_that_never_ends_is_stopped() -> None:
    assert kinds("LOOP: add.s32 %r1, %r1, 1; bra LOOP;", budget=1000) == ["budget"]


def test_a_deadlock_names_every_waiter() -> None:
    buffer = (ctypes.c_uint32 * 1024)()
    body = (
        ADDRESS + FIRST + "shr.u32 %r1, %r0, 5; @!%p1 mbarrier.init.shared.b64 [%r9], 3; bar.sync 0;"
        "setp.eq.s32 %p2, %r1, 0; @%p2 bra A; bar.sync 5, 96; bra B; A:"
        + WAIT.format(at="%r9", parity=0)
        + "B: mov.b32 %r2, 0;"
    )
    report = ptx.load(module(body, shared=4096)).launch((1, 1, 1), (64, 1, 1), [buffer], findings="collect")
    text = "\n".join(f.text for f in report.findings)
    assert "parity 0 of the mbarrier" in text
    assert "0 arrivals of 3" in text
    assert "named barrier 5 (32 threads of 96" in text


def test_a_finding_says_where() -> None:
    buffer = (ctypes.c_uint32 * 4)()
    text = module("ld.param.b64 %d0, [p0];\nld.global.b32 %r1, [%d0+64];")
    report = ptx.load(text).launch((1, 1, 1), (32, 1, 1), [buffer], findings="collect")
    (finding,) = report.findings
    assert "ld.global.b32" in text.splitlines()[finding.line - 1]
    assert finding.warp == 0


LEAVE = "@%p1 bra END; "


def found(body: str, *, warps: int = 1, target: str = "sm_100a", cluster: int = 1) -> list[Finding]:
    buffer = (ctypes.c_uint32 * 1024)()
    kernel = ptx.load(module(ADDRESS + FIRST + body, shared=4096, target=target))
    report = kernel.launch((cluster, 1, 1), (32 * warps, 1, 1), [buffer], cluster=(cluster, 1, 1), findings="collect")
    return list(report.findings)


def test_a_finding_names_the_role_of_its_warp() -> None:
    """Warps 0 and 1 read global memory, warps 2 and 3 shared memory that nobody wrote."""
    body = ADDRESS + "setp.lt.u32 %p1, %r0, 64; @%p1 bra LOAD; ld.shared.b32 %r2, [%r9]; bra DONE; "
    body += "LOAD: ld.global.b32 %r1, [%d0]; DONE:"
    kernel = ptx.load(module(body, shared=4096))
    report = kernel.launch((1, 1, 1), (128, 1, 1), [(ctypes.c_uint32 * 1024)()], findings="collect")
    assert report.findings
    for finding in report.findings:
        assert finding.warp in (2, 3)
        assert finding.role == (2, 3)
        assert f"warp {finding.warp} (with warps 2 to 3)" in str(finding)


def test_a_phase_that_ends_before_its_waiter_looks() -> None:
    """Warp 1 arrives twice although warp 0 still waits for the first of the two phases."""
    body = """
    shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; @!%p1 mbarrier.init.shared.b64 [%r9], 1; bar.sync 0;
    @%p2 bra WAITER; setp.ne.u32 %p3, %r0, 32; nanosleep.u32 1; nanosleep.u32 1;
    @!%p3 mbarrier.arrive.shared.b64 %d3, [%r9]; {between} @!%p3 mbarrier.arrive.shared.b64 %d3, [%r9]; bra END;
    WAITER: LOOP: mbarrier.try_wait.parity.shared.b64 %p4, [%r9], 0; @!%p4 bra LOOP; {seen}
    END: mov.b32 %r2, 0;
    """
    kinds_found = {finding.kind: finding for finding in found(body.format(between="", seen=""), warps=2)}
    assert "has completed another phase before this wait saw" in kinds_found["mbar-phase"].text
    assert found(body.format(between="bar.sync 1, 64;", seen="bar.sync 1, 64;"), warps=2) == []


TMEM = """
shr.u32 %r1, %r0, 5; setp.eq.s32 %p2, %r1, 0; setp.eq.s32 %p3, %r1, 4; or.pred %p4, %p2, %p3; mov.b32 %r20, 5;
@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9], 32; bar.sync 0; ld.shared.b32 %r21, [%r9];
@%p2 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {{%r20}}; {wait} {barrier}
@%p3 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {{%r20}}; tcgen05.wait::st.sync.aligned; bar.sync 0;
@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r21, 32;
"""


def test_two_warps_that_store_to_one_place_of_tmem() -> None:
    """Warps 0 and 4 reach the same lanes. Without the wait it is the engine's order, without the barrier a race."""
    wait, barrier = "tcgen05.wait::st.sync.aligned;", "tcgen05.fence::before_thread_sync; bar.sync 0;"
    assert found(TMEM.format(wait=wait, barrier=barrier), warps=5) == []
    (race,) = {finding.kind for finding in found(TMEM.format(wait=wait, barrier=""), warps=5)}
    assert race == "race-tmem"
    (order,) = {finding.kind for finding in found(TMEM.format(wait="", barrier="bar.sync 0;"), warps=5)}
    assert order == "tcgen05-order"


def test_a_cluster_is_asked_for_after_there_was_none() -> None:
    cancel = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r5], [%r9];"
    once = f"mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 16; {cancel}"
    wait = "W{0}: mbarrier.try_wait.parity.shared.b64 %p4, [%r9], {0}; @!%p4 bra W{0};"
    head = f"{LEAVE} add.u32 %r5, %r9, 64; mbarrier.init.shared.b64 [%r9], 1; fence.mbarrier_init.release.cluster;"
    assert found(head + once + wait.format(0) + "END: mov.b32 %r2, 0;") == []
    twice = found(head + once + wait.format(0) + once + wait.format(1) + "END: mov.b32 %r2, 0;")
    assert [finding.kind for finding in twice] == ["clc"]
    assert "after a response that said nothing was left" in twice[0].text


def test_every_kind_has_a_test() -> None:
    """Each kind of finding is named by a test that causes it."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [kind for kind in FINDING_KINDS if kind and f'"{kind}"' not in text] == []
