"""Specs of the gallery as FlexAttention's functions, run by FlexAttention itself."""

from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attn_dsl
from attn_dsl.convert.to_flex import STEPS, to_flex
from attn_dsl.expr import OPERATORS
from attn_dsl.reference import attention
from attn_dsl.runtime import random_inputs
from attn_dsl.spec.scale import scale_value

EXAMPLES = Path(__file__).parents[2] / "examples"
EXTENTS = {"batch": 2, "seq_q": 21, "seq_k": 34, "heads": 4, "dim": 8}
GALLERY = [
    "bloom_alibi",
    "gemma2_local",
    "t5_decoder",
    "streaming_llm",
    "longformer",
    "natten_2d",
    "phi3_small_blocks",
    "sandwich",
    "paligemma_prefix",
    "packed_documents",
    "swin_window",
    "bigbird",
    "longformer_dilated",
    "qwen_logn",
    "llama4_nope",
]
HEAD = "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, kv_heads, dim]\n"


def operand(spec, name, tensor):
    order = {"batch": 0, "heads": 1, "kv_heads": 1, "seq_q": 2, "seq_k": 2, "dim": 3, "dim_v": 3}
    axes = [str(axis.name) for axis in spec.tensor(name).axes]
    return tensor.permute(sorted(range(4), key=lambda place: order[axes[place]]))


def assert_same(spec, inputs):
    mask_mod, score_mod = to_flex(spec, inputs.tensors, inputs.params, inputs.extents)
    q, k, v = (operand(spec, name, inputs.tensors[name].float()) for name in "qkv")
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, *sizes, device="cpu")
    scale = scale_value(spec, inputs.params, inputs.extents)
    found = flex_attention(q, k, v, score_mod, block_mask, scale, enable_gqa=True)
    tensors = {**inputs.tensors, **{name: inputs.tensors[name].float() for name in "qkv"}}
    expected = attention(spec, tensors, inputs.params)[0]
    order = [[str(axis.name) for axis in spec.output.axes].index(name) for name in ("batch", "heads", "seq_q", "dim")]
    torch.testing.assert_close(found, expected.permute(order), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", GALLERY)
def test_the_gallery(name):
    spec = attn_dsl.load(EXAMPLES / f"{name}.attn")
    axes = {axis.name for tensor in spec.tensors for axis in tensor.axes if axis.name}
    extents = {axis: EXTENTS.get(axis, 64) for axis in axes} | ({"kv_heads": 2} if "kv_heads" in axes else {})
    if "seq_q + seq_k" in (EXAMPLES / f"{name}.attn").read_text():
        extents["seq_k"] = extents["seq_q"]
    inputs = random_inputs(spec, extents)
    assert_same(spec, inputs)


def test_every_operator_has_a_step():
    assert set(STEPS) == set(OPERATORS)


def test_parameters_of_heads_and_sequences():
    text = "param slope: float[heads] = 1.0\nparam first: int[batch] in 0.. = 0\nparam gain: float[kv_heads] = 1.0\n"
    spec = attn_dsl.parse(HEAD + text + "mask = kv_idx >= first\nscore = gain * score + slope * (kv_idx - q_pos)")
    given = {"slope": torch.randn(4), "first": torch.tensor([3, 9], dtype=torch.int32), "gain": torch.randn(2)}
    inputs = random_inputs(spec, {**EXTENTS, "kv_heads": 2}, given=given)
    inputs.params.update(given)
    assert_same(spec, inputs)


def test_the_way_there_and_back():
    text = "slopes: f32[heads]\nmask = abs(kv_idx - q_idx) < 9\nscore = score + slopes[h] * tanh(score)"
    spec = attn_dsl.parse(HEAD.replace("kv_heads", "heads") + "align top_left\n" + text)
    inputs = random_inputs(spec, EXTENTS)
    mask_mod, score_mod = to_flex(spec, inputs.tensors, inputs.params, inputs.extents)
    again = attn_dsl.from_flex(mask_mod, score_mod)
    assert again.text.splitlines()[-2:] == ["mask = abs(kv_idx - q_idx) < 9", "score = score + tensor[h] * tanh(score)"]


@pytest.mark.parametrize("name", ["gpt_oss_local", "paged_decode", "packed_varlen", "deepseek_mla_absorbed"])
def test_what_flex_attention_lacks(name):
    spec = attn_dsl.load(EXAMPLES / f"{name}.attn")
    with pytest.raises(attn_dsl.UnsupportedError) as raised:
        to_flex(spec, {}, {}, {})
    assert raised.value.code == "E281"


@pytest.mark.slow  # Inductor's C++ takes a minute
def test_torch_compile_takes_the_functions_whole():
    text = "slopes: f32[heads]\nparam n: int in 1.. = 50\nmask = 0 <= q_pos - kv_idx < n\n"
    score = "score = 4.0 * tanh(score / 4.0) + min(slopes[h], 1.0) * (kv_idx - q_pos)"
    spec = attn_dsl.parse(HEAD.replace("[batch, seq_q, heads, dim]", "[batch, heads, seq_q, dim]") + text + score)
    inputs = random_inputs(spec, {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 128, "seq_k": 128, "dim": 16})
    mask_mod, score_mod = to_flex(spec, inputs.tensors, inputs.params, inputs.extents)
    q, k, v = (operand(spec, name, inputs.tensors[name]).contiguous() for name in "qkv")
    block_mask = create_block_mask(mask_mod, None, 2, 128, 128, device="cpu")
    with torch.no_grad():
        found = torch.compile(flex_attention, fullgraph=True)(q, k, v, score_mod, block_mask)
    torch.testing.assert_close(found, attn_dsl.compile(spec)(**inputs.tensors), atol=2e-5, rtol=2e-5)


def test_factors_of_v_are_not_dropped():
    spec = attn_dsl.parse(HEAD + "factors: f32[heads]\ndescale v = factors[h]")
    with pytest.raises(attn_dsl.UnsupportedError, match=r"E281.*factors of v"):
        to_flex(spec, {}, {}, {})


def test_factors_of_k_are_part_of_the_score():
    spec = attn_dsl.parse(HEAD + "factors: f32[batch, kv_heads]\ndescale k = factors[b, kv_h]")
    assert_same(spec, random_inputs(spec, {**EXTENTS, "kv_heads": 2}))
