"""Packed rows through shared memory and back, on both virtual devices."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("cutlass")

import cute_packing

from attn_dsl import emulator
from attn_dsl.kernels.pack_gqa import Packing, row_of

ARCHS = ("sm_100a", "sm_90a")
# heads that share a tile, rows of it, threads, head dimension; every number of heads, dims 8 to 256
CASES = [
    (1, 128, 128, 128),
    (2, 128, 32, 64),
    (3, 128, 128, 40),
    (4, 64, 128, 8),
    (5, 128, 128, 128),
    (6, 64, 128, 72),
    (7, 128, 32, 96),
    (8, 128, 64, 192),
    (9, 64, 64, 24),
    (10, 128, 128, 16),
    (11, 64, 128, 256),
    (12, 128, 128, 64),
    (13, 128, 256, 112),
    (14, 64, 32, 80),
    (15, 128, 128, 256),
    (16, 128, 128, 120),
]
SAMPLE = {("sm_100a", 3), ("sm_100a", 7), ("sm_90a", 5), ("sm_90a", 12)}


def strided(make: torch.Generator, batch: int, seq_q: int, heads: int, dim: int) -> torch.Tensor:
    """Random (batch, seq_q, heads, dim): heads outermost in memory, with room after each row, full of NaN."""
    wide = torch.full((heads, batch, seq_q, dim + 8), math.nan).bfloat16()
    wide[..., :dim] = torch.randn(heads, batch, seq_q, dim, generator=make).bfloat16()
    return wide[..., :dim].permute(1, 2, 0, 3)


@pytest.mark.parametrize(
    ("arch", "heads", "rows", "threads", "dim"),
    [
        pytest.param(arch, *case, marks=() if (arch, case[0]) in SAMPLE else pytest.mark.slow)
        for arch in ARCHS
        for case in CASES
    ],
)
def test_rows_go_in_and_out(arch: str, heads: int, rows: int, threads: int, dim: int) -> None:
    """Bit for bit; the tile has zeros past the last row and past the head dimension; nothing else is written."""
    padded = -(-dim // 16) * 16
    groups = 2
    make = torch.Generator().manual_seed(heads)
    with emulator.device(arch, seed=heads, late=1 + heads % 2) as gpu:
        copy = cute_packing.compiled(arch, heads, rows, threads, dim, padded)
        for seq_q in (1, 37, rows // heads + 5):
            q, o = (strided(make, 2, seq_q, groups * heads, dim) for _ in range(2))
            around = o.as_strided((o.shape[0], o.shape[1], o.shape[2], dim + 8), o.stride())
            tiles = -(-heads * seq_q // rows)
            shared = torch.full((tiles * rows, padded, groups, 2), math.nan).bfloat16()
            room = torch.full((2, groups * heads, seq_q + 3), math.nan)
            copy(q, o, shared, room[..., :seq_q])
            assert torch.equal(o, q)
            assert around[..., dim:].isnan().all()
            packed = q.reshape(2, seq_q, groups, heads, dim).permute(1, 3, 4, 2, 0).flatten(0, 1)
            assert torch.equal(shared[: seq_q * heads, :dim], packed)
            assert not shared[seq_q * heads :].any()
            assert not shared[:, dim:].any()
            lse = torch.arange(seq_q) * 1000 + torch.arange(groups * heads)[:, None]
            assert torch.equal(room[..., :seq_q], lse.expand(2, -1, -1).float())
            assert room[..., seq_q:].isnan().all()
    assert not gpu.findings


def test_copies_are_of_128_bits() -> None:
    with emulator.device("sm_100a", record=True) as gpu:
        copy = cute_packing.compiled("sm_100a", 3, 128, 128, 40, 48)
        make = torch.Generator().manual_seed(1)
        q, o = (strided(make, 1, 30, 3, 40) for _ in range(2))
        copy(q, o, torch.zeros(128, 48, 1, 1).bfloat16(), torch.zeros(1, 3, 30))
    ptx = gpu.launches[-1].ptx
    # 128 rows of 6 vectors by 128 threads, two of which share a row
    assert ptx.count("cp.async.cg.shared.global") == 128 * 6 // 128
    assert ptx.count("st.global.v4") == 128 * 6 // 128
    # two passes, in and out, 64-bit addresses; segments of two lanes (PTX ISA, shfl.sync: mask 30, clamp 31)
    assert ptx.count(f", {30 << 8 | 31}, -1;") == 2 * 2 * 2


def test_what_is_a_box() -> None:
    assert Packing(4, 128).box == (4, 32)
    assert Packing(4, 128).place(8, 3) == (2, 3)
    assert row_of(128, 3) == (42, 2)
    assert [heads for heads in range(1, 17) if Packing(heads, 128).by_tma] == [1, 2, 4, 8, 16]
    with pytest.raises(ValueError, match="128 rows is no box of 3 heads"):
        _ = Packing(3, 128).box


def test_threads_that_do_not_divide_a_tile() -> None:
    with emulator.device("sm_100a"), pytest.raises(Exception, match="96 threads copy 12 rows at a time"):
        cute_packing.compiled("sm_100a", 3, 128, 96, 128, 128)


@pytest.mark.slow
def test_rows_farther_apart_than_32_bits_count() -> None:
    """Offsets of rows are 64-bit; memory that nobody touches costs none."""
    apart = 2**31 + 64  # elements from one head to the next
    q = torch.empty(2 * apart + 40 * 64, dtype=torch.bfloat16).as_strided((1, 40, 3, 64), (3 * apart, 64, apart, 1))
    q.copy_(torch.randn(1, 40, 3, 64, generator=torch.Generator().manual_seed(1)))
    with emulator.device("sm_100a"):
        copy = cute_packing.compiled("sm_100a", 3, 128, 128, 64, 64)
        o = torch.full((1, 40, 3, 64), math.nan).bfloat16()
        copy(q, o, torch.zeros(128, 64, 1, 1).bfloat16(), torch.zeros(1, 3, 40))
    assert torch.equal(o, q)
