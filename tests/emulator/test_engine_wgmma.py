"""wgmma against integer matrix products, with A in shared memory and in registers, on sm_90a."""

from __future__ import annotations

import pytest
import torch
from engine_gemm import wgmma_gemm
from engine_kernels import wait

from attn_dsl.emulator.errors import KernelFinding


@pytest.mark.parametrize("majors", ["KK", "MK", "KM", "MM"])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_shared_bf16(majors: str, span: int):
    got, a, b = wgmma_gemm(64, 64, torch.bfloat16, majors[0] == "M", majors[1] == "M", span)
    assert torch.equal(got, a.double() @ b.double().T)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str
)
@pytest.mark.parametrize("registers", [False, True])
def test_types(dtype: torch.dtype, registers: bool):
    got, a, b = wgmma_gemm(32, 128 // dtype.itemsize, dtype, False, False, 128, registers=registers)
    assert torch.equal(got, a.double() @ b.double().T)


EIGHT = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("b", EIGHT, ids=str)
@pytest.mark.parametrize("a", EIGHT, ids=str)
@pytest.mark.parametrize("registers", [False, True])
def test_mixed_eight_bit_floats(a: torch.dtype, b: torch.dtype, half: bool, registers: bool):
    got, left, right = wgmma_gemm(32, 64, a, False, False, 64, registers=registers, half=half, b_dtype=b)
    assert torch.equal(got, left.double() @ right.double().T)


@pytest.mark.parametrize("suffix", ["", ".satfinite"])
@pytest.mark.parametrize("b", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("a", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("registers", [False, True])
def test_integers(a: torch.dtype, b: torch.dtype, registers: bool, suffix: str):
    """D starts near its limit: sums wrap, or stay at the limit with .satfinite."""
    start = 0x7FFFFFF0
    got, left, right = wgmma_gemm(
        32, 32, a, False, False, 32, registers=registers, b_dtype=b, start=start, suffix=suffix
    )
    exact = left.double() @ right.double().T + start
    assert (exact > 2**31 - 1).any()
    wrapped = (exact + 2**31) % 2**32 - 2**31
    assert torch.equal(got, exact.clamp(max=2**31 - 1) if suffix else wrapped)


@pytest.mark.parametrize("n", [8, 80, 256])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_widths_with_a_in_registers(n: int, late: int):
    got, a, b = wgmma_gemm(n, 64, torch.bfloat16, False, n != 80 and n != 8, 128, registers=True, late=late, seed=late)
    assert torch.equal(got, a.double() @ b.double().T)


@pytest.mark.parametrize("registers", [False, True])
def test_half_accumulators(registers: bool):
    got, a, b = wgmma_gemm(32, 64, torch.float16, False, True, 64, registers=registers, half=True)
    assert torch.equal(got, a.double() @ b.double().T)


def test_negated_operands():
    def negate_b(text: str) -> str:
        assert "%p3, 1, 1, 0, 0;" in text
        return text.replace("%p3, 1, 1, 0, 0;", "%p3, 1, -1, 0, 0;")

    got, a, b = wgmma_gemm(32, 64, torch.bfloat16, False, False, 128, change=negate_b)
    assert torch.equal(got, -(a.double() @ b.double().T))


FENCE = "wgmma.fence.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


@pytest.mark.parametrize(
    ("old", "new", "registers", "kind"),
    [
        (WAIT, "", False, "wgmma-order"),  # D is stored while the group is in flight
        (WAIT, WAIT.replace("0", "1"), False, "wgmma-order"),
        (FENCE, "", True, "wgmma-order"),  # A was loaded into registers, no fence since
        (FENCE, f"mov.b32 %r200, 0;\n{FENCE}\nmov.b32 %r201, 0;", False, "wgmma-order"),  # D written after the fence
        ("wgmma.commit_group", "mov.b32 %r121, 0;\nwgmma.commit_group", True, "wgmma-order"),  # A changed in flight
        (wait(0), "", False, "uninit-shared"),  # a warp comes before the tiles
        ("setp.ne.s32 %p3, 0, 0;", "setp.ne.s32 %p3, 1, 0;", False, "uninit-register"),  # D is read, never written
        ("wgmma.commit_group", "st.shared.b32 [%r1+1024], %r0;\nwgmma.commit_group", False, "wgmma-order"),
    ],
)
def test_findings(old: str, new: str, registers: bool, kind: str):
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    with pytest.raises(KernelFinding) as caught:
        wgmma_gemm(32, 64, torch.bfloat16, False, False, 128, registers=registers, change=change)
    assert caught.value.findings[0].kind == kind


def test_late_completion_shows_a_missing_wait_in_the_numbers():
    arguments = (32, 64, torch.bfloat16, False, False, 128)
    for late, right in ((0, True), (1, False)):
        got, a, b = wgmma_gemm(*arguments, change=lambda t: t.replace(WAIT, ""), findings="off", late=late)
        assert torch.equal(got, a.double() @ b.double().T) is right


@pytest.mark.parametrize(("bit", "words"), [(49, "base offset"), (53, "bits 14-15"), (12, "outside")])
def test_bad_descriptors(bit: int, words: str):
    def flip(text: str) -> str:
        old = text.split("mov.b64 %d11, ")[1].split(";")[0]
        return text.replace(f"%d11, {old};", f"%d11, {int(old) | 1 << bit};", 1)

    with pytest.raises(KernelFinding) as caught:
        wgmma_gemm(32, 64, torch.bfloat16, False, False, 128, change=flip, smem=32 * 1024)
    assert words in caught.value.findings[0].text
