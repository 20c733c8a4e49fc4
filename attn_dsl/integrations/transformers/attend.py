"""One layer's call: its demands held against a spec, and the spec run on its tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ...diagnostics import ConversionError
from ...reference import mask_pairs
from ...runtime import CompiledAttention, compile_for
from ...runtime.dtypes import SPELLINGS
from ...spec.model import AlignKind, AttentionSpec, Role
from ...spec.names import DTYPES
from ...spec.scale import scale_value
from .demand import Demand, unmasked
from .inputs import Given, LayerInputs, collect
from .variants import PADDING, sees_only_distances, variables, with_dtypes, with_padding

_LAYOUT = {"batch": 0, "heads": 1, "kv_heads": 1, "seq_q": 2, "seq_k": 2, "dim": 3, "dim_v": 3}  # of transformers
_REFUSED = ("position_bias", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k", "block_table")
_SCALE_TOLERANCE = 1e-5  # relative

Choose = Callable[[nn.Module], AttentionSpec]


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """What is registered with `AttentionInterface`: calls a spec for the layers of any model."""

    choose: Choose
    inputs: Given
    target: str
    compare_masks: bool
    _compiled: dict[object, CompiledAttention] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(
        self, layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """o as [batch, seq_q, heads, dim], and None for the weights, which no kernel has.

        query: [batch, heads, seq_q, dim]; key, value: [batch, kv_heads, seq_k, dim]. `attention_mask` is the demand of
        the model's mask interface, or None. Raises ConversionError (E411, E412) and what the spec's call raises.
        """
        spec = self.choose(layer)
        demand = _demand(layer, query, key, attention_mask)
        if demand.has_padding and not _knows_padding(spec):
            spec = with_padding(spec)
        keys = _keys_in_use(spec, demand, key, layer)
        key, value = key[:, :, :keys], value[:, :, :keys]
        found = collect(spec, self.inputs, layer, kwargs, demand, keys)
        _check_kwargs(spec, found, kwargs, layer)
        tensors = {"q": query, "k": key, "v": value}
        captures = {t.name: found.values[t.name].to(query.device) for t in spec.tensors if t.role is Role.CAPTURE}
        compiled = self._attention(spec, {**tensors, **captures})
        params = {param.name: found.values[param.name] for param in spec.params if param.name in found.values}
        extents = {"dim": query.shape[3], "heads": query.shape[1], "kv_heads": key.shape[1], "dim_v": value.shape[3]}
        _check_scale(compiled.spec, params, extents, kwargs, layer)
        arranged = {name: _arranged(compiled.spec, name, tensor) for name, tensor in tensors.items()}
        if self.compare_masks:
            _check_mask(compiled.spec, demand, {**arranged, **captures}, params, layer)
        inputs: dict[str, Any] = {**arranged, **captures, **params}
        o = compiled(return_lse=False, **inputs)
        assert isinstance(o, Tensor)
        axes = [str(axis.name) for axis in compiled.spec.output.axes]
        order = [next(place for place, axis in enumerate(axes) if _LAYOUT[axis] == wanted) for wanted in (0, 2, 1, 3)]
        return o.permute(order).contiguous(), None

    def _attention(self, spec: AttentionSpec, tensors: Mapping[str, Any]) -> CompiledAttention:
        """The spec compiled for the dtypes of these tensors, once."""
        dtypes = {
            name: DTYPES[SPELLINGS[tensor.dtype]]
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype in SPELLINGS
        }
        identity = (spec.roots, spec.sink, spec.descale_v, spec.tensors, tuple(sorted(dtypes.items(), key=str)))
        with self._lock:
            if identity not in self._compiled:
                self._compiled[identity] = compile_for(with_dtypes(spec, dtypes), self.target)
            return self._compiled[identity]


def _demand(layer: nn.Module, query: Tensor, key: Tensor, attention_mask: Any) -> Demand:
    if isinstance(attention_mask, Demand):
        return attention_mask
    if attention_mask is None:
        return unmasked(query, key)
    kind = f"a mask of its own ({type(attention_mask).__name__})"
    return _refuse(f"{type(layer).__name__} passes {kind}, not the one of the registered mask interface", _OWN_MASK)


_OWN_MASK = "give the model a 2-D attention_mask; what else decides visibility belongs into the spec"


def _knows_padding(spec: AttentionSpec) -> bool:
    """Whether a spec reads padding itself. Of any other, padding that its mask hides anyway is hidden twice."""
    return any(tensor.name in (PADDING, "length") for tensor in spec.tensors)


def _keys_in_use(spec: AttentionSpec, demand: Demand, key: Tensor, layer: nn.Module) -> int:
    """How many of the keys the spec is given: those up to the last query row, where it counts positions from them.

    A static cache hands over all its slots; those past the last query row hold nothing yet.
    """
    label = type(layer).__name__
    if key.shape[2] != demand.kv_length:
        _refuse(f"{label} has {key.shape[2]} keys, and the model's mask {demand.kv_length}", _OWN_MASK)
    used = variables(spec.mask, spec.score)
    shift = demand.first_query - demand.kv_offset  # position of query row 0 among the keys
    top_left = "q_idx" in used or ("q_pos" in used and spec.align.kind is AlignKind.TOP_LEFT)
    if top_left and shift != 0:
        hint = "write q_pos for q_idx, with `align bottom_right`: then a cache moves the query rows"
        _refuse(f"spec '{spec.name}' counts query rows from 0, and {label} is at position {shift} of its keys", hint)
    if demand.kv_offset and not sees_only_distances(spec.score):
        message = f"spec '{spec.name}' scores by absolute positions, and the cache of {label} dropped its first keys"
        _refuse(message, "score by q_pos - kv_idx, or use a cache that keeps every key")
    if "q_pos" not in used or top_left:
        return demand.kv_length
    keys = shift + demand.q_length
    if keys > demand.kv_length:
        _refuse(f"{label} has {demand.kv_length} keys for query rows up to position {keys - 1} of them")
    return keys


def _check_kwargs(spec: AttentionSpec, found: LayerInputs, kwargs: Mapping[str, Any], layer: nn.Module) -> None:
    """Nothing that a layer asks for is dropped."""
    label = type(layer).__name__
    if kwargs.get("dropout"):
        _refuse(
            f"{label} asks for dropout {kwargs['dropout']}, and nothing in a spec is random", "set it to 0, or eval()"
        )
    if kwargs.get("output_attentions"):
        _refuse(f"{label} asks for the attention weights, which are never formed", "leave output_attentions out")
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None and name not in found.used:
            names = {"softcap": "a parameter 'cap'", "s_aux": "a capture 'sinks'"}[name]
            _refuse(f"{label} passes {name}, and spec '{spec.name}' does not take it", f"declare {names} and use it")
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            _refuse(f"{label} passes {name}, which reaches no spec", "say in the spec what it does")


def _check_scale(
    spec: AttentionSpec,
    params: Mapping[str, Any],
    extents: Mapping[str, int],
    kwargs: Mapping[str, Any],
    layer: nn.Module,
) -> None:
    wanted = kwargs.get("scaling")
    if wanted is None:
        wanted = extents["dim"] ** -0.5  # what every attention function of transformers does then
    scale = scale_value(spec, params, extents)
    if abs(scale - float(wanted)) > _SCALE_TOLERANCE * abs(float(wanted)):
        hint = "declare `param scaling: float` and say `scale = scaling`, or give the parameters of scale in inputs="
        _refuse(f"{type(layer).__name__} scales by {float(wanted):.6g}, spec '{spec.name}' by {scale:.6g}", hint)


def _check_mask(
    spec: AttentionSpec, demand: Demand, tensors: Mapping[str, Any], params: Mapping[str, Any], layer: nn.Module
) -> None:
    """Compares the spec's mask with the model's, once for each demand and each set of values."""
    given = {name: value for name, value in tensors.items() if name not in ("q", "k", "v", PADDING, "length")}
    numbers = tuple(sorted((name, str(value)) for name, value in params.items()))
    identity = (spec.mask, numbers, tuple(sorted((name, id(value)) for name, value in given.items())))
    if identity in demand.agreed:
        return
    keys = tensors["k"].shape[next(i for i, axis in enumerate(spec.tensor("k").axes) if axis.name == "seq_k")]
    with torch.no_grad():
        for rows in demand.bands():
            wanted = demand.pairs(rows).to(tensors["q"].device)  # models may lie on several devices
            if wanted[:, :, keys:].any():
                _refuse(f"{type(layer).__name__} sees keys after its last query row, spec '{spec.name}' does not")
            found = mask_pairs(spec, tensors, params, rows=rows, cols=slice(0, keys))
            _same(found, wanted[:, None, :, :keys], rows.start, spec, layer)
    demand.agreed[identity] = given


def _same(found: Tensor, wanted: Tensor, first: int, spec: AttentionSpec, layer: nn.Module) -> None:
    """Raises if two masks that broadcast to [batch, heads, rows, keys] differ; the rows start at `first`."""
    wrong = found != wanted
    if wrong.any():
        batch, head, row, key = wrong.nonzero()[0].tolist()
        shown = bool(found.expand(wrong.shape)[batch, head, row, key])
        says = ("hides", "shows it to") if shown else ("shows", "hides it from")
        message = (
            f"{type(layer).__name__} {says[0]} key {key} of query row {first + row} in sequence {batch}, "
            f"spec '{spec.name}' {says[1]} head {head}"
        )
        _refuse(message, "the spec's mask has to be the one of the layer; register() takes a spec for each layer type")


def _arranged(spec: AttentionSpec, name: str, tensor: Tensor) -> Tensor:
    """A tensor of transformers in the axis order of the spec: a view."""
    return tensor.permute([_LAYOUT[str(axis.name)] for axis in spec.tensor(name).axes])


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise ConversionError.of("E412", message, hint=hint)
