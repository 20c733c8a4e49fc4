"""ex2.approx and rcp.approx with `exact`: every one of the 2^23 results of a binade, as an H200 gave them."""

from __future__ import annotations

import hashlib

import pytest
import torch
from engine_kernels import entry, launch

BINADE = 1 << 23


def sweep(operation: str, first: float, n: int, *, exact: bool = True) -> torch.Tensor:
    """Bits of the results for the n floats from `first` on, away from zero."""
    base = torch.tensor([first]).view(torch.int32).item()
    body = "\n".join(
        [
            "mov.u32 %r30, %ctaid.x;\nmad.lo.s32 %r31, %r30, 1024, %r0;",
            f"add.s32 %r32, %r31, {base};\nmov.b32 %f1, %r32;",
            f"{operation} %f2, %f1;",
            "mul.wide.u32 %d30, %r31, 4;\nadd.s64 %d31, %d0, %d30;\nst.global.b32 [%d31], %f2;",
        ]
    )
    out = torch.zeros(n, dtype=torch.int32)
    launch(entry(body, pointers=1), [out], block=1024, grid=n // 1024, exact=exact, findings="off")
    return out


@pytest.mark.parametrize(
    ("operation", "first", "digest"),
    [
        ("ex2.approx.ftz.f32", 1.0, "cce5df10202dbfcde720ca547d147edb3e2a406a5fed189323f419177a72a1a5"),
        pytest.param(
            "ex2.approx.ftz.f32",
            0.5,
            "ac81d74ed3b84eb18194bceedf3490cff18644507b5745e3a84d42efd13c0389",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "ex2.approx.ftz.f32",
            -1.0,
            "503d2238b9f4c00e8686f80a703dd13d365554f2887c7279a7b438f642aceab3",
            marks=pytest.mark.slow,
        ),
        ("rcp.approx.ftz.f32", 1.0, "c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55"),
    ],
)
def test_a_binade_is_bit_equal_to_hardware(operation: str, first: float, digest: str):
    assert hashlib.sha256(sweep(operation, first, BINADE).numpy().tobytes()).hexdigest() == digest


@pytest.mark.parametrize("exponent", [-20, -3, 3, 6])
def test_other_binades_of_ex2_stay_within_two_units_in_the_last_place(exponent: int):
    for sign in (1.0, -1.0):
        first = sign * 2.0**exponent
        x = torch.arange(8192, dtype=torch.int32) + torch.tensor([first]).view(torch.int32)
        want = torch.exp2(x.view(torch.float32).double()).float().view(torch.int32)
        assert (sweep("ex2.approx.ftz.f32", first, 8192) - want).abs().max() <= 2


def test_reciprocals_scale_by_powers_of_two():
    one = sweep("rcp.approx.ftz.f32", 1.0, 8192).view(torch.float32)
    for power in (-100, -1, 2, 120):
        assert torch.equal(sweep("rcp.approx.ftz.f32", 2.0**power, 8192).view(torch.float32), one * 2.0**-power)
        assert torch.equal(sweep("rcp.approx.ftz.f32", -(2.0**power), 8192).view(torch.float32), -one * 2.0**-power)


@pytest.mark.parametrize(
    ("operation", "x", "want"),
    [
        ("ex2.approx.ftz.f32", 0.0, 1.0),
        ("ex2.approx.ftz.f32", -3.0, 0.125),
        ("ex2.approx.ftz.f32", 128.0, torch.inf),
        ("ex2.approx.ftz.f32", -torch.inf, 0.0),
        ("ex2.approx.ftz.f32", -126.5, 0.0),  # subnormal, flushed
        ("rcp.approx.ftz.f32", torch.inf, 0.0),
        ("rcp.approx.ftz.f32", -0.0, -torch.inf),
        ("rcp.approx.ftz.f32", 2.0**127, 0.0),
        ("rcp.approx.ftz.f32", 2.0**-127, torch.inf),
    ],
)
def test_ends_of_the_range(operation: str, x: float, want: float):
    got = sweep(operation, x, 1024)[:1].view(torch.float32)
    assert torch.equal(got, torch.tensor([want]))
    assert torch.equal(got.signbit(), torch.tensor([want]).signbit())
