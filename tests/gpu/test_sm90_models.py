"""Compiled specs in place of the attention of transformers' models, on a Hopper GPU.

Small random decoders run with eager attention in float32 and in bf16, and with the spec's kernel in bf16: the kernel
may be no farther from float32 than eager attention in bf16 is. The queries, keys and values of a real embedding model
were recorded before (`record_minilm.py`), with what eager attention made of them; `ATTN_DSL_MINILM` names the file.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attn_dsl
from attn_dsl import UNBOUNDED
from attn_dsl.cli.accuracy import compare_output
from attn_dsl.runtime import CompiledAttention

transformers = pytest.importorskip("transformers")
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not ON_HOPPER, reason="no GPU of compute capability 9.0")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAME = "attn_dsl_sm90"
TOKENS = 700
WINDOW = 200


def build(model_class: type, config: Any) -> nn.Module:
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for name, parameter in model.named_parameters():
        # projections large enough that attention is far from uniform; norms, biases and sinks get values
        spread = 0.5 if parameter.ndim < 2 else 0.2 if "proj" in name else 0.05
        parameter.data = torch.randn_like(parameter) * spread
    return model.cuda()


def sizes(head_dim: int) -> dict[str, Any]:
    return {
        "vocab_size": 64,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "sliding_window": WINDOW,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def answers(model: nn.Module, implementation: str) -> Tensor:
    ids = torch.randint(3, 60, (2, TOKENS), generator=torch.Generator().manual_seed(1)).cuda()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.double()


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def hold_to_eager(
    model: nn.Module, compiled: CompiledAttention, inputs: Callable[[nn.Module, dict[str, Any]], dict[str, Any]]
) -> None:
    """`inputs` gives the captures and parameters of a layer."""
    calls: list[nn.Module] = []

    def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, _: Tensor | None, **kwargs: Any) -> Any:
        calls.append(module)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return compiled(q, k, v, **inputs(module, kwargs)), None

    transformers.AttentionInterface.register(NAME, attend)
    exact = answers(copy.deepcopy(model).float(), "eager")
    half = model.bfloat16()
    eager, ours = answers(half, "eager"), answers(half, NAME)
    assert len(calls) == 4
    assert compiled.target == "sm90"
    far = distance(eager, exact)
    assert 1e-4 < far < 0.1, "eager attention in bf16 is a useful yardstick"
    assert distance(ours, exact) < 1.2 * far + 1e-4, (distance(ours, exact), far)


def window_of(module: nn.Module) -> int:
    return module.sliding_window or UNBOUNDED


def test_gemma2_shaped():
    """Head dimension 256, soft-capped scores, every second layer a window."""
    more = {"query_pre_attn_scalar": 256, "attn_logit_softcapping": 5.0}
    model = build(transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**sizes(256), **more))
    compiled = attn_dsl.compile(attn_dsl.load(EXAMPLES / "gemma2_local.attn"), target="sm90")
    hold_to_eager(
        model,
        compiled,
        lambda module, kwargs: {"window_tokens": window_of(module), "cap": kwargs["softcap"], "query_scalar": 256.0},
    )


def test_gpt_oss_shaped():
    """Head dimension 64, learned sinks, every second layer a window. All experts serve all tokens: no choice flips."""
    more = {"num_local_experts": 2, "num_experts_per_tok": 2}
    model = build(transformers.GptOssForCausalLM, transformers.GptOssConfig(**sizes(64), **more))
    compiled = attn_dsl.compile(attn_dsl.load(EXAMPLES / "gpt_oss_local.attn"), target="sm90")
    hold_to_eager(
        model, compiled, lambda module, _: {"window_tokens": window_of(module), "sinks": module.sinks.bfloat16()}
    )


@pytest.mark.skipif("ATTN_DSL_MINILM" not in os.environ, reason="no recording named by ATTN_DSL_MINILM")
def test_minilm():
    """Every layer of all-MiniLM-L6-v2 (12 heads of 32) on real sentences of different lengths."""
    recorded = torch.load(os.environ["ATTN_DSL_MINILM"], weights_only=True)
    text = (EXAMPLES / "bert_padding.attn").read_text(encoding="utf-8").replace("f32[", "f16[")
    spec = attn_dsl.parse(text, name="bert_padding")
    compiled = attn_dsl.compile(spec, target="sm90")
    length = recorded["length"].cuda()
    assert len(recorded["layers"]) == 6
    assert length.min() < length.max()
    real = torch.arange(int(length.max()), device="cuda") < length[:, None]
    for layer in recorded["layers"]:
        q, k, v, expected = (layer[name].cuda() for name in ("q", "k", "v", "o"))
        found = compiled(q, k, v, length=length)
        assert compare_output(found[real], expected[real], spec.output.dtype).ok, compare_output(
            found[real], expected[real], spec.output.dtype
        )
