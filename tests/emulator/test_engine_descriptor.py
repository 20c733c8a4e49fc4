"""Shared-memory descriptors: addresses worked out by hand from the figures of the PTX ISA, and what is refused."""

from __future__ import annotations

import ctypes

import pytest

from attn_dsl.emulator.build import core_library

REFUSED = 0xFFFFFFFF


def address(desc: int, mn: int, k: int, *, wgmma: bool = False, mn_major: bool = False, eb: int = 2) -> int:
    function = ctypes.CDLL(str(core_library())).emu_descriptor_address
    function.restype = ctypes.c_uint32
    return int(function(ctypes.c_uint64(desc), wgmma, mn_major, eb, mn, k))


# Every tile starts at 0x400. The comments add up: row, 8-row group, unit of 16 bytes along K; then the exclusive or.
EXAMPLES = [
    # 1 * 128 + 1 * 1024 + 16 = 0x490, at 0x890; bits 7-9 are 1: unit 1 becomes unit 0
    (0x4000404000010040, 9, 8, {}, 0x880),
    (0x4000004000010040, 9, 8, {"wgmma": True}, 0x880),
    # no swizzle: 1 * 16 + 1 * 128 (SBO) + 1 * 2048 (LBO)
    (0x0000400800800040, 9, 8, {}, 0xC90),
    # 64 bytes: 2 * 64 + 16 = 0x90, at 0x490; bits 7-8 are 1
    (0x8000402000010040, 2, 8, {}, 0x480),
    # MN-major, 32 bytes: unit 2 = LBO 256, k 12 = 4 * 32 + SBO 2048, element 1 = 2, at 0xD82; bit 7 is 1
    (0xC000408000100040, 17, 12, {"mn_major": True}, 0xD92),
    # MN-major tf32, 32-byte atoms: unit 1 = 16, element 1 = 4, k 1 = 128, at 0x494; bits 7-8 go to bits 5-6
    (0x2000402000400040, 5, 1, {"mn_major": True, "eb": 4}, 0x4B4),
    # MN-major, no swizzle: unit 2 = 2 * SBO 256, element 1 = 2, k 9 = 1 * 16 + LBO 128
    (0x0000401000080040, 17, 9, {"mn_major": True}, 0x400 + 512 + 2 + 16 + 128),
]


@pytest.mark.parametrize(("desc", "mn", "k", "options", "want"), EXAMPLES)
def test_worked_addresses(desc: int, mn: int, k: int, options: dict[str, int], want: int):
    assert address(desc, mn, k, **options) == want


@pytest.mark.parametrize(
    ("desc", "options"),
    [
        (0x6000404000010040, {}),  # swizzle code 3
        (0x4000004000010040, {}),  # bits 46-48 are not 1
        (0x4002404000010040, {}),  # base offset
        (0x2000404000010040, {}),  # 32-byte atoms with a 16-bit type
        (0x4000404000010040, {"mn_major": True, "eb": 4}),  # MN-major tf32 without them
        (0x4000402000010040, {}),  # rows of a pattern that overlap
        (0x4000404000010040, {"wgmma": True}),  # the tcgen05 constant in a wgmma descriptor
    ],
)
def test_refused(desc: int, options: dict[str, int]):
    assert address(desc, 0, 0, **options) == REFUSED
