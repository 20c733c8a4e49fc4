"""Helper functions of Triton kernels as a spec: `mask(offs_m, offs_n, ...)` and `score(qk, offs_m, offs_n, ...)`.

The text of the functions is read (Python's `ast`), never run, and Triton need not be installed. Inside a helper all
values belong to one pair of a query and a key, so tiles, broadcasts and `[:, None]` fall away.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import ConversionError, Diagnostic, Source, did_you_mean
from ..expr import BOOL, FLOAT, Expr, ValueType
from ..spec.model import AlignKind
from .arithmetic import Arithmetic
from .flex import spec_dtype
from .helper import Function, Helper
from .refusal import Refusal
from .sheet import Converted, Sheet
from .tracer import NeedsValue, capture_of

Code = Callable[..., Any] | str | tuple[str, str]
Number = bool | int | float

NAMES: dict[str, tuple[str, ...]] = {  # index of the language -> what Triton kernels call it
    "b": ("b", "off_b", "off_z", "batch", "batch_idx", "batch_id"),
    "h": ("h", "off_h", "head", "head_idx", "head_id", "off_hq"),
    "q_idx": ("q_idx", "m", "offs_m", "q", "row", "rows", "query", "query_pos", "offs_q"),
    "kv_idx": ("kv_idx", "k_idx", "n", "offs_n", "col", "cols", "key", "key_pos", "offs_k", "kv", "k"),
    "score": ("score", "scores", "qk", "s", "logits"),
    "seq_q": ("seq_q", "q_len", "seqlen_q", "N_CTX_Q"),
    "seq_k": ("seq_k", "kv_len", "k_len", "seqlen_k", "N_CTX_KV", "N_CTX_K"),
}
_INDICES = (*NAMES, "q_pos", "kv_h")


def from_triton(
    mask: Code | None = None,
    score: Code | None = None,
    *,
    names: Mapping[str, str] | None = None,
    values: Mapping[str, Number] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    align: str = "top_left",
    dtype: str | torch.dtype = "bf16",
    scale: float | None = None,
) -> Converted:
    """The spec of helper functions of a Triton kernel.

    Args:
        mask: a function of the pair, true where the key is visible: a Python function, a `triton.jit` function, a text
            whose first `def` it is, or a pair of a text and the name of a `def` in it. What else a text defines may be
            called. None: every key is visible.
        score: a function of `qk` (the scaled logit) and the pair. None: the logit itself.
        names: argument -> `b h kv_h q_idx kv_idx q_pos seq_q seq_k score`, for arguments that are not called by one of
            the usual names (`offs_m`, `offs_n`, `off_h`, `qk`, ...; `NAMES` has them all).
        values: argument -> number. A `tl.constexpr` argument becomes a constant of the spec, any other a parameter.
        tensors: pointer argument -> the tensor it points to, as a kernel sees it: its elements in the order of memory.
        align: `top_left`, or `bottom_right` where `names` uses `q_pos`.
        dtype, scale: as in `from_flex`.

    Raises:
        ConversionError: something has no spelling in the language (E400), or an argument no meaning (E402).
        AttnSyntaxError, SpecError: the spec breaks a rule of the language.
    """
    if mask is None and score is None:
        raise TypeError("from_triton() takes a mask, a score, or both")
    kinds = {kind.value: kind for kind in (AlignKind.TOP_LEFT, AlignKind.BOTTOM_RIGHT)}
    if align not in kinds:
        raise TypeError(f"align is one of {', '.join(kinds)}, not {align!r}")
    concrete: set[str] = set()
    while True:
        reader = _Reader(dict(names or {}), dict(values or {}), dict(tensors or {}), concrete)
        build = reader.sheet.build
        try:
            seen = build.const(True) if mask is None else reader.read(mask, "mask", BOOL)
            logit = build.var("score") if score is None else reader.read(score, "score", FLOAT)
            break
        except NeedsValue as needed:
            concrete |= {reader.origins[name] for name in needed.names}
    reader.check_all_used()
    seen, logit = reader.sheet.masked_by_score(seen, logit)
    title = f"Converted from Triton: {' and '.join(reader.titles)}."
    return reader.sheet.finish(
        seen, logit, title=title, dtype=spec_dtype(dtype), scale=scale, extents={}, align=kinds[align]
    )


class _Reader:
    """Gives the arguments of helper functions their meaning."""

    def __init__(
        self,
        names: dict[str, str],
        values: dict[str, Number],
        tensors: dict[str, Tensor],
        concrete: set[str],
    ) -> None:
        self.sheet = Sheet()
        self.titles: list[str] = []
        self._arithmetic = Arithmetic(self.sheet.build, self.sheet.leaf_interval)
        self._names, self._values, self._tensors = names, values, tensors
        self._concrete = concrete
        self.origins: dict[str, str] = {}  # name of a scalar in the sheet -> its name in the function
        self._arguments: dict[str, Any] = {}  # argument -> its meaning, the same in both functions
        self._used: set[str] = set()
        for argument, index in names.items():
            if index not in _INDICES:
                hint = did_you_mean(index, _INDICES)
                raise ConversionError.of(
                    "E402", f"names gives '{argument}' the meaning '{index}', which is no index", hint=hint
                )

    def read(self, code: Code, kind: str, type: ValueType) -> Expr:
        """What one function gives for a pair."""
        function = function_of(code)
        self.titles.append(f"{kind} {function.node.name}")
        helper = Helper(self.sheet, self._arithmetic, function, self._number)
        try:
            given = {argument.arg: self._argument(argument, function) for argument in function.arguments()}
            value = self._arithmetic.node(helper.call(function, given))
            if type is FLOAT:
                return self._arithmetic.cast(value, FLOAT)
        except Refusal as refusal:
            raise refusal.at(helper.place) from None
        if value.type is not BOOL:
            raise Refusal(f"the mask {function.node.name} gives {value.type}, and a mask is bool").at(None)
        return value

    def _argument(self, argument: ast.arg, function: Function) -> Any:
        if argument.arg not in self._arguments:
            self._arguments[argument.arg] = self._meaning(argument, function)
        return self._arguments[argument.arg]

    def _meaning(self, argument: ast.arg, function: Function) -> Any:
        name = argument.arg
        self._used.add(name)
        if name in self._tensors:
            tensor = self._tensors[name]
            if not tensor.is_contiguous():
                message = f"'{name}' points to a tensor whose elements are not dense in memory"
                raise ConversionError.of("E402", message, hint="give its contiguous() form")
            return capture_of(self.sheet, tensor.reshape(-1), name)
        if name in self._values:
            return self._number(name, self._values[name], is_param=not _is_constexpr(argument))
        index = self._names.get(name) or next((i for i, usual in NAMES.items() if name in usual), None)
        if index is not None:
            return self.sheet.build.var(index)
        message = f"argument '{name}' of {function.node.name} has no meaning"
        hint = (
            f"names={{'{name}': 'q_idx'}} for an index, values={{'{name}': 128}} for a number, tensors= for a pointer"
        )
        raise ConversionError((Diagnostic("E402", message, function.span(argument), hint),))

    def _number(self, name: str, value: Number, *, is_param: bool = False) -> Expr:
        """A named number; the number itself if it is a bool, decides a branch, or has no literal."""
        if isinstance(value, bool) or name in self._concrete or not math.isfinite(value):
            return self._arithmetic.node(value)
        leaf = self.sheet.scalar(name, value, is_param=is_param)
        self.origins[str(leaf.attr)] = name
        return leaf

    def check_all_used(self) -> None:
        """Whatever was given has a use: a misspelt name would be dropped silently."""
        for what, given in (("names", self._names), ("values", self._values), ("tensors", self._tensors)):
            for name in given:
                if name not in self._used:
                    message = f"{what} gives '{name}' a meaning, and no function has such an argument"
                    raise ConversionError.of("E402", message, hint=did_you_mean(name, self._arguments))


def _is_constexpr(argument: ast.arg) -> bool:
    written = "" if argument.annotation is None else ast.unparse(argument.annotation)
    return written.strip("'\"").endswith("constexpr")


def function_of(code: Code) -> Function:
    """The function that a user names, with its text and what its names mean."""
    if isinstance(code, str):
        return Function.parse(Source("<triton>", textwrap.dedent(code)), {})
    if isinstance(code, tuple):
        text, called = code
        return Function.parse(Source("<triton>", textwrap.dedent(text)), {}, called)
    function = getattr(code, "fn", code)  # of triton.jit
    try:
        lines, first = inspect.getsourcelines(function)
        path = inspect.getsourcefile(function) or "<triton>"
    except (OSError, TypeError) as error:
        raise ConversionError.of(
            "E402", f"the text of {code!r} cannot be read: {error}", hint="give it as a str"
        ) from error
    text = textwrap.dedent("".join(lines))
    return Function.parse(Source(path, "\n" * (first - 1) + text), getattr(function, "__globals__", {}))
