"""The CuTe algebra: expressions on scalar CuTe values, as instructions of the kernel being traced.

Ints are Int32, or Int64 where a proof asks for it (`widened`); bools are Boolean, floats Float32. Every method equals
its row's `define`, floats up to the errors that `attn_dsl.expr.interval` allows. Approximate instructions and their
errors: PTX ISA, "Floating Point Instructions".
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Numeric, Uint32, Uint64
from cutlass._mlir.dialects import llvm

from attn_dsl.expr import INT, Expr
from attn_dsl.expr.operators import I32_MAX, I32_MIN

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
TWO_PI = 2.0 * math.pi
TWO_PI_HIGH = 6.2831854820251465  # the f32 nearest to 2 pi; a fused product with it is not rounded
TWO_PI_LOW = TWO_PI - TWO_PI_HIGH
SMALL_TANH = 0.0625  # below it tanh is a polynomial: the quotient of exponentials loses its leading digits


def known(value: Any) -> bool | int | float | None:
    """The value of a CuTe scalar that is a constant of the trace, else None."""
    inside = value.value if isinstance(value, Numeric) else value
    return inside if isinstance(inside, bool | int | float) else None


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition`, else `no`: values of one type, both evaluated."""
    decided = known(condition)
    if decided is not None:
        return yes if decided else no
    return type(yes)(cutlass.select_(condition, yes.ir_value(), no.ir_value()))


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two ints of one type."""
    return cutlass.min(x, y)


def larger(x: Any, y: Any) -> Any:
    """The larger of two ints of one type."""
    return cutlass.max(x, y)


def instruction(text: str, result: Any, constraints: str, *operands: Any) -> Any:
    """One PTX instruction without side effects, `$0` its result of type `result`."""
    values = [operand.ir_value() for operand in operands]
    return result(llvm.inline_asm(result.mlir_type, values, text, constraints, has_side_effects=False))


def here(value: Any) -> Any:
    """`value`, handed to each lane by itself. Whole warps call it.

    No compiler sees through the shuffle, so what is computed from its result in a loop is computed in that loop, and
    kept in no register outside of it.
    """
    return cute.arch.shuffle_sync(value, cute.arch.lane_idx())


def _unsigned(value: Any) -> Any:
    return Uint32(value) if isinstance(value, Int32) else Uint64(value)


def widened(node: Expr, operands: tuple[Any, ...], wide: frozenset[Expr]) -> tuple[Any, ...]:
    """`operands` of `node` in 64 bits if the node or one of its int operands needs them."""
    if node in wide or any(isinstance(operand, Int64) for operand in operands):
        return tuple(Int64(operand) if isinstance(operand, Int32) else operand for operand in operands)
    return operands


def narrowed(node: Expr, value: Any, wide: frozenset[Expr]) -> Any:
    """`value` of `node` in 32 bits unless the node needs 64."""
    return Int32(value) if node.type is INT and node not in wide and isinstance(value, Int64) else value


class CuteAlgebra:
    """One method per row of `OPERATORS`. Int operands of one call have one width."""

    def __init__(self, wide: frozenset[Expr]) -> None:
        self.wide = wide

    def const(self, node: Expr) -> Any:
        if node.type is INT:
            return Int64(node.attr) if node in self.wide else Int32(node.attr)
        return Boolean(node.attr) if isinstance(node.attr, bool) else Float32(node.attr)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def sub(self, x: Any, y: Any) -> Any:
        return x - y

    def mul(self, x: Any, y: Any) -> Any:
        return x * y

    def div(self, x: Any, y: Any) -> Any:
        if known(x) == 1.0:
            return self._reciprocal(y)
        return instruction("div.full.f32 $0, $1, $2;", Float32, "=f,f,f", x, y)

    def exact_div(self, x: Any, y: Any) -> Any:
        """x / y rounded to nearest (PTX ISA, div.rn.f32), where a comparison or `floor` sees the last bit."""
        return instruction("div.rn.f32 $0, $1, $2;", Float32, "=f,f,f", x, y)

    def floordiv(self, x: Any, y: Any) -> Any:
        shift = _exponent(y)
        if shift is not None:
            return x >> type(x)(shift)
        quotient = x // y  # CuTe DSL rounds it down in some kernels, towards 0 in others
        rest, zero = x - quotient * y, type(x)(0)
        return choose((rest != zero) & ((rest ^ y) < zero), quotient - type(x)(1), quotient)

    def mod(self, x: Any, y: Any) -> Any:
        if _exponent(y) is not None:
            return x & type(x)(int(known(y) or 1) - 1)
        rest = x % y  # has the sign of x
        zero = type(x)(0)
        return choose((rest != zero) & ((rest ^ y) < zero), rest + y, rest)

    def unsigned_floordiv(self, x: Any, y: Any) -> Any:
        """`floordiv` of operands that are not negative: nothing has to be mended where signs differ."""
        return self.floordiv(x, y) if _exponent(y) is not None else type(x)(_unsigned(x) // _unsigned(y))

    def unsigned_mod(self, x: Any, y: Any) -> Any:
        """`mod` of operands that are not negative."""
        return self.mod(x, y) if _exponent(y) is not None else type(x)(_unsigned(x) % _unsigned(y))

    def neg(self, x: Any) -> Any:
        return -x

    def abs(self, x: Any) -> Any:
        return cute.math.absf(x) if isinstance(x, Float32) else larger(x, -x)

    def min(self, x: Any, y: Any) -> Any:
        return cute.arch.fmin(x, y) if isinstance(x, Float32) else smaller(x, y)

    def max(self, x: Any, y: Any) -> Any:
        return cute.arch.fmax(x, y) if isinstance(x, Float32) else larger(x, y)

    def bitand(self, x: Any, y: Any) -> Any:
        return x & y

    def bitor(self, x: Any, y: Any) -> Any:
        return x | y

    def bitxor(self, x: Any, y: Any) -> Any:
        return x ^ y

    def bitnot(self, x: Any) -> Any:
        return x ^ type(x)(-1)

    def shl(self, x: Any, y: Any) -> Any:
        count = known(y)
        if isinstance(x, Int32) and (count is None or count > 31):
            # a count past 31 is proved to shift nothing but zero
            return Int32(Int64(x) << Int64(y))
        return x << y

    def shr(self, x: Any, y: Any) -> Any:
        return x >> (smaller(y, Int32(31)) if isinstance(x, Int32) else y)

    def lt(self, x: Any, y: Any) -> Any:
        return x < y

    def le(self, x: Any, y: Any) -> Any:
        return x <= y

    def eq(self, x: Any, y: Any) -> Any:
        return self.not_(x ^ y) if isinstance(x, Boolean) else x == y

    def ne(self, x: Any, y: Any) -> Any:
        return x ^ y if isinstance(x, Boolean) else x != y

    def and_(self, x: Any, y: Any) -> Any:
        return x & y

    def or_(self, x: Any, y: Any) -> Any:
        return x | y

    def not_(self, x: Any) -> Any:
        return x ^ Boolean(True)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        return choose(condition, yes, no)

    def to_float(self, x: Any) -> Any:
        return x.to(Float32)

    def floor(self, x: Any) -> Any:
        # out of range the conversion saturates, and it makes 0 of NaN (PTX ISA, cvt)
        return instruction("cvt.rmi.s32.f32 $0, $1;", Int32, "=r,f", x)

    def exp(self, x: Any) -> Any:
        return self.exp2(x * Float32(LOG2_E))

    def exp2(self, x: Any) -> Any:
        return cute.math.exp2(x, approx=True, ftz=True)

    def log(self, x: Any) -> Any:
        return self.log2(x) * Float32(LN_2)

    def log2(self, x: Any) -> Any:
        return cute.math.log2(x, approx=True)

    def tanh(self, x: Any) -> Any:
        # 1 - 2 / (e^2x + 1), and x - x^3 / 3 + 2 x^5 / 15 near 0
        far = Float32(1.0) - Float32(2.0) * self._reciprocal(self.exp2(x * Float32(2.0 * LOG2_E)) + Float32(1.0))
        square = x * x
        near = x + x * square * (square * Float32(2.0 / 15.0) - Float32(1.0 / 3.0))
        return choose(self.abs(x) < Float32(SMALL_TANH), near, far)

    def sqrt(self, x: Any) -> Any:
        return cute.math.sqrt(x, approx=True)

    def sigmoid(self, x: Any) -> Any:
        return self._reciprocal(Float32(1.0) + self.exp2(x * Float32(-LOG2_E)))

    def sin(self, x: Any) -> Any:
        return instruction("sin.approx.f32 $0, $1;", Float32, "=f,f", _reduced(x))

    def cos(self, x: Any) -> Any:
        return instruction("cos.approx.f32 $0, $1;", Float32, "=f,f", _reduced(x))

    def inverse(self, x: Any) -> Any:
        """1 / x over the whole range of x: for a divisor that many dividends share."""
        return instruction("div.full.f32 $0, $1, $2;", Float32, "=f,f,f", Float32(1.0), x)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x * y + z of floats, rounded once."""
        return cute.math.fma(x, y, z)

    def _reciprocal(self, x: Any) -> Any:
        return cute.arch.rcp_approx(x)


def _exponent(y: Any) -> int | None:
    """n if `y` is the constant 2^n."""
    value = known(y)
    if isinstance(value, int) and value > 0 and value & (value - 1) == 0:
        return value.bit_length() - 1
    return None


def _reduced(x: Any) -> Any:
    """x minus a multiple of 2 pi, in [-pi, pi]: there the approximations are off by 2^-20.5 at most."""
    turns = instruction("cvt.rni.f32.f32 $0, $1;", Float32, "=f,f", x * Float32(1.0 / TWO_PI))
    for part in (TWO_PI_HIGH, TWO_PI_LOW):
        x = cute.math.fma(-turns, Float32(part), x)
    return x


def clamped(value: Any, low: int, high: Any) -> Any:
    """`value` as Int32, moved into low..high; `low` wins."""
    value = larger(smaller(value, type(value)(high)), type(value)(low))
    return Int32(value)


def saturated(value: Any, low: int | float | None, high: int | float | None) -> Any:
    """An element of a parameter tensor in its range: Int32, or Float32 without NaN if the range has an end."""
    kind = type(value)
    if isinstance(value, Int32 | Int64):
        value = larger(smaller(value, kind(I32_MAX if high is None else high)), kind(I32_MIN if low is None else low))
        return Int32(value)
    if high is not None:
        value = choose(value <= kind(high), value, kind(high))
    if low is not None:
        value = choose(value >= kind(low), value, kind(low))
    return value.to(Float32)
