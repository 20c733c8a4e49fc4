"""`register`: a name for `attn_implementation`, and which spec each layer gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from ...diagnostics import ConversionError, did_you_mean
from ...spec import AttentionSpec, resolve
from ...syntax import parse_source, read_source
from .attend import Choose, LayerAttention
from .demand import Demand
from .variants import check_dense

Spec = AttentionSpec | str | Path
Choice = Spec | Mapping[str, Spec] | Callable[[nn.Module], AttentionSpec]
_BUILTIN = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")


def register(
    name: str,
    spec: Choice,
    *,
    inputs: Mapping[str, Any] | None = None,
    target: str = "auto",
    compare_masks: bool = True,
) -> LayerAttention:
    """Makes `attn_implementation=name` call a spec.

    Args:
        name: of the implementation; a second registration replaces the first.
        spec: a spec or the path of one, for every layer; a mapping from `config.layer_types` (`"full_attention"`,
            `"sliding_attention"`, ...) to specs; or a function that gives the spec of a layer.
        inputs: parameter or capture of the spec -> its value, or a function of (layer, keyword arguments of the call).
            `window_tokens` or `sliding_window`, `cap` or `softcap`, `sinks` or `s_aux`, `scaling`, `attention_mask` and
            `length` are found in the layer by themselves.
        target: as in `attn_dsl.compile`.
        compare_masks: whether each forward pass compares the model's masks with the spec's. That waits for the device;
            without it a mask of the model that the spec does not have is not noticed.

    q, k, v and float captures take the dtypes of the model's tensors. Padding is added to the mask of a spec that does
    not deal with it. Returns what layers call.

    Raises:
        ConversionError: the spec has storage or positions of its own (E410). Calls raise it where a spec's input has no
            value (E411) or a layer asks for something else than the spec does (E412).
    """
    if name in _BUILTIN:
        raise ValueError(f"'{name}' is an implementation of transformers itself; choose another name")
    attention = LayerAttention(_chooser(spec), dict(inputs or {}), target, compare_masks)
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, Demand.interface)
    return attention


def _chooser(choice: Choice) -> Choose:
    if isinstance(choice, Mapping):
        specs = {kind: _loaded(spec) for kind, spec in choice.items()}
        return lambda layer: _of_type(specs, layer)
    if isinstance(choice, AttentionSpec | str | Path):
        only = _loaded(choice)
        return lambda layer: only
    chosen = choice

    def choose(layer: nn.Module) -> AttentionSpec:
        spec = chosen(layer)
        check_dense(spec)
        return spec

    return choose


def _loaded(spec: Spec) -> AttentionSpec:
    if not isinstance(spec, AttentionSpec):
        path = Path(spec)
        spec = resolve(parse_source(read_source(path)), name=path.stem, folder=path.parent)
    check_dense(spec)
    return spec


def _of_type(specs: Mapping[str, AttentionSpec], layer: nn.Module) -> AttentionSpec:
    """The spec of a layer's type."""
    types = getattr(getattr(layer, "config", None), "layer_types", None)
    place = getattr(layer, "layer_idx", None)
    label = type(layer).__name__
    if types is None or place is None:
        message = f"{label} has no layer type, and specs are registered for {', '.join(specs)}"
        raise ConversionError.of("E411", message, hint="register one spec, or a function of the layer")
    if types[place] not in specs:
        message = f"{label} {place} is of type '{types[place]}', for which no spec is registered"
        raise ConversionError.of("E411", message, hint=did_you_mean(types[place], specs))
    return specs[types[place]]
