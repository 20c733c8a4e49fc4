"""The standard library: each file stands alone, and what the examples do not use means its formula."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from gallery_cases import Problem
from gallery_cases.scores import published_alibi_slopes
from torch import Tensor

import attn_dsl
from attn_dsl.reference import attention
from attn_dsl.spec import check
from attn_dsl.syntax import format_file, parse_source, read_source

STD = Path(attn_dsl.__file__).parent / "std"
LIBRARIES = sorted(STD.glob("*.attn"))

HEADER = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, heads, dim]
"""


def test_the_whole_library_is_tested():
    assert len(LIBRARIES) >= 20


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.stem)
def test_file_checks_alone_and_is_formatted(path):
    source = read_source(path)
    file = parse_source(source)
    assert check(file, name=path.stem, folder=None).diagnostics == ()
    assert format_file(file) == source.text
    assert source.text.startswith("# ")


def assert_means(text: str, x: Problem, visible: Tensor | bool, scores: Tensor | None = None, **inputs: Tensor) -> None:
    spec = attn_dsl.parse(text + HEADER)
    o, lse = attention(spec, {"q": x.q, "k": x.k, "v": x.v, **inputs}, {}, precision="float64")
    expected_o, expected_lse = x.attend(visible, scores)
    torch.testing.assert_close(o, expected_o, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(lse, expected_lse, atol=1e-11, rtol=1e-11)


DISTANCE_MASKS = {  # call, module, and the same thing as a set of q_pos - kv_idx
    "causal": ("causal", range(100)),
    "window(tokens = 6)": ("window", range(6)),
    "window(tokens = unbounded)": ("window", range(100)),
    "lookback(keys = 6)": ("window", range(7)),
    "lookback(keys = 0)": ("window", range(1)),
    "around(keys = 3)": ("window", range(-3, 4)),
    "band(keys_before = 5, keys_after = 2)": ("window", range(-2, 6)),
    "band(keys_before = unbounded, keys_after = 0)": ("window", range(100)),
    "every(nth = 5)": ("dilated", range(-100, 100, 5)),
    "strided(stride = 5)": ("strided", {*range(5), *range(0, 100, 5)}),
}


@pytest.mark.parametrize("call", DISTANCE_MASKS)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(23, 37), (37, 23), (1, 40)])
def test_masks_by_distance(call, seq_q, seq_k):
    module, distances = DISTANCE_MASKS[call]
    x = Problem(call, seq_q=seq_q, seq_k=seq_k, heads=2)
    seen = torch.isin(x.p - x.j, torch.tensor(sorted(distances)))
    assert_means(f"from std.{module} import {call.split('(')[0]}\nmask = {call}", x, seen)


def _nearest(p: int, count: int, extent: int) -> range:
    """The `count` places nearest to p."""
    first = min(max(p - count // 2, 0), extent - count)
    return range(first, first + count)


POSITION_MASKS = {  # the same thing for one position and key, said with lists
    "same_chunk(tokens = 8)": ("chunked", lambda p, j: j in range(p - p % 8, p - p % 8 + 8)),
    "chunk_causal(tokens = 8)": ("chunked", lambda p, j: j < (p - p % 8) + 8),
    "chunk_window(tokens = 8, chunks = 2)": ("chunked", lambda p, j: p - p % 8 - 8 <= j < p - p % 8 + 8),
    "fixed(block = 8, summary = 2)": ("strided", lambda p, j: j <= p and (j >= p - p % 8 or j % 8 in (6, 7))),
    "prefix(keys = 10)": ("prefix", lambda p, j: j in range(10)),
    "sink_tokens(first = 3)": ("sink_tokens", lambda p, j: j in (0, 1, 2)),
    "not_padding(length = 30)": ("padding", lambda p, j: j in range(30)),
    "not_left_padding(slots = 5)": ("padding", lambda p, j: j not in range(5)),
    "neighbourhood(kernel = 7)": ("natten", lambda p, j: j in _nearest(p, 7, 37)),
}


@pytest.mark.parametrize("call", POSITION_MASKS)
def test_masks_by_position(call):
    module, sees = POSITION_MASKS[call]
    x = Problem(call, heads=2)
    seen = torch.tensor([[bool(sees(p, j)) for j in range(37)] for p in range(14, 37)])
    assert_means(f"from std.{module} import {call.split('(')[0]}\nmask = {call}", x, seen)


@pytest.mark.parametrize("heads", [1, 2, 3, 7, 8, 12, 20, 40, 64])
def test_alibi_slopes(heads):
    x = Problem(f"alibi {heads}", heads=heads, batch=1, seq_q=3, seq_k=5)
    slopes = torch.tensor(published_alibi_slopes(heads), dtype=torch.float64)[:, None, None]
    for name, sign in (("alibi", 1), ("alibi_symmetric", -1)):
        bias = slopes * ((x.j - x.p) if sign > 0 else -(x.j - x.p).abs())
        assert_means(f"from std.alibi import {name}\nscore = score + {name}", x, True, x.scores() + bias)


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (64, 256), (32, 20), (8, 1000), (4, 3)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_are_those_of_transformers(buckets, farthest, bidirectional):
    """Every distance in -4096..4096: the exact integer steps against the float32 logarithm that trained the models."""
    from transformers.models.t5.modeling_t5 import T5Attention

    function = "t5_bucket" if bidirectional else "t5_bucket_causal"
    call = f"{function}(buckets = {buckets}, farthest = {farthest})"
    # with a score of ln(1 + bucket), a scale of 0 and one key, the LSE of a row says its bucket
    lines = f"from std.t5 import {function}", "scale = 0.0", f"score = log(1.0 + {call})"
    spec = attn_dsl.parse("\n".join((*lines, "param first: int", "align offset(first)", HEADER)))
    tensors = {"q": torch.zeros(1, 4097, 1, 1), "k": torch.zeros(1, 1, 1, 1), "v": torch.zeros(1, 1, 1, 1)}
    for first in (0, -4096):  # the key is behind the queries, then ahead of them
        _, lse = attention(spec, tensors, {"first": first}, precision="float64")
        expected = T5Attention._relative_position_bucket(
            -torch.arange(first, first + 4097), bidirectional=bidirectional, num_buckets=buckets, max_distance=farthest
        )
        assert torch.equal((lse.exp() - 1.0).round().long().flatten(), expected)


def test_relative_tables():
    x = Problem("relative")
    table = x.normal(6, 23 + 37 - 1)
    columns = (x.j - x.i + 22).expand(1, 6, 23, 37)
    bias = torch.stack([table.double()[h][columns[0, h]] for h in range(6)])
    text = "from std.relative import relative\ntable: f32[heads, seq_q + seq_k - 1]\nscore = score + relative(table)"
    assert_means(text, x, True, x.scores() + bias, table=table)

    table = x.normal(6, 11)
    bias = torch.stack([row[(x.j - x.p).clamp(-5, 5)[0, 0] + 5] for row in table.double()])
    score = "score + relative_clipped(table, reach = 5)"
    text = f"from std.relative import relative_clipped\ntable: f32[heads, 11]\nscore = {score}"
    assert_means(text, x, True, x.scores() + bias, table=table)


def test_kerple_power():
    x = Problem("kerple_power")
    bias = -0.25 * (x.p - x.j).abs().double() ** 1.5
    text = "from std.kerple import kerple_power\nscore = score + kerple_power(strength = 0.25, power = 1.5)"
    assert_means(text, x, True, x.scores() + bias)


def test_factors_of_rows_before_the_first_key():
    """With more queries than keys the first rows stand before position 0; their factors are those of position 0."""
    x = Problem("before", seq_q=9, seq_k=5, heads=2)
    position = x.p.clamp(min=0).double()
    cases = {
        "temperature": ("temperature(0.5, 2)", 1.0 + 0.5 * torch.log1p((position + 1) // 2)),
        "log_n": ("log_n(3)", torch.log(position + 1.0).div(math.log(3.0)).clamp(min=1.0)),
    }
    for module, (call, factor) in cases.items():
        text = f"from std.{module} import {module}\nscore = score * {call}"
        assert_means(text, x, True, x.scores() * factor)
