"""Descriptors of tcgen05.mma: bit for bit those of CuTe DSL, and read by the emulator's decoder as meant."""

from __future__ import annotations

import ctypes
import itertools
import random
import re
from pathlib import Path

import pytest

from attn_dsl.emulator.build import core_library
from attn_dsl.kernels.mma_sm100_desc import (
    DescriptorError,
    LayoutType,
    Major,
    MaxShift,
    Swizzle,
    Tile,
    accumulator_format,
    k_steps,
    layout_type,
    make_instr_desc,
    make_smem_desc_base,
    mma_op_to_idesc,
    operand_type,
    start_address,
)

BITS = {LayoutType.SWIZZLE_NONE: 128, LayoutType.SWIZZLE_32B: 256, LayoutType.SWIZZLE_64B: 512}
BITS |= {LayoutType.SWIZZLE_128B: 1024, LayoutType.SWIZZLE_128B_BASE32B: 1024}


def tile_of(kind: LayoutType, major: Major, bits: int, mn: int, k: int) -> Tile:
    """Atoms of 8 rows of the swizzle's width, first along M or N, then along k, as CuTe tiles them."""
    wide = BITS[kind] // bits
    if major is Major.K:
        return Tile((8, mn // 8), (wide, 8 * wide), (wide, k // wide), (1, mn * wide), bits)
    return Tile((wide, mn // wide), (1, 8 * wide), (8, k // 8), (wide, 8 * mn), bits)


CASES = [
    (kind, major, bits)
    for kind, major, bits in itertools.product(LayoutType, Major, (8, 16, 32))
    if (kind is LayoutType.SWIZZLE_128B_BASE32B) == (bits == 32 and major is Major.MN)
]


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        # observed in kernels of FlashAttention-4 and of CuTe DSL
        (("BFloat16", "BFloat16", "Float32", 128, 128), 0x08200490),
        (("BFloat16", "BFloat16", "Float32", 128, 128, Major.K, Major.MN), 0x08210490),
        (("BFloat16", "BFloat16", "Float32", 256, 256, Major.K, Major.MN, True), 0x10410490),
        (("Float8E4M3FN", "Float8E4M3FN", "Float32", 256, 128, Major.K, Major.K, True), 0x10200010),
        (("TFloat32", "TFloat32", "Float32", 128, 128), 0x08200910),
        (("Float16", "Float16", "Float32", 128, 128), 0x08200010),
    ],
)
def test_known_instruction_descriptors(description, expected) -> None:
    *operands, pair = description if len(description) == 8 else (*description, False)
    assert make_instr_desc(*operands, pair=pair) == expected


def test_flags_of_instruction_descriptors() -> None:
    floats = ("Float16", "Float16", "Float32", 64, 8)
    plain = make_instr_desc(*floats)
    assert make_instr_desc(*floats, negate_a=True) ^ plain == 1 << 13
    assert make_instr_desc(*floats, negate_b=True) ^ plain == 1 << 14
    assert make_instr_desc(*floats, Major.MN, Major.MN) ^ plain == 3 << 15
    assert make_instr_desc(*floats, sparse=True, sparsity_selector=3) ^ plain == 0b111
    stationary = make_instr_desc("Float16", "Float16", "Float32", 64, 64, stationary=True)
    shifted = make_instr_desc("Float16", "Float16", "Float32", 64, 64, stationary=True, max_shift=MaxShift.SHIFT_32)
    assert shifted ^ stationary == 3 << 30
    integers = ("Int8", "Uint8", "Int32", 128, 32)
    assert make_instr_desc(*integers, saturate=True) ^ make_instr_desc(*integers) == 1 << 3
    assert make_instr_desc(*integers) >> 7 & 0x3F == 0b000001
    codes = [operand_type(f"Float{name}").code for name in ("8E4M3FN", "8E5M2", "6E2M3FN", "6E3M2FN", "4E2M1FN")]
    assert codes == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("description", "flags", "message"),
    [
        (("Float16", "Float16", "Float32", 96, 128), {}, "m is 96; it is 64 or 128"),
        (("Float16", "Float16", "Float32", 256, 128), {}, "m is 256; it is 64 or 128"),
        (("Float16", "Float16", "Float32", 64, 128), {"pair": True}, "m is 64; it is 128 or 256"),
        (("Float16", "Float16", "Float32", 256, 128), {"stationary": True}, "m is 256; it is 32, 64 or 128"),
        (("Float16", "Float16", "Float32", 128, 12), {}, "n is 12; .* the nearest is 8"),
        (("Float16", "Float16", "Float32", 128, 0), {}, "n is 0; .* the nearest is 8"),
        (("Float16", "Float16", "Float32", 128, 264), {}, "n is 264; .* the nearest is 256"),
        (("Float16", "Float16", "Float32", 256, 24), {"pair": True}, "n is 24; .* the nearest is 16"),
        (("Float16", "Float16", "Float32", 64, 96), {"stationary": True}, "n is 96; .* the nearest is 64"),
        (("Int8", "Int8", "Int32", 128, 40), {}, "n is 40; .* the nearest is 32"),
        (("Int8", "Int8", "Int32", 128, 48), {"pair": True}, "n is 48; .* the nearest is 32"),
        (("Int8", "Int8", "Int32", 128, 24, Major.K, Major.MN), {}, "n is 24; .* the nearest is 16"),
        (("Float8E5M2", "Float4E2M1FN", "Float32", 64, 8, Major.K, Major.MN), {}, "n is 8; .* the nearest is 16"),
        (("BFloat16", "BFloat16", "Float16", 128, 128), {}, "operands of f16 only"),
        (("TFloat32", "TFloat32", "Float16", 128, 128), {}, "no accumulator of f16"),
        (("Float16", "Float16", "Float32", 64, 64), {"max_shift": MaxShift.SHIFT_8}, "where B is stationary"),
        (("Float16", "Float16", "Float32", 128, 64), {"pair": True, "stationary": True}, "not shared by a pair"),
        (("Float16", "Float8E5M2", "Float32", 128, 128), {}, "do not multiply"),
        (("Float16", "Float16", "Int32", 128, 128), {}, "no accumulator of s32"),
        (("Float64", "Float64", "Float32", 128, 128), {}, "no operands of Float64"),
        (("Int8", "Int8", "Int32", 128, 128), {"negate_a": True}, "not negated"),
        (("Float16", "Float16", "Float32", 128, 128), {"saturate": True}, "only integer"),
        (("Float16", "Float16", "Float32", 128, 128), {"sparsity_selector": 1}, "sparsity selector 1"),
    ],
)
def test_what_no_instruction_does(description, flags, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        make_instr_desc(*description, **flags)


def test_unknown_accumulators_and_swizzles() -> None:
    with pytest.raises(DescriptorError, match="no accumulator of BFloat16"):
        accumulator_format("BFloat16")
    with pytest.raises(DescriptorError, match="no swizzle S<3,3,3>"):
        layout_type(Swizzle(3, 3, 3))


@pytest.mark.parametrize(("kind", "major", "bits"), CASES)
def test_the_emulator_reads_the_element_that_was_meant(kind, major, bits: int) -> None:
    """Its decoder, written from the PTX ISA, finds every element of every instruction where the layout has it."""
    decode = ctypes.CDLL(str(core_library())).emu_descriptor_address
    decode.argtypes = [ctypes.c_uint64, *([ctypes.c_int] * 3), ctypes.c_uint32, ctypes.c_uint32]
    decode.restype = ctypes.c_uint32
    k, depth = 1024 // bits, 256 // bits
    swizzle = {LayoutType.SWIZZLE_32B: (4, 1, 3), LayoutType.SWIZZLE_64B: (4, 2, 3), LayoutType.SWIZZLE_128B: (4, 3, 3)}
    swizzle |= {LayoutType.SWIZZLE_NONE: (4, 0, 3), LayoutType.SWIZZLE_128B_BASE32B: (5, 2, 2)}
    low, width, shift = swizzle[kind]
    start = 0x2000
    for mn in (8, 64, 192, 256):
        if major is Major.MN and mn % (BITS[kind] // bits):
            continue  # an atom is wider
        tile = tile_of(kind, major, bits, mn, k)
        base = make_smem_desc_base(tile, kind, major)
        for step, offset in enumerate(k_steps(tile)):
            descriptor = base | start_address(start) + offset
            for row, column in itertools.product(range(0, mn, 13 if mn > 64 else 1), range(depth)):
                address = start + tile.offset(row, step * depth + column)
                address ^= address >> shift & ((1 << width) - 1) << low
                assert decode(descriptor, 0, int(major), bits // 8, row, column) == address


def test_layouts_that_are_not_canonical() -> None:
    swizzled = LayoutType.SWIZZLE_128B
    with pytest.raises(DescriptorError, match="not a canonical K-major layout of SWIZZLE_128B: element"):
        make_smem_desc_base(tile_of(LayoutType.SWIZZLE_64B, Major.K, 16, 128, 64), swizzled, Major.K)
    with pytest.raises(DescriptorError, match="not a canonical MN-major"):
        make_smem_desc_base(tile_of(swizzled, Major.K, 16, 128, 64), swizzled, Major.MN)
    with pytest.raises(DescriptorError, match="one instruction takes 16"):
        make_smem_desc_base(Tile((8, 16), (8, 64), 8, 1, 16), LayoutType.SWIZZLE_NONE, Major.K)
    with pytest.raises(DescriptorError, match="for 32-bit operands"):
        make_smem_desc_base(tile_of(swizzled, Major.MN, 16, 128, 64), LayoutType.SWIZZLE_128B_BASE32B, Major.MN)
    with pytest.raises(DescriptorError, match="have no SWIZZLE_64B, only 32-byte atoms"):
        make_smem_desc_base(tile_of(LayoutType.SWIZZLE_64B, Major.MN, 32, 128, 32), LayoutType.SWIZZLE_64B, Major.MN)
    with pytest.raises(DescriptorError, match="a descriptor holds 14 bits"):
        make_smem_desc_base(Tile((8, 16), (64, 1 << 20), (64,), (1,), 16), swizzled, Major.K)


def test_start_addresses_have_14_bits() -> None:
    assert start_address(0x400) == 0x40
    assert start_address(0x3FFF0) == 0x3FFF
    assert start_address(0x1000400) == 0x40  # the rank of the block in its cluster falls off


KINDS = {
    "INTER": LayoutType.SWIZZLE_NONE,
    "SW32": LayoutType.SWIZZLE_32B,
    "SW64": LayoutType.SWIZZLE_64B,
    "SW128": LayoutType.SWIZZLE_128B,
    "SW128_32B": LayoutType.SWIZZLE_128B_BASE32B,
}


def test_descriptors_are_those_of_cute_dsl() -> None:
    """One kernel has the DSL make the descriptor of every layout and type, and stores them."""
    pytest.importorskip("cutlass")
    import cute_descriptors
    import torch
    from cutlass.cute.runtime import from_dlpack

    from attn_dsl import emulator

    out = torch.zeros(len(cute_descriptors.CASES), 2, dtype=torch.int64)
    with emulator.device("sm_100a"):
        cute_descriptors.describe(from_dlpack(out))
    assert len(cute_descriptors.CASES) > 150
    for case, tile, (address, made) in zip(cute_descriptors.CASES, cute_descriptors.tiles(), out.tolist(), strict=True):
        major, _, kind = case[0].partition("_")
        base = make_smem_desc_base(tile, KINDS[kind], Major[major])
        assert made & (1 << 64) - 1 == base | start_address(address), case


def test_operations_of_cute_dsl(tmp_path: Path) -> None:
    """One instruction of every type, shape, direction and accumulator, as the DSL compiles it."""
    pytest.importorskip("cutlass")
    import cute_instructions
    from cutlass import cute

    from attn_dsl import emulator

    with emulator.device("sm_100a"):
        operations = cute_instructions.operations()
        options = f"--gpu-arch sm_100a --keep-ptx --dump-dir {tmp_path}"
        cute.compile(cute_instructions.multiply, operations, options=options)
    (ptx,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    constants = dict(re.findall(r"mov\.b32 \t(%r\d+), (\d+);", ptx))
    emitted = re.findall(r"tcgen05\.mma\.cta_group::1\.kind::(\w+)\S* \[%r\d+\], %rd\d+, %rd\d+, (%r\d+),", ptx)
    assert len(operations) == len(emitted) > 190
    for operation, (kind, register) in zip(operations, emitted, strict=True):
        assert mma_op_to_idesc(operation) == int(constants[register]), str(operation)
        assert operand_type(operation.a_dtype).kind == kind


def test_pairs_of_thread_blocks() -> None:
    """As the DSL checks operations of a pair, so are descriptors of them made or refused."""
    pytest.importorskip("cutlass")
    import cutlass
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

    source, two, k = tcgen05.OperandSource.SMEM, tcgen05.CtaGroup.TWO, OperandMajorMode.K
    for n in range(8, 272, 8):
        for m in (64, 128, 256):
            shape = (m, n, 16)
            try:
                operation = tcgen05.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, shape, two, source, k, k)
            except cutlass.base_dsl.common.DSLUserCodeError:
                with pytest.raises(DescriptorError):
                    make_instr_desc("BFloat16", "BFloat16", "Float32", m, n, pair=True)
            else:
                expected = 0x490 | n >> 3 << 17 | m >> 4 << 24
                assert mma_op_to_idesc(operation) == expected


def test_fields_as_the_primitives_of_cute_dsl_pack_them() -> None:
    """Random combinations of every flag."""
    pytest.importorskip("cutlass")
    import cutlass
    from cutlass.experimental.primitives import Tcgen05InstrDesc

    types = [("Float16", "Float16"), ("BFloat16", "Float32"), ("Float8E5M2", "Float16"), ("Int8", "Int32")]
    draw = random.Random(5)
    for _ in range(300):
        (element, accumulator), majors = draw.choice(types), [draw.choice(list(Major)) for _ in range(2)]
        integers, sparse = element == "Int8", draw.random() < 0.5
        flags = {
            "sparse": sparse,
            "sparsity_selector": draw.randrange(4) if sparse else 0,
            "saturate": integers and draw.random() < 0.5,
            "negate_a": not integers and draw.random() < 0.5,
            "negate_b": not integers and draw.random() < 0.5,
            "stationary": True,
            "max_shift": draw.choice(list(MaxShift)),
        }
        m, n = draw.choice((32, 64, 128)), draw.choice((64, 128, 256))
        theirs = Tcgen05InstrDesc.build(
            sparse_id2=flags["sparsity_selector"],
            sparse_flag=int(sparse),
            saturate=int(flags["saturate"]),
            c_dtype=getattr(cutlass, accumulator),
            a_dtype=getattr(cutlass, element),
            b_dtype=getattr(cutlass, element),
            a_negate=int(flags["negate_a"]),
            b_negate=int(flags["negate_b"]),
            a_major=int(majors[0]),
            b_major=int(majors[1]),
            n_dim=n,
            m_dim=m,
            max_shift=int(flags["max_shift"]),
        )
        mine = make_instr_desc(element, element, accumulator, m, n, *majors, **flags)
        assert mine == int(theirs.value) & 0xFFFFFFFF


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_virtual_device_multiplies_by_them(name: str, transposed: bool, monkeypatch) -> None:
    """Its decoder of instruction descriptors, written from the PTX ISA, reads what was meant."""
    import engine_gemm
    import torch

    names = {"bfloat16": "BFloat16", "float16": "Float16", "float32": "TFloat32", "int8": "Int8", "uint8": "Uint8"}
    names |= {"float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2"}
    element, accumulator = names[name], "Int32" if name.endswith("int8") else "Float32"

    def ours(a, b, d, m, n, a_mn, b_mn):
        del a, b, d
        return make_instr_desc(element, element, accumulator, m, n, Major(a_mn), Major(b_mn))

    monkeypatch.setattr(engine_gemm, "instruction_descriptor", ours)
    for m, n in ((128, 64), (64, 128)):
        span = 128 if name == "float32" else 64  # bytes of the swizzle; an atom of 32-bit elements has 128
        got, a, b, _ = engine_gemm.gemm(m, n, 128, getattr(torch, name), transposed, transposed, span)
        assert torch.equal(got, a.double() @ b.double().t())
