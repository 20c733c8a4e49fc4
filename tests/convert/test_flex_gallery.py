"""FlexAttention functions as their users write them, converted, against FlexAttention's own uncompiled CPU result.

The functions are those of torch's documentation and of attention-gym's gallery, written anew from their definitions.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention, or_masks

import attn_dsl
from attn_dsl.reference import attention

Mod = Callable[..., Tensor]


@dataclass(frozen=True)
class Sizes:
    """One random call: batch, query heads, K/V heads, query rows, keys."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    random: random.Random = field(compare=False)

    def tensor(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        return torch.randn(*shape, generator=generator)

    def ids(self, length: int) -> Tensor:
        """Document ids that never decrease."""
        cuts = sorted(self.random.randrange(length) for _ in range(3))
        return torch.bucketize(torch.arange(length), torch.tensor(cuts), right=True)


@dataclass(frozen=True)
class Flex:
    mask: Mod | None = None
    score: Mod | None = None


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def noop_score(score, b, h, q_idx, kv_idx):
    return score


def sliding_window(size: int) -> Mod:
    def window(b, h, q_idx, kv_idx):
        return q_idx - kv_idx <= size

    return and_masks(causal, window)


def document_ids(lengths: list[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


# -- masks -----------------------------------------------------------------------------------------------------------


def full(_: Sizes) -> Flex:
    return Flex(lambda b, h, q_idx, kv_idx: q_idx >= -1)


def causal_alone(_: Sizes) -> Flex:
    return Flex(causal, noop_score)


def causal_with_offset(sizes: Sizes) -> Flex:
    offset = sizes.seq_k - sizes.seq_q

    def shifted(b, h, q_idx, kv_idx):
        return q_idx + offset >= kv_idx

    return Flex(shifted)


def causal_sliding_window(sizes: Sizes) -> Flex:
    return Flex(sliding_window(sizes.random.randrange(1, 9)))


def prefix_lm(sizes: Sizes) -> Flex:
    length = sizes.random.randrange(sizes.seq_k)

    def prefix(b, h, q_idx, kv_idx):
        return kv_idx < length

    return Flex(or_masks(prefix, causal))


def prefix_lm_of_each_sequence(sizes: Sizes) -> Flex:
    lengths = torch.tensor([sizes.random.randrange(sizes.seq_k) for _ in range(sizes.batch)])
    return Flex(or_masks(lambda b, h, q_idx, kv_idx: kv_idx < lengths[b], causal))


def documents(sizes: Sizes) -> Flex:
    ids = sizes.ids(max(sizes.seq_q, sizes.seq_k))

    def same(b, h, q_idx, kv_idx):
        return ids[q_idx] == ids[kv_idx]

    return Flex(and_masks(causal, same))


def documents_of_each_sequence(sizes: Sizes) -> Flex:
    ids = torch.stack([sizes.ids(max(sizes.seq_q, sizes.seq_k)) for _ in range(sizes.batch)]).int()
    return Flex(lambda b, h, q_idx, kv_idx: (ids[b, q_idx] == ids[b, kv_idx]) & (q_idx >= kv_idx))


def documents_around_another_mask(sizes: Sizes) -> Flex:
    """The inner mask sees positions that start anew in each document."""
    length = max(sizes.seq_q, sizes.seq_k)
    lengths = [length // 3, length // 4 + 1]
    lengths.append(length - sum(lengths))
    ids = document_ids(lengths)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])

    def wrap(inner: Mod) -> Mod:
        def mask(b, h, q_idx, kv_idx):
            same = ids[q_idx] == ids[kv_idx]
            q_local = q_idx - offsets[ids[q_idx]]
            kv_local = kv_idx - offsets[ids[kv_idx]]
            return torch.where(same, inner(b, h, q_local, kv_local), False)

        return mask

    return Flex(wrap(sliding_window(3)))


def dilated_window(sizes: Sizes) -> Flex:
    window, dilation = sizes.random.randrange(4, 20), sizes.random.randrange(2, 4)

    def dilated(b, h, q_idx, kv_idx):
        distance = torch.abs(q_idx - kv_idx)
        return (distance <= window) & ((distance % dilation) == 0)

    return Flex(dilated)


def sink_tokens(sizes: Sizes) -> Flex:
    first = 2
    return Flex(and_masks(causal, or_masks(sliding_window(4), lambda b, h, q_idx, kv_idx: kv_idx < first)))


def neighbourhood_2d(sizes: Sizes) -> Flex:
    width, kernel_w, kernel_h = 7, 3, 5
    height = -(-max(sizes.seq_q, sizes.seq_k) // width)

    def coordinates(index):
        return index // width, index % width

    def near(b, h, q_idx, kv_idx):
        q_row, q_column = coordinates(q_idx)
        kv_row, kv_column = coordinates(kv_idx)
        row = q_row.clamp(kernel_h // 2, (height - 1) - kernel_h // 2)
        column = q_column.clamp(kernel_w // 2, (width - 1) - kernel_w // 2)
        return ((row - kv_row).abs() <= kernel_h // 2) & ((column - kv_column).abs() <= kernel_w // 2)

    return Flex(near)


def neighbourhood_of_tiles(sizes: Sizes) -> Flex:
    """The sequence is tile by tile; the mask is that of the image in rows."""
    width, tile, reach = 8, 2, 1

    def coordinates(index):
        in_tile, of_tile = index % (tile * tile), index // (tile * tile)
        tiles = width // tile
        return of_tile // tiles * tile + in_tile // tile, of_tile % tiles * tile + in_tile % tile

    def near(b, h, q_idx, kv_idx):
        (q_row, q_column), (kv_row, kv_column) = coordinates(q_idx), coordinates(kv_idx)
        return ((q_row - kv_row).abs() <= reach) & ((q_column - kv_column).abs() <= reach)

    return Flex(near)


def neighbourhood_in_morton_order(sizes: Sizes) -> Flex:
    """The sequence follows a Morton curve: the bits of row and column alternate."""
    bits = 3

    def coordinates(index):
        row = sum(((index >> (2 * bit + 1)) & 1) << bit for bit in range(bits))
        column = sum(((index >> (2 * bit)) & 1) << bit for bit in range(bits))
        return row, column

    def near(b, h, q_idx, kv_idx):
        (q_row, q_column), (kv_row, kv_column) = coordinates(q_idx), coordinates(kv_idx)
        return ((q_row - kv_row).abs() <= 1) & ((q_column - kv_column).abs() <= 1)

    return Flex(near)


def sliding_tiles_3d(sizes: Sizes) -> Flex:
    canvas, kernel, tile = (2, 2, 4), (1, 3, 3), 4
    text = sizes.seq_k - 5

    def coordinates(index):
        of_tile = index // tile
        return of_tile // (canvas[1] * canvas[2]), of_tile // canvas[2] % canvas[1], of_tile % canvas[2]

    def mask(b, h, q_idx, kv_idx):
        seen = (q_idx < text) & (kv_idx < text)
        for q, kv, extent, size in zip(coordinates(q_idx), coordinates(kv_idx), canvas, kernel, strict=True):
            centre = q.clamp(size // 2, extent - 1 - size // 2)
            seen = seen & (torch.abs(centre - kv) <= size // 2)
        return seen | (q_idx >= text) | (kv_idx >= text)

    return Flex(mask)


def sparse_videogen(sizes: Sizes) -> Flex:
    prompt, frame = 5, 6

    def spatial(b, h, q_idx, kv_idx):
        first = kv_idx < frame
        band = torch.abs(q_idx - kv_idx) < 1.5 * frame
        prompt_pair = (q_idx < prompt) | (kv_idx < prompt)
        return first | band | prompt_pair

    return Flex(spatial)


def flamingo(sizes: Sizes) -> Flex:
    """A token sees the image it belongs to."""
    starts = torch.tensor([0, 7, 15])
    image = torch.bucketize(torch.arange(sizes.seq_q), starts, right=True) - 1
    ends = torch.tensor([4, 9, sizes.seq_k])

    def mask(b, h, q_idx, kv_idx):
        own = image[q_idx]
        begin = torch.where(own == 0, 0, ends[torch.clamp(own - 1, min=0)])
        return (kv_idx < ends[own]) & (kv_idx >= begin)

    return Flex(mask)


def stand_alone_tree(sizes: Sizes) -> Flex:
    ancestors = torch.tril(sizes.tensor(sizes.seq_q, sizes.seq_q) > 0) | torch.eye(sizes.seq_q, dtype=torch.bool)
    prefix = sizes.seq_k // 2

    def tree(b, h, q_idx, kv_idx):
        node = torch.clamp(kv_idx - prefix, 0, ancestors.shape[1] - 1)
        return (kv_idx < prefix) | ancestors[q_idx, node]

    return Flex(tree)


def block_diffusion(sizes: Sizes) -> Flex:
    half, block = max(sizes.seq_q, sizes.seq_k) // 2, 4

    def mask(b, h, q_idx, kv_idx):
        clean_q, clean_k = q_idx >= half, kv_idx >= half
        block_q = torch.where(clean_q, (q_idx - half) // block, q_idx // block)
        block_k = torch.where(clean_k, (kv_idx - half) // block, kv_idx // block)
        diagonal = (block_q == block_k) & (clean_q == clean_k)
        to_clean = (block_q > block_k) & clean_k & (~clean_q)
        return diagonal | to_clean | ((block_q >= block_k) & clean_k & clean_q)

    return Flex(mask)


def one_head_in_three_is_local(sizes: Sizes) -> Flex:
    every = 3
    return Flex(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & ((h % every != 0) | (q_idx - kv_idx < 4)))


def mask_of_a_partial(sizes: Sizes) -> Flex:
    def window(size, b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() < size

    return Flex(functools.partial(window, 6))


class DenseMask:
    """A mask as an object with a table."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, b, h, q_idx, kv_idx):
        return self.table[h][q_idx, kv_idx]


def dense_table(sizes: Sizes) -> Flex:
    return Flex(DenseMask(sizes.tensor(sizes.heads, sizes.seq_q, sizes.seq_k) > 0))


def padding(sizes: Sizes) -> Flex:
    lengths = torch.tensor([sizes.random.randrange(1, sizes.seq_k + 1) for _ in range(sizes.batch)])
    return Flex(lambda b, h, q_idx, kv_idx: torch.logical_and(kv_idx < lengths[b], q_idx < lengths[b]))


# -- scores ----------------------------------------------------------------------------------------------------------


def alibi(sizes: Sizes) -> Flex:
    heads = sizes.heads

    def bias(score, b, h, q_idx, kv_idx):
        scale = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + (kv_idx - q_idx) * scale

    return Flex(causal, bias)


def alibi_with_slopes(sizes: Sizes) -> Flex:
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / sizes.heads) for h in range(sizes.heads)], dtype=torch.float64)
    return Flex(None, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * -torch.abs(q_idx - kv_idx))


def softcap(sizes: Sizes) -> Flex:
    cap = sizes.random.choice([2, 5.0])

    def capped(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return Flex(causal, capped)


class FastTanh(torch.autograd.Function):
    """How a faster tanh is slipped into a score."""

    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x)


def softcap_by_an_autograd_function(_: Sizes) -> Flex:
    return Flex(None, lambda score, b, h, q_idx, kv_idx: 3.0 * FastTanh.apply(score / 3.0))


def softcap_by_a_tensor(_: Sizes) -> Flex:
    cap = torch.tensor(2.5)
    return Flex(None, lambda score, b, h, q_idx, kv_idx: cap * (score / cap).tanh())


def causal_in_the_score(_: Sizes) -> Flex:
    return Flex(None, lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, -float("inf")))


def additive_mask_in_the_score(sizes: Sizes) -> Flex:
    window = 5
    minus_infinity = float("-inf")

    def masked(score, b, h, q_idx, kv_idx):
        local = torch.where((q_idx - kv_idx).abs() <= window, 0.0, minus_infinity)
        return score * 0.5 + local

    return Flex(None, masked)


def infinities_in_every_place(_: Sizes) -> Flex:
    def score(score, b, h, q_idx, kv_idx):
        early = torch.where(kv_idx > q_idx + 3, -torch.inf, score)
        chosen = torch.where(h == 0, early, torch.where(kv_idx < 20, score * 2, -torch.inf))
        return chosen + torch.where(kv_idx == 1, -torch.inf, 0.5)

    return Flex(None, score)


def relative_position(_: Sizes) -> Flex:
    return Flex(None, lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx))


def relative_bias_table(sizes: Sizes) -> Flex:
    table, last = sizes.tensor(sizes.heads, sizes.seq_q + sizes.seq_k - 1), sizes.seq_k - 1
    return Flex(None, lambda score, b, h, q_idx, kv_idx: score + table[h, q_idx - kv_idx + last])


def dense_bias(sizes: Sizes) -> Flex:
    table = sizes.tensor(sizes.batch, sizes.heads, sizes.seq_q, sizes.seq_k)
    return Flex(None, lambda score, b, h, q_idx, kv_idx: score + table[b, h, q_idx, kv_idx])


def bias_of_queries_in_half_precision(sizes: Sizes) -> Flex:
    table = sizes.tensor(sizes.seq_q).to(torch.bfloat16)
    return Flex(causal, lambda score, b, h, q_idx, kv_idx: score + table[q_idx])


def head_scales(sizes: Sizes) -> Flex:
    scales = sizes.tensor(sizes.heads)
    return Flex(None, lambda score, b, h, q_idx, kv_idx: score * scales[h])


def t5_buckets(sizes: Sizes) -> Flex:
    buckets, farthest = 8, 20
    table = sizes.tensor(buckets, sizes.heads)

    def bucket(distance):
        half = buckets // 2
        sign = torch.where(distance < 0, half, 0)
        n = distance.abs()
        exact = half // 2
        far = exact + (torch.log(n.float() / exact) / math.log(farthest / exact) * (half - exact)).to(torch.long)
        return sign + torch.where(n < exact, n, torch.minimum(far, torch.full_like(far, half - 1)))

    return Flex(None, lambda score, b, h, q_idx, kv_idx: score + table[bucket(q_idx - kv_idx), h])


def activations(sizes: Sizes) -> Flex:
    return Flex(causal, lambda score, b, h, q_idx, kv_idx: torch.relu(score) - torch.sigmoid(-score) ** 2)


def kerple(sizes: Sizes) -> Flex:
    strength, rate = sizes.tensor(sizes.heads).abs(), sizes.tensor(sizes.heads).abs()

    def kernel(score, b, h, q_idx, kv_idx):
        return score - strength[h] * torch.log1p(rate[h] * (q_idx - kv_idx).abs())

    return Flex(causal, kernel)


def inverse_distance(_: Sizes) -> Flex:
    return Flex(causal, lambda score, b, h, q_idx, kv_idx: score * torch.rsqrt(1.0 + abs(q_idx - kv_idx)))


def rounded_toward_zero(_: Sizes) -> Flex:
    """Every way torch has to divide ints, at negative numbers."""

    def score(score, b, h, q_idx, kv_idx):
        d = q_idx - kv_idx
        down, to_zero = torch.div(d, 3, rounding_mode="floor"), torch.div(d, 3, rounding_mode="trunc")
        return score + 0.01 * (down + 7 * to_zero + 11 * (d % 5) + 13 * torch.fmod(d, 5) + (d / 4).int() + d // -3)

    return Flex(None, score)


def numbers_of_bools(_: Sizes) -> Flex:
    return Flex(None, lambda score, b, h, q_idx, kv_idx: score + (q_idx > kv_idx) * 2 - (q_idx == kv_idx).float())


BUILDERS = [
    value for name, value in list(globals().items()) if getattr(value, "__annotations__", {}).get("return") == "Flex"
]


def run(build: Callable[[Sizes], Flex], sizes: Sizes) -> None:
    flex = build(sizes)
    extents = {"batch": sizes.batch, "heads": sizes.heads, "seq_q": sizes.seq_q, "seq_k": sizes.seq_k}
    found = attn_dsl.from_flex(flex.mask, flex.score, dtype="f32", scale=0.3, extents=extents)
    q = sizes.tensor(sizes.batch, sizes.heads, sizes.seq_q, 8).double()
    k, v = (sizes.tensor(sizes.batch, sizes.kv_heads, sizes.seq_k, 8).double() for _ in range(2))
    block_mask = None
    if flex.mask is not None:
        block_mask = create_block_mask(flex.mask, sizes.batch, sizes.heads, sizes.seq_q, sizes.seq_k, device="cpu")
    o, aux = flex_attention(q, k, v, flex.score, block_mask, 0.3, enable_gqa=True, return_aux=AuxRequest(lse=True))
    tensors = {"q": q, "k": k, "v": v, **found.captures}
    got_o, got_lse = attention(found.spec, tensors, {p.name: p.default for p in found.spec.params}, precision="float64")
    torch.testing.assert_close(got_o, o, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got_lse, aux.lse, atol=1e-5, rtol=1e-5, check_dtype=False)
    again = attn_dsl.parse(found.text)
    assert (again.mask, again.score, again.tensors) == (found.spec.mask, found.spec.score, found.spec.tensors)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_equals_flex_attention(build, seed):
    chance = random.Random(f"{build.__name__} {seed}")
    kv_heads, group = chance.randrange(1, 3), chance.randrange(1, 4)
    rows, keys = chance.randrange(20, 40), chance.randrange(20, 40)
    run(build, Sizes(chance.randrange(1, 3), kv_heads * group, kv_heads, rows, keys, chance))
