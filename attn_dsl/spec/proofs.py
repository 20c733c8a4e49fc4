"""What is proved about every int expression of a spec: divisors, shifts, widths, indices inside their axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ..diagnostics import Diagnostics, Span
from ..expr import INT, OPERATORS, Expr, ExprBuilder
from ..expr.affine import Bounds, proves_inside
from ..expr.interval import ANY_FLOAT, FloatInterval, Interval, IntInterval, Truth, anything, static_intervals
from ..expr.operators import I32_MAX, I32_MIN, I64_MAX, I64_MIN
from ..expr.text import to_text
from .model import (
    MAX_BATCH,
    MAX_HEADS,
    MAX_SEQUENCE,
    AlignKind,
    DType,
    Param,
    largest_extent,
    smallest_extent,
)

_ELEMENTS = {DType.I32: (I32_MIN, I32_MAX), DType.I8: (-128, 127), DType.U8: (0, 255)}
F32_MAX = (2.0 - 2.0**-23) * 2.0**127
_SHOWN = 80  # characters of an expression in a message


class Ranges:
    """The range of every leaf, from the limits of the language and what the spec fixes."""

    def __init__(
        self, fixed: Mapping[str, int], params: Iterable[Param], dtypes: Mapping[str, DType], align: AlignKind
    ) -> None:
        self._fixed = fixed
        self._params = {param.name: param for param in params}
        self._dtypes = dtypes
        self._align = align

    def _extent(self, axis: str) -> tuple[int, int]:
        fixed = self._fixed.get(axis)
        return (smallest_extent(axis), largest_extent(axis)) if fixed is None else (fixed, fixed)

    def _index(self, axis: str, limit: int) -> IntInterval:
        return IntInterval(0, max(0, min(limit, self._extent(axis)[1]) - 1))

    def leaf(self, node: Expr) -> Interval:
        """The interval of a leaf."""
        name = str(node.attr)
        if node.op == "var":
            return self._variable(name)
        if node.op == "size":
            return IntInterval(*self._extent(name))
        if node.op == "param":
            param = self._params.get(name)
            if param is None:
                return anything(node.type)
            if node.type is INT:
                low = I32_MIN if param.low is None else int(param.low)
                return IntInterval(low, I32_MAX if param.high is None else int(param.high))
            infinite = param.low is None or param.high is None
            if infinite:
                low_f = float("-inf") if param.low is None else float(param.low)
                return FloatInterval(
                    low_f, float("inf") if param.high is None else float(param.high), param.low is None
                )
            return FloatInterval(float(param.low or 0.0), float(param.high or 0.0), False)
        elements = _ELEMENTS.get(self._dtypes.get(name, DType.F32))  # a function's own tensor has no dtype yet
        return anything(node.type) if elements is None else IntInterval(*elements)

    def _variable(self, name: str) -> Interval:
        if name == "score":
            return ANY_FLOAT
        if name in ("seq_q", "seq_k"):
            return IntInterval(0, min(MAX_SEQUENCE, self._extent(name)[1]))
        if name == "q_pos":
            last_q, last_k = self._index("seq_q", MAX_SEQUENCE).hi, self._index("seq_k", MAX_SEQUENCE).hi
            if self._align is AlignKind.TOP_LEFT:
                return IntInterval(0, last_q)
            if self._align is AlignKind.BOTTOM_RIGHT:
                return IntInterval(-last_q - 1, max(last_k, 0))
            return IntInterval(-MAX_SEQUENCE, MAX_SEQUENCE - 1 + last_q)
        axis, limit = {
            "b": ("batch", MAX_BATCH),
            "h": ("heads", MAX_HEADS),
            "kv_h": ("kv_heads", MAX_HEADS),
            "q_idx": ("seq_q", MAX_SEQUENCE),
            "kv_idx": ("seq_k", MAX_SEQUENCE),
        }[name]
        return self._index(axis, limit)


def index_prover(
    ranges: Ranges, build: ExprBuilder, axis: Callable[[str], Expr], align: AlignKind, rows: Mapping[str, str]
) -> Callable[[Expr, Expr], bool]:
    """A function that says whether 0 <= index < extent is proved, by numbers or as a linear inequality.

    `axis` gives the extent of an axis; `rows` maps `seq_q` and `seq_k` to the axis their rows lie along.
    """
    one = build.const(1)

    def below(extent: Expr) -> Bounds:
        return Bounds(upper=(build.op("sub", extent, one),))

    seq_q, seq_k = build.var("seq_q"), build.var("seq_k")
    known = {
        build.var("q_idx"): below(seq_q),
        build.var("kv_idx"): below(seq_k),
        build.var("h"): below(axis("heads")),
        build.var("kv_h"): below(axis("kv_heads")),
        build.var("b"): below(axis("batch")),
        **{build.var(length): Bounds(upper=(axis(name),)) for length, name in rows.items()},
    }
    if align is AlignKind.TOP_LEFT:
        known[build.var("q_pos")] = below(seq_q)
    elif align is AlignKind.BOTTOM_RIGHT:
        known[build.var("q_pos")] = Bounds((build.op("sub", seq_k, seq_q),), below(seq_k).upper)

    def proved(index: Expr, extent: Expr) -> bool:
        intervals = static_intervals([index, extent], ranges.leaf)
        value, size = intervals[index], intervals[extent]
        assert isinstance(value, IntInterval)
        assert isinstance(size, IntInterval)
        if value.lo >= 0 and value.hi < size.lo:
            return True
        return proves_inside(index, extent, intervals, lambda leaf: known.get(leaf, Bounds()))

    return proved


def prove(
    report: Diagnostics,
    ranges: Ranges,
    origins: Mapping[Expr, Span],
    reads: Iterable[tuple[Expr, Expr, Span, str]],
    roots: Iterable[Expr],
) -> frozenset[Expr]:
    """Checks every node that was written, reports what is not proved, and returns the int nodes that need i64."""
    written = [*origins, *roots]
    known = static_intervals(written, ranges.leaf)
    for node, interval in known.items():
        span = origins.get(node)
        if node.op in ("floordiv", "mod"):
            _divisor(report, node, known, span)
        elif node.op in ("shl", "shr"):
            count = known[node.args[1]]
            assert isinstance(count, IntInterval)
            if not (count.lo >= 0 and count.hi < 64):
                message = f"the shift count '{_short(node.args[1])}' lies in {count}"
                report.error("E262", message, span, "use clamp(count, 0, 31)")
                continue
        if isinstance(node.attr, float) and F32_MAX < abs(node.attr) < math.inf:
            report.error("E207", f"the constant {node.attr!r} does not fit f32 ({F32_MAX!r} is the largest)", span)
        if isinstance(interval, IntInterval) and not (interval.lo >= I64_MIN and interval.hi <= I64_MAX):
            operands = [known[argument] for argument in node.args]
            if all(not isinstance(o, IntInterval) or (o.lo >= I64_MIN and o.hi <= I64_MAX) for o in operands):
                message = f"'{_short(node)}' lies in {interval}, outside 64 bits"
                report.error("E261", message, span, "give parameters a range, as in 'param n: int in 1..4096'")
    for index, extent, span, tensor in reads:
        bounds = static_intervals([index, extent], ranges.leaf)
        value, size = bounds[index], bounds[extent]
        assert isinstance(value, IntInterval)
        assert isinstance(size, IntInterval)
        if value.hi < 0 or value.lo >= size.hi:
            message = f"index '{_short(index)}' of '{tensor}' lies in {value}, its axis in 0..{size.hi}"
            report.error("E246", message, span)
        else:
            axis = f"its axis of {_short(extent)}"
            message = f"index '{_short(index)}' of '{tensor}' is not proved inside {axis}: it is clamped"
            report.note("W266", message, span)
    return frozenset(
        node
        for node, interval in known.items()
        if isinstance(interval, IntInterval) and not (interval.lo >= I32_MIN and interval.hi <= I32_MAX)
    )


def _divisor(report: Diagnostics, node: Expr, known: Mapping[Expr, Interval], span: Span | None) -> None:
    divisor = known[node.args[1]]
    assert isinstance(divisor, IntInterval)
    if divisor.lo <= 0 <= divisor.hi:
        written = node.args[1]
        hint = "use max(x, 1)"
        if written.op == "param":
            hint = f"give it a range: 'param {written.attr}: int in 1..'"
        symbol = OPERATORS[node.op].spelling
        message = f"the divisor '{_short(written)}' of '{symbol}' may be 0: it lies in {divisor}"
        report.error("E260", message, span, hint)


def never_true(mask: Expr, ranges: Ranges) -> bool:
    """Whether the mask is proved false for every pair, parameter and capture."""
    value = static_intervals([mask], ranges.leaf)[mask]
    assert isinstance(value, Truth)
    return not value.may_be_true


def _short(node: Expr) -> str:
    text = to_text(node)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
