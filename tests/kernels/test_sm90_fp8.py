"""Hopper kernels whose keys and values have 8 bits, on the virtual device, against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cubin import resources

pytest.importorskip("cutlass")

from serving import DESCALES, FORMATS, LISTS, PACKED, QUERIES, TABLE, USED, check, descaled, narrow, paged, random
from torch import Tensor

import attn_dsl
from attn_dsl.kernels.sm90.build import compile_forward
from attn_dsl.lowering.forward import ShapeClass, select, sm90
from attn_dsl.lowering.forward.explain import explain

CAUSAL = "mask = kv_idx <= q_pos\n"


def schedule(splits: int) -> str:
    return f"schedule {{ splits = {splits} }}\n"


def text_of(base: str, kind: str = "e4m3", query: str = "bf16") -> str:
    return narrow(base, kind, query) + DESCALES


def inputs(tensors: dict[str, Tensor], kind: str = "e4m3", query: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    return descaled(tensors, kind) | {"q": tensors["q"].to(query)}


def dense(lengths: tuple[int, int], heads: tuple[int, int], dims: tuple[int, int], seed: int = 1) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(seed)
    (seq_q, seq_k), (dim, dim_v) = lengths, dims
    shapes = {"q": (2, seq_q, heads[0], dim), "k": (2, seq_k, heads[1], dim), "v": (2, seq_k, heads[1], dim_v)}
    return {name: random(make, *shape) for name, shape in shapes.items()}


def pools(lengths: list[int], page_size: int, heads: tuple[int, int], dim: int, **more: object) -> dict[str, Tensor]:
    found = paged(lengths, page_size, heads, dim, seed=page_size, **more)
    return {"q": random(torch.Generator().manual_seed(2), len(lengths), 3, heads[0], dim), **found}


@pytest.mark.parametrize(
    ("kind", "query", "dims", "heads"),
    [
        ("e4m3", torch.bfloat16, (64, 64), (4, 2)),
        ("e4m3", torch.float16, (128, 128), (5, 1)),
        ("e5m2", torch.bfloat16, (48, 80), (2, 2)),
    ],
)
def test_dense(kind: str, query: torch.dtype, dims: tuple[int, int], heads: tuple[int, int]) -> None:
    """Every tile by rows of bytes, whatever their number; weights see the factor of k, outputs that of v."""
    spelling = "f16" if query is torch.float16 else "bf16"
    keys = "k: bf16[batch, seq_k, kv_heads, dim]\nv: bf16[batch, seq_k, kv_heads, dim_v]\n".replace("bf16", kind)
    text = text_of(QUERIES, query=spelling) + keys + "sink = 0.5\n" + CAUSAL + schedule(1)
    for place, lengths in enumerate([(3, 300), (70, 50), (1, 1)]):
        check(text, inputs(dense(lengths, heads, dims), kind, query), late=place)


@pytest.mark.parametrize("page_size", [1, 16])
def test_pages(page_size: int) -> None:
    """NaN in unused slots, garbage behind the tables, and no more bytes than the rows of whole tiles."""
    lengths = [0, 1, page_size, page_size + 1, 130]
    gpu = check(text_of(QUERIES + TABLE + USED) + CAUSAL + schedule(1), inputs(pools(lengths, page_size, (4, 2), 64)))
    tiles = sum(-(-length // 96) for length in lengths)
    assert gpu.reports[0].engines["cpasync"] == tiles * 2 * 96 * 64 * 2  # both K/V heads, keys and values


def test_in_parts() -> None:
    gpu = check(text_of(QUERIES + TABLE + USED) + CAUSAL + schedule(3), inputs(pools([0, 5, 400], 8, (8, 2), 64)))
    assert gpu.reports[0].config.grid == (3 * 2, 3, 1)


def test_rows_behind_a_sequence_are_not_multiplied() -> None:
    """Keys behind each other: where one sequence ends in a tile, NaN and the next one lie."""
    make = torch.Generator().manual_seed(4)
    used, starts = [50, 0, 97, 3], [0, 60, 60, 160, 170]
    tensors = {"q": random(make, 4, 2, 2, 64), "cu": torch.tensor(starts).int(), "used": torch.tensor(used).int()}
    tensors |= {name: random(make, 170, 1, 64) for name in ("k", "v")}
    for start, stop, count in zip(starts, starts[1:], used, strict=False):
        for name in ("k", "v"):
            tensors[name][start + count : stop] = torch.nan
    text = QUERIES + "k, v: bf16[total_k, kv_heads, dim]\ncu: i32[batch + 1]\nused: i32[batch]\n"
    given = inputs(tensors | {"k": tensors["k"][:, None], "v": tensors["v"][:, None]})
    given |= {name: given[name][:, 0] for name in ("k", "v")}
    check(text_of(text) + "lengths k { cu_seqlens = cu, used = used }\n" + CAUSAL + schedule(1), given)


@pytest.mark.slow
def test_page_lists_and_packed_queries() -> None:
    counts, lengths = [1, 0, 150, 1, 3], [300, 5, 150, 0, 77]
    tensors = paged(lengths, 5, (3, 1), 64)
    make = torch.Generator().manual_seed(4)
    tensors |= {"q": random(make, sum(counts), 3, 64), "cu_q": torch.tensor([0, *counts]).cumsum(0).int()}
    check(text_of(PACKED + LISTS + USED) + CAUSAL, inputs(tensors))


@pytest.mark.slow
def test_left_padding_in_pages() -> None:
    tensors = pools([0, 20, 200], 16, (2, 2), 64, pads=[3, 17, 40])
    text = QUERIES + TABLE + "pad: i32[batch]\nlengths k { used = used, left_pad = pad }\n"
    check(text_of(text) + CAUSAL + schedule(1), inputs(tensors))


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 7, 8, 16, 64, 128, 256])
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_every_page_size_in_any_parts(page_size: int, splits: int) -> None:
    lengths = [0, 1, page_size - 1, page_size, page_size + 1, 1000]
    tensors = inputs(pools(lengths, page_size, (8, 2), 128))
    check(text_of(QUERIES + TABLE + USED) + CAUSAL + schedule(splits), tensors)


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 4, 5, 8, 16])
@pytest.mark.parametrize("kind", FORMATS)
def test_groups(group: int, kind: str) -> None:
    tensors = inputs(pools([0, 33, 400], 16, (group, 1), 64), kind)
    check(text_of(QUERIES + TABLE + USED, kind) + CAUSAL + schedule(2), tensors)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(16, 16), (80, 48), (96, 112), (128, 128), (192, 128), (256, 256)])
@pytest.mark.parametrize("rows", [64, 128])
def test_head_dims(dims: tuple[int, int], rows: int) -> None:
    keys = "k: e4m3[batch, seq_k, kv_heads, dim]\nv: e4m3[batch, seq_k, kv_heads, dim_v]\n"
    sizes = f"schedule {{ splits = 1, tile_q = {rows} }}\n" if max(dims) <= 128 else schedule(1)
    check(text_of(QUERIES) + keys + CAUSAL + sizes, inputs(dense((150, 200), (2, 1), dims)))


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_decode_step_reads_bytes_once(page_size: int) -> None:
    """Bytes moved, those of queries, outputs and factors too, are at most 1.05 times those of K, V and tables."""
    length, dim = 8192, 128
    tensors = inputs(pools([length], page_size, (4, 1), dim) | {"q": random(torch.Generator(), 1, 1, 4, dim)})
    gpu = check(text_of(QUERIES + TABLE + USED) + CAUSAL + schedule(1), tensors, late=0)
    engines = gpu.reports[0].engines
    moved = sum(engines[name] for name in ("tma_load", "tma_store", "cpasync", "global_bytes"))
    least = 2 * length * dim + length // page_size * 4
    assert moved <= 1.05 * least


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)])
def test_memory_is_in_the_plan(dims: tuple[int, int], tmp_path: Path) -> None:
    """Tiles of bytes beside those that are multiplied, and room for two blocks; nothing is spilled."""
    spec = attn_dsl.parse(text_of(QUERIES + TABLE + USED) + CAUSAL, name="narrow")
    plan = select(spec, ShapeClass(*dims, pack=4))
    regions = dict(plan.shared_map)
    assert plan.narrow_stages == {64: 4, 128: 3, 256: 2}[dims[0]]
    assert regions["k before it is widened"] == plan.narrow_stages * plan.tile_k * dims[0]
    assert f"k before it is widened {regions['k before it is widened']:,}" in explain(plan)
    assert plan.blocks == (2 if dims[0] <= 128 else 1)
    compile_forward(plan, f"--keep-cubin --dump-dir {tmp_path}")
    (cubin,) = tmp_path.glob("*.cubin")
    assert resources(cubin.read_bytes()).stack == 0


def test_pages_are_never_boxes() -> None:
    spec = attn_dsl.parse(text_of(QUERIES + TABLE + USED) + CAUSAL, name="narrow")
    assert sm90.page_size_of(spec, ShapeClass(128, 128), 64) == 0
    wide = attn_dsl.parse(QUERIES + TABLE + USED + CAUSAL, name="wide")
    assert sm90.page_size_of(wide, ShapeClass(128, 128), 64) == 64


HEADS = "q: {q}[batch, seq_q, heads, dim]\nk: {k}[batch, seq_k, kv_heads, dim]\nv: {v}[batch, seq_k, kv_heads, dim]\n"


@pytest.mark.parametrize(
    ("q", "k", "v", "more", "target", "text"),
    [
        ("e4m3", "e4m3", "e4m3", "", "sm90", "v would have to be transposed on its way; k and v of 8 bits beside q of"),
        ("e4m3", "e4m3", "e4m3", "", "sm100", "no matrix products of 8 bits"),
        ("bf16", "e4m3", "bf16", "", "sm90", "q, k and v are bf16, e4m3, bf16; k and v have one dtype"),
        ("bf16", "e4m3", "e5m2", "", "sm90", "q, k and v are bf16, e4m3, e5m2; k and v have one dtype"),
        ("bf16", "f16", "f16", "", "sm90", "k and v have one dtype, that of q or one of 8 bits"),
        ("bf16", "e4m3", "e4m3", "axis dim = 72", "sm90", "dim is 72; head dimensions of k and v of 8 bits are multip"),
    ],
)
def test_what_is_refused(q: str, k: str, v: str, more: str, target: str, text: str) -> None:
    spec = attn_dsl.parse(HEADS.format(q=q, k=k, v=v) + "o: bf16[batch, seq_q, heads, dim]\n" + more, name="narrow")
    with pytest.raises(attn_dsl.UnsupportedError, match=text):
        attn_dsl.compile(spec, target=target)


def test_a_head_dimension_that_a_call_brings() -> None:
    spec = attn_dsl.parse(HEADS.format(q="bf16", k="e4m3", v="e4m3"), name="narrow")
    with pytest.raises(attn_dsl.PlanError, match=r"dim is 72; k and v of 8 bits have multiples of 16"):
        select(spec, ShapeClass(72, 72))
