"""Pages, keys in parts, and what an engine does around them, on a Hopper GPU against float64."""

from __future__ import annotations

import math

import pytest
import torch
from serving import BAD_CALLS, DESCALES, KEYS, LISTS, PACKED, QUERIES, TABLE, USED, descaled, narrow, paged, random
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
@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
def test_pages(page_size: int, kind: str) -> None:
    """NaN in unused slots, garbage behind the tables; keys in any number of parts. Kernels are the same for each."""
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 1000]
    make = torch.Generator().manual_seed(page_size)
    tensors = {"q": random(make, 6, 4, HEADS[0], DIM), **paged(lengths, page_size, HEADS, DIM)}
    text = QUERIES + TABLE + USED
    if kind != "bf16":
        text, tensors = narrow(text, kind) + DESCALES, descaled(tensors, kind)
    for splits in ("", *(f"schedule {{ splits = {count} }}\n" for count in (1, 2, 3, 8, 256))):
        spec, given = on_device(tensors, text + CAUSAL + "sink = 0.5\n" + splits)
        o, lse = torch.full_like(given["q"], math.nan), torch.full((6, HEADS[0], 4), math.nan, device="cuda")
        attn_dsl.compile(spec, target="sm90")(**given, out=o, lse=lse)
        assert_right(spec, given, o, lse)


@pytest.mark.parametrize("kind", ["bf16", "e4m3", "e5m2"])
@pytest.mark.parametrize("group", [1, 4, 5, 8, 16])
def test_groups(group: int, kind: str) -> None:
    make = torch.Generator().manual_seed(group)
    tensors = {"q": random(make, 4, 5, 2 * group, 64), **paged([0, 33, 400, 77], 16, (2 * group, 2), 64)}
    text = QUERIES + TABLE + USED
    if kind != "bf16":
        text, tensors = narrow(text, kind) + DESCALES, descaled(tensors, kind)
    for splits in (1, 2):
        spec, given = on_device(tensors, text + CAUSAL + f"schedule {{ splits = {splits} }}\n")
        o, lse = attn_dsl.compile(spec, target="sm90")(**given, return_lse=True)
        assert_right(spec, given, o, lse)


@pytest.mark.parametrize("query", ["bf16", "f16"])
@pytest.mark.parametrize("dim", [16, 80, 128, 256])
def test_dense_keys_of_8_bits(dim: int, query: str) -> None:
    make = torch.Generator().manual_seed(dim)
    for seq_q, seq_k in ((1, 3000), (200, 333), (5, 0)):
        k, v = (random(make, 2, seq_k, HEADS[1], dim) for _ in range(2))
        tensors = descaled({"q": random(make, 2, seq_q, HEADS[0], dim), "k": k, "v": v}, "e4m3")
        tensors["q"] = tensors["q"].to({"bf16": torch.bfloat16, "f16": torch.float16}[query])
        spec, given = on_device(tensors, narrow(QUERIES + KEYS, "e4m3", query) + DESCALES + CAUSAL)
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


@pytest.mark.parametrize("page_size", [7, 16])
@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
def test_a_captured_call_follows_lengths_and_tables(page_size: int, kind: str) -> None:
    """Replayed with other lengths, from empty to all slots, and pages in another order; in parts too."""
    lengths = [40, 3, 500, 0]
    make = torch.Generator().manual_seed(page_size)
    tensors = {"q": random(make, 4, 1, HEADS[0], DIM), **paged([512] * 4, page_size, HEADS, DIM)}
    tensors["used"] = torch.tensor(lengths, dtype=torch.int32)
    text = QUERIES + TABLE + USED
    if kind != "bf16":
        text, tensors = narrow(text, kind) + DESCALES, descaled(tensors, kind)
    for splits in ("", "schedule { splits = 1 }\n"):
        spec, given = on_device(tensors, text + CAUSAL + splits)
        compiled = attn_dsl.compile(spec, target="sm90")
        out, lse = torch.full_like(given["q"], math.nan), torch.full((4, HEADS[0], 1), math.nan, device="cuda")
        compiled(**given, out=out, lse=lse)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled(**given, out=out, lse=lse)
        for used in ([512, 0, 1, 511], [16, 300, 0, 2], [0, 0, 0, 0]):
            given["used"].copy_(torch.tensor(used))
            given["page_table"].copy_(given["page_table"].roll(1, 0))
            out.fill_(math.nan)
            graph.replay()
            assert_right(spec, given, out, lse)


@pytest.mark.parametrize(("change", "code"), BAD_CALLS)
def test_bad_calls_write_nothing(change: dict[str, Tensor], code: str) -> None:
    make = torch.Generator().manual_seed(3)
    tensors = {"q": random(make, 2, 1, 4, 64), **paged([20, 7], 8, (4, 2), 64)} | change
    spec, given = on_device(tensors, "axis page_size = 8\n" + QUERIES + TABLE + USED)
    out, lse = torch.full((2, 1, 4, 64), 7.0, device="cuda", dtype=torch.bfloat16), torch.full((2, 4, 1), 7.0).cuda()
    with pytest.raises(attn_dsl.CallError) as caught:
        attn_dsl.compile(spec, target="sm90")(**given, out=out, lse=lse, debug=True)
    assert caught.value.code == code
    assert (out == 7).all()
    assert (lse == 7).all()


def test_merge_on_the_device() -> None:
    make = torch.Generator().manual_seed(8)
    k, v = (random(make, 2, 600, HEADS[1], DIM).cuda() for _ in range(2))
    q = random(make, 2, 1, HEADS[0], DIM).cuda()
    spec = attn_dsl.parse(QUERIES + KEYS, name="serving")
    compiled = attn_dsl.compile(spec, target="sm90")
    parts = [compiled(q, k[:, rows], v[:, rows], return_lse=True) for rows in (slice(0, 250), slice(250, 600))]
    o, lse = attn_dsl.merge(*parts[0], *parts[1])
    assert_right(spec, {"q": q, "k": k, "v": v}, o, lse)
