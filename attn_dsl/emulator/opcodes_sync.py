"""Opcode table: control flow, barriers, mbarriers, fences, warp operations (PTX ISA 9.1, chapters 9.7.12, 9.7.13)."""

from __future__ import annotations

from .forms import Choices, Form, Number
from .isa import isa

_SHARED = "space=shared|shared::cta|shared::cluster?"
_OWN = "space=shared|shared::cta?"
_SCOPE = "scope=cta|cluster|gpu|sys"
_NEAR = "scope=cta|cluster"


def _control() -> list[Form]:
    return [
        Form("bra.uni?", "bra", "label", "BRANCH"),
        Form("brx.idx.uni?", "brx_idx", "brx", "BRANCH"),
        Form("call.uni?", "call_vprintf", "call", "OTHER"),
        Form("ret.uni?", "ret", "", "BRANCH"),
        Form("exit", "exit", "", "BRANCH"),
        Form("trap", "trap", "", "BRANCH"),
        Form("brkpt", "brkpt", "", "BRANCH"),
        Form("pmevent.mask?", "nop", "*", "OTHER"),
        Form("nanosleep.u32", "nanosleep", "s:u32", "OTHER"),
        Form("setmaxnreg.inc.sync.aligned.u32", "setmaxnreg", "i", "OTHER", (1, "IMM:0"), isa.F_ALIGNED),
        Form("setmaxnreg.dec.sync.aligned.u32", "setmaxnreg", "i", "OTHER", (0, "IMM:0"), isa.F_ALIGNED),
        Form("griddepcontrol.wait", "griddepcontrol", "", "OTHER", (0,)),
        Form("griddepcontrol.launch_dependents", "griddepcontrol", "", "OTHER", (1,)),
    ]


_REDUCE = {"popc": 0, "and": 1, "or": 2}


def _barriers() -> list[Form]:
    forms: list[Form] = []
    relaxed: tuple[Number, ...] = (lambda c: int(c.get("sem") == "relaxed"),)
    reduce: tuple[Number, ...] = (lambda c: _REDUCE[c["op"]],)
    for head, flags in (("bar.cta?", isa.F_ALIGNED), ("barrier.cta?", 0), ("barrier.cta?", isa.F_ALIGNED)):
        aligned = ".aligned" if head.startswith("barrier") and flags else ""
        forms += [
            Form(f"{head}.sync{aligned}", "bar_sync", "s:u32 s:u32?", "BARRIER", (), flags),
            Form(f"{head}.arrive{aligned}", "bar_arrive", "s:u32 s:u32", "BARRIER", (), flags),
            Form(f"{head}.red.op=popc{aligned}.u32", "bar_red", "d:u32 s:u32 sp", "BARRIER", reduce, flags),
            Form(f"{head}.red.op=popc{aligned}.u32", "bar_red", "d:u32 s:u32 s:u32 sp", "BARRIER", reduce, flags),
            Form(f"{head}.red.op=and|or{aligned}.pred", "bar_red", "dp s:u32 sp", "BARRIER", reduce, flags),
            Form(f"{head}.red.op=and|or{aligned}.pred", "bar_red", "dp s:u32 s:u32 sp", "BARRIER", reduce, flags),
        ]
    for aligned, flags in (("", 0), (".aligned", isa.F_ALIGNED)):
        forms += [
            Form(
                f"barrier.cluster.arrive.sem=relaxed|release?{aligned}", "cluster_arrive", "", "BARRIER", relaxed, flags
            ),
            Form(f"barrier.cluster.wait.acquire?{aligned}", "cluster_wait", "", "BARRIER", (), flags),
        ]
    forms.append(Form("bar.warp.sync", "bar_warp_sync", "s:b32", "WARP", (), isa.F_COLLECTIVE))
    return forms


_DROP, _EXPECT, _NO_COMPLETE, _COUNT, _RELAXED = 2, 1, 4, 8, 16  # mod[1] of mbar_arrive


def _arrive(flags: int) -> Number:
    def bits(c: Choices) -> int:
        dropped = _DROP if c["op"] == "arrive_drop" else 0
        return flags | dropped | (_RELAXED if c.get("sem") == "relaxed" else 0)

    return bits


def _mbarriers() -> list[Form]:
    sem = f"sem=release|relaxed?.{_NEAR}?"
    wait = f"sem=acquire|relaxed?.{_NEAR}?.{_OWN}"

    def relaxed(c: Choices) -> int:
        return int(c.get("sem") == "relaxed")

    def test(c: Choices) -> int:
        return int(c["op"] == "test_wait")

    arrive = "mbarrier.op=arrive|arrive_drop"
    return [
        Form(f"mbarrier.init.{_OWN}.b64", "mbar_init", "m s:u32", "MBARRIER", ("SPACE:space",)),
        Form(f"mbarrier.inval.{_OWN}.b64", "mbar_inval", "m", "MBARRIER", ("SPACE:space",)),
        Form(f"{arrive}.{sem}.{_SHARED}.b64", "mbar_arrive", "d:b64 m", "MBARRIER", ("SPACE:space", _arrive(0))),
        Form(
            f"{arrive}.{sem}.{_SHARED}.b64",
            "mbar_arrive",
            "d:b64 m s:u32",
            "MBARRIER",
            ("SPACE:space", _arrive(_COUNT)),
        ),
        Form(
            f"{arrive}.expect_tx.{sem}.{_SHARED}.b64",
            "mbar_arrive",
            "d:b64 m s:u32",
            "MBARRIER",
            ("SPACE:space", _arrive(_EXPECT)),
        ),
        Form(
            f"{arrive}.noComplete.{sem}.{_OWN}.b64",
            "mbar_arrive",
            "d:b64 m s:u32",
            "MBARRIER",
            ("SPACE:space", _arrive(_NO_COMPLETE | _COUNT)),
        ),
        Form(
            f"mbarrier.expect_tx.relaxed?.{_NEAR}?.{_SHARED}.b64",
            "mbar_expect_tx",
            "m s:u32",
            "MBARRIER",
            ("SPACE:space",),
        ),
        Form(
            f"mbarrier.complete_tx.relaxed?.{_NEAR}?.{_SHARED}.b64",
            "mbar_complete_tx",
            "m s:u32",
            "MBARRIER",
            ("SPACE:space",),
        ),
        Form(
            f"mbarrier.op=try_wait|test_wait.parity.{wait}.b64",
            "mbar_try_wait",
            "dp m s:u32 s:u32?",
            "MBARRIER",
            (test, 1, relaxed),
        ),
        Form(
            f"mbarrier.op=try_wait|test_wait.{wait}.b64",
            "mbar_try_wait",
            "dp m s:b64 s:u32?",
            "MBARRIER",
            (test, 0, relaxed),
        ),
        Form("mbarrier.pending_count.b64", "mbar_pending_count", "d:u32 s:b64", "MBARRIER"),
    ]


def _fences() -> list[Form]:
    membar = (isa.FENCE_MEMBAR, 0)
    restrict = r"restrict=/sync_restrict::shared::c(?:ta|luster)/?"
    return [
        Form(f"fence.sem=sc|acq_rel|acquire|release?.{restrict}.{_SCOPE}", "fence", "", "FENCE", membar),
        Form("membar.level=cta|gl|sys", "fence", "", "FENCE", membar),
        Form("fence.proxy.async", "fence", "", "FENCE", (isa.FENCE_PROXY_ASYNC, 0)),
        Form("fence.proxy.async.global", "fence", "", "FENCE", (isa.FENCE_PROXY_ASYNC, 1)),
        Form("fence.proxy.async.space=shared::cta|shared::cluster", "fence", "", "FENCE", (isa.FENCE_PROXY_ASYNC, 0)),
        Form("fence.mbarrier_init.release.cluster", "fence", "", "FENCE", (isa.FENCE_MBARRIER_INIT, 0)),
        Form("fence.proxy.alias", "fence", "", "FENCE", (isa.FENCE_PROXY_ALIAS, 0)),
        Form(
            f"fence.proxy.tensormap::generic.sem=acquire|release.{_SCOPE}",
            "fence",
            "*",
            "FENCE",
            (isa.FENCE_PROXY_TENSORMAP, 0),
        ),
    ]


def _warp() -> list[Form]:
    together = isa.F_COLLECTIVE
    return [
        Form(
            "shfl.sync.mode=idx|bfly|up|down.b32",
            "shfl",
            "d|p?:b32 s:b32 s:b32 s:b32 s:b32",
            "WARP",
            ("SHFL:mode",),
            together,
        ),
        Form("vote.sync.mode=all|any|uni.pred", "vote", "dp sp s:b32", "WARP", ("VOTE:mode",), together),
        Form("vote.sync.mode=ballot.b32", "vote", "d:b32 sp s:b32", "WARP", ("VOTE:mode",), together),
        Form("elect.sync", "elect", "d|p:b32 s:b32", "WARP", (), together),
        *(
            Form(f"redux.sync.{form}", "redux", "d:{t} s:{t} s:b32", "WARP", ("A:op", "T:t", "FF:abs+NaN"), together)
            for form in ("op=add|min|max.t=u32|s32", "op=and|or|xor.t=b32", "op=min|max.abs?.NaN?.t=f32")
        ),
        Form("match.any.sync.t=b32|b64", "match", "d:b32 _ s:{t} s:b32", "WARP", (0, "T:t"), together),
        Form("match.all.sync.t=b32|b64", "match", "d|p?:b32 s:{t} s:b32", "WARP", (1, "T:t"), together),
        Form("activemask.b32", "activemask", "d:b32", "WARP"),
    ]


FORMS = [*_control(), *_barriers(), *_mbarriers(), *_fences(), *_warp()]
