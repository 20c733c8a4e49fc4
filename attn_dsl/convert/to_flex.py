"""A spec as FlexAttention's functions: the way back, for comparisons.

A function runs its expression as a list of steps over torch operations; torch.compile unrolls it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..diagnostics import UnsupportedError
from ..expr import OPERATORS, Expr, children_first
from ..spec.model import AlignKind, AttentionSpec, Lengths

Mod = Callable[..., Tensor]
Value = int | float | Tensor

_ARGUMENTS = ("b", "h", "q_idx", "kv_idx", "score")


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _smaller(x: Any, y: Any) -> Any:
    if _is_number(x) or _is_number(y):
        return y.clamp(max=x) if _is_number(x) else x.clamp(max=y)
    return torch.minimum(x, y)


def _larger(x: Any, y: Any) -> Any:
    if _is_number(x) or _is_number(y):
        return y.clamp(min=x) if _is_number(x) else x.clamp(min=y)
    return torch.maximum(x, y)


def _select(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, bool):
        return yes if condition else no
    return torch.where(condition, yes, no)


STEPS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "min": _smaller,
    "max": _larger,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    "bitnot": operator.invert,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "not": torch.logical_not,
    "select": _select,
    "to_float": lambda x: x.to(torch.float32),
    "floor": lambda x: torch.floor(x).to(torch.int32),
    **{name: getattr(torch, name) for name in ("exp", "exp2", "log", "log2", "tanh", "sqrt", "sigmoid", "sin", "cos")},
}


def to_flex(
    spec: AttentionSpec, tensors: Mapping[str, Tensor], params: Mapping[str, Value], extents: Mapping[str, int]
) -> tuple[Mod | None, Mod | None]:
    """`mask_mod` and `score_mod` of a spec at one call's tensors, parameters and extents; None where there is nothing.

    Raises UnsupportedError (E281): what FlexAttention has no argument for.
    """
    lacking = {
        "packed, padded or paged sequences": bool(spec.paging) or (spec.lengths_q, spec.lengths_k) != (Lengths(),) * 2,
        "views": bool(spec.views),
        "sinks": spec.sink is not None,
        "factors of v": spec.descale_v is not None,
        "query offsets": spec.align.kind is AlignKind.OFFSET,
    }
    for what, found in lacking.items():
        if found:
            raise UnsupportedError.of("E281", f"FlexAttention cannot do {what}")
    defaults = {param.name: param.default for param in spec.params}
    call = _Call(spec, tensors, {**defaults, **params}, extents)
    mask = None if spec.mask.is_const and spec.mask.attr is True else call.program(spec.mask)
    score = None if spec.score.op == "var" else call.program(spec.score)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        assert mask is not None
        return mask(b, h, q_idx, kv_idx, None)

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        assert score is not None
        return score(b, h, q_idx, kv_idx, s)

    return None if mask is None else mask_mod, None if score is None else score_mod


class _Call:
    """Where leaves get their values."""

    def __init__(
        self,
        spec: AttentionSpec,
        tensors: Mapping[str, Tensor],
        params: Mapping[str, Any],
        extents: Mapping[str, int],
    ) -> None:
        self.spec, self.tensors, self.params, self.extents = spec, tensors, params, extents

    def program(self, root: Expr) -> Callable[..., Tensor]:
        """A function of (b, h, q_idx, kv_idx, score)."""
        place: dict[Expr, int] = {}
        constants: list[Any] = []
        steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
        nodes = list(children_first([root]))
        leaves = [node for node in nodes if node.op == "const" or (not node.args and self._constant(node) is not None)]
        for node in leaves:
            place[node] = len(_ARGUMENTS) + len(constants)
            constants.append(node.attr if node.op == "const" else self._constant(node))
        base = len(_ARGUMENTS) + len(constants)
        for node in nodes:
            if node in place:
                continue
            function, arguments = self._step(node, place)
            if function is None:
                place[node] = arguments[0]
                continue
            place[node] = base + len(steps)
            steps.append((function, arguments))
        fixed, program, last = tuple(constants), tuple(steps), place[root]

        def run(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor, score: Tensor | None) -> Tensor:
            values: list[Any] = [b, h, q_idx, kv_idx, score, *fixed]
            for function, arguments in program:
                values.append(function(*[values[index] for index in arguments]))
            result: Tensor = values[last]
            return result

        return run

    def _constant(self, node: Expr) -> Any:
        """The value of a leaf that is the same for every pair; None if it is not."""
        name = str(node.attr)
        if node.op == "size" or name in ("seq_q", "seq_k"):
            return self.extents[name]
        value = self.params.get(name) if node.op == "param" else None
        return value if isinstance(value, int | float) else None

    def _step(self, node: Expr, place: Mapping[Expr, int]) -> tuple[Callable[..., Any] | None, tuple[int, ...]]:
        """The function and arguments of a node; no function for an argument of the whole."""
        if node.op == "var":
            return self._variable(str(node.attr))
        if node.op == "param":
            return self._element(self.params[str(node.attr)], self.spec.param(str(node.attr)).per)
        arguments = tuple(place[argument] for argument in node.args)
        if node.op == "read":
            tensor = self.tensors[str(node.attr)]
            return _reader(tensor.detach()), arguments
        return _operator(node.op), arguments

    def _variable(self, name: str) -> tuple[Callable[..., Any] | None, tuple[int, ...]]:
        if name in _ARGUMENTS:
            return None, (_ARGUMENTS.index(name),)
        if name == "kv_h":
            group = self.extents["heads"] // self.extents["kv_heads"]
            return lambda h: h // group, (_ARGUMENTS.index("h"),)
        shift = 0
        if self.spec.align.kind is AlignKind.BOTTOM_RIGHT:
            shift = self.extents["seq_k"] - self.extents["seq_q"]
        return lambda q_idx: q_idx + shift, (_ARGUMENTS.index("q_idx"),)

    def _element(self, value: Tensor, per: str | None) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """A parameter given as a tensor, at this head or sequence."""
        if value.dim() == 0 or per is None:
            return lambda: value, ()
        if per == "kv_heads":
            group = self.extents["heads"] // self.extents["kv_heads"]
            return lambda h: value[h // group], (_ARGUMENTS.index("h"),)
        return lambda index: value[index], (_ARGUMENTS.index({"heads": "h", "batch": "b"}[per]),)


def _reader(tensor: Tensor) -> Callable[..., Tensor]:
    if tensor.is_floating_point():
        return lambda *indices: tensor[indices].to(torch.float32)
    return lambda *indices: tensor[indices]


def _operator(name: str) -> Callable[..., Any]:
    """An operator on tensors; on numbers alone, as parameters are, its definition."""
    step, define = STEPS[name], OPERATORS[name].define

    def apply(*operands: Any) -> Any:
        return define(*operands) if all(map(_is_number, operands)) else step(*operands)

    return apply
