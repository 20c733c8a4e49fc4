"""Counters: each class and each engine counts what a kernel of known instructions executes, by warp of the CTA."""

from __future__ import annotations

import pytest
import torch
from engine_gemm import gemm
from engine_kernels import DATA, dump, entry, expect, init_barriers, launch, tensor_map, tma_load, wait
from ptx_lanes import module

from attn_dsl.emulator import ptx
from attn_dsl.emulator.native import CLASSES, ENGINES

# One instruction of each class that needs nothing else.
SINGLE = {
    "ex2": "ex2.approx.ftz.f32 %f1, 0f3F800000;",
    "mufu": "rcp.approx.ftz.f32 %f1, 0f3F800000;",
    "f32": "add.rn.f32 %f1, 0f3F800000, 0f3F800000;",
    "f32x2": "add.rn.f32x2 %d1, 1, 2;",
    "half": "add.rn.f16x2 %r1, 1, 2;",
    "int": "add.s32 %r1, 1, 2;",
    "select": "setp.eq.s32 %p1, 1, 2;",
    "cvt": "cvt.rn.bf16x2.f32 %r1, 0f3F800000, 0f3F800000;",
    "move": "mov.b32 %r1, 5;",
    "shared": "st.shared.b32 [smem], 1;",
    "global": "st.global.b32 [%d0], 1;",
    "local": "st.local.b32 [spill], 1;",
    "param": "ld.param.b64 %d1, [p0];",
    "cpasync": "cp.async.commit_group;",
    "barrier": "bar.sync 0;",
    "fence": "fence.proxy.async;",
    "warp": "vote.sync.ballot.b32 %r1, 1, -1;",
    "branch": "bra NEXT; NEXT:",
    "other": "nanosleep.u32 1;",
    "tma": "cp.async.bulk.commit_group;",
}


@pytest.mark.parametrize("name", SINGLE)
def test_classes(name: str) -> None:
    """Warp 0 of two executes it three times; `before` is what the rest of the kernel counts."""

    def counted(times: int) -> tuple[dict[str, int], ...]:
        local = ".local .align 8 .b8 spill[8];\n"
        head = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; setp.ge.u32 %p9, %r0, 32; @%p9 bra END;\n"
        body = "\n".join(SINGLE[name].replace("NEXT", f"NEXT{i}") for i in range(times))
        text = module(f"{local}{head}{body}\nEND:", shared=64).replace("bar.sync 0", "bar.sync 1, 32")
        out = torch.zeros(4, dtype=torch.int32)
        return ptx.load(text).launch((2, 1, 1), (64, 1, 1), [out]).roles

    before, after = counted(0), counted(3)
    assert after[0][name] - before[0][name] == 3 * 2  # in two CTAs
    assert {key: value for key, value in after[0].items() if key != name} == {
        key: value for key, value in before[0].items() if key != name
    }
    assert after[1] == before[1]


@pytest.mark.parametrize(
    ("dtype", "name", "step"),
    [
        (torch.bfloat16, "mma_f16", 16),
        (torch.float32, "mma_tf32", 8),
        (torch.float8_e4m3fn, "mma_f8", 32),
        (torch.int8, "mma_i8", 32),
    ],
    ids=str,
)
def test_products(dtype: torch.dtype, name: str, step: int) -> None:
    m, n, k = 128, 64, 64
    *_, report = gemm(m, n, k, dtype, False, False, 64)
    assert report.classes[name] == k // step
    assert report.engines["mma_flop"] == 2 * m * n * k
    assert report.engines["tma_load"] == (m + n) * k * dtype.itemsize
    assert report.engines["tmem_bytes"] == 2 * 128 * n * 4  # filled, then dumped
    assert report.classes["tmem"] == 4 * (n // 8 * 3 + 1) + 3  # st, ld and its wait; wait::st; alloc, permit, dealloc
    assert report.classes["mbarrier"] > 0
    assert report.tmem_columns == 256
    assert report.roles[0][name] == k // step
    assert all(role[name] == 0 for role in report.roles[1:])


def test_bytes() -> None:
    """One box by TMA and back, one bulk copy, one cp.async per thread; shared memory is read word by word."""
    tensor, source = torch.arange(256, dtype=torch.int32).reshape(16, 16), torch.arange(128, dtype=torch.int32)
    out = torch.zeros(256, dtype=torch.int32)
    body = [
        init_barriers(1, 1),
        expect(0, 1024),
        tma_load(2, DATA, 0, (0, 0), 0),
        wait(0),
        expect(1, 512),
        f"add.u32 %r6, %r1, {DATA + 4096};\nadd.u32 %r7, %r1, 8;",
        "@%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r6], [%d1], 512, [%r7];",
        wait(1),
        f"add.u32 %r5, %r1, {DATA};",
        "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d16, {%r10, %r11}], [%r5];",
        "@%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d16, {%r10, %r11}], [%r5];",
        "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;",
        f"shl.b32 %r8, %r0, 2;\nadd.u32 %r9, %r1, {DATA + 8192};\nadd.u32 %r9, %r9, %r8;\ncvt.u64.u32 %d20, %r8;",
        "add.s64 %d21, %d1, %d20;\ncp.async.ca.shared.global [%r9], [%d21], 4;\ncp.async.wait_all;",
        dump(1024, 0, 128),
    ]
    text = entry("\n".join(body), pointers=3, maps=1)
    report = launch(text, [out, source, tensor, tensor_map(tensor, (16, 16))], smem=32768)
    engines = report.engines
    assert (engines["tma_load"], engines["tma_store"], engines["tma_reduce"]) == (1024, 1024, 1024)
    assert (engines["bulk"], engines["cpasync"]) == (512, 512)
    assert (engines["shared_bytes"], engines["global_bytes"]) == (1024, 1024)
    assert report.smem_bytes == 32768


def test_nothing_is_left_out() -> None:
    """Every class and engine is named above."""
    engine_classes = {"tmem", "mbarrier", "mma_f16", "mma_tf32", "mma_f8", "mma_i8"}
    assert {*SINGLE} | engine_classes == {name for name in CLASSES if name}
    bytes_of = {"tma_load", "tma_store", "tma_reduce", "bulk", "cpasync", "mma_flop", "shared_bytes", "global_bytes"}
    assert bytes_of | {"tmem_bytes"} == {name for name in ENGINES if name}
