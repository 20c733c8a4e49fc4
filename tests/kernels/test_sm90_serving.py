"""Hopper kernels on pages and on keys in parts, on the virtual device, against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cubin import resources

pytest.importorskip("cutlass")

import serving
from serving import KEYS, LISTS, PACKED, QUERIES, TABLE, USED, check, paged, random

import attn_dsl
from attn_dsl import reference
from attn_dsl.kernels.sm90.build import compile_forward
from attn_dsl.lowering.forward import ShapeClass, select

CAUSAL = "mask = kv_idx <= q_pos\n"
DIM = 64


def queries(batch: int, seq_q: int, heads: int, seed: int = 1) -> torch.Tensor:
    return random(torch.Generator().manual_seed(seed), batch, seq_q, heads, DIM)


def schedule(splits: int) -> str:
    return f"schedule {{ splits = {splits} }}\n"


@pytest.mark.parametrize("page_size", [1, 7])
def test_rows_of_pages(page_size: int) -> None:
    """One kernel for every page size that makes no boxes. NaN in unused slots, garbage behind the tables."""
    lengths = [0, 1, page_size, page_size + 1, 300]
    tensors = {"q": queries(len(lengths), 3, 4), **paged(lengths, page_size, (4, 2), DIM)}
    gpu = check(QUERIES + TABLE + USED + CAUSAL + schedule(1), tensors)
    # K and V of whole tiles of 128 rows, for both K/V heads: rows past a length are filled, not read
    tiles = sum(-(-length // 128) for length in lengths)
    assert gpu.reports[0].engines["cpasync"] == tiles * 2 * 128 * DIM * 2 * 2
    assert gpu.reports[0].config.grid == (len(lengths) * 2, 1, 1)


def test_boxes_of_pages_and_keys_in_parts() -> None:
    """Full tiles by TMA; a sink joins one part alone; empty sequences, and parts without a tile."""
    lengths = [0, 1, 130, 520]
    tensors = {"q": queries(4, 2, 4), **paged(lengths, 16, (4, 2), DIM)}
    gpu = check(QUERIES + TABLE + USED + CAUSAL + "sink = 0.5\n" + schedule(4), tensors)
    assert gpu.reports[0].config.grid == (4 * 2, 4, 1)
    full = sum(length // 128 for length in lengths)
    q_boxes = 2 * (1 + 2 + 4)  # parts that see keys, each of which loads its queries
    tile = 128 * DIM * 2  # bytes, of queries, keys or values
    assert gpu.reports[0].engines["tma_load"] == (full * 2 * 2 + q_boxes) * tile


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
def test_lists_are_read_up_to_the_last_page(length: int) -> None:
    """The list ends there: reading on would leave its memory, which is a finding."""
    tensors = {"q": queries(1, 1, 2), **paged([length], 16, (2, 1), DIM)}
    check(QUERIES + LISTS + USED + schedule(1), tensors)


def test_prefill_and_decode_in_one_batch() -> None:
    """Packed queries of several lengths, page lists instead of a table."""
    counts, lengths = [1, 0, 150, 1, 3], [300, 5, 150, 0, 77]
    tensors = paged(lengths, 5, (3, 1), DIM)
    make = torch.Generator().manual_seed(4)
    tensors |= {"q": random(make, sum(counts), 3, DIM), "cu_q": torch.tensor([0, *counts]).cumsum(0).int()}
    check(PACKED + LISTS + USED + CAUSAL, tensors)


@pytest.mark.slow
def test_the_number_of_parts_is_chosen_for_few_queries() -> None:
    """Room for 16 tiles of keys, two blocks, and 132 multiprocessors to put parts of them on."""
    tensors = {"q": queries(1, 1, 4), **paged([2000], 16, (4, 2), DIM)}
    tensors["page_table"] = torch.nn.functional.pad(tensors["page_table"], (0, 2), value=-1)
    gpu = check(QUERIES + TABLE + USED, tensors)
    assert gpu.reports[0].config.grid == (2, 16, 1)  # a tile of keys each
    assert len(gpu.reports) == 2


@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 8])
def test_dense_keys_in_parts(splits: int) -> None:
    make = torch.Generator().manual_seed(6)
    tensors = {"q": queries(2, 5, 4), "k": random(make, 2, 700, 2, DIM), "v": random(make, 2, 700, 2, DIM)}
    check(QUERIES + KEYS + CAUSAL + "sink = 1.5\n" + schedule(splits), tensors)


@pytest.mark.slow
def test_a_joint_pool_as_views() -> None:
    tensors = {"q": queries(3, 2, 4), **paged([0, 33, 400], 16, (4, 2), DIM)}
    tensors["kv"] = torch.stack([tensors["k"], tensors["v"]], 1)
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
@pytest.mark.parametrize("page_size", [1, 7, 8, 16, 64, 128, 256])
@pytest.mark.parametrize("splits", [1, 2, 3, 8, None])
def test_every_page_size_in_any_parts(page_size: int, splits: int | None) -> None:
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 1000]
    tensors = {"q": queries(6, 4, 8), **paged(lengths, page_size, (8, 2), DIM, seed=page_size)}
    check(QUERIES + TABLE + USED + CAUSAL + ("" if splits is None else schedule(splits)), tensors)


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 4, 5, 8, 16])
def test_groups(group: int) -> None:
    tensors = {"q": queries(3, 5, group), **paged([0, 33, 400], 16, (group, 1), DIM, seed=group)}
    check(QUERIES + TABLE + USED + CAUSAL + schedule(2), tensors)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(128, 128), (256, 256)])
@pytest.mark.parametrize("changes", [{}, {"page_size": 16}, {"partial": True}, {"page_size": 16, "partial": True}])
def test_nothing_is_spilled(dims: tuple[int, int], changes: dict[str, int], tmp_path: Path) -> None:
    spec = attn_dsl.parse(QUERIES + TABLE + USED + CAUSAL, name="paged")
    compile_forward(select(spec, ShapeClass(*dims, pack=4, **changes)), f"--keep-cubin --dump-dir {tmp_path}")
    (cubin,) = tmp_path.glob("*.cubin")
    assert resources(cubin.read_bytes()).stack == 0


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
    """Sequences that begin alike share pages. The same result as without pages, of keys that were gathered before."""
    shared, lengths = 3 * page_size, [3 * page_size + 5, 3 * page_size, 300]
    tensors = {"q": queries(3, 2, 4), **paged(lengths, page_size, (4, 2), DIM)}
    tensors["page_table"][1:, :3] = tensors["page_table"][0, :3]
    text = QUERIES + TABLE + USED + CAUSAL + schedule(1)
    check(text, tensors)
    dense = serving.gathered(tensors, lengths, page_size, fill=0.0)
    assert torch.equal(dense["k"][0, :shared], dense["k"][1, :shared])
    dense_spec = attn_dsl.parse(QUERIES + KEYS + "used: i32[batch]\n" + USED + CAUSAL, name="serving")
    o, lse = reference.attention(dense_spec, dense, {}, precision="float64")
    paged_spec = attn_dsl.parse(text, name="serving")
    given = {tensor.name: tensors[tensor.name] for tensor in paged_spec.tensors}
    again = reference.attention(paged_spec, given, {}, precision="float64")
    torch.testing.assert_close(again, (o, lse), rtol=1e-12, atol=1e-12)


def test_a_tree_mask_for_each_request() -> None:
    """Draft tokens of several requests behind each other, each seeing its ancestors and what was there before."""
    counts, lengths, nodes = [5, 0, 9, 1], [140, 30, 9, 3], 16
    make = torch.Generator().manual_seed(11)
    tensors = paged(lengths, 16, (4, 2), DIM, seed=3)
    tensors |= {"q": random(make, sum(counts), 4, DIM), "cu_q": torch.tensor([0, *counts]).cumsum(0).int()}
    tensors["seen"] = (torch.rand(sum(counts), nodes, generator=make) < 0.5).contiguous()
    drafts = "seen: bool[total_q, nodes]\nlet place = kv_idx - (seq_k - seq_q)\n"
    check(PACKED + LISTS + USED + drafts + "mask = place < 0 or seen[q_idx, place]\n", tensors)


@pytest.mark.parametrize("layout", [TABLE, LISTS])
def test_a_chunk_at_an_offset(layout: str) -> None:
    """Chunks of a prompt whose keys are in the pages already, and of which later keys are too."""
    lengths = [200, 40, 12, 5]
    tensors = {"q": queries(4, 5, 4), **paged(lengths, 16, (4, 2), DIM, seed=4)}
    tensors["cached"] = torch.tensor([130, 0, 7, 3], dtype=torch.int32)
    text = QUERIES + layout + USED + "cached: i32[batch]\nalign offset(cached[b])\n"
    check(text + CAUSAL + schedule(1), tensors)
