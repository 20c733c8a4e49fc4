"""Sizes of transformers' decoders that are small enough for a test."""

from typing import Any


def decoder_sizes(**more: Any) -> dict[str, Any]:
    """Keywords of a configuration: two layers, six query heads, two of K and V, head dimension 8; then `more`."""
    return {
        "vocab_size": 64,
        "hidden_size": 48,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }
