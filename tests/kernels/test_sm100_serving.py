"""Blackwell kernels on pages and on keys in parts, on the virtual device, against the reference."""

from __future__ import annotations

import math
import random as chance
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass")

import gates
import serving
from serving import KEYS, LISTS, PACKED, QUERIES, TABLE, USED, paged, random
from torch import Tensor

import attn_dsl
from attn_dsl import emulator
from attn_dsl.lowering.forward import ShapeClass, sm100
from attn_dsl.runtime import bind
from attn_dsl.runtime.kernels import SM100

CAUSAL = "mask = kv_idx <= q_pos\n"
DIM = 64
PAGE_SIZES = (1, 7, 8, 16, 64, 128, 256)
SPLITS = (1, 2, 3, 8, None)
GROUPS = (1, 4, 5, 8, 16)


def queries(batch: int, seq_q: int, heads: int, seed: int = 1, dim: int = DIM) -> Tensor:
    return random(torch.Generator().manual_seed(seed), batch, seq_q, heads, dim)


def schedule(splits: int | None) -> str:
    return "" if splits is None else f"schedule {{ splits = {splits} }}\n"


def check(text: str, tensors: dict[str, Tensor], late: int = 1, seed: int = 0) -> emulator.Device:
    return serving.check(text, tensors, late=late, target=SM100, seed=seed)


def lengths_of(page_size: int) -> list[int]:
    return [0, 1, page_size - 1, page_size, page_size + 1, 1000]


def every_case() -> list[tuple[int, int | None, int]]:
    """(page size, parts, group)."""
    return [(size, splits, group) for size in PAGE_SIZES for splits in SPLITS for group in GROUPS]


def run_case(page_size: int, splits: int | None, group: int) -> None:
    """Decoding of 1 to 16 tokens: NaN in unused slots, shuffled pages, garbage behind the tables."""
    place = every_case().index((page_size, splits, group))
    lengths = lengths_of(page_size)
    heads = (group, 1) if group > 4 else (2 * group, 2)
    tensors = {
        "q": queries(len(lengths), 1 + place * 7 % 16, heads[0], seed=place),
        **paged(lengths, page_size, heads, DIM, seed=place),
    }
    check(QUERIES + TABLE + USED + CAUSAL + schedule(splits), tensors, late=place % 3, seed=place)


@pytest.mark.parametrize("case", chance.Random(6).sample(every_case(), 3), ids=str)
def test_a_sample(case: tuple[int, int | None, int]) -> None:
    run_case(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", every_case(), ids=str)
def test_every_case(case: tuple[int, int | None, int]) -> None:
    run_case(*case)


@pytest.mark.parametrize("page_size", [7, 16])
def test_what_a_kernel_moves(page_size: int) -> None:
    """Row by row whole tiles, of whose rows those past a length are not read; in boxes full tiles by TMA, and the tile
    in which a sequence ends row by row."""
    lengths, heads, tile = [0, 1, 130, 520], (4, 2), 128
    tensors = {"q": queries(4, 2, heads[0]), **paged(lengths, page_size, heads, DIM)}
    report = check(QUERIES + TABLE + USED + CAUSAL + schedule(1), tensors).reports[0]
    tiles = sum(-(-length // tile) for length in lengths)
    full = 0 if page_size == 7 else sum(length // tile for length in lengths)
    both = heads[1] * 2 * tile * DIM * 2  # bytes of a tile of keys and one of values, of all heads
    assert report.engines["cpasync"] == (tiles - full) * both
    in_queries = heads[1] * sum(length > 0 for length in lengths) * 128 * DIM * 2
    assert report.engines["tma_load"] == full * both + in_queries


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
def test_lists_are_read_up_to_the_last_page(length: int) -> None:
    """The list ends there: reading on would leave its memory, which is a finding."""
    tensors = {"q": queries(1, 1, 2), **paged([length], 16, (2, 1), DIM)}
    check(QUERIES + LISTS + USED + schedule(1), tensors)


def test_prefill_and_decode_in_one_batch() -> None:
    """Packed queries of several lengths, page lists instead of a table, rows of Q and O one by one."""
    counts, lengths = [1, 0, 150, 1, 3], [300, 5, 150, 0, 77]
    tensors = paged(lengths, 5, (3, 1), DIM)
    make = torch.Generator().manual_seed(4)
    tensors |= {"q": random(make, sum(counts), 3, DIM), "cu_q": torch.tensor([0, *counts]).cumsum(0).int()}
    check(PACKED + LISTS + USED + CAUSAL, tensors, late=2, seed=3)


def test_a_chunk_of_a_prompt() -> None:
    """Two query tiles of a chunk that begins where the call says; the same kernel for every offset."""
    text = QUERIES + TABLE + USED + "offset: i32[batch]\nalign offset(offset[b])\n" + CAUSAL
    lengths = [300, 412]
    tensors = {"q": queries(2, 200, 2), **paged(lengths, 16, (2, 1), DIM)}
    for offsets in ([100, 212], [0, 37]):
        check(text, tensors | {"offset": torch.tensor(offsets, dtype=torch.int32)}, late=2)


def test_a_sink_joins_one_part_alone() -> None:
    """Dense keys; a part without a tile, whose rows the sink gives a finite logarithm."""
    make = torch.Generator().manual_seed(6)
    tensors = {"q": queries(2, 5, 4), "k": random(make, 2, 200, 2, DIM), "v": random(make, 2, 200, 2, DIM)}
    gpu = check(QUERIES + KEYS + CAUSAL + "sink = 1.5\n" + schedule(3), tensors)
    assert [report.config.grid for report in gpu.reports] == [(4, 3, 1), (10, 1, 1)]
    empty = {name: tensor[:, :0] if name != "q" else tensor for name, tensor in tensors.items()}
    check(QUERIES + KEYS + CAUSAL + "sink = 1.5\n" + schedule(3), empty)


def test_the_number_of_parts_is_chosen_for_few_queries() -> None:
    """Few blocks and many multiprocessors: a part for each tile of keys. As many rows as fill a tile, and one more."""
    make = torch.Generator().manual_seed(2)
    keys = {name: random(make, 1, 1500, 1, DIM) for name in ("k", "v")}
    for seq_q, grid in ((16, (1, 12, 1)), (17, (1, 1, 1))):
        gpu = check(QUERIES + KEYS + CAUSAL, {"q": queries(1, seq_q, 8), **keys})
        assert gpu.reports[0].config.grid == grid


@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 8, 40, 256])
@pytest.mark.parametrize("rows", [5, 40])
def test_dense_keys_in_parts(splits: int, rows: int) -> None:
    """More than one tile of queries too, and more parts than tiles."""
    make = torch.Generator().manual_seed(6)
    tensors = {"q": queries(2, rows, 8), "k": random(make, 2, 700, 2, DIM), "v": random(make, 2, 700, 2, DIM)}
    check(QUERIES + KEYS + CAUSAL + "sink = 1.5\n" + schedule(splits), tensors)


@pytest.mark.slow
def test_parts_of_packed_sequences() -> None:
    counts, lengths = [3, 0, 150, 1], [300, 5, 150, 0]
    tensors = paged(lengths, 8, (4, 2), DIM)
    make = torch.Generator().manual_seed(4)
    tensors |= {"q": random(make, sum(counts), 4, DIM), "cu_q": torch.tensor([0, *counts]).cumsum(0).int()}
    check(PACKED + TABLE + USED + CAUSAL + schedule(3), tensors)


@pytest.mark.parametrize("pages_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_joint_pool_as_views(pages_first: bool) -> None:
    """Of heads behind rows (NHD) and of rows behind heads (HND)."""
    tensors = {"q": queries(3, 2, 4), **paged([0, 33, 400], 16, (4, 2), DIM)}
    joint = torch.stack([tensors["k"], tensors["v"]], 1)
    tensors["kv"] = joint if pages_first else joint.transpose(2, 3).contiguous().transpose(2, 3)
    pools = "kv: bf16[pages, 2, page_size, kv_heads, dim]\nview k = kv[:, 0, :, :, :]\nview v = kv[:, 1, :, :, :]\n"
    table = TABLE.replace("k, v: bf16[pages, page_size, kv_heads, dim]\n", pools)
    check(QUERIES + table + USED + CAUSAL + schedule(1), tensors)


@pytest.mark.slow
def test_left_padding_in_pages() -> None:
    lengths, pads = [0, 20, 200], [3, 17, 40]
    tensors = {"q": queries(3, 2, 2), **paged(lengths, 16, (2, 2), DIM, pads=pads)}
    text = QUERIES + TABLE + "pad: i32[batch]\nlengths k { used = used, left_pad = pad }\n" + CAUSAL + schedule(1)
    check(text, tensors)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [5, 8, 32])
@pytest.mark.parametrize("dims", [(40, 40), (96, 96), (128, 128), (192, 192), (200, 200), (256, 256)])
def test_head_dimensions(dims: tuple[int, int], page_size: int) -> None:
    """Rows in one part and in several, with and without padding."""
    for place, splits in enumerate((1, 3)):
        lengths = [0, 130, 300]
        tensors = {"q": queries(3, 3, 4, dim=dims[0]), **paged(lengths, page_size, (4, 2), dims[0], seed=place)}
        check(QUERIES + TABLE + USED + CAUSAL + schedule(splits), tensors, late=1 + place)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)])
@pytest.mark.parametrize("changes", [{}, {"page_size": 16}, {"partial": True}, {"page_size": 16, "partial": True}])
def test_what_is_spilled(dims: tuple[int, int], changes: dict[str, Any]) -> None:
    """Nothing with two query tiles; with one, ptxas keeps a number of the sequence in local memory in some kernels."""
    for text in (QUERIES + TABLE, PACKED + LISTS):
        plan = sm100.select(attn_dsl.parse(text + USED + CAUSAL, name="paged"), ShapeClass(*dims, pack=4, **changes))
        found = gates.compiled_or_skip(plan)
        assert found.stack <= (8 if plan.query_tiles == 1 else 0)
        assert [problem for problem in found.broken(plan) if "local memory" not in problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 16, 128])
def test_a_decode_step_reads_keys_and_values_once(page_size: int) -> None:
    """Bytes moved, those of queries, outputs and tables among them, are at most 1.05 times those of K, V and tables."""
    heads, length = (8, 2), 4096
    tensors = {"q": queries(2, 1, heads[0]), **paged([length, length], page_size, heads, DIM)}
    gpu = check(QUERIES + TABLE + USED + CAUSAL + schedule(1), tensors, late=0)
    assert serving.moved(gpu) <= 1.05 * serving.least(2 * [length], page_size, heads[1], DIM)


@pytest.mark.parametrize("page_size", [7, 16])
def test_shared_pages_are_those_of_gathered_keys(page_size: int) -> None:
    """Sequences that begin alike share pages: bit for bit the result of keys that were gathered into tensors before."""
    lengths = [3 * page_size + 5, 3 * page_size, 300]
    tensors = {"q": queries(3, 2, 4), **paged(lengths, page_size, (4, 2), DIM)}
    tensors["page_table"][1:, :3] = tensors["page_table"][0, :3]
    text = QUERIES + TABLE + USED + CAUSAL + schedule(1)
    check(text, tensors)
    dense = serving.gathered(tensors, lengths, page_size, fill=math.nan)
    dense_text = QUERIES + KEYS + "used: i32[batch]\n" + USED + CAUSAL + schedule(1)
    results = []
    for one, given in ((text, tensors), (dense_text, dense)):
        runner = serving.kernels(one, SM100)
        named = {tensor.name: given[tensor.name] for tensor in runner.spec.tensors}
        with emulator.device("sm_100a", late=2, strict=True):
            results.append(runner.launch(bind(runner.spec, (), named, False), None, None))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("kind", "query", "page_size", "splits"),
    [
        ("e4m3", "bf16", 16, 1),
        pytest.param("e4m3", "f16", 7, 3, marks=pytest.mark.slow),
        pytest.param("e5m2", "bf16", 1, 2, marks=pytest.mark.slow),
        pytest.param("e5m2", "f16", 128, 1, marks=pytest.mark.slow),
    ],
)
def test_keys_of_8_bits_in_pages(kind: str, query: str, page_size: int, splits: int) -> None:
    """Factors by batch entry and head, NaN in unused slots, one to six tiles."""
    lengths = [0, 1, 130, 700]
    tensors = serving.descaled({"q": queries(4, 2, 4), **paged(lengths, page_size, (4, 2), DIM)}, kind)
    tensors["q"] = tensors["q"].half() if query == "f16" else tensors["q"]
    text = QUERIES + TABLE + USED + CAUSAL + serving.DESCALES + schedule(splits)
    check(serving.narrow(text, kind, query), tensors, late=2, seed=splits)


@pytest.mark.parametrize("dim", [128, pytest.param(256, marks=pytest.mark.slow)])
def test_dense_keys_of_8_bits(dim: int) -> None:
    """Rows in one part and in two; numbers of tiles from one on."""
    make = torch.Generator().manual_seed(6)
    text = serving.narrow(QUERIES + KEYS + CAUSAL + serving.DESCALES + schedule(1))
    for seq_k in (100, 200, 500):
        tensors = {"q": queries(1, 140, 4, dim=dim), **{n: random(make, 1, seq_k, 2, dim) for n in ("k", "v")}}
        check(text, serving.descaled(tensors), late=1)


def test_memory_of_bytes_is_in_the_plan() -> None:
    spec = attn_dsl.parse(serving.narrow(QUERIES + TABLE + USED + CAUSAL), name="narrow")
    for dims, tile in (((128, 128), 128), ((256, 256), 64)):
        plan = sm100.select(spec, ShapeClass(*dims, pack=4))
        assert dict(plan.shared_map)["v before it is widened"] == 2 * tile * dims[1]
        assert (plan.tile_k, plan.query_tiles, plan.role("load").warps) == (tile, 1, 4)
    wide = attn_dsl.parse(serving.narrow(QUERIES + TABLE + USED) + "schedule { tile_q = 256 }\n", name="narrow")
    with pytest.raises(attn_dsl.UnsupportedError, match="keys and values are widened for one tile of 128 rows"):
        sm100.select(wide, ShapeClass(64, 64))
