"""Whether a converted function gives what the original gives: both are evaluated on sampled pairs.

The original runs on tensors of one element, as FlexAttention's vmap runs it; the expression runs in the torch algebra
that the reference uses. A score is compared where the pair is visible, in the better of two precisions: the original
may compute in f32 or in f64. Where a score is -inf, the converted mask may hide the pair instead.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import ConversionError, Diagnostic
from ..expr import Expr, children_first, evaluate
from ..expr.torch_values import TorchAlgebra
from .sheet import Sheet

PAIRS = 48  # sampled; the first are corners
_EXTENTS = {"b": ("batch", 3), "h": ("heads", 4), "q_idx": ("seq_q", 40), "kv_idx": ("seq_k", 48)}
_NOTHING = "nothing was compared with the functions: no sampled pair lies inside every tensor that they read"
_VISIBLE, _HIDDEN = "a visible pair", "a hidden pair"
_UNDEFINED = "say with torch.where what such a pair gives, and keep divisors from 0"
_TOLERANCE = 1e-4  # relative and absolute, on scores of about 1: f32 in an order of its own


def compare(
    sheet: Sheet,
    mask: Expr,
    score: Expr,
    mask_mod: Callable[..., Any] | None,
    score_mod: Callable[..., Any] | None,
    extents: Mapping[str, int],
) -> None:
    """Compares both on pairs inside every captured tensor. Raises ConversionError (E401) where they differ."""
    limits = _limits(sheet, (mask, score), extents)
    if min(limits.values()) < 1:
        sheet.notes[_NOTHING] = None
        return
    chance = random.Random(0)
    compared = 0
    for number in range(PAIRS):
        pair = {
            name: (0 if number == 0 else limit - 1 if number == 1 else chance.randrange(limit))
            for name, limit in limits.items()
        }
        logit = chance.gauss(0.0, 2.0)
        index = [torch.tensor(pair[name], dtype=torch.int32) for name in _EXTENTS]
        try:
            seen = mask_mod is None or bool(torch.as_tensor(mask_mod(*index)))
            wanted = logit if score_mod is None or not seen else float(score_mod(torch.tensor(logit), *index))
        except IndexError:
            continue  # outside of a table: the functions say nothing there
        except (RuntimeError, ArithmeticError) as error:  # torch makes a RuntimeError of an integer division by 0
            message = f"{_label(mask_mod, score_mod, logit)} at {_place(pair)} fails: {error}"
            raise ConversionError.of("E401", message, hint=_UNDEFINED) from error
        compared += 1
        visible = bool(_value(sheet, mask, pair, logit, torch.float32))
        found = [float(_value(sheet, score, pair, logit, dtype)) for dtype in (torch.float32, torch.float64)]
        hidden = not seen or wanted == -math.inf
        if hidden:
            stays = seen and -math.inf in found  # an infinity may stay in the score
            if visible and not stays:
                _differs(_label(mask_mod, score_mod, logit), pair, _HIDDEN, _VISIBLE)
        elif not visible:
            _differs(_label(mask_mod, score_mod, logit), pair, _VISIBLE, _HIDDEN)
        elif not any(_close(wanted, each) for each in found):
            _differs(_label(None, score_mod, logit), pair, wanted, found[0])
    if not compared:
        sheet.notes[_NOTHING] = None


def _label(mask_mod: Callable[..., Any] | None, score_mod: Callable[..., Any] | None, logit: float) -> str:
    """What is compared, in words."""
    parts = ["mask_mod"] if mask_mod is not None else []
    parts += [f"score_mod of the score {logit:.6g}"] if score_mod is not None else []
    return " and ".join(parts)


def _close(x: float, y: float) -> bool:
    return x == y or abs(x - y) <= _TOLERANCE * max(1.0, abs(x)) or (x != x and y != y)


def _place(pair: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in pair.items())


def _differs(what: str, pair: Mapping[str, int], wanted: object, found: object) -> None:
    message = f"{what} at {_place(pair)} gives {wanted}, the converted expression {found}"
    hint = "it may depend on something that is neither an argument nor a captured number or tensor"
    raise ConversionError((Diagnostic("E401", message, hint=hint),))


def _limits(sheet: Sheet, roots: tuple[Expr, ...], extents: Mapping[str, int]) -> dict[str, int]:
    """How far each index goes: as the caller says, and inside every tensor that it reads by itself."""
    limits = {name: extents.get(axis, default) for name, (axis, default) in _EXTENTS.items()}
    for node in children_first(roots):
        if node.op == "read":
            tensor = sheet.captures[str(node.attr)].tensor
            assert tensor is not None
            for extent, index in zip(tensor.shape, node.args, strict=True):
                if index.op == "var" and index.attr in limits:
                    limits[str(index.attr)] = min(limits[str(index.attr)], extent)
    return limits


def _value(sheet: Sheet, root: Expr, pair: Mapping[str, int], logit: float, dtype: torch.dtype) -> Tensor:
    algebra = TorchAlgebra(dtype)

    def leaf(node: Expr, indices: tuple[Tensor, ...]) -> Tensor:
        name = str(node.attr)
        if node.op == "var":
            return torch.tensor(logit, dtype=dtype) if name == "score" else torch.tensor(pair[name])
        if node.op == "param":
            return torch.tensor(sheet.scalars[name].value, dtype=algebra.dtype(node.type))
        tensor = sheet.captures[name].tensor
        assert tensor is not None
        places = tuple(int(i.clamp(0, extent - 1)) for i, extent in zip(indices, tensor.shape, strict=True))
        return tensor[places].detach().cpu().to(algebra.dtype(node.type))

    result: Tensor = evaluate([root], algebra, leaf)[0]
    return result
