"""tcgen05.mma against integer matrix products: TMA puts the operands in place, descriptors name them, TMEM holds D."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from engine_gemm import KINDS, gemm, integers, load_operand, mma_chain, operand_map, pair_gemm
from engine_kernels import (
    DATA,
    Operand,
    alloc,
    dealloc,
    entry,
    expect,
    init_barriers,
    instruction_descriptor,
    launch,
    tmem_dump,
    tmem_fill,
    wait,
)

from attn_dsl.emulator.errors import KernelFinding


def product(*args, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """D of an integer product, and what it must be."""
    got, a, b, _ = gemm(*args, **options)
    return got, a.double() @ b.double().T


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize("majors", ["KK", "MK", "KM", "MM"])
def test_layouts(dtype: torch.dtype, span: int, majors: str):
    n = 128 if dtype.itemsize == 1 else 64  # a swizzled row of an N-major B is up to 128 bytes of N
    got, want = product(128, n, 128, dtype, majors[0] == "M", majors[1] == "M", span)
    assert torch.equal(got, want)


@pytest.mark.parametrize("majors", ["KK", "MM"])
@pytest.mark.parametrize("span", [32, 64, 128])
def test_operands_between_pattern_boundaries(span: int, majors: str):
    """The pattern is one of absolute addresses: a tile may start on any of its rows."""
    mn_major = majors[0] == "M"
    got, want = product(128, 64, 64, torch.bfloat16, mn_major, mn_major, span, at=DATA + 256)
    assert torch.equal(got, want)


@pytest.mark.parametrize("majors", ["KK", "MK", "KM", "MM"])
def test_tf32(majors: str):
    got, want = product(128, 64, 32, torch.float32, majors[0] == "M", majors[1] == "M", 128)
    assert torch.equal(got, want)


@pytest.mark.parametrize(("m", "n"), [(64, 8), (64, 256), (128, 8), (128, 24), (128, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.uint8], ids=str)
def test_shapes(m: int, n: int, dtype: torch.dtype):
    if dtype == torch.uint8 and n == 24:
        n = 48
    got, want = product(m, n, 64, dtype, False, False, 64)
    assert torch.equal(got, want)


@pytest.mark.parametrize("late", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_late_completion_changes_nothing(late: int, seed: int):
    got, want = product(128, 64, 128, torch.bfloat16, False, True, 128, late=late, seed=seed)
    assert torch.equal(got, want)


def test_negated_operands():
    def negate_a(text: str) -> str:
        code = instruction_descriptor(1, 1, 1, 128, 64, False, False)
        assert f"mov.b32 %r70, {code};" in text
        return text.replace(f"mov.b32 %r70, {code};", f"mov.b32 %r70, {code | 1 << 13};")

    got, want = product(128, 64, 64, torch.bfloat16, False, False, 128, change=negate_a)
    assert torch.equal(got, -want)


def test_half_accumulator():
    """f16 D: the low half of each cell."""
    code = instruction_descriptor(0, 0, 1, 128, 64, False, False)
    half = instruction_descriptor(0, 0, 0, 128, 64, False, False)
    got, want = product(
        128, 64, 32, torch.float16, False, False, 64, change=lambda t: t.replace(f"{code};", f"{half};")
    )
    bits = got.float().view(torch.int32)
    assert torch.equal(bits.to(torch.int16).view(torch.float16).double(), want)


def test_scaled_accumulator_and_masked_lanes():
    """D / 4 + A B, and lanes of the mask keep what they held (7.0)."""

    def change(text: str) -> str:
        text = text.replace("mov.b32 %r99, 0;", "mov.b32 %r99, 0x40E00000;")
        return text.replace("%d11, %r70, %p3;", "%d11, %r70, {%r90, %r91, %r91, %r91}, 1, 2;").replace(
            "setp.ne.u32 %p3", "mov.b32 %r90, 5;\nmov.b32 %r91, 0;\nsetp.ne.u32 %p3"
        )

    got, want = product(128, 64, 16, torch.bfloat16, False, False, 32, change=change)
    want = want + 7.0 / 4
    want[[0, 2]] = 7.0
    assert torch.equal(got, want)


def test_integer_saturation():
    """Two large blocks: with the bit the sum stays at the limit, without it wraps."""
    code = instruction_descriptor(1, 1, 2, 128, 64, False, False)

    def change(bit: int, text: str) -> str:
        text = text.replace("mov.b32 %r99, 0;", "mov.b32 %r99, 0x7FFFFFF0;").replace(
            "setp.ne.u32 %p3, 0", "setp.ne.u32 %p3, 1"
        )
        return text.replace(f"mov.b32 %r70, {code};", f"mov.b32 %r70, {code | bit << 3};")

    clamped, want = product(128, 64, 32, torch.int8, False, False, 32, change=lambda t: change(1, t))
    wrapped, _ = product(128, 64, 32, torch.int8, False, False, 32, change=lambda t: change(0, t))
    exact = want + 0x7FFFFFF0
    assert (exact > 2**31 - 1).any()
    assert torch.equal(clamped, exact.clamp(max=2**31 - 1))
    assert torch.equal(wrapped, (exact + 2**31) % 2**32 - 2**31)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("m", [64, 128])
def test_a_in_tmem(m: int, dtype: torch.dtype):
    """A comes from columns 128 on: packed along K, one lane per row."""
    kind, code, d_code, step = KINDS[dtype]
    n, k, eb = 64, 64, dtype.itemsize
    a_values, b_values = integers((m, k), dtype, 3), integers((n, k), dtype, 4)
    words = k * eb // 4
    image = torch.zeros(128, words, dtype=torch.int32)
    rows = torch.arange(m) if m == 128 else torch.arange(m) // 16 * 32 + torch.arange(m) % 16
    image[rows] = a_values.view(torch.int32).reshape(m, words)
    a, b = Operand(m, k, False, 64, eb), Operand(n, k, False, 64, eb)
    b_tensor, b_map = operand_map(b, b_values)
    store = ["mul.lo.s32 %r80, %r0, %r81;", "cvt.u64.u32 %d42, %r80;", "add.s64 %d43, %d1, %d42;"]
    for i in range(words):
        store += [
            f"ld.global.b32 %r82, [%d43+{4 * i}];",
            f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r62+{128 + i}], {{%r82}};",
        ]
    text = entry(
        "\n".join(
            [
                init_barriers(1, 1),
                alloc(256),
                tmem_fill(n),
                f"mov.b32 %r81, {4 * words};",
                *store,
                "tcgen05.wait::st.sync.aligned;\nbar.sync 0;",
                expect(0, b.bytes),
                load_operand(b, DATA, 0),
                wait(0),
                mma_chain(
                    a,
                    b,
                    kind,
                    step,
                    instruction_descriptor(code, code, d_code, m, n, False, False),
                    DATA,
                    DATA,
                    a_tmem=128,
                ),
                wait(1),
                tmem_dump(n, 0),
                dealloc(256),
            ]
        ),
        pointers=3,
        maps=1,
    )
    out = torch.zeros(128, n, dtype=torch.int32)
    launch(text, [out, image, b_tensor, b_map])
    assert torch.equal(out.view(torch.float32)[rows].double(), a_values.double() @ b_values.double().T)


@pytest.mark.parametrize(("m", "n"), [(128, 64), (256, 32), (256, 256)])
@pytest.mark.parametrize("majors", ["KK", "KM", "MK"])
def test_pair(m: int, n: int, majors: str):
    """cta_group::2: each CTA holds half the rows of A and half the rows of B, and gets its part of D."""
    got, want = pair_gemm(m, n, 64, torch.bfloat16, majors[0] == "M", majors[1] == "M", 32 if n == 32 else 64)
    assert torch.equal(got, want)


OTHER_KINDS = [torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8]


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("dtype", OTHER_KINDS, ids=str)
def test_pair_of_every_kind(m: int, dtype: torch.dtype):
    got, want = pair_gemm(m, 96, 64, dtype, False, False, 64)
    assert torch.equal(got, want)


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, *OTHER_KINDS], ids=str)
@pytest.mark.parametrize("late", [0, 1])
def test_pair_with_a_in_tmem(m: int, dtype: torch.dtype, late: int):
    """M = 128: lanes 64 to 127 hold the copy of A that the second half of the columns is made of."""
    got, want = pair_gemm(m, 64, 64, dtype, False, False, 64, a_tmem=True, late=late)
    assert torch.equal(got, want)


def test_a_in_tmem_of_a_pair_that_nobody_wrote():
    """The upper copy of A is missing: warps 2 and 3 of both CTAs do not store it."""

    def change(text: str) -> str:
        assert "tcgen05.st" in text
        text = text.replace("tcgen05.st.sync", "@%p12 tcgen05.st.sync")
        return text.replace("shl.b32 %r61, %r2, 21;", "shl.b32 %r61, %r2, 21;\nsetp.lt.u32 %p12, %r2, 2;", 1)

    with pytest.raises(KernelFinding) as caught:
        pair_gemm(128, 64, 64, torch.bfloat16, False, False, 64, a_tmem=True, change=change)
    finding = caught.value.findings[0]
    assert finding.kind == "uninit-tmem"
    assert "lanes 64..79" in finding.text


def test_collector_hints_change_nothing():
    for usage in ("fill", "use", "lastuse", "discard"):
        hint = f"kind::f16.collector::a::{usage} ["
        got, want = product(
            128, 64, 32, torch.bfloat16, False, False, 64, change=lambda t, h=hint: t.replace("kind::f16 [", h)
        )
        assert torch.equal(got, want)


MASK = "{%r90, %r91, %r91, %r91}"


@pytest.mark.parametrize("a_tmem", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_masks_and_scales_of_a_pair(a_tmem: bool, masked: bool, scaled: bool):
    """Eight mask words: lane 1 of the even CTA and lane 32 of the odd one keep their 7.0; D / 8 + A B with a scale."""
    mask = ", {%r90, %r91, %r91, %r91, %r91, %r92, %r91, %r91}" if masked else ""

    def change(text: str) -> str:
        fill = "mov.b32 %r90, 2;\nmov.b32 %r91, 0;\nmov.b32 %r92, 1;\n" + tmem_fill(64, 0x40E00000)
        text = text.replace("%d11, %r70, %p3;", f"%d11, %r70{mask}, %p3{', 3' if scaled else ''};")
        text = text.replace("setp.ne.u32 %p3, 0, 0;", "setp.ne.u32 %p3, 1, 0;")
        return text.replace("setp.eq.s32 %p0, %r0, 0;\n", f"setp.eq.s32 %p0, %r0, 0;\n{fill}\n", 2).replace(
            f"{fill}\n", "", 1
        )

    got, want = pair_gemm(256, 64, 16, torch.bfloat16, False, False, 32, a_tmem=a_tmem, change=change)
    want = want + (7.0 / 8 if scaled else 7.0)
    if masked:
        want[1] = want[128 + 32] = 7.0
    assert torch.equal(got, want)


def bits_of(text: str) -> tuple[str, str]:
    """The first descriptor of A and of the instruction in a kernel."""
    return text.split("mov.b64 %d10, ")[1].split(";")[0], text.split("mov.b32 %r70, ")[1].split(";")[0]


@pytest.mark.parametrize(
    ("which", "bit", "words"),
    [
        ("A", 49, "base offset"),
        ("A", 46, "bits 46-48"),
        ("A", 14, "bits 14-15"),
        ("A", 61, "swizzle code"),  # 128-byte code 2 becomes 3
        ("A", 32, "multiple of the swizzle pattern"),
        ("I", 2, "sparse"),
        ("I", 5, "D type"),
        ("I", 8, "A and B types"),
        ("I", 25, "M must be"),
        ("I", 29, "bits 6, 23 and 29-31"),
    ],
)
def test_bad_descriptors(which: str, bit: int, words: str):
    def flip(text: str) -> str:
        a, instruction = bits_of(text)
        name, old = ("%d10", a) if which == "A" else ("%r70", instruction)
        return text.replace(f"{name}, {old};", f"{name}, {int(old) ^ 1 << bit};")

    with pytest.raises(KernelFinding) as caught:
        gemm(128, 64, 64, torch.bfloat16, False, False, 128, change=flip)
    finding = caught.value.findings[0]
    assert finding.kind == "descriptor"
    assert words in finding.text


@pytest.mark.parametrize(
    ("dtype", "operands", "words"),
    [
        (torch.int8, "%p3, 2;", "kind::f16 and kind::tf32 only"),
        (torch.bfloat16, "%p3, 16;", "it is 0 to 15"),
        (torch.bfloat16, "{%r70, %r70}, %p3;", "has 2 words; cta_group::1 takes 4"),
    ],
    ids=["scale of integers", "scale", "mask"],
)
def test_bad_operands(dtype: torch.dtype, operands: str, words: str):
    with pytest.raises(KernelFinding, match=words) as caught:
        gemm(128, 64, 32, dtype, False, False, 32, change=lambda t: t.replace("%r70, %p3;", f"%r70, {operands}"))
    assert caught.value.findings[0].kind == "descriptor"


def drop(line: str):
    def change(text: str) -> str:
        assert line in text
        return text.replace(line, "")

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (drop(wait(0)), "race-shared"),  # operands not waited for
        (drop(wait(1)), "tcgen05-order"),  # D read before the commit arrived
        (
            lambda t: t.replace("@%p0 tcgen05.mma", "@%p11 tcgen05.mma").replace(
                "mov.b32 %r70", "setp.lt.u32 %p11, %r0, 2;\nmov.b32 %r70"
            ),
            "unelected",
        ),
        (
            lambda t: t.replace("setp.ne.u32 %p3, 0, 0;", "setp.ne.u32 %p3, 1, 0;").replace("tcgen05.st", "// "),
            "uninit-tmem",
        ),
    ],
)
def test_missing_synchronisation(change, kind: str):
    with pytest.raises(KernelFinding) as caught:
        gemm(128, 64, 64, torch.bfloat16, False, False, 128, change=change)
    assert kind in {f.kind for f in caught.value.findings}


@pytest.mark.parametrize("missing", [wait(0), wait(1)], ids=["operands", "result"])
def test_late_completion_shows_a_missing_wait_in_the_numbers(missing: str):
    """Without looking for findings: what nobody waited for is not there yet."""
    arguments = (128, 64, 64, torch.bfloat16, False, False, 128)
    got, want = product(*arguments, change=drop(missing), findings="off")
    assert torch.equal(got, want)  # at once, and all is well by luck
    got, want = product(*arguments, change=drop(missing), findings="off", late=1)
    assert not torch.equal(got, want)


def test_generic_writes_need_a_proxy_fence():
    """Thread 0 overwrites a word of A with what it holds: without fence.proxy.async the MMA may not see it."""

    def poke(fence: str, text: str) -> str:
        lines = ["@%p0 ld.shared.b32 %r90, [%r1+1024];", "@%p0 st.shared.b32 [%r1+1024], %r90;", fence, "bar.sync 0;"]
        return text.replace("mov.b64 %d10", "\n".join([*lines, "mov.b64 %d10"]), 1)

    fenced = partial(poke, "fence.proxy.async.shared::cta;")
    got, want = product(128, 64, 16, torch.bfloat16, False, False, 32, change=fenced)
    assert torch.equal(got, want)
    with pytest.raises(KernelFinding) as caught:
        gemm(128, 64, 16, torch.bfloat16, False, False, 32, change=partial(poke, ""))
    assert caught.value.findings[0].kind == "proxy-fence"
