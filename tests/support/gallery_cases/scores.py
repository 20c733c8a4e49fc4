"""Cases of the specs that change the score, the scale or the denominator."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .problem import Case, Problem, case


@case
def gemma2_local() -> Case:
    x = Problem("gemma2_local", kv_heads=2)
    s = 2.0 * torch.tanh(x.scores(scale=16.0**-0.5) / 2.0)
    return x.case((x.j <= x.p) & (x.j >= x.p - 8), s, window_tokens=9, cap=2.0, query_scalar=16.0)


@case
def gpt_oss_local() -> Case:
    x = Problem("gpt_oss_local", kv_heads=2)
    sinks = x.normal(6, dtype=torch.bfloat16)
    return x.case((x.j <= x.p) & (x.j >= x.p - 8), sink=sinks, sinks=sinks, window_tokens=9)


@case
def softmax_plus_one() -> Case:
    x = Problem("softmax_plus_one", kv_heads=2, seq_q=37, seq_k=23)  # the first rows see nothing: O = 0, LSE = 0
    return x.case(x.j <= x.p, sink=torch.zeros(6))


@case
def llama4_nope() -> Case:
    x = Problem("llama4_nope", kv_heads=2)
    factor = torch.tensor([1.0 + 0.5 * math.log(1 + (p + 1) // 8) for p in range(14, 37)], dtype=torch.float64)
    return x.case(x.j <= x.p, x.scores() * factor[:, None], strength=0.5, tokens=8)


@case
def qwen_logn() -> Case:
    x = Problem("qwen_logn")
    factor = torch.tensor([math.log(n, 20) if n > 20 else 1.0 for n in range(15, 38)], dtype=torch.float64)
    return x.case(x.j <= x.p, x.scores() * factor[:, None], trained_tokens=20)


def published_alibi_slopes(heads: int) -> list[float]:
    """The slopes by the recursive rule of the ALiBi paper."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8.0 * (i + 1) / heads) for i in range(heads)]
    below = 1 << (heads.bit_length() - 1)
    return published_alibi_slopes(below) + published_alibi_slopes(2 * below)[::2][: heads - below]


def _slopes(heads: int) -> Tensor:
    return torch.tensor(published_alibi_slopes(heads), dtype=torch.float64)[:, None, None]


@case
def bloom_alibi() -> Case:
    x = Problem("bloom_alibi", heads=12)  # not a power of two
    return x.case(x.j <= x.p, x.scores() - _slopes(12) * (x.p - x.j))


@case
def jina_alibi() -> Case:
    x = Problem("jina_alibi", heads=8, seq_q=37)
    length = torch.tensor([37, 0], dtype=torch.int32)
    return x.case(x.j < length[:, None, None, None], x.scores() - _slopes(8) * (x.p - x.j).abs(), length=length)


def published_t5_bucket(relative: int, *, bidirectional: bool, buckets: int = 32, farthest: int = 128) -> int:
    """The bucket of kv_idx - q_pos by the logarithm of the T5 paper, in double precision."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)
    return first + min(exact + math.floor(steps + 1e-9), buckets - 1)


def _t5_bias(x: Problem, table: Tensor, bidirectional: bool) -> Tensor:
    distances = range(-x.seq_k, x.seq_k)
    buckets = torch.tensor([published_t5_bucket(d, bidirectional=bidirectional) for d in distances])
    return table.double()[buckets[x.j - x.p + x.seq_k]].squeeze(0).squeeze(0).permute(2, 0, 1)


@case
def t5_encoder() -> Case:
    x = Problem("t5_encoder", batch=1, seq_q=301, seq_k=301, heads=3)
    table = x.normal(32, 3)
    return x.case(True, x.scores(scale=1.0) + _t5_bias(x, table, True), bias=table)


@case
def t5_decoder() -> Case:
    x = Problem("t5_decoder", batch=1, seq_q=150, seq_k=301, heads=3)
    table = x.normal(32, 3)
    return x.case(x.j <= x.p, x.scores(scale=1.0) + _t5_bias(x, table, False), bias=table)


@case
def kerple_log() -> Case:
    x = Problem("kerple_log")
    strength, rate = x.normal(6).exp(), x.normal(6).exp()
    a, r = strength.double()[:, None, None], rate.double()[:, None, None]
    return x.case(x.j <= x.p, x.scores() - a * torch.log1p(r * (x.p - x.j).abs()), strength=strength, rate=rate)


@case
def sandwich() -> Case:
    x = Problem("sandwich")
    angles = torch.arange(64)[:, None].double() * 10000.0 ** (-torch.arange(8).double() / 8)
    encoding = torch.cat([angles.sin(), angles.cos()], dim=1)  # the sinusoidal encoding of 64 positions, width 16
    inner = encoding[14:37] @ encoding[:37].T
    ratio = torch.tensor([8.0 * (head + 1) / 6 for head in range(6)], dtype=torch.float64)[:, None, None]
    return x.case(x.j <= x.p, x.scores() + inner / ratio, constants={"pairs": 8})


@case
def swin_window() -> Case:
    height, width, size, shift = 6, 9, 3, 1
    x = Problem("swin_window", batch=1, seq_q=54, seq_k=54, heads=2)
    table = x.normal((2 * size - 1) ** 2, 2)
    image = torch.arange(54).reshape(height, width)
    seam = torch.zeros(height, width, dtype=torch.long)  # after the roll: 1 for rows that came round, 2 for columns
    seam[height - shift :, :] += 1
    seam[:, width - shift :] += 2
    rolled = image.roll((-shift, -shift), (0, 1))
    seen = torch.zeros(54, 54, dtype=torch.bool)
    bias = torch.zeros(2, 54, 54, dtype=torch.float64)
    for top in range(0, height, size):
        for left in range(0, width, size):
            window = [(r, c) for r in range(top, top + size) for c in range(left, left + size)]
            for r1, c1 in window:
                for r2, c2 in window:
                    pair = rolled[r1, c1], rolled[r2, c2]
                    seen[pair] = seam[r1, c1] == seam[r2, c2]
                    bias[:, pair[0], pair[1]] = table.double()[(r1 - r2 + 2) * 5 + (c1 - c2 + 2)]
    sizes = {"height": height, "width": width, "shift": shift}
    return x.case(seen, x.scores() + bias, constants={"size": size}, bias=table, **sizes)


@case
def swin_v2_cosine() -> Case:
    x = Problem("swin_v2_cosine")
    x.q, x.k = (torch.nn.functional.normalize(y.float(), dim=-1).bfloat16() for y in (x.q, x.k))
    log_scale = torch.tensor([0.5, 1.0, 2.0, 4.0, 5.0, 6.0])  # the last two reach the limit of 100
    bias = x.normal(6, 23, 37)
    factor = log_scale.double().exp().clamp(max=100.0)[:, None, None]
    return x.case(True, x.scores(scale=1.0) * factor + bias.double(), log_scale=log_scale, bias=bias)


@case
def forgetting_transformer() -> Case:
    x = Problem("forgetting_transformer")
    gate = torch.sigmoid(x.normal(2, 6, 37) + 2.0)
    decay = gate.log().cumsum(dim=-1)
    kept = torch.stack([decay.double()[..., p : p + 1] - decay.double() for p in range(14, 37)], dim=2)
    return x.case(x.j <= x.p, x.scores() + kept, decay=decay)


@case
def alphafold_pair_bias() -> Case:
    x = Problem("alphafold_pair_bias")
    pair = x.normal(2, 6, 23, 37, dtype=torch.bfloat16)
    length = torch.tensor([37, 19], dtype=torch.int32)
    solved = x.case(x.j < length[:, None, None, None], x.scores() + pair.double(), pair=pair, length=length)
    x.k[1, 19:], x.v[1, 19:] = math.nan, math.inf  # storage past the length is never looked at
    return solved


@case
def graphormer() -> Case:
    x = Problem("graphormer", seq_q=37)
    distance = x.integers(0, 9, 2, 37, 37)
    spatial = x.normal(9, 6)
    bias = spatial.double()[distance.long()].permute(0, 3, 1, 2)
    return x.case(True, x.scores() + bias, distance=distance, spatial=spatial)
