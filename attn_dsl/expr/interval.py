"""Interval arithmetic: what an expression can be when its leaves lie in given ranges.

The same rules run on Python scalars (proofs while a spec is checked) and on torch tensors (all tiles of a grid at
once): `IntervalAlgebra` takes its numbers from a `Numbers` backend. Every rule is sound: if each operand is a
member of its interval, the result is a member of the result's interval. Every rule is also inclusion monotone:
smaller operands never give a larger result. So bounds that fit i64 over whole axes fit i64 over any tile, and the
tensor backend needs no overflow checks of its own.

Floats. A kernel computes in f32, the reference in f32 or f64; a proof has to hold for both. So a float interval
contains the result in either precision: bounds are rounded outward to the f32 grid (where a result is exact in
f32 nothing is lost), anything past the largest f32 may be infinite, and anything below the smallest normal f32 may
be zero. Addition, subtraction and multiplication are taken as correctly rounded or fused, division as off by at most
2^-20, tanh and sigmoid by 2^-10 (tanh.approx.f32: 2^-11, PTX ISA, "Floating Point Instructions: tanh"), the other
functions by 2^-15, relative; log and log2 also by 2^-15 absolute, since their approximations lose digits near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .evaluate import evaluate
from .node import Expr, children_first
from .number_backend import F32_TINY, INT_INFINITY, Number, Numbers, ScalarNumbers
from .operators import I32_MAX, I32_MIN
from .types import BOOL, INT, ValueType

DIVISION_ERROR = 2.0**-20
FUNCTION_ERROR = {"exp": 2.0**-15, "exp2": 2.0**-15, "log": 2.0**-15, "log2": 2.0**-15, "sqrt": 2.0**-15}
FUNCTION_ERROR |= {"tanh": 2.0**-10, "sigmoid": 2.0**-10}
LOG_ERROR = 2.0**-15  # absolute
SINE_ERROR = 2.0**-10  # how far an approximation may leave [-1, 1]


@dataclass(frozen=True)
class IntInterval:
    """All ints from `lo` to `hi`, both included; scalar bounds past 2^80 are -INT_INFINITY and INT_INFINITY."""

    lo: Number
    hi: Number

    def __str__(self) -> str:
        low = "-inf" if self.lo == -INT_INFINITY else self.lo
        return f"[{low}, {'inf' if self.hi == INT_INFINITY else self.hi}]"


@dataclass(frozen=True)
class FloatInterval:
    """All floats from `lo` to `hi`, infinities included where a bound is infinite, and NaN if `nan`."""

    lo: Number
    hi: Number
    nan: Number

    def __str__(self) -> str:
        return f"[{self.lo}, {self.hi}]{' or NaN' if self.nan else ''}"


@dataclass(frozen=True)
class Truth:
    """A three-valued bool: what it may be."""

    may_be_true: Number
    may_be_false: Number

    def __str__(self) -> str:
        if self.may_be_true and self.may_be_false:
            return "true or false"
        return "true" if self.may_be_true else "false"


Interval = IntInterval | FloatInterval | Truth

TRUE, FALSE, EITHER = Truth(True, False), Truth(False, True), Truth(True, True)
ANY_INT = IntInterval(-INT_INFINITY, INT_INFINITY)
ANY_FLOAT = FloatInterval(-math.inf, math.inf, True)


def anything(type: ValueType) -> Interval:
    """The interval of a scalar of which nothing is known."""
    return EITHER if type is BOOL else ANY_INT if type is INT else ANY_FLOAT


def static_intervals(roots: Iterable[Expr], leaf_interval: Callable[[Expr], Interval]) -> dict[Expr, Interval]:
    """The interval of every node below `roots`, over Python scalars.

    `leaf_interval(node)` bounds a `var`, `size`, `param` or `read` node.
    """
    nodes = list(children_first(roots))
    values = evaluate(nodes, IntervalAlgebra(ScalarNumbers()), lambda node, indices: leaf_interval(node))
    return dict(zip(nodes, values, strict=True))


class IntervalAlgebra:
    """The algebra of intervals over one backend. Operands are `IntInterval`, `FloatInterval` or `Truth`."""

    def __init__(self, numbers: Numbers) -> None:
        self._n = numbers

    def const(self, node: Expr) -> Interval:
        value = node.attr
        n = self._n
        if isinstance(value, bool):
            return Truth(n.const(value), n.const(not value))
        if isinstance(value, int):
            return IntInterval(n.const(value), n.const(value))
        assert isinstance(value, float)
        if math.isnan(value):
            return FloatInterval(n.const(-math.inf), n.const(math.inf), n.const(True))
        return self._rounded(n.const(value), n.const(value), n.const(False))

    # --- arithmetic

    def add(self, x: Interval, y: Interval) -> Interval:
        if isinstance(x, IntInterval):
            assert isinstance(y, IntInterval)
            return self._int(x.lo + y.lo, x.hi + y.hi)
        assert isinstance(x, FloatInterval)
        assert isinstance(y, FloatInterval)
        n = self._n
        opposite = ((x.lo == -math.inf) & (y.hi == math.inf)) | ((x.hi == math.inf) & (y.lo == -math.inf))
        low, high = x.lo + y.lo, x.hi + y.hi
        low, high = n.where(low != low, n.const(-math.inf), low), n.where(high != high, n.const(math.inf), high)
        return self._rounded(low, high, x.nan | y.nan | opposite)

    def sub(self, x: Interval, y: Interval) -> Interval:
        return self.add(x, self.neg(y))

    def neg(self, x: Interval) -> Interval:
        if isinstance(x, IntInterval):
            return self._int(-x.hi, -x.lo)
        assert isinstance(x, FloatInterval)
        return FloatInterval(-x.hi, -x.lo, x.nan)

    def mul(self, x: Interval, y: Interval) -> Interval:
        if isinstance(x, IntInterval):
            assert isinstance(y, IntInterval)
            return self._int(*self._corners(x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi))
        assert isinstance(x, FloatInterval)
        assert isinstance(y, FloatInterval)
        zero_times_infinity = (self._has_zero(x) & self._has_infinity(y)) | (self._has_zero(y) & self._has_infinity(x))
        corners = [self._without_nan(a * b) for a in (x.lo, x.hi) for b in (y.lo, y.hi)]
        return self._rounded(*self._corners(*corners), x.nan | y.nan | zero_times_infinity)

    def div(self, x: FloatInterval, y: FloatInterval) -> FloatInterval:
        n = self._n
        singular = self._has_zero(y)
        undefined = (singular & self._has_zero(x)) | (self._has_infinity(x) & self._has_infinity(y))
        divisors = [n.where(singular, n.const(1.0), bound) for bound in (y.lo, y.hi)]
        low, high = self._corners(*(self._without_nan(a / b) for a in (x.lo, x.hi) for b in divisors))
        low, high = self._widened(low, high, DIVISION_ERROR)
        low = n.where(singular, n.const(-math.inf), low)
        high = n.where(singular, n.const(math.inf), high)
        return self._rounded(low, high, x.nan | y.nan | undefined)

    def floordiv(self, x: IntInterval, y: IntInterval) -> IntInterval:
        n = self._n
        negative, positive = y.lo < 0, y.hi > 0
        # an operand bound that a sign case does not have is replaced by 1, and that case left out below
        above = self._floordiv_positive(x, n.maximum(y.lo, n.const(1)), n.maximum(y.hi, n.const(1)))
        flipped = IntInterval(-x.hi, -x.lo)
        below = self._floordiv_positive(flipped, n.maximum(-y.hi, n.const(1)), n.maximum(-y.lo, n.const(1)))
        low = n.where(negative & positive, n.minimum(above.lo, below.lo), n.where(negative, below.lo, above.lo))
        high = n.where(negative & positive, n.maximum(above.hi, below.hi), n.where(negative, below.hi, above.hi))
        return self._int(low, high)

    def _floordiv_positive(self, x: IntInterval, low: Number, high: Number) -> IntInterval:
        n = self._n
        return IntInterval(n.where(x.lo < 0, x.lo // low, x.lo // high), n.where(x.hi < 0, x.hi // high, x.hi // low))

    def mod(self, x: IntInterval, y: IntInterval) -> IntInterval:
        n = self._n
        negative, positive = y.lo < 0, y.hi > 0
        above = self._mod_positive(x, n.maximum(y.lo, n.const(1)), n.maximum(y.hi, n.const(1)))
        flipped = IntInterval(-x.hi, -x.lo)
        below = self._mod_positive(flipped, n.maximum(-y.hi, n.const(1)), n.maximum(-y.lo, n.const(1)))
        low = n.where(negative, -below.hi, above.lo)
        high = n.where(positive, above.hi, -below.lo)
        return self._int(low, high)

    def _mod_positive(self, x: IntInterval, low: Number, high: Number) -> IntInterval:
        """`x % d` for all d in low..high, both positive: one period of a fixed d is crossed, or not."""
        n = self._n
        inside = (low == high) & (x.lo // low == x.hi // low)
        small = (x.lo >= 0) & (x.hi < low)
        return IntInterval(
            n.where(small, x.lo, n.where(inside, x.lo % low, n.const(0))),
            n.where(inside, x.hi % low, n.where(x.lo >= 0, n.minimum(x.hi, high - 1), high - 1)),
        )

    def abs(self, x: Interval) -> Interval:
        assert not isinstance(x, Truth)
        n = self._n
        crosses = (x.lo <= 0) & (x.hi >= 0)
        low = n.where(crosses, n.const(0 if isinstance(x, IntInterval) else 0.0), n.maximum(x.lo, -x.hi))
        high = n.maximum(-x.lo, x.hi)
        return IntInterval(low, high) if isinstance(x, IntInterval) else FloatInterval(low, high, x.nan)

    def min(self, x: Interval, y: Interval) -> Interval:
        n = self._n
        if isinstance(x, IntInterval):
            assert isinstance(y, IntInterval)
            return IntInterval(n.minimum(x.lo, y.lo), n.minimum(x.hi, y.hi))
        return self.neg(self.max(self.neg(x), self.neg(y)))

    def max(self, x: Interval, y: Interval) -> Interval:
        n = self._n
        if isinstance(x, IntInterval):
            assert isinstance(y, IntInterval)
            return IntInterval(n.maximum(x.lo, y.lo), n.maximum(x.hi, y.hi))
        assert isinstance(x, FloatInterval)
        assert isinstance(y, FloatInterval)
        # where one operand is NaN the other is the result, whatever its size
        low = n.maximum(x.lo, y.lo)
        low = n.where(x.nan, n.minimum(low, y.lo), low)
        low = n.where(y.nan, n.minimum(low, x.lo), low)
        return FloatInterval(low, n.maximum(x.hi, y.hi), x.nan & y.nan)

    # --- bits

    def bitnot(self, x: IntInterval) -> IntInterval:
        return self._int(-1 - x.hi, -1 - x.lo)

    def bitand(self, x: IntInterval, y: IntInterval) -> IntInterval:
        n = self._n
        ones_x, maybe_x = self._known_bits(x)
        ones_y, maybe_y = self._known_bits(y)
        low, high = self._from_bits(ones_x & ones_y, maybe_x & maybe_y, x, y)
        # a nonnegative operand bounds the result from above, two negative operands both do
        high = n.minimum(high, n.maximum(x.hi, y.hi))
        high = n.where(x.lo >= 0, n.minimum(high, x.hi), high)
        high = n.where(y.lo >= 0, n.minimum(high, y.hi), high)
        # with a constant 2^k - 1 it is a remainder, which sees that a short range crosses no multiple of 2^k
        for mask, other in ((x, y), (y, x)):
            is_low_mask = (mask.lo == mask.hi) & (mask.lo >= 0) & (mask.lo & (mask.lo + 1) == 0)
            period = n.where(is_low_mask, mask.lo + 1, n.const(1))
            remainder = self._mod_positive(other, period, period)
            low = n.where(is_low_mask, n.maximum(low, remainder.lo), low)
            high = n.where(is_low_mask, n.minimum(high, remainder.hi), high)
        return self._int(low, high)

    def bitor(self, x: IntInterval, y: IntInterval) -> IntInterval:
        return self.bitnot(self.bitand(self.bitnot(x), self.bitnot(y)))

    def bitxor(self, x: IntInterval, y: IntInterval) -> IntInterval:
        ones_x, maybe_x = self._known_bits(x)
        ones_y, maybe_y = self._known_bits(y)
        unknown = (maybe_x & ~ones_x) | (maybe_y & ~ones_y)
        ones = (ones_x ^ ones_y) & ~unknown
        return self._int(*self._from_bits(ones, ones | unknown, x, y))

    def shl(self, x: IntInterval, y: IntInterval) -> IntInterval:
        few, many = self._shift_counts(y)
        n = self._n
        return self._int(n.where(x.lo < 0, x.lo << many, x.lo << few), n.where(x.hi < 0, x.hi << few, x.hi << many))

    def shr(self, x: IntInterval, y: IntInterval) -> IntInterval:
        few, many = self._shift_counts(y)
        n = self._n
        return self._int(n.where(x.lo < 0, x.lo >> few, x.lo >> many), n.where(x.hi < 0, x.hi >> many, x.hi >> few))

    def _shift_counts(self, y: IntInterval) -> tuple[Number, Number]:
        """The bounds of a shift count, which the checker has proved to lie in 0..64."""
        n = self._n
        first, last = n.const(0), n.const(63)
        return n.minimum(n.maximum(y.lo, first), last), n.minimum(n.maximum(y.hi, first), last)

    def _known_bits(self, x: IntInterval) -> tuple[Number, Number]:
        """(bits that are 1 in every member, bits that are 1 in some): what lies above the highest differing bit."""
        unknown = self._n.smear(x.lo ^ x.hi)
        return x.lo & ~unknown, x.lo | unknown

    def _from_bits(self, ones: Number, maybe: Number, x: IntInterval, y: IntInterval) -> tuple[Number, Number]:
        """Bounds of the ints whose set bits include `ones` and lie in `maybe`, made of the bits of `x` and `y`."""
        n = self._n
        signed = (ones >= 0) & (maybe < 0)  # the sign is unknown, so `ones` is 0
        width = n.const(0)  # all members of x and y lie in -width - 1 .. width, hence so does the result
        for bound in (x.lo, x.hi, y.lo, y.hi):
            width = width | n.smear(n.where(bound < 0, -1 - bound, bound))
        return n.where(signed, ~width, ones), n.where(signed, maybe & width, maybe)

    # --- comparisons and logic

    def lt(self, x: Interval, y: Interval) -> Truth:
        assert not isinstance(x, Truth)
        assert not isinstance(y, Truth)
        return self._comparison(x.lo < y.hi, x.hi >= y.lo, x, y)

    def le(self, x: Interval, y: Interval) -> Truth:
        assert not isinstance(x, Truth)
        assert not isinstance(y, Truth)
        return self._comparison(x.lo <= y.hi, x.hi > y.lo, x, y)

    def eq(self, x: Interval, y: Interval) -> Truth:
        if isinstance(x, Truth):
            assert isinstance(y, Truth)
            return Truth(
                (x.may_be_true & y.may_be_true) | (x.may_be_false & y.may_be_false),
                (x.may_be_true & y.may_be_false) | (x.may_be_false & y.may_be_true),
            )
        assert not isinstance(y, Truth)
        overlap = (x.lo <= y.hi) & (y.lo <= x.hi)
        same = (x.lo == x.hi) & (y.lo == y.hi) & (x.lo == y.lo)
        return self._comparison(overlap, self._n.negate(same), x, y)

    def ne(self, x: Interval, y: Interval) -> Truth:
        return self.not_(self.eq(x, y))

    @staticmethod
    def _comparison(may_be_true: Number, may_be_false: Number, x: Interval, y: Interval) -> Truth:
        """A comparison that holds for no NaN."""
        for operand in (x, y):
            if isinstance(operand, FloatInterval):
                may_be_false = may_be_false | operand.nan
        return Truth(may_be_true, may_be_false)

    def and_(self, x: Truth, y: Truth) -> Truth:
        return Truth(x.may_be_true & y.may_be_true, x.may_be_false | y.may_be_false)

    def or_(self, x: Truth, y: Truth) -> Truth:
        return Truth(x.may_be_true | y.may_be_true, x.may_be_false & y.may_be_false)

    def not_(self, x: Truth) -> Truth:
        return Truth(x.may_be_false, x.may_be_true)

    def select(self, condition: Truth, x: Interval, y: Interval) -> Interval:
        n = self._n
        can_x, can_y = condition.may_be_true, condition.may_be_false
        if isinstance(x, Truth):
            assert isinstance(y, Truth)
            return Truth(
                (can_x & x.may_be_true) | (can_y & y.may_be_true), (can_x & x.may_be_false) | (can_y & y.may_be_false)
            )
        assert not isinstance(y, Truth)
        both = can_x & can_y
        low = n.where(both, n.minimum(x.lo, y.lo), n.where(can_x, x.lo, y.lo))
        high = n.where(both, n.maximum(x.hi, y.hi), n.where(can_x, x.hi, y.hi))
        if isinstance(x, IntInterval):
            return IntInterval(low, high)
        assert isinstance(y, FloatInterval)
        return FloatInterval(low, high, (can_x & x.nan) | (can_y & y.nan))

    # --- conversions and functions

    def to_float(self, x: IntInterval) -> FloatInterval:
        n = self._n
        return self._rounded(n.to_float(x.lo), n.to_float(x.hi), n.const(False))

    def floor(self, x: FloatInterval) -> IntInterval:
        n = self._n
        first, last = n.const(float(I32_MIN)), n.const(float(I32_MAX))
        low, high = (n.floor_to_int(n.minimum(n.maximum(bound, first), last)) for bound in (x.lo, x.hi))
        zero = n.const(0)  # the floor of NaN
        return IntInterval(n.where(x.nan, n.minimum(low, zero), low), n.where(x.nan, n.maximum(high, zero), high))

    def exp(self, x: FloatInterval) -> FloatInterval:
        return self._monotone("exp", x)

    def exp2(self, x: FloatInterval) -> FloatInterval:
        return self._monotone("exp2", x)

    def log(self, x: FloatInterval) -> FloatInterval:
        return self._monotone("log", x, starts_at_zero=True, absolute=LOG_ERROR)

    def log2(self, x: FloatInterval) -> FloatInterval:
        return self._monotone("log2", x, starts_at_zero=True, absolute=LOG_ERROR)

    def sqrt(self, x: FloatInterval) -> FloatInterval:
        return self._monotone("sqrt", x, starts_at_zero=True)

    def tanh(self, x: FloatInterval) -> FloatInterval:
        return self._within(-1.0, 1.0, self._monotone("tanh", x))

    def sigmoid(self, x: FloatInterval) -> FloatInterval:
        return self._within(0.0, 1.0, self._monotone("sigmoid", x))

    def sin(self, x: FloatInterval) -> FloatInterval:
        return self._periodic(x)

    def cos(self, x: FloatInterval) -> FloatInterval:
        return self._periodic(x)

    def _monotone(
        self, name: str, x: FloatInterval, starts_at_zero: bool = False, absolute: float = 0.0
    ) -> FloatInterval:
        n = self._n
        outside = n.const(False)
        if starts_at_zero:
            outside = x.lo < 0
            x = self._within(0.0, math.inf, x)
        low, high = self._widened(n.function(name, x.lo), n.function(name, x.hi), FUNCTION_ERROR[name], absolute)
        return self._rounded(low, high, x.nan | outside)

    def _periodic(self, x: FloatInterval) -> FloatInterval:
        """sin or cos of anything: an f32 argument far from zero leaves nothing tighter than the whole range."""
        one = self._n.const(1.0 + SINE_ERROR)
        return FloatInterval(-one, one, x.nan | self._has_infinity(x))

    # --- parts of the rules

    def _int(self, low: Number, high: Number) -> IntInterval:
        return IntInterval(*self._n.saturate(low, high))

    def _corners(self, first: Number, *others: Number) -> tuple[Number, Number]:
        low = high = first
        for corner in others:
            low, high = self._n.minimum(low, corner), self._n.maximum(high, corner)
        return low, high

    def _within(self, low: float, high: float, x: FloatInterval) -> FloatInterval:
        n = self._n
        first, last = n.const(low), n.const(high)
        return FloatInterval(n.minimum(n.maximum(x.lo, first), last), n.minimum(n.maximum(x.hi, first), last), x.nan)

    def _has_zero(self, x: FloatInterval) -> Number:
        return (x.lo <= 0) & (x.hi >= 0)

    def _has_infinity(self, x: FloatInterval) -> Number:
        return (x.lo == -math.inf) | (x.hi == math.inf)

    def _without_nan(self, corner: Number) -> Number:
        """0 * inf and inf / inf as bounds: finite factors of any size come arbitrarily close to 0."""
        return self._n.where(corner != corner, self._n.const(0.0), corner)

    def _widened(self, low: Number, high: Number, relative: float, absolute: float = 0.0) -> tuple[Number, Number]:
        n = self._n
        low = n.where(low < 0, low * (1 + relative), low * (1 - relative)) - absolute
        high = n.where(high < 0, high * (1 - relative), high * (1 + relative)) + absolute
        return low, high

    def _rounded(self, low: Number, high: Number, nan: Number) -> FloatInterval:
        """Bounds moved outward to the f32 grid, with everything below the normal range possibly flushed to zero."""
        n = self._n
        zero = n.const(0.0)
        low, high = n.f32_down(low), n.f32_up(high)
        low = n.where((low > 0) & (low < F32_TINY), zero, low)
        high = n.where((high < 0) & (high > -F32_TINY), zero, high)
        return FloatInterval(low, high, nan)
