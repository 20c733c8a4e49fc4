"""FlexAttention's functions as a spec: `mask_mod(b, h, q_idx, kv_idx)` and `score_mod(score, b, h, q_idx, kv_idx)`.

Source of their meaning: the documentation of `torch.nn.attention.flex_attention`. Indices start at 0 on both sides, so
the spec is aligned at the top left; a fully masked row gives 0 in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.proxy import TraceError

from ..diagnostics import ConversionError, Diagnostic
from ..expr import BOOL, FLOAT, Expr, ValueType
from ..runtime.dtypes import SPELLINGS
from ..spec.model import DType
from ..spec.names import DTYPES
from .agreement import compare
from .blocks import is_block_mask, mask_of_blocks
from .rebind import Rebinder
from .refusal import Refusal
from .sheet import Converted, Sheet
from .tracer import NeedsValue, Symbol, Tracer

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Mod = Callable[..., Any]
_INDICES = ("b", "h", "q_idx", "kv_idx")


def from_flex(
    mask_mod: Mod | BlockMask | None = None,
    score_mod: Mod | None = None,
    *,
    dtype: str | torch.dtype = "bf16",
    scale: float | None = None,
    params: Iterable[str] = (),
    extents: Mapping[str, int] | None = None,
) -> Converted:
    """The spec of FlexAttention's functions.

    The functions run once on symbols (torch.fx); no text of theirs is executed. Tensors they capture become captures of
    the spec and come back in `captures`; numbers become constants with the names they have in Python.

    Args:
        mask_mod: `mask_mod(b, h, q_idx, kv_idx)`, true where the key is visible; None: every key is. A BlockMask stands
            for its lists of blocks and its own mask_mod, at the lengths it was made for. Where the blocks only save
            time, give its `mask_mod`: the tile analysis of a spec needs no lists.
        score_mod: `score_mod(score, b, h, q_idx, kv_idx)`; None: the score itself. Where it gives -inf as it is
            written, the pair is masked instead.
        dtype: of q, k, v.
        scale: as `flex_attention` has it; None: 1 / sqrt(dim).
        params: names of numbers that become run-time parameters instead of constants.
        extents: extents of `batch`, `heads`, `seq_q`, `seq_k` where they are known. A captured axis is called by one of
            these names if the index of that axis alone reads it, and, where the extent is known, if it agrees.

    In the spec q is `[batch, heads, seq_q, dim]`, k and v are `[batch, kv_heads, seq_k, dim]`, as in FlexAttention.

    Raises:
        ConversionError: something has no spelling in the language (E400), or the spec gives another result than the
            functions do on sampled pairs (E401).
        AttnSyntaxError, SpecError: the spec breaks a rule of the language.
    """
    if mask_mod is None and score_mod is None:
        raise TypeError("from_flex() takes a mask_mod, a score_mod, or both")
    wanted, known = set(params), dict(extents or {})
    unknown = set(known) - {"batch", "heads", "seq_q", "seq_k"}
    if unknown:
        raise TypeError(f"from_flex() knows the extents of batch, heads, seq_q and seq_k, not of {sorted(unknown)}")
    fixed: dict[str, int] = {}
    mask_function: Any = mask_mod
    if is_block_mask(mask_mod):
        fixed = dict(zip(("seq_q", "seq_k"), mask_function.seq_lengths, strict=True))
        mask_function, known = mask_of_blocks(mask_mod), {**known, **fixed}
    concrete: set[str] = set()
    while True:
        sheet = Sheet()
        tracer = Tracer(sheet, concrete, wanted)
        try:
            mask = sheet.build.const(True) if mask_function is None else _traced(tracer, mask_function, BOOL)
            score = sheet.build.var("score") if score_mod is None else _traced(tracer, score_mod, FLOAT)
            break
        except NeedsValue as needed:
            concrete |= {tracer.origins[name] for name in needed.names}
    _check_params(wanted, concrete, sheet)
    mask, score = sheet.masked_by_score(mask, score)
    with torch.no_grad():
        compare(sheet, mask, score, mask_function, score_mod, known)
    functions = [_label(kind, mod) for kind, mod in (("mask_mod", mask_function), ("score_mod", score_mod)) if mod]
    title = f"Converted from FlexAttention: {' and '.join(functions)}."
    return sheet.finish(mask, score, title=title, dtype=spec_dtype(dtype), scale=scale, extents=known, fixed=fixed)


def _traced(tracer: Tracer, mod: Mod, type: ValueType) -> Expr:
    """What `mod` gives for the symbols of one pair: a mask (BOOL) or a score (FLOAT)."""
    build = tracer.sheet.build
    names = _INDICES if type is BOOL else ("score", *_INDICES)
    rebinder = Rebinder(tracer)
    label = "mask_mod" if type is BOOL else "score_mod"
    try:
        result = rebinder.value(mod, label)(*(tracer.leaf(name, build.var(name)) for name in names))
        if isinstance(result, Tensor) and result.dim() == 0:
            result = result.item()
        value = tracer.arithmetic.node(result.meaning if isinstance(result, Symbol) else result)
        if type is FLOAT:
            return tracer.arithmetic.cast(value, FLOAT)
    except Refusal as refusal:
        raise refusal.at(rebinder.place(refusal)) from None
    except NeedsValue:
        raise
    except (TraceError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        message = f"{label} does not run on symbols: {_kind(error)}: {error}"
        raise ConversionError((Diagnostic("E400", message, rebinder.place(error), _SYMBOLS),)) from error
    if value.type is not BOOL:
        hint = "compare it with 0" if value.type is not FLOAT else "a function of the score is a score_mod"
        raise Refusal(f"{label} gives {value.type}, and a mask is bool", hint).at(None)
    return value


_SYMBOLS = "it takes one pair's b, h, q_idx and kv_idx (a score_mod the score before them) and computes with torch"


def _kind(error: Exception) -> str:
    return type(error).__name__


def _check_params(wanted: set[str], concrete: set[str], sheet: Sheet) -> None:
    named = {scalar.name for scalar in sheet.scalars.values()}
    for name in sorted(wanted):
        if name in concrete:
            message = f"'{name}' cannot be a run-time parameter: Python itself needs its value in this function"
            raise Refusal(message, "leave it out of params, then it is a constant").at(None)
        if name not in named:
            known = f"it captures {', '.join(sorted(named))}" if named else "it captures none"
            raise Refusal(f"params names '{name}', and the functions capture no such number", known).at(None)


def _label(kind: str, mod: Mod) -> str:
    name = getattr(mod, "__name__", type(mod).__name__)
    return kind if name == "<lambda>" else f"{kind} {name}"


def spec_dtype(dtype: str | torch.dtype) -> DType:
    """The element type that a caller names."""
    spelling = SPELLINGS.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    if spelling not in DTYPES:
        raise TypeError(f"dtype is one of {', '.join(DTYPES)} or its torch dtype, not {dtype!r}")
    return DTYPES[spelling]
