"""The path option: basic blocks and events of every warp, in order, with operands; and launches of chosen clusters."""

from __future__ import annotations

import pytest
import torch

from attn_dsl.emulator import EmulatorError, LaunchReport, ptx
from attn_dsl.emulator.native import LaunchConfig
from attn_dsl.emulator.ptx import allocations, pack_arguments

# A loop of `trips` rounds around a barrier, behind a branch that warp 1 does not take.
KERNEL = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry looped(.param .u64 out, .param .u32 trips)
{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %d<3>;
    mov.u32 %r0, %tid.x;
    ld.param.u32 %r1, [trips];
    ld.param.u64 %d0, [out];
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra DONE;
    mov.u32 %r2, 0;
LOOP:
    bar.sync 3, 32;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra LOOP;
DONE:
    mov.u32 %r3, %ctaid.x;
    mul.wide.u32 %d1, %r3, 4;
    add.u64 %d0, %d0, %d1;
    st.global.u32 [%d0], 1;
    ret;
}
"""


def run(trips: int, **options: object) -> tuple[LaunchReport, torch.Tensor]:
    kernel, out = ptx.load(KERNEL), torch.zeros(6, dtype=torch.int32)
    arguments = (out, trips)
    config = LaunchConfig(grid=(6, 1, 1), block=(64, 1, 1), **options)  # type: ignore[arg-type]
    report = kernel._loaded.run(config, pack_arguments(kernel.program, arguments), allocations(arguments))
    return report, out


@pytest.mark.parametrize("trips", [1, 4])
@pytest.mark.parametrize("checks", [True, False])
def test_steps(trips: int, checks: bool) -> None:
    report, _ = run(trips, path=True, checks=checks)
    assert [(path.cta, path.warp) for path in report.paths] == [(cta, warp) for cta in range(6) for warp in (0, 1)]
    looped, skipped = (list(path.steps()) for path in report.paths[:2])
    barriers = [step for step in looped if step.lanes]
    assert [(step.operands[0], step.operands[1], step.lanes) for step in barriers] == [(3, 32, 0xFFFFFFFF)] * trips
    assert all(not step.lanes for step in skipped)
    # entry, the move before the loop, one block for each round, the end
    assert len(looped) - trips == 3 + trips
    assert len(skipped) == 2
    assert looped[-1].pc == skipped[-1].pc


def test_no_path_without_the_option() -> None:
    run(2, path=True)
    assert run(2)[0].paths == ()


def test_only_chosen_clusters_run() -> None:
    report, out = run(2, path=True, only=(4, 1))
    assert out.tolist() == [0, 1, 0, 0, 1, 0]
    assert [path.cta for path in report.paths] == [1, 1, 4, 4]


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(EmulatorError) as caught:
        run(1, only=(6,))
    assert caught.value.diagnostics[0].code == "E312"
