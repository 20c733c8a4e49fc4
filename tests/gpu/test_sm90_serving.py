"""Pages, keys in parts, and what an engine does around them, on a Hopper GPU against float64."""

from __future__ import annotations

import math

import pytest
import torch
from serving import KEYS, LISTS, PACKED, QUERIES, TABLE, USED, paged, random
from torch import Tensor

import attn_dsl

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not IS_HOPPER, reason="no GPU of compute capability 9.0")

CAUSAL = "mask = kv_idx <= q_pos\n"
HEADS, DIM = (8, 2), 128


def on_device(tensors: dict[str, Tensor], text: str) -> tuple[attn_dsl.AttentionSpec, dict[str, Tensor]]:
    spec = attn_dsl.parse(text, name="serving")
    return spec, {tensor.name: tensors[tensor.name].cuda() for tensor in spec.tensors}


def assert_right(spec: attn_dsl.AttentionSpec, given: dict[str, Tensor], o: Tensor, lse: Tensor) -> None:
    exact, exact_lse = attn_dsl.compile(spec, target="reference-f64")(**given, return_lse=True)
    assert torch.isneginf(exact_lse).equal(torch.isneginf(lse))
    seen = ~torch.isneginf(exact_lse)
    torch.testing.assert_close(lse[seen], exact_lse[seen], atol=1e-4, rtol=1e-5)
    # weights are rounded to bf16 (2^-9), and so is the output
    assert (o.double() - exact.double()).abs().max() < 2**-6 * max(float(exact.abs().max()), 1.0)


@pytest.mark.parametrize("page_size", [1, 7, 8, 16, 64, 128, 256])
@pytest.mark.parametrize("splits", ["", *(f"schedule {{ splits = {count} }}\n" for count in (1, 3))])
def test_pages(page_size: int, splits: str) -> None:
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 1000]
    make = torch.Generator().manual_seed(page_size)
    tensors = {"q": random(make, 6, 4, HEADS[0], DIM), **paged(lengths, page_size, HEADS, DIM)}
    spec, given = on_device(tensors, QUERIES + TABLE + USED + CAUSAL + "sink = 0.5\n" + splits)
    o, lse = attn_dsl.compile(spec, target="sm90")(**given, return_lse=True)
    assert_right(spec, given, o, lse)


def test_prefill_and_decode_in_one_batch_of_page_lists() -> None:
    counts, lengths = [1, 0, 150, 1, 3], [300, 5, 150, 0, 77]
    make = torch.Generator().manual_seed(4)
    tensors = paged(lengths, 16, HEADS, DIM)
    tensors |= {"q": random(make, sum(counts), HEADS[0], DIM), "cu_q": torch.tensor([0, *counts]).cumsum(0).int()}
    spec, given = on_device(tensors, PACKED + LISTS + USED + CAUSAL)
    o, lse = attn_dsl.compile(spec, target="sm90")(**given, return_lse=True)
    assert_right(spec, given, o, lse)


def test_the_same_bits_every_time() -> None:
    make = torch.Generator().manual_seed(6)
    k, v = (random(make, 2, 5000, HEADS[1], DIM) for _ in range(2))
    spec, given = on_device({"q": random(make, 2, 1, HEADS[0], DIM), "k": k, "v": v}, QUERIES + KEYS + CAUSAL)
    compiled = attn_dsl.compile(spec, target="sm90")
    o, lse = compiled(**given, return_lse=True)
    assert_right(spec, given, o, lse)
    for _ in range(50):
        again, lse_again = compiled(**given, return_lse=True)
        assert torch.equal(o, again)
        assert torch.equal(lse, lse_again)


def test_a_captured_step_appends_and_attends() -> None:
    """One CUDA graph of a decode step, replayed with new rows, lengths and another page table."""
    make = torch.Generator().manual_seed(7)
    lengths = [31, 0, 200]
    tensors = {"q": random(make, 3, 1, HEADS[0], DIM), **paged(lengths, 16, HEADS, DIM)}
    # each sequence has a page of its own to grow into
    pools = {name: torch.cat([tensors[name], torch.zeros_like(tensors[name][:3])]) for name in ("k", "v")}
    table = torch.nn.functional.pad(tensors["page_table"], (0, 1), value=-1)
    for b, length in enumerate(lengths):
        table[b, -(-length // 16) :] = len(tensors["k"]) + b
    spec, given = on_device(tensors | pools | {"page_table": table}, QUERIES + TABLE + USED + CAUSAL)
    compiled = attn_dsl.compile(spec, target="sm90")
    new_k, new_v = (random(make, 3, 1, HEADS[1], DIM).cuda() for _ in range(2))
    out, lse = torch.full_like(given["q"], math.nan), torch.full((3, HEADS[0], 1), math.nan, device="cuda")

    def step() -> None:
        used = attn_dsl.append_kv(given["k"], given["v"], new_k, new_v, given["page_table"], given["used"])
        given["used"].copy_(used)
        compiled(**given, out=out, lse=lse)

    step()
    assert_right(spec, given, out, lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        new_k.normal_()
        new_v.normal_()
        given["q"].normal_()
        graph.replay()
        assert_right(spec, given, out, lse)
    assert given["used"].tolist() == [length + 4 for length in lengths]


def test_merge_on_the_device() -> None:
    make = torch.Generator().manual_seed(8)
    k, v = (random(make, 2, 600, HEADS[1], DIM).cuda() for _ in range(2))
    q = random(make, 2, 1, HEADS[0], DIM).cuda()
    spec = attn_dsl.parse(QUERIES + KEYS, name="serving")
    compiled = attn_dsl.compile(spec, target="sm90")
    parts = [compiled(q, k[:, rows], v[:, rows], return_lse=True) for rows in (slice(0, 250), slice(250, 600))]
    o, lse = attn_dsl.merge(*parts[0], *parts[1])
    assert_right(spec, {"q": q, "k": k, "v": v}, o, lse)
