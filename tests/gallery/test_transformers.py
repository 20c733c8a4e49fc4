"""Specs inside transformers' own models, tiny and random, against the same model with its own eager attention.

Sequences are longer than every window, and each test also shows that the feature it is about changes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import decoder_sizes
from torch import Tensor, nn

import attn_dsl
from attn_dsl import UNBOUNDED
from attn_dsl.reference import attention

transformers = pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "attn_dsl_gallery"
TOKENS = 21

Attend = Callable[..., Tensor]


def run(name: str, q: Tensor, k: Tensor, v: Tensor, inputs: dict[str, Any], **constants: int) -> Tensor:
    """The spec `name` in float32 on q, k, v [batch, seq, heads, dim]; `inputs` are its captures and parameters."""
    spec = attn_dsl.load(EXAMPLES / f"{name}.attn", **constants)
    captures = {t.name: inputs[t.name] for t in spec.tensors if t.name in inputs}
    params = {p.name: inputs[p.name] for p in spec.params if p.name in inputs}
    assert {*captures, *params} == set(inputs)
    return attention(spec, {"q": q, "k": k, "v": v, **captures}, params)[0]


def spec_attention(choose: Callable[[nn.Module, dict[str, Any]], tuple[str, dict[str, Any]]]) -> Attend:
    """An attention function of transformers: `choose` names the spec and its inputs for a layer."""

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
        assert mask is None, "the spec is the only mask"
        name, inputs = choose(module, kwargs)
        return run(name, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), inputs), None

    return attend


def logits(model: nn.Module, attend: Attend | None = None, **inputs: Any) -> Tensor:
    """What `model` answers, with its eager attention or with `attend` in its place."""
    if attend is not None:
        transformers.AttentionInterface.register(NAME, attend)
    model.set_attn_implementation("eager" if attend is None else NAME)
    with torch.no_grad():
        result = model(**inputs)
    return result[0] if "logits" not in result else result.logits


def assert_same_and_in_effect(model: nn.Module, attend: Attend, without: Attend, **inputs: Any) -> None:
    expected = logits(model, **inputs)
    torch.testing.assert_close(logits(model, attend, **inputs), expected, atol=2e-5, rtol=2e-5)
    assert (logits(model, without, **inputs) - expected).abs().max() > 1e-3


def build(model_class: type, config: Any) -> nn.Module:
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for parameter in model.parameters():  # large enough for attention to matter; norms, biases and sinks get values
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.5)
    return model


def tokens(length: int = TOKENS) -> Tensor:
    return torch.randint(3, 60, (2, length), generator=torch.Generator().manual_seed(1))


def window_of(module: nn.Module) -> int:
    return module.sliding_window or UNBOUNDED


def test_mistral():
    config = transformers.MistralConfig(**decoder_sizes(sliding_window=7))
    model = build(transformers.MistralForCausalLM, config)
    attend = spec_attention(lambda module, _: ("mistral_window", {"window_tokens": config.sliding_window}))
    without = spec_attention(lambda module, _: ("mistral_window", {"window_tokens": UNBOUNDED}))
    assert_same_and_in_effect(model, attend, without, input_ids=tokens())


def test_mistral_decodes_from_its_cache():
    config = transformers.MistralConfig(**decoder_sizes(sliding_window=7))
    model = build(transformers.MistralForCausalLM, config)
    attend = spec_attention(lambda module, _: ("mistral_window", {"window_tokens": 7}))
    expected = logits(model, input_ids=tokens())
    cache = transformers.DynamicCache()
    steps = [logits(model, attend, input_ids=part, cache=cache) for part in tokens().split((11, 4, *[1] * 6), dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=2e-5, rtol=2e-5)


def test_gemma2():
    sizes = decoder_sizes(sliding_window=7, query_pre_attn_scalar=20, attn_logit_softcapping=3.0)
    config = transformers.Gemma2Config(**sizes)
    assert config.layer_types == ["sliding_attention", "full_attention"]
    model = build(transformers.Gemma2ForCausalLM, config)

    def inputs(module: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"window_tokens": window_of(module), "cap": kwargs["softcap"], "query_scalar": 20.0}

    attend = spec_attention(lambda module, kwargs: ("gemma2_local", inputs(module, kwargs)))
    uncapped = spec_attention(lambda module, kwargs: ("gemma2_local", inputs(module, kwargs) | {"cap": 1e4}))
    unwindowed = spec_attention(
        lambda module, kwargs: ("gemma2_local", inputs(module, kwargs) | {"window_tokens": UNBOUNDED})
    )
    assert_same_and_in_effect(model, attend, uncapped, input_ids=tokens())
    assert_same_and_in_effect(model, attend, unwindowed, input_ids=tokens())


def test_gpt_oss():
    sizes = decoder_sizes(sliding_window=7, num_local_experts=2, num_experts_per_tok=1)
    config = transformers.GptOssConfig(**sizes)
    assert config.layer_types == ["sliding_attention", "full_attention"]
    model = build(transformers.GptOssForCausalLM, config)

    def inputs(module: nn.Module) -> dict[str, Any]:
        return {"window_tokens": window_of(module), "sinks": module.sinks}

    attend = spec_attention(lambda module, _: ("gpt_oss_local", inputs(module)))
    sinkless = spec_attention(lambda module, _: ("mistral_window", {"window_tokens": window_of(module)}))
    unwindowed = spec_attention(lambda module, _: ("gpt_oss_local", inputs(module) | {"window_tokens": UNBOUNDED}))
    assert_same_and_in_effect(model, attend, sinkless, input_ids=tokens())
    assert_same_and_in_effect(model, attend, unwindowed, input_ids=tokens())


def test_llama4():
    sizes = decoder_sizes(
        intermediate_size_mlp=48,
        attention_chunk_size=8,
        no_rope_layers=[1, 0],  # the first layer has rotary positions and chunks, the second neither
        moe_layers=[],
        num_local_experts=1,
        attn_temperature_tuning=True,
        floor_scale=4,
        attn_scale=0.5,
    )
    config = transformers.Llama4TextConfig(**sizes)
    assert config.layer_types == ["chunked_attention", "full_attention"]
    model = build(transformers.Llama4ForCausalLM, config)
    ids = tokens()
    expected = logits(model, input_ids=ids)
    for layer in model.model.layers:
        layer.self_attn.attn_temperature_tuning = False  # the spec does it

    def attend(chunk: int, strength: float) -> Attend:
        return spec_attention(
            lambda module, _: (
                ("llama4_chunked", {"chunk": chunk})
                if module.use_rope
                else ("llama4_nope", {"strength": strength, "tokens": 4})
            )
        )

    torch.testing.assert_close(logits(model, attend(8, 0.5), input_ids=ids), expected, atol=2e-5, rtol=2e-5)
    for without in (attend(1000, 0.5), attend(8, 0.0)):
        assert (logits(model, without, input_ids=ids) - expected).abs().max() > 1e-3


def test_t5():
    config = transformers.T5Config(
        vocab_size=64, d_model=24, d_kv=8, d_ff=48, num_layers=1, num_decoder_layers=1, num_heads=3, pad_token_id=0
    )
    model = build(transformers.T5Model, config)
    tables = {
        False: model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight,
        True: model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight,
    }

    def choose(module: nn.Module, _: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if module.has_relative_attention_bias:
            return ("t5_decoder" if module.is_decoder else "t5_encoder"), {"bias": tables[module.is_decoder]}
        return "t5_encoder", {"bias": torch.zeros(32, 3)}  # cross attention has no positions

    def zeroed(module: nn.Module, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return choose(module, kwargs)[0], {"bias": torch.zeros(32, 3)}

    ids = tokens(290)  # past distance 128, so that every bucket is used
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :170], "use_cache": False}
    assert_same_and_in_effect(model, spec_attention(choose), spec_attention(zeroed), **inputs)


def test_modernbert():
    config = transformers.ModernBertConfig(
        **decoder_sizes(local_attention=8, global_attn_every_n_layers=2, reference_compile=False)
    )
    assert config.layer_types == ["full_attention", "sliding_attention"]
    model = build(transformers.ModernBertModel, config)

    def attend(reach: int) -> Attend:
        return spec_attention(
            lambda module, _: ("modernbert_window", {"reach": reach}) if module.sliding_window else ("vit_full", {})
        )

    assert_same_and_in_effect(model, attend(4), attend(UNBOUNDED), input_ids=tokens())


def test_mpt():
    config = transformers.MptConfig(vocab_size=64, d_model=48, n_heads=6, n_layers=2, max_seq_len=64)
    model = build(transformers.MptForCausalLM, config)
    ids = tokens()
    expected = logits(model, input_ids=ids)

    def forward(self: nn.Module, name: str) -> Callable[..., Any]:  # MPT has no attention interface to register with
        def attend(hidden: Tensor, **_: Any) -> Any:
            q, k, v = self.Wqkv(hidden).unflatten(-1, (3, self.n_heads, self.head_dim)).unbind(-3)
            return self.out_proj(run(name, q, k, v, {}).flatten(2)), None

        return attend

    for name, same in (("bloom_alibi", True), ("llama_causal", False)):
        for block in model.transformer.blocks:
            block.attn.forward = forward(block.attn, name)
        with torch.no_grad():
            found = model(input_ids=ids).logits
        if same:
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
        else:
            assert (found - expected).abs().max() > 1e-3


@pytest.mark.parametrize("shift", [0, 1])
def test_swin(shift):
    from transformers.models.swin.modeling_swin import SwinLayer

    height, width = 6, 9
    config = transformers.SwinConfig(window_size=3, drop_path_rate=0.0)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    layer = SwinLayer(config, dim=16, input_resolution=(height, width), num_heads=2, shift_size=shift).eval()
    for parameter in layer.parameters():
        parameter.data = torch.randn_like(parameter) * 0.5
    image = torch.randn(2, height * width, 16)
    sizes = {"height": height, "width": width, "shift": shift}

    def layer_over_the_whole_image(x: Tensor, bias: Tensor) -> Tensor:
        attention_layer, normed = layer.attention, layer.layernorm_before(x)
        projections = (attention_layer.q_proj, attention_layer.k_proj, attention_layer.v_proj)
        q, k, v = (projection(normed).unflatten(-1, (2, 8)) for projection in projections)
        o = run("swin_window", q, k, v, {"bias": bias, **sizes}, size=3)
        x = x + attention_layer.o_proj(o.flatten(2))
        return x + layer.mlp(layer.layernorm_after(x))

    table = layer.attention.relative_position_bias.relative_position_bias_table
    with torch.no_grad():
        expected = layer(image, (height, width))[0]
        torch.testing.assert_close(layer_over_the_whole_image(image, table), expected, atol=2e-5, rtol=2e-5)
        without = layer_over_the_whole_image(image, torch.zeros_like(table))
    assert (without - expected).abs().max() > 1e-3


def test_gemma3_images():
    sizes = decoder_sizes(sliding_window=1000, query_pre_attn_scalar=8)
    config = transformers.Gemma3TextConfig(**sizes)
    model = build(transformers.Gemma3TextModel, config)
    image = torch.full((2, TOKENS), -1, dtype=torch.int32)
    image[0, 2:9], image[0, 12:15], image[1, 5:20] = 0, 1, 0
    from transformers.masking_utils import create_causal_mask

    embeds = model.embed_tokens(tokens())
    model.set_attn_implementation("eager")
    mask = create_causal_mask(config, embeds, None, None, None, block_sequence_ids=image)
    masks = {"full_attention": mask, "sliding_attention": mask}
    with torch.no_grad():
        expected = model(inputs_embeds=embeds, attention_mask=masks, use_cache=False)[0]
    nothing = {"full_attention": None, "sliding_attention": None}
    for name, inputs, same in (("gemma3_image", {"image": image}, True), ("llama_causal", {}, False)):
        attend = spec_attention(lambda module, _, name=name, inputs=inputs: (name, inputs))
        found = logits(model, attend, inputs_embeds=embeds, attention_mask=nothing, use_cache=False)
        if same:
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
        else:
            assert (found - expected).abs().max() > 1e-3
