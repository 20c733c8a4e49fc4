"""Absorbed latent attention on the virtual Blackwell device: V in the bytes of K, nothing found, near float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

pytest.importorskip("cutlass")

import gates
import kernel_matrix as matrix
from torch import Tensor

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.emulator import LaunchReport
from attn_dsl.lowering.forward import ShapeClass, sm100
from attn_dsl.lowering.forward.sm100_mla_plan import MlaPlan
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.binding import Call
from attn_dsl.runtime.kernels import SM100, Kernels, shape_class

HEAD = """
axis dim = {dim}
axis kv_heads = 1
q: {dtype}[batch, seq_q, heads, dim]
k: {dtype}[batch, seq_k, kv_heads, dim]
view v = k[:, :, :, 0..{dim_v}]
scale = 1.0 / sqrt(128 + 64)
"""
PACKED = """
axis dim = 576
axis kv_heads = 1
q: bf16[total_q, heads, dim]
k: bf16[total_k, kv_heads, dim]
view v = k[:, :, 0..512]
cu_q: i32[batch + 1]
cu_k: i32[batch + 1]
lengths q { cu_seqlens = cu_q }
lengths k { cu_seqlens = cu_k }
mask = kv_idx <= q_pos
"""
PAGED = """
axis dim = 576
axis kv_heads = 1
q: bf16[batch, seq_q, heads, dim]
k: bf16[pages, page_size, kv_heads, dim]
view v = k[:, :, :, 0..512]
used: i32[batch]
lengths k { used = used }
scale = 1.0 / sqrt(128 + 64)
mask = kv_idx <= q_pos
"""
LISTED = {
    "table": "page_table: i32[batch, max_pages]\npaged { table = page_table }\n",
    "lists": "starts: i32[batch + 1]\npages_of: i32[listed]\npaged { indptr = starts, indices = pages_of }\n",
}
MORE = {
    "full": "",
    "causal": "mask = kv_idx <= q_pos",
    "window": "param width: int in 1.. = 70\nmask = kv_idx <= q_pos and q_pos - kv_idx < width",
    "softcap": "param cap: float in 1.0.. = 5.0\nmask = kv_idx <= q_pos\nscore = cap * tanh(score / cap)",
    "sinks": "sinks: f32[heads]\nmask = kv_idx < q_pos - 20\nsink = sinks[h]",
    "reach_by_head": "param reach: int[heads] in 1.. = 77\nmask = 0 <= q_pos - kv_idx < reach",
    "used": "used: i32[batch]\nlengths k { used = used }\nmask = kv_idx <= q_pos",
    "base_2": "lse_base = 2\nmask = kv_idx <= q_pos",
}


def spec_of(name: str, dtype: str = "bf16", dims: tuple[int, int] = (576, 512)) -> attn_dsl.AttentionSpec:
    return attn_dsl.parse(HEAD.format(dtype=dtype, dim=dims[0], dim_v=dims[1]) + MORE[name], name=name)


def kernels_of(spec: attn_dsl.AttentionSpec) -> Kernels:
    """The kernels of `spec`, whose keys stay together whatever the GPU."""
    return Kernels(replace(spec, schedule=(("splits", 1),)), SM100)


def plan_of(spec: attn_dsl.AttentionSpec, group: int, dims: tuple[int, int] = (576, 512)) -> MlaPlan:
    plan = sm100.select(spec, ShapeClass(*dims, pack=sm100.pack_of(spec, group)))
    assert isinstance(plan, MlaPlan)
    return plan


def check(kernels: Kernels, call: Call, *, seed: int, late: int, dense: Call | None = None) -> list[LaunchReport]:
    """One call into outputs full of NaN, held to float64, of the call `dense` if keys lie in pages."""
    same = dense or call
    o_exact, lse_exact = reference.attention(same.spec, same.tensors, same.params, precision="float64")
    o = torch.full(o_exact.shape, math.nan, dtype=call.tensors["q"].dtype)
    lse = torch.full(lse_exact.shape, math.nan)
    with emulator.device("sm_100a", late=late, seed=seed) as gpu:
        kernels.launch(call, o, lse)
    clean = replace(same, tensors={**same.tensors, "k": same.tensors["k"].nan_to_num()})
    assert matrix.compare(same.spec, clean, o, o_exact) == ""
    assert matrix.compare_lse(lse, lse_exact) == ""
    return gpu.reports


def random_call(
    spec: attn_dsl.AttentionSpec, seq_q: int, seq_k: int, heads: int, *, seed: int, batch: int = 2, **given: Tensor
) -> Call:
    extents = {"batch": batch, "seq_q": seq_q, "seq_k": seq_k, "heads": heads}
    inputs = random_inputs(spec, extents, seed=seed, given=given)
    tensors = dict(inputs.tensors)
    if "used" in tensors:
        for row, used in zip(tensors["k"], tensors["used"].tolist(), strict=True):
            row[used:] = math.nan  # slots that hold no key
    return bind(spec, (), {**tensors, **inputs.params}, False)


@pytest.mark.parametrize(
    ("name", "dtype", "cases"),
    [
        ("causal", "bf16", [(1, 257, 16), (5, 129, 16), (0, 5, 16), (5, 0, 16)]),
        ("sinks", "f16", [(2, 140, 128)]),
        ("used", "bf16", [(3, 300, 4)]),
    ],
)
def test_a_sample(name: str, dtype: str, cases: list[tuple[int, int, int]]) -> None:
    """One kernel serves every length; asynchronous work completes as late as it may, or at random times."""
    kernels = kernels_of(spec_of(name, dtype))
    for place, sizes in enumerate(cases):
        check(kernels, random_call(kernels.spec, *sizes, seed=place + 1), seed=place + 1, late=1 + place % 2)
    assert len(kernels.compiled) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 16, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", MORE)
def test_every_length(name: str, dtype: str, heads: int) -> None:
    kernels = kernels_of(spec_of(name, dtype))
    for place, seq_k in enumerate((0, 1, 63, 127, 128, 129, 255, 257, 640)):
        seq_q = (1, 3, 16, 5)[place % 4]
        call = random_call(kernels.spec, seq_q, seq_k, heads, seed=place + 1, batch=1 + place % 2)
        check(kernels, call, seed=place + 1, late=place % 3)
    assert len(kernels.compiled) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("dims", "heads"), [((512, 512), 16), ((288, 256), 20), ((448, 384), 5), ((536, 512), 64)])
def test_other_head_dimensions(dims: tuple[int, int], heads: int) -> None:
    """Without columns that are no values, and with fewer than fill a part; heads that do not divide a tile."""
    kernels = Kernels(spec_of("causal", dims=dims), SM100)
    for place, (seq_q, seq_k) in enumerate([(3, 200), (70, 65)]):
        check(kernels, random_call(kernels.spec, seq_q, seq_k, heads, seed=place + 1), seed=place, late=1 + place)


@pytest.mark.parametrize("heads", [16, pytest.param(128, marks=pytest.mark.slow)])
def test_packed_sequences(heads: int) -> None:
    """Sequences of 0, 1 and more queries beside each other, rows of the next one full of NaN."""
    spec = attn_dsl.parse(PACKED, name="packed")
    kernels = Kernels(spec, SM100)
    lengths_q, lengths_k = [3, 0, 1, 9], [70, 5, 0, 129]
    given = {
        f"cu_{side}": torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        for side, lengths in (("q", lengths_q), ("k", lengths_k))
    }
    extents = {"batch": 4, "total_q": 15, "total_k": 210, "heads": heads}
    inputs = random_inputs(spec, extents, seed=3, given=given)
    tensors = dict(inputs.tensors)
    tensors["k"][sum(lengths_k) :] = math.nan
    check(kernels, bind(spec, (), tensors, False), seed=3, late=2)


@pytest.mark.parametrize(
    ("heads", "seq_q", "seq_k", "splits"),
    [(16, 1, 300, 3), pytest.param(128, 2, 140, 2, marks=pytest.mark.slow), (16, 5, 64, 4)],
)
def test_keys_in_parts(heads: int, seq_q: int, seq_k: int, splits: int) -> None:
    """Parts, some of them empty, joined by a second kernel; a sink counts once."""
    more = f"sinks: f32[heads]\nmask = kv_idx <= q_pos\nsink = sinks[h]\nschedule {{ splits = {splits} }}"
    spec = attn_dsl.parse(HEAD.format(dtype="bf16", dim=576, dim_v=512) + more, name="parts")
    reports = check(Kernels(spec, SM100), random_call(spec, seq_q, seq_k, heads, seed=splits), seed=splits, late=2)
    assert len(reports) == 2


def paged_call(
    spec: attn_dsl.AttentionSpec, heads: int, page_size: int, used: list[int], *, seq_q: int, seed: int
) -> tuple[Call, Call]:
    """Pages in any order, NaN in their unused slots; entries past the last page of a sequence name no page. With the
    same call whose keys are gathered."""
    make = torch.Generator().manual_seed(seed)
    counts = [-(-length // page_size) for length in used]
    order = iter(torch.randperm(sum(counts) + 2, generator=make).tolist())
    k = torch.full((sum(counts) + 2, page_size, 1, 576), math.nan, dtype=torch.bfloat16)
    dense = torch.full((len(used), max(used), 1, 576), math.nan, dtype=torch.bfloat16)
    lists = [[next(order) for _ in range(count)] for count in counts]
    for pages, length, gathered in zip(lists, used, dense, strict=True):
        for place, page in enumerate(pages):
            rows = min(page_size, length - place * page_size)
            k[page, :rows] = torch.randn(rows, 1, 576, generator=make).bfloat16()
            gathered[place * page_size : place * page_size + rows] = k[page, :rows]
    q = torch.randn(len(used), seq_q, heads, 576, generator=make).bfloat16()
    tensors = {"q": q, "k": k, "used": torch.tensor(used, dtype=torch.int32)}
    if spec.paging is not None and spec.paging.table is not None:
        most = max(counts) + 1
        table = [pages + [2**30] * (most - len(pages)) for pages in lists]
        tensors["page_table"] = torch.tensor(table, dtype=torch.int32)
    else:
        tensors["starts"] = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
        tensors["pages_of"] = torch.tensor([page for pages in lists for page in pages], dtype=torch.int32)
    names = {name: tensors[name] for name in ("q", "used")}
    return bind(spec, (), tensors, False), bind(spec_of("used"), (), {**names, "k": dense}, False)


@pytest.mark.parametrize(
    ("by", "heads", "page_size", "used", "seq_q"),
    [
        ("table", 16, 16, [130, 1, 64], 1),
        ("lists", 128, 64, [100, 0], 1),
        pytest.param("table", 16, 64, [257, 0, 63], 4, marks=pytest.mark.slow),
        pytest.param("table", 128, 8, [100, 65], 1, marks=pytest.mark.slow),
        pytest.param("table", 128, 128, [200], 2, marks=pytest.mark.slow),
        pytest.param("table", 64, 24, [90, 17], 2, marks=pytest.mark.slow),
        pytest.param("lists", 16, 256, [300, 256], 3, marks=pytest.mark.slow),
    ],
)
def test_pages(by: str, heads: int, page_size: int, used: list[int], seq_q: int) -> None:
    spec = attn_dsl.parse(PAGED + LISTED[by], name="paged")
    call, dense = paged_call(spec, heads, page_size, used, seq_q=seq_q, seed=page_size)
    check(Kernels(spec, SM100), call, seed=page_size, late=1 + heads // 128, dense=dense)


@pytest.mark.parametrize("heads", [16, pytest.param(128, marks=pytest.mark.slow)])
def test_one_kernel_for_every_page_size(heads: int) -> None:
    """Without a page size a kernel takes those of 8 rows and their multiples, in boxes of 8."""
    spec = attn_dsl.parse(PAGED + LISTED["table"], name="paged")
    kernels = Kernels(spec, replace(SM100, page_size_of=lambda spec, shape, page_size: 0))
    for page_size in (8, 40):
        call, dense = paged_call(spec, heads, page_size, [100, 41], seq_q=1, seed=page_size)
        check(kernels, call, seed=page_size, late=2, dense=dense)
    assert sm100.broken(plan_of(spec, heads)) == ()


def test_pages_that_are_no_boxes_are_refused() -> None:
    spec = attn_dsl.parse(PAGED + LISTED["table"], name="paged")
    call, _ = paged_call(spec, 16, 12, [30], seq_q=1, seed=1)
    with pytest.raises(attn_dsl.UnsupportedError, match="pages have 12 rows; where v is a part of k") as caught:
        Kernels(spec, SM100).launch(call, None, None)
    assert caught.value.code == "E281"
    assert "the nearest is 16" in str(caught.value)


def test_keys_are_loaded_once() -> None:
    """Bytes of a decode step: queries and keys, of 128 heads too, whose rows are two thread blocks'."""
    kernels = kernels_of(spec_of("full"))
    for heads, seq_q in ((64, 1), (16, 4), (128, 1)):
        call = random_call(kernels.spec, seq_q, 640, heads, seed=heads, batch=1)
        (report,) = check(kernels, call, seed=heads, late=2)
        moved = report.engines["tma_load"]
        assert moved == sum(call.tensors[name].numel() * 2 for name in ("q", "k"))


def test_rows_whose_maximum_rises_are_rescaled() -> None:
    """Scores far apart: references move by more than the threshold, rows beside them by less."""
    spec = spec_of("causal")
    call = random_call(spec, 4, 400, 16, seed=9)
    call = replace(call, tensors={**call.tensors, "k": call.tensors["k"] * 8})
    check(Kernels(spec, SM100), call, seed=9, late=1)


def test_what_a_plan_holds_to() -> None:
    spec = spec_of("causal")
    plan = plan_of(spec, 16)
    assert sm100.broken(plan) == ()
    assert (plan.tile_q, plan.pack, plan.cluster, plan.threads) == (64, 16, 1, 384)
    assert plan.shared_bytes <= 232_448
    assert [(name, first, count) for name, first, count in plan.tmem_map][-1] == ("o0", 256, 256)
    wide = plan_of(spec, 128)
    assert (wide.tile_q, wide.pack, wide.cluster) == (128, 128, 2)
    assert {edge.name: edge.count for edge in wide.edges}["kv_empty"] == 2
    assert {group: plan_of(spec, group).pack for group in (1, 5, 24, 48, 256)} == {1: 1, 5: 1, 24: 8, 48: 16, 256: 128}
    for changes, code, text in (
        ({"dim": 584}, "E290", "the nearest is 576"),
        ({"dim_v": 448}, "E290", "the nearest is 512"),
        ({"dim": 640}, "E290", "the nearest is 576"),
        ({"tile_k": 128}, "E291", "the nearest is 64"),
        ({"tile_q": 128}, "E291", "the nearest is 64"),
        ({"cluster": 2, "tile_q": 128}, "E291", "the nearest is 128"),
        ({"pack": 24}, "E291", "the nearest is 16"),
        ({"stages": 3}, "E291", "the nearest is 2"),
        ({"registers_correction": 160}, "E293", "a multiprocessor has 65,536"),
        ({"registers_consumer": 56}, "E293", "needs about 64 registers"),
    ):
        problems = sm100.broken(replace(plan, **changes))
        assert code in [problem.code for problem in problems], (changes, problems)
        assert any(text in f"{problem.message} {problem.hint}" for problem in problems), (changes, problems)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("pack gqa on\naxis heads = 20", "'pack gqa on' with 20 query heads for one of k and v"),
        ("schedule { tile_k = 128 }", "a schedule cannot set tile_k where v is a part of k"),
        ("schedule { order = head_major }", "there is no order 'head_major'"),
    ],
)
def test_what_a_spec_may_not_ask(more: str, message: str) -> None:
    with pytest.raises(attn_dsl.UnsupportedError) as caught:
        attn_dsl.compile(attn_dsl.parse(HEAD.format(dtype="bf16", dim=576, dim_v=512) + more), target="sm100")
    assert caught.value.code == "E281"
    assert f"target 'sm100': {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((584, 512), "dim is 584; rows of k that hold those of v have multiples of 8 elements, at most 576"),
        ((576, 448), "dim_v is 448; rows of v in those of k have multiples of 128 elements, at most 512"),
        ((576, 384), "rows of k have 192 elements after those of v; there are at most 64"),
    ],
)
def test_head_dimensions_it_does_not_have(dims: tuple[int, int], message: str) -> None:
    with pytest.raises(attn_dsl.UnsupportedError) as caught:
        attn_dsl.compile(spec_of("full", dims=dims), target="sm100")
    assert caught.value.code == "E281"
    assert message in str(caught.value)


def test_only_leading_columns_of_long_rows_get_it() -> None:
    """Narrow heads keep the plan that loads V; a view that begins elsewhere is no part of both products."""
    narrow = attn_dsl.parse(HEAD.format(dtype="bf16", dim=192, dim_v=128))
    assert not isinstance(sm100.select(narrow, ShapeClass(192, 128)), MlaPlan)
    behind = HEAD.format(dtype="bf16", dim=576, dim_v=512).replace("0..512", "64..576")
    with pytest.raises(attn_dsl.UnsupportedError, match="dim is 576"):
        attn_dsl.compile(attn_dsl.parse(behind), target="sm100")


@pytest.mark.parametrize(("name", "group"), [("causal", 16), pytest.param("softcap", 128, marks=pytest.mark.slow)])
def test_a_kernel_compiles(name: str, group: int) -> None:
    """Nothing spilled, registers within the plan."""
    spec = spec_of(name)
    call = random_call(spec, 1, 64, group, seed=1)
    plan = sm100.select(spec, shape_class(call, SM100))
    assert gates.compiled_or_skip(plan).broken(plan) == []
