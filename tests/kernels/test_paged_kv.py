"""Tiles gathered out of pages, on the virtual device: equal bit by bit, and no byte read that no sequence uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from paged_gather import Gather, gathered

from attn_dsl import emulator
from attn_dsl.kernels.paged_kv import PagedBoxes, PagedRows, PagingError

PAGE_SIZES = (1, 7, 8, 16, 64, 128, 256)
ARCHITECTURES = ("sm_90a", "sm_100a")
HEADS = 2
GARBAGE = 2**31 - 1  # a page number that reads far outside of the pool


def sampled(values: tuple[int, ...], kept: set[tuple[str, int]]) -> list:
    """Every architecture with every value; all but those `kept` only in the full sweep."""
    pairs = [(arch, value) for arch in ARCHITECTURES for value in values]
    return [pytest.param(*pair, marks=() if pair in kept else pytest.mark.slow) for pair in pairs]


def lengths_for(page_size: int) -> list[int]:
    return [0, 1, page_size - 1, page_size, page_size + 1, 1000]


@dataclass(frozen=True)
class Pools:
    """Sequences in shuffled pages. What no sequence uses is NaN (of bytes: 255), and page lists end in garbage."""

    k: Tensor  # [pages, page_size, heads, dim]
    v: Tensor
    pages: Tensor  # i32: lists of all sequences, one behind the other
    starts: Tensor  # i32[batch]
    lengths: Tensor  # i32[batch]
    left_pad: Tensor  # i32[batch]
    wanted_k: list[Tensor]  # per sequence [heads, length, dim]
    wanted_v: list[Tensor]


def make_pools(
    lengths: list[int],
    page_size: int,
    dims: tuple[int, int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    left_pad: list[int] | None = None,
    tail: int = 3,
    shared: bool = True,
    layout: str = "separate",
    seed: int = 0,
) -> Pools:
    """With `shared` the first page of every sequence that fills it is one and the same."""
    make = torch.Generator().manual_seed(seed)
    left_pad = left_pad or [0] * len(lengths)
    counts = [-(-(n + pad) // page_size) if n else 0 for n, pad in zip(lengths, left_pad, strict=True)]
    free = torch.randperm(sum(counts) + 2, generator=make).tolist()
    pools = _empty(len(free), page_size, dims, dtype, layout)
    lists: list[list[int]] = []
    first: int | None = None
    for n, pad, count in zip(lengths, left_pad, counts, strict=True):
        own = [free.pop() for _ in range(count)]
        if shared and not pad and n >= page_size:
            first = own[0] if first is None else first
            own[0] = first
        lists.append(own)
        slots = torch.arange(pad, pad + n)
        pages = torch.tensor(own or [0])[slots // page_size]
        for pool in pools:
            before = pool[pages, slots % page_size]  # rows of a shared page may be there already
            new = _random(before.shape, dtype, make)
            pool[pages, slots % page_size] = torch.where(_is_unused(before), new, before)
    entries, starts = [], []
    for own in lists:
        starts.append(len(entries))
        entries += own + [GARBAGE, -7, GARBAGE][:tail]
    wanted = [
        [_sequence(pool, own, pad, n) for own, pad, n in zip(lists, left_pad, lengths, strict=True)] for pool in pools
    ]
    ints = [torch.tensor(values or [0], dtype=torch.int32) for values in (entries, starts, lengths, left_pad)]
    return Pools(*pools, *ints, *wanted)


def _random(shape: torch.Size, dtype: torch.dtype, make: torch.Generator) -> Tensor:
    if dtype is torch.uint8:
        return torch.randint(0, 255, shape, generator=make, dtype=dtype)
    return torch.randn(shape, generator=make).to(dtype)


def _is_unused(values: Tensor) -> Tensor:
    return values == 255 if values.dtype is torch.uint8 else values.isnan()


def _empty(pages: int, page_size: int, dims: tuple[int, int], dtype: torch.dtype, layout: str) -> list[Tensor]:
    unused = math.nan if dtype.is_floating_point else 255
    if layout == "joint":
        pool = torch.full((pages, 2, page_size, HEADS, dims[0]), unused, dtype=dtype)
        return [pool[:, 0], pool[:, 1]]
    if layout == "HND":
        return [torch.full((pages, HEADS, page_size, dim), unused, dtype=dtype).transpose(1, 2) for dim in dims]
    return [torch.full((pages, page_size, HEADS, dim), unused, dtype=dtype) for dim in dims]


def _sequence(pool: Tensor, pages: list[int], pad: int, length: int) -> Tensor:
    rows = torch.cat([pool[page] for page in pages]) if pages else pool.new_empty(0, *pool.shape[2:])
    return rows[pad : pad + length].transpose(0, 1)


def check(gather: Gather, arch: str, pools: Pools, late: int = 0) -> emulator.Device:
    """Runs `gather`; any finding of the device is an error."""
    longest = int(pools.lengths.max())
    operands = (pools.k, pools.v, pools.pages, pools.starts, pools.lengths, pools.left_pad)
    k, v, gpu = gathered(gather, arch, *operands, longest, late)
    for out, wanted in ((k, pools.wanted_k), (v, pools.wanted_v)):
        for b, rows in enumerate(wanted):
            assert torch.equal(out[b, :, : rows.shape[1], : rows.shape[2]], rows), f"sequence {b}"
            assert (out[b, :, rows.shape[1] :] == 0).all(), f"rows past sequence {b}"
            assert (out[b, :, :, rows.shape[2] :] == 0).all(), f"columns past dim of sequence {b}"
    return gpu


def rows_of(rows: int, dim: int, threads: int, bits: int = 16) -> PagedRows:
    return PagedRows(rows, -(-dim // 16) * 16, dim, bits, threads)


@pytest.mark.parametrize(("arch", "page_size"), sampled(PAGE_SIZES, {("sm_90a", 7), ("sm_100a", 16), ("sm_90a", 256)}))
def test_rows(arch: str, page_size: int) -> None:
    """Every page size by one kernel; shared pages, NaN in unused slots, garbage behind every page list."""
    plan = rows_of(128, 64, 128)
    gpu = check(Gather(plan, plan), arch, make_pools(lengths_for(page_size), page_size, (64, 64), seed=page_size))
    # 8 tiles of 128 keys and as many of values, for 6 sequences and 2 heads
    assert gpu.reports[0].engines["tma_load"] == 0
    assert gpu.reports[0].engines["tma_store"] == 8 * 2 * 128 * 64 * 2 * 6 * HEADS


@pytest.mark.parametrize(
    ("arch", "page_size"),
    sampled((8, 16, 24, 64, 128, 192, 256), {("sm_90a", 16), ("sm_100a", 64), ("sm_90a", 24), ("sm_90a", 192)}),
)
def test_boxes(arch: str, page_size: int) -> None:
    """Full tiles by TMA, and nothing more by TMA; the tile in which a sequence ends by rows."""
    plan = rows_of(128, 64, 32)
    pools = make_pools(lengths_for(page_size), page_size, (64, 64), seed=page_size)
    gpu = check(Gather(plan, plan, PagedBoxes(128, page_size)), arch, pools)
    full = sum(length // 128 for length in lengths_for(page_size))
    assert gpu.reports[0].engines["tma_load"] == full * 2 * 128 * 64 * 2 * HEADS


@pytest.mark.parametrize("late", [1, 2])
def test_asynchronous_copies_may_be_late(late: int) -> None:
    plan = rows_of(128, 64, 32)
    pools = make_pools(lengths_for(16), 16, (64, 64))
    check(Gather(plan, plan, PagedBoxes(128, 16)), "sm_90a", pools, late)
    check(Gather(plan, plan), "sm_90a", pools, late)


@pytest.mark.parametrize(
    ("plans", "dims"),
    [
        ((rows_of(176, 72, 128), rows_of(176, 16, 128)), (72, 16)),  # 44 rows a warp; padded columns; two lanes a row
        ((rows_of(48, 256, 64), rows_of(48, 24, 64)), (256, 24)),
        ((rows_of(16, 128, 128), rows_of(16, 512, 128)), (128, 512)),
    ],
)
def test_tiles_of_any_shape(plans: tuple[PagedRows, PagedRows], dims: tuple[int, int]) -> None:
    check(Gather(*plans), "sm_90a", make_pools([0, 5, 17, 200], 7, dims))


@pytest.mark.parametrize("layout", ["joint", "HND"])
@pytest.mark.parametrize("boxes", [None, PagedBoxes(64, 16)])
def test_pools_of_any_strides(layout: str, boxes: PagedBoxes | None) -> None:
    plan = rows_of(64, 64, 32)
    check(Gather(plan, plan, boxes), "sm_90a", make_pools([15, 200, 64], 16, (64, 64), layout=layout))


def test_bytes() -> None:
    """Elements of 8 bits: 16 of them in one copy, boxes of the same swizzle."""
    plan = rows_of(64, 64, 32, bits=8)
    pools = make_pools([15, 200, 64], 16, (64, 64), dtype=torch.uint8)
    check(Gather(plan, plan, PagedBoxes(64, 16)), "sm_100a", pools)


@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_left_padding(page_size: int) -> None:
    """Padding in front may hold NaN, and its pages are never looked at, not even in the list."""
    lengths, padding = [0, 1, 20, 150, 64], [3, 40, 7, 33, 16]
    pools = make_pools(lengths, page_size, (64, 64), left_pad=padding)
    for start, pad in zip(pools.starts.tolist(), padding, strict=True):
        unused = pad // page_size
        pools.pages[start : start + unused] = GARBAGE
    plan = rows_of(64, 64, 128)
    check(Gather(plan, plan), "sm_90a", pools)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 250])
def test_entries_past_the_last_page_are_not_read(length: int) -> None:
    """The list ends with the last page in use: reading on would leave its memory, which is a finding."""
    pools = make_pools([length], 16, (64, 64), tail=0)
    plan = rows_of(128, 64, 32)
    for boxes in (None, PagedBoxes(128, 16)):
        check(Gather(plan, plan, boxes), "sm_90a", pools)


def test_what_no_warps_can_copy() -> None:
    with pytest.raises(PagingError, match="48 threads copy"):
        PagedRows(128, 64, 64, 16, 48)
    with pytest.raises(PagingError, match="130 rows is not shared evenly by 4 warps"):
        PagedRows(130, 64, 64, 16, 128)
    with pytest.raises(PagingError, match="dim is 60; one copy moves 8 elements"):
        PagedRows(128, 64, 60, 16, 128)
    with pytest.raises(PagingError, match="pages of 12 rows make no boxes of a tile of 128"):
        PagedBoxes(128, 12)
