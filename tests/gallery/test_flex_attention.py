"""Specs against torch's FlexAttention, uncompiled on CPU, with mask and score functions as its users write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from gallery_cases import CASES, Case
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention, or_masks

import attn_dsl
from attn_dsl.reference import attention

EXAMPLES = Path(__file__).parents[2] / "examples"

Mod = Callable[..., Tensor]


@dataclass(frozen=True)
class Flex:
    mask: Mod | None = None
    score: Mod | None = None
    scale: float | None = None


def _causal(offset: int) -> Mod:
    return lambda b, h, q_idx, kv_idx: q_idx + offset >= kv_idx


def _window(offset: int, size: int) -> Mod:
    return lambda b, h, q_idx, kv_idx: q_idx + offset - kv_idx < size


def _around(offset: int, size: int) -> Mod:
    return lambda b, h, q_idx, kv_idx: (q_idx + offset - kv_idx).abs() <= size


def llama_causal(_: Case, offset: int) -> Flex:
    return Flex(_causal(offset))


def mistral_window(case: Case, offset: int) -> Flex:
    return Flex(and_masks(_causal(offset), _window(offset, case.params["window_tokens"])))


def modernbert_window(case: Case, offset: int) -> Flex:
    return Flex(_around(offset, case.params["reach"]))


def gemma2_local(case: Case, offset: int) -> Flex:
    cap = case.params["cap"]
    return Flex(
        and_masks(_causal(offset), _window(offset, case.params["window_tokens"])),
        lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap),
        case.params["query_scalar"] ** -0.5,
    )


def paligemma_prefix(case: Case, offset: int) -> Flex:
    length = case.params["prefix_length"]
    return Flex(or_masks(_causal(offset), lambda b, h, q_idx, kv_idx: kv_idx < length[b]))


def packed_documents(case: Case, offset: int) -> Flex:
    ids = case.tensors["document"]
    return Flex(and_masks(_causal(offset), lambda b, h, q_idx, kv_idx: ids[b, q_idx + offset] == ids[b, kv_idx]))


def streaming_llm(case: Case, offset: int) -> Flex:
    recent = _window(offset, case.params["window_tokens"])
    first = case.params["first"]
    return Flex(and_masks(_causal(offset), or_masks(recent, lambda b, h, q_idx, kv_idx: kv_idx < first)))


def longformer_dilated(case: Case, offset: int) -> Flex:
    dilation = case.params["dilation"]
    near = _around(offset, case.params["reach"])
    return Flex(and_masks(near, lambda b, h, q_idx, kv_idx: (q_idx + offset - kv_idx) % dilation[h] == 0))


def bloom_alibi(case: Case, offset: int) -> Flex:
    heads = case.tensors["q"].shape[2]
    assert heads == 12
    first = [2.0 ** -(i + 1) for i in range(8)]
    slopes = torch.tensor(first + [2.0 ** -(i + 0.5) for i in range(4)], dtype=torch.float64)
    return Flex(_causal(offset), lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx - offset))


def t5_decoder(case: Case, offset: int) -> Flex:
    from transformers.models.t5.modeling_t5 import T5Attention

    table = case.tensors["bias"].double()
    distance = torch.arange(case.tensors["k"].shape[1])
    bucket = T5Attention._relative_position_bucket(-distance, bidirectional=False)
    return Flex(
        _causal(offset),
        lambda score, b, h, q_idx, kv_idx: score + table[bucket[(q_idx + offset - kv_idx).clamp(min=0)], h],
        1.0,
    )


def alphafold_pair_bias(case: Case, _: int) -> Flex:
    pair, length = case.tensors["pair"].double(), case.tensors["length"]
    case.tensors["k"].nan_to_num_(nan=0.0)  # FlexAttention lets what it masks into the sum
    case.tensors["v"].nan_to_num_(posinf=0.0)
    return Flex(
        lambda b, h, q_idx, kv_idx: kv_idx < length[b],
        lambda score, b, h, q_idx, kv_idx: score + pair[b, h, q_idx, kv_idx],
    )


def bd3lm_training(case: Case, _: int) -> Flex:
    half, block = case.tensors["k"].shape[1] // 2, case.params["block"]

    def mask(_b, _h, q_idx, kv_idx):
        clean_q, clean_k = q_idx >= half, kv_idx >= half
        block_q = torch.where(clean_q, q_idx - half, q_idx) // block
        block_k = torch.where(clean_k, kv_idx - half, kv_idx) // block
        diagonal = (block_q == block_k) & (clean_q == clean_k)
        to_clean = (block_q > block_k) & clean_k & ~clean_q
        block_causal = (block_q >= block_k) & clean_k & clean_q
        return diagonal | to_clean | block_causal

    return Flex(mask)


BUILDERS = [
    llama_causal,
    mistral_window,
    modernbert_window,
    gemma2_local,
    paligemma_prefix,
    packed_documents,
    streaming_llm,
    longformer_dilated,
    bloom_alibi,
    t5_decoder,
    alphafold_pair_bias,
    bd3lm_training,
]


def _flex(case: Case, flex: Flex) -> tuple[Tensor, Tensor]:
    q, k, v = (case.tensors[name].double().transpose(1, 2) for name in "qkv")
    block_mask = None
    if flex.mask is not None:
        block_mask = create_block_mask(flex.mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
    o, aux = flex_attention(
        q, k, v, flex.score, block_mask, flex.scale, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    return o.transpose(1, 2), aux.lse


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_equals_flex_attention(build):
    case = CASES[build.__name__]()
    flex = build(case, case.tensors["k"].shape[1] - case.tensors["q"].shape[1])
    spec = attn_dsl.load(EXAMPLES / f"{build.__name__}.attn", **case.constants)
    o, lse = attention(spec, case.tensors, case.params, precision="float64")
    expected_o, expected_lse = _flex(case, flex)
    torch.testing.assert_close(o, expected_o, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(lse, expected_lse, atol=1e-6, rtol=1e-6)  # FlexAttention returns LSE in f32


def test_rows_without_a_key_agree_with_flex_attention():
    case = CASES["softmax_plus_one"]()  # 37 queries, 23 keys; run without its sink
    spec = attn_dsl.load(EXAMPLES / "llama_causal.attn")
    o, lse = attention(spec, case.tensors, {}, precision="float64")
    expected_o, expected_lse = _flex(case, Flex(_causal(23 - 37)))
    assert (o[:, :14] == 0).all()
    assert (lse[..., :14] == -torch.inf).all()
    torch.testing.assert_close(o, expected_o, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(lse, expected_lse, atol=1e-6, rtol=1e-6)
