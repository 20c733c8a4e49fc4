"""The same attention by a spec's target, by torch's SDPA and by FlexAttention, each as a call without arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..convert.to_flex import to_flex
from ..diagnostics import AttnDslError
from ..expr import Expr, children_first
from ..reference import mask_block
from ..runtime import CompiledAttention, Inputs
from ..spec import AttentionSpec
from ..spec.model import AlignKind, Lengths
from ..spec.scale import scale_value

MAX_DENSE = 2**28  # elements of a mask or bias that SDPA is given as a tensor
_ORDER = {"batch": 0, "heads": 1, "kv_heads": 1, "seq_q": 2, "seq_k": 2, "dim": 3, "dim_v": 3}
_FLEX = "FlexAttention"


class Absent(Exception):
    """Why something takes no part, in words."""


@dataclass(frozen=True)
class Contender:
    """Something that computes a spec's o as [batch, heads, seq_q, dim_v], or the reason why it does not."""

    name: str
    call: Callable[[], Tensor] | None
    note: str = ""  # what to know of it, or why it is absent


def contenders(compiled: CompiledAttention, inputs: Inputs) -> list[Contender]:
    """The target first, then the others."""
    spec = compiled.spec
    named: dict[str, Any] = {**inputs.tensors, **inputs.params, "return_lse": False}
    order = _permutation([str(axis.name) for axis in spec.output.axes])

    def ours() -> Tensor:
        o = compiled(**named)
        assert isinstance(o, Tensor)
        return o.permute(order) if len(order) == 4 else o

    found = [Contender(compiled.target, ours)]
    for name, make in (("SDPA", _sdpa), (_FLEX, _flex)):
        try:
            call, note = make(spec, inputs)
            found.append(Contender(name, call, note))
        except Absent as absent:
            found.append(Contender(name, None, str(absent)))
    return found


def _permutation(axes: list[str]) -> list[int]:
    return sorted(range(len(axes)), key=lambda place: _ORDER.get(axes[place], place))


def _operands(spec: AttentionSpec, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as [batch, heads, seq, dim]."""
    if spec.views or spec.paging or (spec.lengths_q, spec.lengths_k) != (Lengths(), Lengths()):
        raise Absent("takes dense sequences only")
    if spec.sink is not None:
        raise Absent("has no sinks")
    if spec.descale_v is not None:
        raise Absent("has no factors of v")
    if spec.lse_base != "e" or spec.align.kind is AlignKind.OFFSET:
        raise Absent("has no such positions")
    q, k, v = (
        inputs.tensors[name].permute(_permutation([str(axis.name) for axis in spec.tensor(name).axes]))
        for name in ("q", "k", "v")
    )
    return q, k, v


# -- scaled_dot_product_attention --------------------------------------------------------------------------------------


def _sdpa(spec: AttentionSpec, inputs: Inputs) -> tuple[Callable[[], Tensor], str]:
    q, k, v = _operands(spec, inputs)
    scale = scale_value(spec, inputs.params, inputs.extents)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    biased = _is_biased(spec.score)
    if not biased and _is_causal(spec) and q.shape[2] == k.shape[2]:
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **options), "is_causal"
    heads = q.shape[1] if _needs_heads(spec) else 1
    shape = (q.shape[0], heads, q.shape[2], k.shape[2])
    if torch.Size(shape).numel() > MAX_DENSE:
        raise Absent(f"would need a mask of {torch.Size(shape).numel():,} elements")
    mask = _dense_mask(spec, inputs, shape)
    note = "dense mask"
    if biased:
        values = _dense_bias(spec, inputs, shape).to(q.dtype)
        mask, note = values.masked_fill(~mask, float("-inf")), "dense bias"
    elif spec.mask.is_const:
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options), ""
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options), note


def _is_biased(score: Expr) -> bool:
    """Whether something is added to the score. Raises Absent if something else is done with it."""
    if score.op == "var":
        return False
    if score.op == "add":
        for this, other in (score.args, score.args[::-1]):
            if this.op == "var" and not any(node.attr == "score" for node in children_first([other])):
                return True
    raise Absent("can add a bias to the score, and this score is more than a sum")


def _is_causal(spec: AttentionSpec) -> bool:
    """Whether the mask is `kv_idx <= q_pos`."""
    names = [argument.attr for argument in spec.mask.args]
    return spec.mask.op == "le" and names == ["kv_idx", "q_pos"]


def _needs_heads(spec: AttentionSpec) -> bool:
    roots = [spec.mask, spec.score]
    per_head = any(param.per in ("heads", "kv_heads") for param in spec.params)
    return per_head or any(node.op == "var" and node.attr in ("h", "kv_h") for node in children_first(roots))


def _dense_mask(spec: AttentionSpec, inputs: Inputs, shape: tuple[int, ...]) -> Tensor:
    batch, heads, seq_q, seq_k = shape
    rows, cols = slice(0, seq_q), slice(0, seq_k)
    return torch.stack(
        [
            torch.stack(
                [
                    mask_block(spec, inputs.tensors, inputs.params, batch=b, head=h, rows=rows, cols=cols)
                    for h in range(heads)
                ]
            )
            for b in range(batch)
        ]
    )


def _dense_bias(spec: AttentionSpec, inputs: Inputs, shape: tuple[int, ...]) -> Tensor:
    """What the score function adds at every pair: its value at a score of 0."""
    _, score_mod = to_flex(spec, inputs.tensors, inputs.params, inputs.extents)
    assert score_mod is not None
    device = inputs.tensors["q"].device
    index = torch.meshgrid(*(torch.arange(extent, device=device) for extent in shape), indexing="ij")
    return score_mod(torch.zeros(shape, device=device), *index)


# -- FlexAttention -----------------------------------------------------------------------------------------------------


def _flex(spec: AttentionSpec, inputs: Inputs) -> tuple[Callable[[], Tensor], str]:
    q, k, v = _operands(spec, inputs)
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask_mod, score_mod = to_flex(spec, inputs.tensors, inputs.params, inputs.extents)
    except ImportError:
        raise Absent(f"torch {torch.__version__} does not have it") from None
    except AttnDslError as error:
        raise Absent(error.diagnostics[0].message) from None
    scale = scale_value(spec, inputs.params, inputs.extents)
    sizes = (q.shape[0], q.shape[1] if _needs_heads(spec) else None, q.shape[2], k.shape[2])
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, *sizes, device=q.device)
    function: Any = torch.compile(flex_attention) if q.is_cuda else flex_attention
    gqa = q.shape[1] != k.shape[1]

    def call() -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
            o = function(q, k, v, score_mod, block_mask, scale, enable_gqa=gqa)
        assert isinstance(o, Tensor)
        return o

    return call, "compiled; without its block mask" if q.is_cuda else "uncompiled"
