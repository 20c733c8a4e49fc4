"""(( ) )"""

from __future__ import annotations

import ctypes
import math
import random
from functools import partial, reduce
from itertools import product as every

import pytest
from exact_floats import F32, decode
from float_rules import samples
from ptx_lanes import module, run_lanes

from attn_dsl.emulator import KernelFinding, ptx

START = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mov.b32 %r9, smem; setp.ne.s32 %p1, %r0, 0; shr.u32 %r8, %r0, 5;"
STORE = "mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1; st.global.b32 [%d2], %r40;"
GENERIC = "cvt.u64.u32 %d20, %r9; cvta.shared.u64 %d21, %d20;"


def run(body: str, threads: int, words: int, *, cluster: int = 1, **options: object) -> list[int]:
    buffer = (ctypes.c_uint32 * words)()
    kernel = ptx.load(module(START + body, shared=1024))
    kernel.launch((cluster, 1, 1), (threads, 1, 1), [buffer], cluster=(cluster, 1, 1), **options)
    return list(buffer)


BARRIERS = [
    f"{head}.{{op}}{aligned}"
    for head, aligned in (
        ("bar", ""),
        ("bar.cta", ""),
        ("barrier", ""),
        ("barrier.cta", ""),
        ("barrier", ".aligned"),
        ("barrier.cta", ".aligned"),
    )
]


@pytest.mark.parametrize("form", BARRIERS)
def test_barriers_order_and_count(form: str) -> None:
    """Warp 0 writes, arrives and goes on; warps 1 and 2 wait for it and read: 96 threads in all, then all 96 meet."""
    body = f"""
    setp.ne.u32 %p2, %r8, 0; @%p2 bra READ;
    mov.b32 %r20, 7; @!%p1 st.shared.b32 [%r9], %r20; {form.format(op="arrive")} 4, 96; bra MEET;
    READ: {form.format(op="sync")} 4, 96; ld.shared.b32 %r40, [%r9]; add.s32 %r40, %r40, %r8; {STORE}
    MEET: {form.format(op="sync")} 0; @!%p1 st.global.b32 [%d0], 5;
    """
    for seed in (0, 1, 2):
        assert run(body, 96, 96, seed=seed) == [5] + [0] * 31 + [8] * 32 + [9] * 32


@pytest.mark.parametrize("count", ["", "64, "])
@pytest.mark.parametrize("form", BARRIERS)
def test_barrier_reductions(form: str, count: str) -> None:
    """With a count: warps 0 and 1; without: all 96 threads."""
    head, _, aligned = form.partition(".{op}")
    body = f"setp.lt.u32 %p2, %r0, 50; setp.lt.u32 %p5, %r8, 2; {'@!%p5 bra END;' if count else ''} mov.b32 %r40, 0;"
    body += f"{head}.red.popc{aligned}.u32 %r41, 3, {count}%p2; {head}.red.and{aligned}.pred %p3, 3, {count}%p2;"
    body += (
        f"{head}.red.or{aligned}.pred %p4, 3, {count}!%p2; selp.b32 %r42, 1000, 0, %p3; selp.b32 %r43, 2000, 0, %p4;"
    )
    body += f"add.s32 %r40, %r41, %r42; add.s32 %r40, %r40, %r43; {STORE} END: mov.b32 %r7, 0;"
    threads = 64 if count else 96
    assert run(body, 96, 96) == [2050] * threads + [0] * (96 - threads)


@pytest.mark.parametrize("aligned", ["", ".aligned"])
@pytest.mark.parametrize(("arrive", "wait"), [("", ""), (".release", ".acquire"), (".relaxed", "")])
def test_cluster_barriers(arrive: str, wait: str, aligned: str) -> None:
    """A word written to the other CTA is there after the barrier; a relaxed arrive needs the fence before it."""
    fence = "fence.acq_rel.cluster;" if arrive == ".relaxed" else ""
    body = f"""
    mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mapa.shared::cluster.u32 %r3, %r9, %r2; add.s32 %r4, %r1, 10;
    @!%p1 st.shared::cluster.b32 [%r3], %r4; {fence}
    barrier.cluster.arrive{arrive}{aligned}; barrier.cluster.wait{wait}{aligned};
    ld.shared.b32 %r40, [%r9]; mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d0, %d1; @!%p1 st.global.b32 [%d2], %r40;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    assert run(body, 64, 2, cluster=2) == [11, 10]


@pytest.mark.parametrize("arrive", [".relaxed"])
def test_a_relaxed_cluster_arrive_orders_nothing(arrive: str) -> None:
    body = f"""
    mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mapa.shared::cluster.u32 %r3, %r9, %r2;
    @!%p1 st.shared::cluster.b32 [%r3], %r1; barrier.cluster.arrive{arrive}.aligned; barrier.cluster.wait.aligned;
    ld.shared.b32 %r40, [%r9];
    """
    with pytest.raises(KernelFinding) as caught:
        run(body, 64, 2, cluster=2)
    assert caught.value.findings[0].kind == "race-shared"


FENCES = [
    *(f"fence{sem}.{scope}" for sem, scope in every(("", ".sc", ".acq_rel"), ("cta", "cluster", "gpu", "sys"))),
    *(
        f"fence.{sem}.sync_restrict::shared::{space}.cluster"
        for sem, space in (("acquire", "cluster"), ("release", "cta"))
    ),
    *(f"membar.{level}" for level in ("cta", "gl", "sys")),
]


@pytest.mark.parametrize("fence", FENCES)
def test_fences_publish_through_a_relaxed_arrive(fence: str) -> None:
    """Data, fence, relaxed arrive: who waits for the mbarrier may read the data. Without the fence it is a race."""
    body = f"""
    @!%p1 mbarrier.init.shared.b64 [%r9], 1; bar.sync 0; setp.ne.u32 %p2, %r8, 0; @%p2 bra READ;
    @!%p1 st.shared.b32 [%r9+64], 9; {fence}; @!%p1 mbarrier.arrive.relaxed.cta.shared.b64 _, [%r9]; bra END;
    READ: W: mbarrier.try_wait.parity.shared.b64 %p8, [%r9], 0; @!%p8 bra W; ld.shared.b32 %r40, [%r9+64]; {STORE}
    END: mov.b32 %r7, 0;
    """
    assert run(body, 64, 64)[32:] == [9] * 32
    with pytest.raises(KernelFinding) as caught:
        run(body.replace(fence + ";", ""), 64, 64)
    assert caught.value.findings[0].kind == "race-shared"


PROXIES = [
    "fence.proxy.async",
    "fence.proxy.async.shared::cta",
    "fence.proxy.async.shared::cluster",
    "fence.proxy.async.global",
    "fence.proxy.alias",
    "fence.mbarrier_init.release.cluster",
]


@pytest.mark.parametrize("fence", PROXIES)
def test_which_proxy_fences_make_shared_writes_visible(fence: str) -> None:
    body = f"""
    @!%p1 st.shared.v4.b32 [%r9], {{1, 2, 3, 4}}; {fence};
    @!%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r9], 16;
    @!%p1 cp.async.bulk.commit_group; @!%p1 cp.async.bulk.wait_group 0;
    """
    if fence in PROXIES[:3]:
        assert run(body, 32, 4) == [1, 2, 3, 4]
        return
    with pytest.raises(KernelFinding) as caught:
        run(body, 32, 4)
    assert caught.value.findings[0].kind == "proxy-fence"


def test_tensor_map_fences_are_taken() -> None:
    scopes = ("cta", "cluster", "gpu", "sys")
    body = "".join(
        f"fence.proxy.tensormap::generic.release.{s}; fence.proxy.tensormap::generic.acquire.{s} [%d0], 128;"
        for s in scopes
    )
    assert run(body + "mov.b32 %r40, 3; " + STORE, 32, 32) == [3] * 32


# mbarriers

SPACES = {"": "%d21", ".shared": "%r9", ".shared::cta": "%r9"}
CLUSTER_SPACES = {**SPACES, ".shared::cluster": "%r9"}
NEAR = ("", ".{sem}.cta", ".{sem}.cluster")


def waits(form: str, at: str, operand: str, label: str) -> str:
    return f"{label}: mbarrier.{form}.b64 %p8, [{at}], {operand}; @!%p8 bra {label};"


@pytest.mark.parametrize("order", [*NEAR, ".relaxed.cta", ".relaxed.cluster"])
@pytest.mark.parametrize("space", CLUSTER_SPACES)
def test_arrivals(space: str, order: str) -> None:
    """(( ) )"""
    at, order = CLUSTER_SPACES[space], order.format(sem="release")
    remote = space == ".shared::cluster"
    own = ".shared" if remote else space
    state = "_" if remote else "%d30"
    steps = [
        f"mbarrier.arrive{order}{space}.b64 {state}, [{at}]; mbarrier.arrive{order}{space}.b64 {state}, [{at}], 3;",
        f"mbarrier.arrive{order}{space}.b64 _, [{at}]; mbarrier.arrive{order}{space}.b64 _, [{at}], 3;",
        f"mbarrier.arrive.expect_tx{order}{space}.b64 _, [{at}], 48; mbarrier.arrive{order}{space}.b64 _, [{at}], 3;"
        + "".join(
            f"mbarrier.complete_tx{relaxed}{space}.b64 [{at}], 16;"
            for relaxed in ("", ".relaxed.cta", ".relaxed.cluster")
        ),
        "".join(
            f"mbarrier.expect_tx{relaxed}{space}.b64 [{at}], 16;"
            for relaxed in ("", ".relaxed.cta", ".relaxed.cluster")
        )
        + f"mbarrier.complete_tx{space}.b64 [{at}], 48; mbarrier.arrive{order}{space}.b64 {state}, [{at}], 4;",
        f"mbarrier.arrive_drop{order}{space}.b64 {state}, [{at}], 2; mbarrier.arrive{order}{space}.b64 _, [{at}], 2;",
        f"mbarrier.arrive_drop{order}{space}.b64 _, [{at}]; mbarrier.arrive{order}{space}.b64 _, [{at}];",
        (
            f"mbarrier.arrive_drop.expect_tx{order}{space}.b64 "
            f"{state}, [{at}], 32; "
            f"mbarrier.complete_tx{space}.b64 [{at}], 32;"
        ),
    ]
    body = GENERIC + f"@%p1 bra END; mbarrier.init{own}.b64 [{SPACES[own]}], 4; mov.b32 %r40, 0;"
    for i, step in enumerate(steps):
        # Before the step its phase is open, after it is complete.
        body += f"mbarrier.test_wait.parity{own}.b64 %p3, [{SPACES[own]}], {i % 2}; @%p3 add.s32 %r40, %r40, 100;"
        body += step + f"mbarrier.test_wait.parity{own}.b64 %p3, [{SPACES[own]}], {i % 2}; @%p3 add.s32 %r40, %r40, 1;"
    body += f"mbarrier.inval{own}.b64 [{SPACES[own]}]; st.global.b32 [%d0], %r40; END: mov.b32 %r7, 0;"
    assert run(body, 32, 1) == [len(steps)]


@pytest.mark.parametrize("order", [*NEAR, ".relaxed.cta", ".relaxed.cluster"])
@pytest.mark.parametrize("space", SPACES)
def test_waiting(space: str, order: str) -> None:
    """try_wait and test_wait by parity and by state, with and without a time limit."""
    at, order = SPACES[space], order.format(sem="acquire")
    body = GENERIC + f"@%p1 bra END; mbarrier.init{space}.b64 [{at}], 1; mov.b32 %r40, 0;"
    phase = 0
    for kind, limit in (("try_wait", ""), ("try_wait", ", 100"), ("test_wait", "")):
        for form, operand in ((f"{kind}.parity{order}{space}", str(phase % 2)), (f"{kind}{order}{space}", "%d30")):
            parity = str(phase % 2) if ".parity" in form else operand
            body += (
                f"mbarrier.arrive{space}.b64 %d30, [{at}]; "
                f"{waits(form, at, parity + limit, f'W{phase}')} "
                f"add.s32 %r40, %r40, 1;"
            )
            phase += 1
    assert run(body + "st.global.b32 [%d0], %r40; END: mov.b32 %r7, 0;", 32, 1) == [phase]


@pytest.mark.parametrize("order", [*NEAR, ".relaxed.cta", ".relaxed.cluster"])
@pytest.mark.parametrize("space", SPACES)
def test_arrivals_that_complete_nothing(space: str, order: str) -> None:
    at, order = SPACES[space], order.format(sem="release")
    head = GENERIC + f"@%p1 bra END; mbarrier.init{space}.b64 [{at}], 3;"
    tail = (
        f"mbarrier.pending_count.b64 %r40, %d30; st.global.b32 [%d0], "
        f"%r40; mbarrier.inval{space}.b64 "
        f"[{at}]; END: mov.b32 %r7, 0;"
    )
    assert run(
        head
        + f"mbarrier.arrive.noComplete{order}{space}.b64 %d30, [{at}], 2; mbarrier.arrive{space}.b64 %d30, [{at}];"
        + tail,
        32,
        1,
    ) == [1]
    assert run(
        head
        + f"mbarrier.arrive_drop.noComplete{order}{space}.b64 %d30, [{at}], 1; mbarrier.arrive{space}.b64 %d30, [{at}];"
        + tail,
        32,
        1,
    ) == [2]
    with pytest.raises(KernelFinding, match="noComplete") as caught:
        run(head + f"mbarrier.arrive.noComplete{order}{space}.b64 %d30, [{at}], 3;" + tail, 32, 1)
    assert caught.value.findings[0].kind == "mbar-over-arrival"


@pytest.mark.parametrize("op", ["init", "inval", "arrive"])
def test_generic_mbarrier_addresses_are_checked(op: str) -> None:
    """A generic address that is not one of shared memory."""
    text = {
        "init": "mbarrier.init.b64 [%d0], 1;",
        "inval": "mbarrier.inval.b64 [%d0];",
        "arrive": "mbarrier.arrive.b64 _, [%d0];",
    }[op]
    with pytest.raises(KernelFinding, match="not in shared memory") as caught:
        run(text, 1, 4)
    assert caught.value.findings[0].kind == "oob"


# warp-wide

REDUCTIONS = {
    "add": sum,
    "min": min,
    "max": max,
    "and": partial(reduce, int.__and__),
    "or": partial(reduce, int.__or__),
    "xor": partial(reduce, int.__xor__),
}


@pytest.mark.parametrize(
    ("op", "kind"), [*every(("add", "min", "max"), ("u32", "s32")), *every(("and", "or", "xor"), ("b32",))]
)
def test_reductions(op: str, kind: str) -> None:
    rng = random.Random(3)
    a = [rng.getrandbits(32) for _ in range(32)]
    read = [v - (1 << 32) if kind == "s32" and v >> 31 else v for v in a]
    got = run_lanes(f"redux.sync.{op}.{kind} <D>, <A>, -1;", [a], "b32", "b32")
    assert got == [REDUCTIONS[op](read) & 0xFFFFFFFF] * 32


@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("absolute", ["", ".abs"])
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("seed", [1, 2])
def test_float_reductions(op: str, absolute: str, nan: str, seed: int) -> None:
    a = samples(F32, seed)
    got = run_lanes(f"redux.sync.{op}{absolute}{nan}.f32 <D>, <A>, -1;", [a], "b32", "b32")
    if nan:
        assert got == [0x7FFFFFFF] * 32
        return
    codes = [code & 0x7FFFFFFF if absolute else code for code in a]
    numbers = [code for code in codes if not math.isnan(decode(code, F32))]
    order = lambda code: (decode(code, F32), not code >> 31)  # noqa: E731
    assert got == [(max if op == "max" else min)(numbers, key=order)] * 32


@pytest.mark.parametrize("bits", [32, 64])
def test_matches(bits: int) -> None:
    values = [(v % 5) << bits - 4 | v % 3 for v in range(32)]
    got = run_lanes(f"match.any.sync.b{bits} <D>, <A>, -1;", [values], f"b{bits}", "b32")
    assert got == [sum(1 << i for i, w in enumerate(values) if w == v) for v in values]
    for same, want in ((values, 0), ([values[5]] * 32, 0xFFFFFFFF)):
        text = f"match.all.sync.b{bits} <D>|%p1, <A>, -1; @%p1 bra END; mov.b32 <D>, 0; END: bar.warp.sync -1;"
        assert run_lanes(text, [same], f"b{bits}", "b32") == [want] * 32
    assert (
        run_lanes(f"match.all.sync.b{bits} <D>, <A>, -1;", [[values[5]] * 32], f"b{bits}", "b32") == [0xFFFFFFFF] * 32
    )


def test_votes() -> None:
    for values, agree in (([3] * 32, 1), ([3] * 31 + [9], 0)):
        text = "setp.lt.u32 %p1, <A>, 5; vote.sync.uni.pred %p2, %p1, -1; selp.b32 <D>, 1, 0, %p2;"
        assert run_lanes(text, [values], "b32", "b32") == [agree] * 32


# ends and jumps


@pytest.mark.parametrize("end", ["exit", "ret", "ret.uni"])
def test_threads_that_end_no_longer_count(end: str) -> None:
    """Odd warps end at once; the others meet at a barrier of all threads."""
    body = (
        f"and.b32 %r20, %r8, 1; setp.eq.u32 %p2, %r20, 1; "
        f"@%p2 bra OUT; bar.sync 0; "
        f"mov.b32 %r40, 6; {STORE} OUT: {end};"
    )
    assert run(body, 128, 128) == ([6] * 32 + [0] * 32) * 2


@pytest.mark.parametrize("instruction", ["trap", "brkpt"])
def test_traps(instruction: str) -> None:
    with pytest.raises(KernelFinding) as caught:
        run(f"@!%p1 {instruction};", 32, 1)
    assert caught.value.findings[0].kind == "trap"


def test_uniform_indexed_branches() -> None:
    body = (
        "T: .branchtargets L0, L1; mov.b32 %r50, 1; brx.idx.uni "
        "%r50, T; L0: mov.b32 <D>, 1; bra "
        "END; L1: mov.b32 <D>, 2; END: bar.warp.sync -1;"
    )
    assert run_lanes(body, [[0] * 32], "b32", "b32") == [2] * 32


def test_grid_dependencies_are_taken() -> None:
    assert run(f"griddepcontrol.wait; mov.b32 %r40, 4; {STORE} griddepcontrol.launch_dependents;", 32, 32) == [4] * 32


def test_register_budgets_are_taken() -> None:
    assert (
        run(
            f"setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 200; mov.b32 %r40, 4; {STORE}",
            128,
            128,
        )
        == [4] * 128
    )
