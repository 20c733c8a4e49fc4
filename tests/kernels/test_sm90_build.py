"""Hopper kernels without a GPU: what ptxas makes of them, and one of them on the virtual device against float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cubin import resources

pytest.importorskip("cutlass")

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.kernels.sm90.build import compile_forward
from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, ShapeClass, select
from attn_dsl.runtime.binding import bind
from attn_dsl.runtime.kernels import SM90, Kernels

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAP = ParamArgument("cap", False, None, "number", "f32", 1.0, None)
PLANS = {
    "causal": (HEAD + "mask = kv_idx <= q_pos", ShapeClass(128, 128)),
    "softcap": (
        HEAD + "param cap: float in 1.0..\nmask = kv_idx <= q_pos\nscore = cap * tanh(score / cap)",
        ShapeClass(64, 64, (CAP,)),
    ),
    "documents": (
        HEAD + "ids: i32[batch, seq_k]\nmask = kv_idx <= q_pos and ids[b, q_pos] == ids[b, kv_idx]",
        ShapeClass(64, 64),
    ),
}


def plan_of(name: str) -> ForwardPlan:
    text, shape = PLANS[name]
    return select(attn_dsl.parse(text, name=name), shape)


@pytest.mark.parametrize("name", PLANS)
def test_a_kernel_keeps_to_its_registers(name: str, tmp_path: Path) -> None:
    """Offline, for sm_90a: as many registers at launch as its threads can have, and no arrays in local memory."""
    plan = plan_of(name)
    compile_forward(plan, f"--keep-ptx --keep-cubin --dump-dir {tmp_path}")
    (ptx,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    (cubin,) = (path.read_bytes() for path in tmp_path.glob("*.cubin"))
    found = resources(cubin)
    assert found.stack == 0
    assert ".local" not in ptx
    assert found.registers <= 65536 // plan.threads // 8 * 8
    for registers in (f"setmaxnreg.inc.sync.aligned.u32 \t{plan.registers_consumer}", "setmaxnreg.dec"):
        assert registers in ptx


@pytest.mark.parametrize(("seq_q", "seq_k", "late"), [(200, 150, 1), (1, 300, 2)])
def test_a_kernel_on_the_virtual_device(seq_q: int, seq_k: int, late: int) -> None:
    """Grouped heads, sizes that fill no tile, outputs full of NaN before; any finding of the device is an error."""
    spec = attn_dsl.parse(PLANS["causal"][0], name="causal")
    make = torch.Generator().manual_seed(seq_q)
    q, k, v = (
        torch.randn(1, rows, heads, 64, generator=make).bfloat16()
        for rows, heads in ((seq_q, 4), (seq_k, 2), (seq_k, 2))
    )
    out, lse = torch.full_like(q, math.nan), torch.full((1, 4, seq_q), math.nan)
    with emulator.device("sm_90a", late=late) as gpu:
        Kernels(spec, SM90).launch(bind(spec, (q, k, v), {}, False), out, lse)
    assert not gpu.findings
    true_o, true_lse = reference.attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64")
    assert torch.isneginf(true_lse).equal(torch.isneginf(lse))
    seen = ~torch.isneginf(lse)
    assert (lse - true_lse)[seen].abs().max() < 1e-5
    # weights are rounded to bf16 (2^-9) and so is the output; the sum over keys averages the former out
    assert (out.double() - true_o).abs().max() < 2**-7 * true_o.abs().max()
    assert (out == 0)[~seen.transpose(1, 2)].all()


def test_a_plan_decides_its_kernel_alone() -> None:
    """Equal plans are one key in every process; whatever changes the kernel changes the key."""
    plan = plan_of("softcap")
    assert repr(plan) == repr(plan_of("softcap"))
    assert "0x" not in repr(plan)
    for changes in ({"tile_k": 64}, {"wide": frozenset({plan.scale})}, {"score": plan.scale}, {"logit": plan.scale}):
        assert repr(replace(plan, **changes)) != repr(plan)
