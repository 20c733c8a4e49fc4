"""The opcode table: every form has a handler, and gives it the operands and numbers it takes."""

from __future__ import annotations

import random
import re

import pytest
from ptx_decoding import first
from ptx_opcodes import OPCODES

from attn_dsl.emulator.forms import Form
from attn_dsl.emulator.isa import isa
from attn_dsl.emulator.native import handler_names
from attn_dsl.emulator.opcodes import TABLE, lookup


def test_every_handler_of_the_table_is_in_the_core():
    have = handler_names()
    missing = {form.handler for form in TABLE if form.handler and "{" not in form.handler} - have - {"mov"}
    assert missing == set()


def test_every_opcode_of_flash_attn_4_is_in_the_table():
    assert [opcode for opcode in OPCODES if not any(form.handler for form, _ in lookup(opcode))] == []


def expansions(form: Form) -> list[str]:
    """Opcodes of a form: every choice once, optional parts with and without."""
    parts = re.findall(r"(?:/[^/]*/|[^.])+", form.pattern)
    opcodes = [""]
    for part in parts:
        optional, name = part.endswith("?"), part.rstrip("?")
        _, equals, alternatives = name.partition("=")
        if alternatives.startswith("/"):
            return []
        options = [*(alternatives.split("|") if equals else [name]), *([""] if optional else [])]
        opcodes = [f"{head}.{option}" if head and option else head + option for head in opcodes for option in options]
        opcodes = random.Random(len(opcodes)).sample(opcodes, min(len(opcodes), 60))
    return opcodes


@pytest.mark.parametrize("form", [form for form in TABLE if form.handler], ids=lambda form: form.pattern[:60])
def test_every_opcode_of_the_table_has_a_handler_and_matches_its_form(form: Form):
    have = handler_names()
    for opcode in expansions(form):
        matches = lookup(opcode)
        assert form in [found for found, _ in matches], opcode
        for found, choices in matches:
            handler = found.handler.format_map(choices)
            assert handler in have or handler in ("mov", ""), opcode


BULK = "mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("body", "handler", "mods", "operands"),
    [
        (
            "ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b32 {%r1, %r2}, [%d1], %d2;",
            "ld",
            (isa.S_GLOBAL, isa.T_B32, 32, 0),
            3,
        ),
        ("ld.acquire.gpu.global.u8 %r1, [%d1];", "ld", (isa.S_GLOBAL, isa.T_U8, 32, isa.SEM_ACQUIRE), 2),
        ("ld.shared::cluster.b16 %h1, [%r1];", "ld", (isa.S_SHARED_CLUSTER, isa.T_B16, 16, 0), 2),
        ("st.volatile.local.f32 [%d1], %f1;", "st", (isa.S_LOCAL, isa.T_F32, 32, isa.SEM_RELAXED), 2),
        ("st.global.b8 [%d1], 5;", "st", (isa.S_GLOBAL, isa.T_B8, 16, 0), 2),
        (
            "atom.release.cta.shared.cas.b32 %r1, [%r2], %r3, 1;",
            "atom",
            (isa.S_SHARED, isa.T_B32, 1, isa.A_CAS | isa.SEM_RELEASE << 8),
            4,
        ),
        (
            "red.relaxed.gpu.global.add.v2.f32 [%d1], {%f1, %f2};",
            "red",
            (isa.S_GLOBAL, isa.T_F32, 2, isa.A_ADD | isa.SEM_RELAXED << 8),
            2,
        ),
        ("createpolicy.fractional.L2::evict_first.b64 %d1, 1.0;", "mov_b64", (0, 0, 0, 0), 2),
        ("prefetch.global.L2 [%d1];", "nop", (0, 0, 0, 0), 0),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global [%d1, {%r1, %r2}];", "nop", (0, 0, 0, 0), 0),
        ("cp.async.cg.shared.global.L2::128B [%r1], [%d1], 16;", "cp_async", (0, 0, 0, 0), 3),
        ("cp.async.cg.shared.global [%r1], [%d1], 16, %r2;", "cp_async", (0, 1, 0, 0), 4),
        ("cp.async.ca.shared::cta.global [%r1], [%d1], 4, %p1;", "cp_async", (0, 2, 0, 0), 4),
        ("cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], 16, %d2;", "cp_async", (0, 0, 0, 0), 4),
        (
            f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{BULK}.multicast::cluster.cta_group::2.L2::cache_hint"
            " [%r1], [%d1, {%r2, %r3}], [%r4], %h1, %d2;",
            "tma_load",
            (2, isa.BULK_MULTICAST | isa.BULK_CACHE_HINT | isa.BULK_CTA_GROUP2 | isa.BULK_DST_CLUSTER, 0, 0),
            6,
        ),
        (
            f"cp.async.bulk.tensor.1d.shared::cta.global.{BULK} [%r1], [%d1, {{%r2}}], [%r4];",
            "tma_load",
            (1, 0, 0, 0),
            4,
        ),
        (
            "cp.reduce.async.bulk.tensor.3d.global.shared::cta.min.tile.bulk_group [%d1, {%r1, %r2, %r3}], [%r4];",
            "tma_reduce",
            (3, 0, isa.A_MIN, 0),
            3,
        ),
        (
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%d1], [%r1], 64;",
            "bulk_reduce",
            (isa.T_BF16, 0, isa.A_ADD, 0),
            3,
        ),
        (
            f"cp.reduce.async.bulk.shared::cluster.shared::cta.{BULK}.add.u32 [%r1], [%r2], 64, [%r3];",
            "bulk_reduce",
            (isa.T_U32, isa.BULK_DST_CLUSTER, isa.A_ADD, 0),
            4,
        ),
        ("cp.async.bulk.wait_group.read 1;", "bulk_wait", (0, isa.BULK_READ, 0, 0), 1),
        ("mbarrier.arrive.shared.b64 _, [%r1];", "mbar_arrive", (isa.S_SHARED, 0, 0, 0), 2),
        (
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1], 3;",
            "mbar_arrive",
            (isa.S_SHARED_CLUSTER, 8, 0, 0),
            3,
        ),
        (
            "mbarrier.arrive_drop.relaxed.cta.shared::cta.b64 %d1, [%r1];",
            "mbar_arrive",
            (isa.S_SHARED, 2 | 16, 0, 0),
            2,
        ),
        ("mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 64;", "mbar_arrive", (isa.S_SHARED, 1, 0, 0), 3),
        ("mbarrier.test_wait.shared.b64 %p1, [%r1], %d1;", "mbar_try_wait", (1, 0, 0, 0), 3),
        (
            "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p1, [%r1], %r2, 100;",
            "mbar_try_wait",
            (0, 1, 1, 0),
            4,
        ),
        ("bar.red.popc.u32 %r1, 2, 64, %p1;", "bar_red", (0, 0, 0, 0), 4),
        ("barrier.red.or.pred %p1, 2, !%p2;", "bar_red", (2, 0, 0, 0), 3),
        ("barrier.cluster.arrive.relaxed.aligned;", "cluster_arrive", (1, 0, 0, 0), 0),
        ("fence.proxy.async.global;", "fence", (isa.FENCE_PROXY_ASYNC, 1, 0, 0), 0),
        ("fence.acq_rel.cluster;", "fence", (isa.FENCE_MEMBAR, 0, 0, 0), 0),
        ("fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;", "fence", (isa.FENCE_PROXY_TENSORMAP, 0, 0, 0), 0),
        ("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg", (0, 40, 0, 0), 1),
        ("redux.sync.max.abs.NaN.f32 %f1, %f2, -1;", "redux", (isa.A_MAX, isa.T_F32, isa.FF_ABS | isa.FF_NAN, 0), 3),
        ("match.all.sync.b32 %r1|%p1, %r2, -1;", "match", (1, isa.T_B32, 0, 0), 4),
        ("shfl.sync.up.b32 %r1, %r2, 1, 0, -1;", "shfl", (isa.SHFL_UP, 0, 0, 0), 6),
        (
            "tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %d1, %d2, %r2, {%r3, %r4, %r5, %r6}, %p1, 3;",
            "tcgen05_mma",
            (isa.K_F8F6F4, 2 | 4, 1, 0),
            7,
        ),
        (
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %h1;",
            "tcgen05_commit",
            (2, isa.BULK_MULTICAST, 0, 0),
            2,
        ),
        ("tcgen05.cp.cta_group::1.64x128b.warpx2::01_23 [%r1], %d1;", "tcgen05_cp", (1, isa.CP_64X128B_01_23, 0, 0), 2),
        (
            "tcgen05.ld.sync.aligned.16x256b.x1.pack::16b.b32 {%r1, %r2, %r3, %r4}, [%r5];",
            "tcgen05_ld",
            (isa.TS_16X256B, 1, 1, 0),
            2,
        ),
        ("tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%r1], 2, {%r2};", "tcgen05_st", (isa.TS_16X32BX2, 1, 0, 0), 3),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, %d1, %p1,"
            " 1, -1, 1;",
            "wgmma",
            (isa.T_F16, 8 | isa.T_F32 << 16, 1, isa.T_F16),
            7,
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8.satfinite {%r1, %r2, %r3, %r4}, %d1, %d2, %p1;",
            "wgmma",
            (isa.T_S8, 8 | isa.T_S32 << 16, 2, isa.T_U8),
            4,
        ),
        ("cvt.rn.satfinite.e5m2x2.f32 %h1, %f1, %f2;", "cvt", (isa.T_E5M2X2, isa.T_F32, isa.RN, isa.FF_SATFINITE), 3),
        ("cvt.s8.s32 %r1, %r2;", "cvt", (isa.T_S8, isa.T_S32, isa.RNONE, 0), 2),
        ("add.rm.ftz.f32x2 %d1, %d2, %d3;", "add_f32x2", (isa.RM, isa.FF_FTZ, 0, 0), 3),
        ("max.NaN.f32 %f1, %f2, %f3, %f4;", "max3_f32", (0, isa.FF_NAN, 0, 0), 4),
        (
            "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %q1;",
            "clc_get_ctaid",
            (3, 0, 0, 0),
            2,
        ),
    ],
)
def test_forms_with_optional_parts(body: str, handler: str, mods: tuple[int, ...], operands: int):
    row = first(body)
    assert (row.handler, row.mods, len(row.ops)) == (handler, mods, operands)
