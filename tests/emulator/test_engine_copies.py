"""cp.async, bulk copies, matrix loads and stores, cluster launch control."""

from __future__ import annotations

import pytest
import torch
from engine_kernels import DATA, dump, entry, expect, init_barriers, launch, wait

from attn_dsl.emulator.errors import KernelFinding

LANE = "and.b32 %r50, %r0, 31;"


def offsets(shift: int) -> str:
    """%d45 = tid << shift, %r51 = tile address of the thread, both in bytes."""
    return (
        f"shl.b32 %r51, %r0, {shift};\ncvt.u64.u32 %d45, %r51;\nadd.u32 %r51, %r51, %r1;\nadd.u32 %r51, %r51, {DATA};"
    )


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("late", [0, 1])
def test_cp_async_copies_and_zero_fills(size: int, late: int):
    source = torch.randint(1, 255, (128 * size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    out = torch.zeros(128 * size, dtype=torch.uint8)
    cache = "cg" if size == 16 else "ca"
    body = [
        offsets({4: 2, 8: 3, 16: 4}[size]),
        "add.s64 %d46, %d1, %d45;",
        f"and.b32 %r52, %r0, {size - 1};",  # bytes each thread reads
        f"cp.async.{cache}.shared.global [%r51], [%d46], {size}, %r52;",
        "cp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;",
        dump(out.nbytes, 0, 128),
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], late=late)
    rows = source.reshape(128, size).clone()
    rows[torch.arange(size)[None] >= (torch.arange(128) % size)[:, None]] = 0
    assert torch.equal(out.reshape(128, size), rows)


def cp_async_groups(keep: int) -> str:
    """Two groups into two tiles; waits for all but `keep` and reads both tiles of the thread."""
    return "\n".join(
        [
            offsets(2),
            "add.s64 %d46, %d1, %d45;",
            "cp.async.ca.shared.global [%r51], [%d46], 4;\ncp.async.commit_group;",
            "cp.async.ca.shared.global [%r51+512], [%d46], 4;\ncp.async.commit_group;",
            f"cp.async.wait_group {keep};",
            "ld.shared.b32 %r53, [%r51];\nld.shared.b32 %r54, [%r51+512];",
            "add.s64 %d47, %d0, %d45;\nst.global.b32 [%d47], %r53;\nst.global.b32 [%d47+512], %r54;",
        ]
    )


def test_cp_async_group_still_in_flight():
    source, out = torch.arange(128, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    launch(entry(cp_async_groups(0), pointers=2), [out, source], late=1)
    assert torch.equal(out, source.repeat(2))
    with pytest.raises(KernelFinding) as caught:
        launch(entry(cp_async_groups(1), pointers=2), [out, source])
    finding = caught.value.findings[0]
    assert finding.kind == "race-shared"
    assert "cp.async" in finding.text


@pytest.mark.parametrize("noinc", ["", ".noinc"])
@pytest.mark.parametrize("late", [0, 1])
def test_cp_async_arrives_on_an_mbarrier(noinc: str, late: int):
    """Warp 0 copies, warp 1 waits. Without .noinc the arrival raises the pending count first."""
    source, out = torch.arange(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    body = [
        init_barriers(32),
        "setp.ne.s32 %p4, %r2, 0;\n@%p4 bra READER;",
        offsets(2),
        "add.s64 %d46, %d1, %d45;",
        "cp.async.ca.shared.global [%r51], [%d46], 4;",
        f"cp.async.mbarrier.arrive{noinc}.shared.b64 [%r1];",
        "" if noinc else "mbarrier.arrive.shared.b64 _, [%r1];",
        "bra END;\nREADER:",
        wait(0),
        "sub.s32 %r0, %r0, 32;",
        dump(128, 0, 32),
        "END:",
    ]
    launch(entry("\n".join(body), pointers=2), [out, source], block=64, late=late)
    assert torch.equal(out, source)


@pytest.mark.parametrize("late", [0, 1])
def test_bulk_round_trip_and_reduction(late: int):
    """Global to shared, shared to global, and f32 addition that flushes subnormals."""
    size = 4096
    source = torch.randn(size // 4, generator=torch.Generator().manual_seed(0))
    source[:4] = torch.tensor([1e-40, -1e-40, 1.0, 2e-38])
    out, total = torch.zeros(size // 4), torch.full((size // 4,), 0.5)
    total[:4] = torch.tensor([0.0, 1e-39, 1e-40, -1.2e-38])
    before = total.clone()
    body = [
        init_barriers(1),
        expect(0, size),
        f"add.u32 %r5, %r1, {DATA};",
        f"@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d1], {size}, [%r1];",
        wait(0),
        f"@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r5], {size};",
        f"@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d2], [%r5], {size};",
        "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;",
    ]
    report = launch(entry("\n".join(body), pointers=3), [out, source, total], late=late)
    assert torch.equal(out, source)
    normal = 2.0**-126

    def flush(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < normal, 0.0, x)

    assert torch.equal(total, flush(flush(before) + flush(source)))
    assert report.engines["bulk"] == 3 * size


def test_bulk_push_to_another_cta():
    """Rank 0 pushes a tile to rank 1 and signals the mbarrier there."""
    source, out = torch.arange(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    size = source.nbytes
    sync = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"
    body = [
        init_barriers(1, 1),
        expect(0, size),
        sync,
        "setp.ne.s32 %p4, %r3, 0;\n@%p4 bra READER;",
        f"add.u32 %r5, %r1, {DATA};\nadd.u32 %r6, %r1, 8;",
        f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], {size};",
        f"@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [%d1], {size}, [%r6];",
        wait(1),
        "mapa.shared::cluster.u32 %r7, %r5, 1;\nmapa.shared::cluster.u32 %r8, %r1, 1;",
        f"@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r7], [%r5], {size}, [%r8];",
        "bra END;\nREADER:",
        wait(0),
        dump(size, 0, 32),
        f"END:\n{sync}",
    ]
    text = entry("\n".join(body), pointers=2).replace(
        expect(0, size), f"setp.eq.s32 %p5, %r3, 1;\nand.pred %p6, %p0, %p5;\n@%p6 {expect(0, size)[5:]}"
    )
    launch(text, [out, source], block=32, cluster=2)
    assert torch.equal(out, source)


@pytest.mark.parametrize("late", [0, 1])
def test_st_async_from_a_vector_register(late: int):
    """Lane i of rank 0 stores four words to rank 1 and signals 16 bytes there."""
    out = torch.zeros(128, dtype=torch.int32)
    sync = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"
    body = [
        init_barriers(1),
        "setp.eq.s32 %p5, %r3, 1;\nand.pred %p6, %p0, %p5;",
        "@%p6 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 512;",
        sync,
        "@%p5 bra READER;",
        offsets(4),
        "mapa.shared::cluster.u32 %r7, %r51, 1;\nmapa.shared::cluster.u32 %r8, %r1, 1;",
        "{ .reg .v4 .s32 abcd;\nmul.lo.s32 abcd.x, %r0, 4;",
        *(f"add.s32 abcd.{element}, abcd.x, {i};" for i, element in ((1, "y"), (2, "b"), (3, "w"))),
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%r7], abcd, [%r8]; }",
        "bra END;\nREADER:",
        wait(0),
        dump(512, 0, 32),
        f"END:\n{sync}",
    ]
    launch(entry("\n".join(body), pointers=1), [out], block=32, cluster=2, late=late)
    assert torch.equal(out, torch.arange(128, dtype=torch.int32))


def matrices(num: int) -> torch.Tensor:
    return torch.randint(0, 2**15, (num, 8, 8), dtype=torch.int16, generator=torch.Generator().manual_seed(num))


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_matrices(num: int, trans: bool):
    """stmatrix puts thread t's pair in row t / 4, columns 2 (t % 4) and the next (transposed: rows and columns change
    places); ldmatrix is its inverse."""
    wanted = matrices(num)
    # Register i of thread t holds elements (row, col), (row, col + 1) of matrix i, or of its transpose.
    held = (wanted.transpose(1, 2) if trans else wanted).reshape(num, 8, 4, 2)
    fragments = held.reshape(num, 32, 2).permute(1, 0, 2).contiguous().view(torch.int32).reshape(32, num)
    regs = ", ".join(f"%r{200 + i}" for i in range(num))
    again = ", ".join(f"%r{220 + i}" for i in range(num))
    dot_trans = ".trans" if trans else ""
    body = [
        offsets(4),  # lane 8 i + r has the address of row r of matrix i
        f"mul.lo.s32 %r52, %r0, {4 * num};\ncvt.u64.u32 %d46, %r52;",
        "add.s64 %d47, %d1, %d46;\nadd.s64 %d48, %d2, %d46;",
        *(f"ld.global.b32 %r{200 + i}, [%d47+{4 * i}];" for i in range(num)),
        f"stmatrix.sync.aligned.m8n8.x{num}{dot_trans}.shared.b16 [%r51], {{{regs}}};",
        f"ldmatrix.sync.aligned.m8n8.x{num}{dot_trans}.shared.b16 {{{again}}}, [%r51];",
        *(f"st.global.b32 [%d48+{4 * i}], %r{220 + i};" for i in range(num)),
        "bar.warp.sync 0xffffffff;",
        dump(wanted.nbytes, 0, 32),
    ]
    out, back = torch.zeros(num * 64, dtype=torch.int16), torch.zeros(32, num, dtype=torch.int32)
    launch(entry("\n".join(body), pointers=3), [out, fragments, back], block=32)
    assert torch.equal(out.reshape(num, 8, 8), wanted)
    assert torch.equal(back, fragments)


def test_cluster_launch_control_hands_out_every_cta_once():
    """CTAs take further ones off the grid until there are none; each index is worked on exactly once."""
    grid = 9
    done = torch.zeros(grid, dtype=torch.int32)
    body = [
        init_barriers(1),
        "mov.u32 %r40, %ctaid.x;\nmov.b32 %r41, 0;",
        "NEXT:",
        "mul.wide.u32 %d40, %r40, 4;\nadd.s64 %d41, %d0, %d40;\n@%p0 red.global.add.s32 [%d41], 1;",
        f"add.u32 %r5, %r1, {DATA};",
        "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;",
        "@%p0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r5], [%r1];",
        "SPIN:\nmbarrier.try_wait.parity.shared.b64 %p8, [%r1], %r41;\n@!%p8 bra SPIN;",
        "xor.b32 %r41, %r41, 1;",
        "ld.shared.v2.b64 {%d50, %d51}, [%r5];",
        "{ .reg .b128 %q0;\nmov.b128 %q0, {%d50, %d51};",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q0;",
        "@%p4 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r40, %q0; }",
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        "@%p4 bra NEXT;",
    ]
    report = launch(entry("\n".join(body), pointers=1), [done], block=32, grid=grid, threads=2)
    assert (done == 1).all()
    assert report.instructions > grid * 10
