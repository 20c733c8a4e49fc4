"""Specs as attention implementations of Hugging Face transformers.

    attn_dsl.integrations.transformers.register("my_attention", "examples/gemma2_local.attn")
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="my_attention")

The model keeps its layers, caches and masks; each layer calls the compiled spec. What a layer needs and its spec does
not do is an error that says so: the mask of the model is compared with the spec's, the scale with the spec's, and
nothing that a layer passes (soft cap, sinks, dropout) is dropped.
"""

from .register import Choice, register

__all__ = ["Choice", "register"]
