"""Descriptors of tcgen05.mma: bit for bit those of CuTe DSL, and read by the emulator's decoder as meant."""

from __future__ import annotations

import ctypes
import itertools

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
        (("BFloat16", "BFloat16", "Float32", 256, 256, Major.K, Major.MN), 0x10410490),
        (("Float8E4M3FN", "Float8E4M3FN", "Float32", 256, 128), 0x10200010),
        (("TFloat32", "TFloat32", "Float32", 128, 128), 0x08200910),
        (("Float16", "Float16", "Float32", 128, 128), 0x08200010),
    ],
)
def test_known_instruction_descriptors(description, expected) -> None:
    assert make_instr_desc(*description) == expected


def test_flags_of_instruction_descriptors() -> None:
    floats = ("Float16", "Float16", "Float32", 64, 8)
    plain = make_instr_desc(*floats)
    assert make_instr_desc(*floats, negate_a=True) ^ plain == 1 << 13
    assert make_instr_desc(*floats, negate_b=True) ^ plain == 1 << 14
    assert make_instr_desc(*floats, Major.MN, Major.MN) ^ plain == 3 << 15
    assert make_instr_desc(*floats, sparse=True, sparsity_selector=3) ^ plain == 0b111
    assert make_instr_desc(*floats, max_shift=MaxShift.SHIFT_32) ^ plain == 3 << 30
    integers = ("Int8", "Uint8", "Int32", 128, 32)
    assert make_instr_desc(*integers, saturate=True) ^ make_instr_desc(*integers) == 1 << 3
    assert make_instr_desc(*integers) >> 7 & 0x3F == 0b000001
    codes = [operand_type(f"Float{name}").code for name in ("8E4M3FN", "8E5M2", "6E2M3FN", "6E3M2FN", "4E2M1FN")]
    assert codes == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("description", "flags", "message"),
    [
        (("Float16", "Float16", "Float32", 96, 128), {}, "m is 96"),
        (("Float16", "Float16", "Float32", 128, 12), {}, "n is 12"),
        (("Float16", "Float16", "Float32", 128, 264), {}, "n is 264"),
        (("Float16", "Float16", "Float32", 256, 24), {}, "multiple of 16"),
        (("Int8", "Int8", "Int32", 128, 40), {}, "multiple of 16"),
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
    mn, k, depth = 256, 1024 // bits, 256 // bits
    tile = tile_of(kind, major, bits, mn, k)
    base = make_smem_desc_base(tile, kind, major)
    swizzle = {LayoutType.SWIZZLE_32B: (4, 1, 3), LayoutType.SWIZZLE_64B: (4, 2, 3), LayoutType.SWIZZLE_128B: (4, 3, 3)}
    swizzle |= {LayoutType.SWIZZLE_NONE: (4, 0, 3), LayoutType.SWIZZLE_128B_BASE32B: (5, 2, 2)}
    low, width, shift = swizzle[kind]
    start = 0x2000
    for step, offset in enumerate(k_steps(tile)):
        descriptor = base | start_address(start) + offset
        for row, column in itertools.product(range(0, mn, 13), range(depth)):
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
    for (name, bits), tile, (address, made) in zip(
        cute_descriptors.CASES, cute_descriptors.tiles(), out.tolist(), strict=True
    ):
        major, _, kind = name.partition("_")
        base = make_smem_desc_base(tile, KINDS[kind], Major[major])
        assert made & (1 << 64) - 1 == base | start_address(address), (name, bits)


def test_operations_of_cute_dsl() -> None:
    pytest.importorskip("cutlass")
    import cutlass
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

    source, one = tcgen05.OperandSource.SMEM, tcgen05.CtaGroup.ONE
    k, mn = OperandMajorMode.K, OperandMajorMode.MN
    half = tcgen05.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (128, 128, 16), one, source, k, mn)
    assert mma_op_to_idesc(half) == 0x08210490
    assert mma_op_to_idesc(tcgen05.MmaTF32Op((128, 128, 8), one, source, k, k)) == 0x08200910
    # observed in PTX: the integer operation saturates
    assert mma_op_to_idesc(tcgen05.MmaI8Op(cutlass.Int8, (128, 128, 32), one, source, k, k)) == 0x082004A8
