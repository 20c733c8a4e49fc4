"""Joining two attention results over disjoint sets of keys by their LSE.

Softmax over a union of key sets is the mean of the softmaxes over each, weighted by their denominators (FlashAttention,
Dao et al., arXiv 2205.14135, section 3.1; cascade inference, FlashInfer, arXiv 2501.01005).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..diagnostics import CallError, Diagnostics

_DENSE, _DENSE_LSE = "batch seq_q heads dim", "batch heads seq_q"
_PACKED, _PACKED_LSE = "total_q heads dim", "heads total_q"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BASES = ("e", "2")


def merge(
    o1: Tensor,
    lse1: Tensor,
    o2: Tensor,
    lse2: Tensor,
    *,
    lse_base: str = "e",
    o_axes: str | None = None,
    lse_axes: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse) of the attention over the keys of both results, which must be disjoint.

    Args:
        o1, o2: f16, bf16, f32 or f64, alike in dtype and shape; axes as `o_axes` names them.
        lse1, lse2: f32 or f64, alike; o's axes without the inner one, in the order of `lse_axes`. -inf marks rows that
            saw no key: what o holds there is not looked at.
        lse_base: "e" or "2", the base of both LSEs and of the result: the spec's `lse_base`.
        o_axes, lse_axes: names of the axes in order, one string each. None: what specs without declared outputs have,
            "batch seq_q heads dim" and "batch heads seq_q", or "total_q heads dim" and "heads total_q".

    Returns:
        o in o1's dtype, computed in f32 (f64 if an input is f64) and rounded once, and lse in lse1's dtype. Rows that
        are empty on both sides are 0 and -inf. A sink joins a denominator: give it to one of the two calls only.

    Differentiable in all four tensors, also twice; the gradient at an empty side is 0, never NaN.

    Raises CallError: axes that do not fit (E271), dtypes (E272), devices (E273), or the base (E274).
    """
    order = _checked((o1, lse1, o2, lse2), lse_base, o_axes, lse_axes)
    wide = torch.float64 if torch.float64 in (o1.dtype, lse1.dtype) else torch.float32
    exp, log = (torch.exp, torch.log) if lse_base == "e" else (torch.exp2, torch.log2)
    a, b = lse1.to(wide), lse2.to(wide)
    # Any reference gives the same result, so no gradient flows through it; it is finite where both sides are empty.
    top = torch.maximum(a, b).detach()
    top = torch.where(top == -math.inf, 0.0, top)
    share_a, share_b = exp(a - top), exp(b - top)
    total = share_a + share_b
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    lse = torch.where(empty, -math.inf, top + log(total))
    o = sum(_weighted(part.to(wide), _beside(share / total, order)) for part, share in ((o1, share_a), (o2, share_b)))
    assert isinstance(o, Tensor)
    return o.to(o1.dtype), lse.to(lse1.dtype)


def _weighted(o: Tensor, weight: Tensor) -> Tensor:
    """A weight of 0 takes nothing, not even NaN."""
    return torch.where(weight == 0, 0.0, o) * weight


def _beside(rows: Tensor, order: tuple[int | None, ...]) -> Tensor:
    """A tensor like LSE as one that broadcasts with o: for each axis of o its place in LSE, None for the inner axis."""
    inner = order.index(None)
    return rows.permute([place for place in order if place is not None]).unsqueeze(inner)


def _checked(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], lse_base: str, o_axes: str | None, lse_axes: str | None
) -> tuple[int | None, ...]:
    """For each axis of o its place in LSE. Raises CallError with everything that is wrong."""
    problems = Diagnostics()
    for name, tensor in zip(("o1", "lse1", "o2", "lse2"), tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise CallError.of("E272", f"{name} is a {type(tensor).__name__}, expected a tensor")
    o1, lse1, o2, lse2 = tensors
    if lse_base not in _BASES:
        problems.error("E274", f"lse_base is {lse_base!r}, expected 'e' or '2'")
    packed = o1.dim() == 3
    names = (o_axes or (_PACKED if packed else _DENSE)).split()
    lse_names = (lse_axes or (_PACKED_LSE if packed else _DENSE_LSE)).split()
    inner = [name for name in names if name not in lse_names]
    if len(inner) != 1 or len(names) != len(lse_names) + 1 or len({*names, *lse_names}) != len(names):
        message = f"o has the axes [{', '.join(names)}], lse [{', '.join(lse_names)}]; expected all but one of them"
        raise CallError.of("E271", message, hint="name the axes of both: o_axes='...', lse_axes='...'")
    extents = dict(zip(names, o1.shape, strict=False))
    for name, tensor, axes in (
        ("o1", o1, names),
        ("o2", o2, names),
        ("lse1", lse1, lse_names),
        ("lse2", lse2, lse_names),
    ):
        expected = [extents.get(axis, 0) for axis in axes]
        if list(tensor.shape) != expected or tensor.dim() != len(axes):
            text = f"{name} has shape {list(tensor.shape)}, expected [{', '.join(axes)}] = {expected}"
            problems.error("E271", text, hint="name the axes of both: o_axes='...', lse_axes='...'")
    for (name, first), (other, second), legal in (
        (("o1", o1), ("o2", o2), _FLOATS),
        (("lse1", lse1), ("lse2", lse2), _FLOATS[2:]),
    ):
        if first.dtype not in legal:
            problems.error("E272", f"{name} has dtype {first.dtype}, expected one of {', '.join(map(str, legal))}")
        if second.dtype != first.dtype:
            problems.error("E272", f"{other} has dtype {second.dtype}, expected {first.dtype}, which {name} has")
    for name, tensor in (("lse1", lse1), ("o2", o2), ("lse2", lse2)):
        if tensor.device != o1.device:
            problems.error("E273", f"{name} is on {tensor.device}, expected {o1.device}, where o1 is")
    if problems.errors:
        raise CallError(problems.errors)
    return tuple(lse_names.index(name) if name in lse_names else None for name in names)
