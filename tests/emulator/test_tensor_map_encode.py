"""The runtime's cuTensorMapEncodeTiled: the bytes CuTe DSL itself writes, and what the driver API refuses."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import pytest

from attn_dsl.emulator import build

ADDRESS = 0x7F1234560000
BF16, F32, TF32, U8 = 9, 7, 11, 0  # CUtensorMapDataType


@dataclass(frozen=True)
class Map:
    type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, of dimensions 1 and up
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 3
    promotion: int = 2
    fill: int = 0
    interleave: int = 0
    address: int = ADDRESS

    def encode(self) -> tuple[int, list[int]]:
        library = ctypes.CDLL(str(build.runtime_library()))
        out = (ctypes.c_uint32 * 32)(*[0xFFFFFFFF] * 32)
        steps = self.steps or (1,) * len(self.dims)
        code = library._cuTensorMapEncodeTiled(
            out,
            self.type,
            len(self.dims),
            ctypes.c_void_p(self.address),
            (ctypes.c_uint64 * 5)(*self.dims),
            (ctypes.c_uint64 * 5)(*self.strides),
            (ctypes.c_uint32 * 5)(*self.box),
            (ctypes.c_uint32 * 5)(*steps),
            self.interleave,
            self.swizzle,
            self.promotion,
            self.fill,
        )
        return code, list(out)


PLAIN = Map(BF16, dims=(128, 256), strides=(256,), box=(64, 64))


def test_a_row_major_bf16_matrix():
    code, words = PLAIN.encode()
    assert code == 0
    assert words[:2] == [ADDRESS & 0xFFFFFFFF, ADDRESS >> 32]
    assert words[2:16] == [0x00046512, 0x10, 0, 0, 0, 0, 0x7F, 0xFF, 0, 0, 0, 0x3F000000, 0x3F, 0]
    assert words[16:] == [0] * 16


def test_five_dimensions_with_packed_heads():
    code, words = Map(BF16, dims=(128, 2, 300, 2, 1), strides=(256, 1024, 512, 0x4B000), box=(64, 2, 64, 1, 1)).encode()
    assert code == 0
    assert words[2:16] == [0x00246542, 0x10, 0x40, 0x20, 0x4B00, 0, 0x7F, 1, 0x12B, 1, 0, 0x3F000000, 0x3F01, 0]


def test_every_field_has_its_bits():
    base = PLAIN.encode()[1]

    def difference(**change: object) -> dict[int, int]:
        words = replace(PLAIN, **change).encode()[1]  # type: ignore[arg-type]
        return {i: a ^ b for i, (a, b) in enumerate(zip(base, words, strict=True)) if a != b}

    assert difference(swizzle=0) == {2: 3 << 13}
    assert difference(swizzle=4) == {2: 1 << 19}
    assert difference(swizzle=6) == {2: 3 << 19}
    assert difference(fill=1) == {2: 1 << 15}
    assert difference(promotion=0) == {2: 2 << 17}
    assert difference(steps=(1, 3)) == {13: 2 << 3}
    assert difference(strides=(1 << 37,)) == {2: 1 << 21, 3: 0x10, 7: 1 << 1}
    assert Map(TF32, (32, 8), (128,), (32, 8)).encode()[1][2] >> 7 & 0xF == 7
    assert Map(TF32, (32, 8), (128,), (32, 8)).encode()[1][2] >> 16 & 1 == 1


@pytest.mark.parametrize(
    "change",
    [
        {"address": ADDRESS + 8},
        {"strides": (264,)},
        {"box": (128, 64)},  # 256 bytes do not fit a swizzle of 128
        {"box": (4, 64)},  # 8 bytes are no multiple of 16
        {"box": (64, 257)},
        {"box": (64, 0)},
        {"dims": (128, 0)},
        {"steps": (1, 9)},
        {"swizzle": 9},
        {"interleave": 1},
        {"type": 13},
    ],
    ids=str,
)
def test_what_the_driver_refuses_is_refused(change: dict[str, object]):
    assert replace(PLAIN, **change).encode()[0] != 0  # type: ignore[arg-type]
