"""Programmatic dependent launch: touching what the grid before wrote needs griddepcontrol.wait first."""

from __future__ import annotations

import pytest
import torch
from ptx_lanes import module

from attn_dsl.emulator import Finding
from attn_dsl.emulator.cache import decoded
from attn_dsl.emulator.execute import Loaded
from attn_dsl.emulator.native import Alloc, LaunchConfig

HEAD = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1;\n"
WAIT = "griddepcontrol.wait;"
FIRST = HEAD + "st.global.b32 [%d2], %r0;\n{launch}"


def run(first: str, second: str, *, warps: int = 1) -> tuple[Finding, ...]:
    """Findings of `second`, launched so that it may overlap with `first`; both work on 256 words."""
    memory = torch.zeros(256, dtype=torch.int32)
    params = memory.data_ptr().to_bytes(8, "little")
    ranges = [Alloc(memory.data_ptr(), memory.nbytes)]
    config = LaunchConfig((1, 1, 1), (32, 1, 1), collect=True)
    before, after = (Loaded(decoded(module(text, shared=1024))) for text in (first, second))
    assert before.run(config, params, ranges).findings == ()
    later = LaunchConfig((2, 1, 1), (32 * warps, 1, 1), collect=True)
    return after.run(later, params, ranges, before.written()).findings


EARLY = FIRST.format(launch="griddepcontrol.launch_dependents;")


@pytest.mark.parametrize(
    "touch",
    [
        "ld.global.b32 %r1, [%d2];",
        "st.global.b32 [%d2], 5;",
        "red.global.add.u32 [%d2], 1;",
        "mov.b32 %r9, smem; cp.async.ca.shared.global [%r9], [%d0], 4; cp.async.wait_all;",
    ],
)
def test_a_missing_wait_is_found(touch: str) -> None:
    assert run(EARLY, f"{HEAD}{WAIT}\n{touch}") == ()
    findings = run(EARLY, f"{HEAD}{touch}\n{WAIT}")
    assert {finding.kind for finding in findings} == {"grid-order"}
    assert touch.split(";")[-2 if "wait_all" not in touch else 1].strip() in findings[0].source
    assert "no griddepcontrol.wait comes before" in findings[0].text


def test_a_bulk_copy_counts() -> None:
    load = "@!%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r9+64], [%d0], 64, [%r9];"
    body = (
        "setp.ne.s32 %p1, %r0, 0; mov.b32 %r9, smem; @!%p1 mbarrier.init.shared.b64 [%r9], 1;"
        "fence.mbarrier_init.release.cluster; @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 64; {wait}"
        f"\n{load}\nbar.warp.sync -1; W: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra W;"
    )
    assert run(EARLY, HEAD + body.format(wait=WAIT)) == ()
    assert {finding.kind for finding in run(EARLY, HEAD + body.format(wait=""))} == {"grid-order"}


def test_what_the_grid_before_did_not_write_may_be_touched() -> None:
    assert run(EARLY, HEAD + "ld.global.b32 %r1, [%d2+512]; st.global.b32 [%d2+512], %r1;") == ()


def test_a_grid_that_lets_nobody_start_early_has_ended() -> None:
    assert run(FIRST.format(launch=""), HEAD + "ld.global.b32 %r1, [%d2];") == ()


def test_who_meets_the_warp_that_waited_has_waited() -> None:
    waits = "setp.lt.u32 %p1, %r0, 32; @!%p1 bra SKIP; griddepcontrol.wait; SKIP: {barrier} and.b32 %r3, %r0, 31;"
    load = "mul.wide.u32 %d1, %r3, 4; add.s64 %d2, %d0, %d1; ld.global.b32 %r1, [%d2];"
    assert run(EARLY, HEAD + waits.format(barrier="bar.sync 0;") + load, warps=2) == ()
    findings = run(EARLY, HEAD + waits.format(barrier="") + load, warps=2)
    assert {(finding.kind, finding.warp) for finding in findings} == {("grid-order", 1)}
