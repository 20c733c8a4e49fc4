"""Where the parameters and captures of a spec come from when a layer calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...diagnostics import ConversionError
from ...spec.model import UNBOUNDED, AttentionSpec, Role
from .demand import Demand
from .variants import PADDING

Source = Callable[[nn.Module, Mapping[str, Any]], Any]
Given = Mapping[str, Any]  # name -> a value, or a function of (layer, keyword arguments of its call)

WINDOW = ("window_tokens", "sliding_window")
CAP = ("cap", "softcap")
SINKS = ("sinks", "s_aux")
SCALE = ("scaling",)


@dataclass(frozen=True)
class LayerInputs:
    """What one call of a layer gives to a spec besides q, k and v."""

    values: dict[str, Any]
    used: frozenset[str]  # keyword arguments of the layer that reach the spec


def collect(
    spec: AttentionSpec, given: Given, layer: nn.Module, kwargs: Mapping[str, Any], demand: Demand, keys: int
) -> LayerInputs:
    """A value for every parameter and capture of `spec`; parameters may keep their default.

    Names that the caller gives come first; then the names of `WINDOW`, `CAP`, `SINKS` and `SCALE`, the padding
    `attention_mask` (bool[batch, seq_k]), and `length` (i32[batch]: real tokens, for batches padded on the right).
    Raises ConversionError (E411): a capture or a parameter without a default for which there is no value.
    """
    values: dict[str, Any] = {}
    used: set[str] = set()
    captures = [tensor.name for tensor in spec.tensors if tensor.role is Role.CAPTURE]
    defaults = {param.name: param.default for param in spec.params}
    for name in (*captures, *defaults):
        key = next((key for key, names in _KEYS.items() if name in names), None)
        value = None
        if name in given:
            value = given[name](layer, kwargs) if callable(given[name]) else given[name]
        elif key is not None:
            value = _from_layer(key, layer, kwargs)
        elif name == PADDING:
            value = _real(demand, keys)
        elif name == "length" and name in captures:
            value = _length(demand, keys)
        if value is None and (key is not None or defaults.get(name) is None):
            _missing(spec, name, layer)  # a default would be another model's soft cap
        if value is not None:
            values[name] = value
            used |= set() if key is None else {key}
    return LayerInputs(values, frozenset(used))


def _from_layer(key: str, layer: nn.Module, kwargs: Mapping[str, Any]) -> Any:
    value = kwargs.get(key)
    if key == "sliding_window":
        return value or getattr(layer, key, None) or UNBOUNDED
    return value


# keyword argument of a layer -> names of a spec
_KEYS = {"sliding_window": WINDOW, "softcap": CAP, "s_aux": SINKS, "scaling": SCALE}


def _real(demand: Demand, keys: int) -> Tensor:
    if demand.padding is None:
        return torch.ones(demand.batch, keys, dtype=torch.bool, device=demand.device)
    return demand.real_slots(keys)


def _length(demand: Demand, keys: int) -> Tensor:
    """Real tokens of each sequence. Whether they come first is seen when the masks are compared."""
    return _real(demand, keys).sum(dim=1, dtype=torch.int32)


def _missing(spec: AttentionSpec, name: str, layer: nn.Module) -> None:
    kind = type(layer).__name__
    message = f"'{name}' of spec '{spec.name}' has no value in {kind}"
    known = ", ".join((*WINDOW, *CAP, *SINKS, *SCALE, PADDING, "length"))
    hint = f"give it: register(..., inputs={{'{name}': value or function of (layer, kwargs)}}); by name come {known}"
    raise ConversionError.of("E411", message, hint=hint)
