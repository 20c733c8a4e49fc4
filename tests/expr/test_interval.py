"""Interval arithmetic: soundness of every rule on both backends, tightness where a proof depends on it."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from random_intervals import contains, random_int, random_interval

from attn_dsl.expr import BOOL, INT, OPERATORS, ExprBuilder, Operator
from attn_dsl.expr.evaluate import method_name
from attn_dsl.expr.interval import (
    ANY_FLOAT,
    ANY_INT,
    EITHER,
    FloatInterval,
    IntervalAlgebra,
    IntInterval,
    Truth,
    anything,
    static_intervals,
)
from attn_dsl.expr.number_backend import INT_INFINITY, SATURATION, ScalarNumbers
from attn_dsl.expr.operators import I32_MAX, I32_MIN

CASES_PER_SIGNATURE = 1500
ALGEBRA = IntervalAlgebra(ScalarNumbers())
SIGNATURES = [(row, operands) for row in OPERATORS.values() for operands, _ in row.signatures]


def _f32_results(name: str, members: tuple[Any, ...]) -> list[float]:
    """What torch computes in f32, a stand-in for a kernel."""
    operands = [torch.tensor(m, dtype=torch.float32) if isinstance(m, float) else torch.tensor(m) for m in members]
    functions = {
        "select": torch.where,
        "to_float": lambda x: x.to(torch.float32),
        "min": torch.fmin,
        "max": torch.fmax,
        "exp2": torch.exp2,
    }
    function = functions.get(name) or getattr(torch, name)
    return [float(function(*operands))]


@pytest.mark.parametrize(("row", "operands"), SIGNATURES, ids=lambda p: p.name if isinstance(p, Operator) else "")
def test_result_contains_the_result_of_members(row: Operator, operands: tuple[Any, ...]) -> None:
    rng = random.Random(f"{row.name}{operands}")
    is_float = row.result(operands) is not None and str(row.result(operands)) == "float"
    for _ in range(CASES_PER_SIGNATURE):
        pairs = [random_interval(rng, kind, row.name, place) for place, kind in enumerate(operands)]
        result = getattr(ALGEBRA, method_name(row.name))(*(interval for interval, _ in pairs))
        for members in itertools.product(*(members for _, members in pairs)):
            value = row.define(*members)
            assert contains(result, value), (row.name, [str(i) for i, _ in pairs], members, value, str(result))
        if is_float:
            members = tuple(rng.choice(members) for _, members in pairs)
            for value in _f32_results(row.name, members):
                assert contains(result, value), (row.name, [str(i) for i, _ in pairs], members, value, str(result))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "min", "max", "bitand", "bitor", "bitxor", "floordiv", "mod"])
def test_int_constants_are_exact(name: str) -> None:
    rng = random.Random(name)
    for _ in range(500):
        x, y = random_int(rng), random_int(rng) or 1
        result = getattr(ALGEBRA, name)(IntInterval(x, x), IntInterval(y, y))
        assert (result.lo, result.hi) == (OPERATORS[name].define(x, y),) * 2


@pytest.mark.parametrize("name", ["bitand", "bitor", "bitxor", "shl", "shr", "floordiv", "mod", "mul", "abs", "bitnot"])
def test_int_rules_are_tight_on_small_ranges(name: str) -> None:
    """Exact for floordiv, mul, shifts, abs and `& (2^k - 1)`, never wider than the operands' bits for the others."""
    exact = name in ("shl", "shr", "floordiv", "mul", "abs", "bitnot")
    bounds = [(low, low + width) for low in range(-9, 10) for width in (0, 1, 2, 5)]
    for x in bounds:
        for y in [(1, 1), (2, 3), (3, 3), (7, 7), (1, 6)]:
            unary = name in ("abs", "bitnot")
            intervals = [IntInterval(*x)] if unary else [IntInterval(*x), IntInterval(*y)]
            members = itertools.product(*(range(i.lo, i.hi + 1) for i in intervals))
            values = [OPERATORS[name].define(*m) for m in members]
            result = getattr(ALGEBRA, name)(*intervals)
            if exact or (name in ("bitand", "mod") and y in [(1, 1), (7, 7)] and _one_period(x, y[0], name)):
                assert (result.lo, result.hi) == (min(values), max(values)), (name, x, y, str(result))
            elif name == "mod":
                assert result.lo >= 0
                assert result.hi < y[1]
            else:
                assert result.lo >= -16
                assert result.hi <= 15


def _one_period(x: tuple[int, int], y: int, name: str) -> bool:
    period = y + 1 if name == "bitand" else y
    return x[0] // period == x[1] // period


def test_ints_saturate_to_infinity_and_stay_there() -> None:
    big = IntInterval(1, 2**62)
    once = ALGEBRA.mul(big, big)
    assert (once.lo, once.hi) == (1, INT_INFINITY)
    assert ALGEBRA.floordiv(once, IntInterval(2**70, 2**70)).hi == INT_INFINITY
    assert ALGEBRA.sub(once, once).lo == -INT_INFINITY
    assert ALGEBRA.shr(once, IntInterval(63, 63)).hi == INT_INFINITY
    assert ALGEBRA.mul(once, IntInterval(0, 0)) == IntInterval(0, 0)
    assert ALGEBRA.mod(once, IntInterval(7, 7)) == IntInterval(0, 6)
    assert ALGEBRA.bitand(ANY_INT, IntInterval(0, 12)) == IntInterval(0, 12)
    assert ALGEBRA.mul(IntInterval(2**60, 2**60), IntInterval(2**60, 2**60)).lo == SATURATION


def test_float_bounds_are_exact_where_f32_is() -> None:
    half, eight = FloatInterval(0.5, 0.5, False), FloatInterval(-8.0, 8.0, False)
    assert ALGEBRA.mul(half, eight) == FloatInterval(-4.0, 4.0, False)
    assert ALGEBRA.to_float(IntInterval(-(2**24), 2**24 + 1)) == FloatInterval(-(2.0**24), 2.0**24 + 2, False)
    assert ALGEBRA.sub(eight, half) == FloatInterval(-8.5, 7.5, False)


def test_results_below_the_normal_range_may_be_flushed_to_zero() -> None:
    small = FloatInterval(1e-20, 2e-20, False)
    product = ALGEBRA.mul(small, small)
    assert (product.lo, product.hi > 0) == (0.0, True)
    negative = ALGEBRA.mul(small, ALGEBRA.neg(small))
    assert (negative.lo < 0, negative.hi) == (True, 0.0)


def test_nan_and_infinity_are_followed() -> None:
    infinite, zero = FloatInterval(0.0, math.inf, False), FloatInterval(0.0, 0.0, False)
    assert ALGEBRA.sub(infinite, infinite).nan
    assert ALGEBRA.mul(infinite, zero).nan
    assert ALGEBRA.div(zero, zero).nan
    assert ALGEBRA.log(FloatInterval(-1.0, 1.0, False)).nan
    assert not ALGEBRA.log(infinite).nan
    assert ALGEBRA.lt(FloatInterval(0.0, 0.0, True), FloatInterval(1.0, 1.0, False)) == EITHER
    assert ALGEBRA.max(FloatInterval(9.0, 9.0, True), FloatInterval(1.0, 2.0, False)) == FloatInterval(1.0, 9.0, False)
    assert ALGEBRA.floor(ANY_FLOAT) == IntInterval(I32_MIN, I32_MAX)


def test_static_intervals_bound_every_node() -> None:
    b = ExprBuilder()
    q_pos, kv_idx, window = b.var("q_pos"), b.var("kv_idx"), b.param("window", INT)
    distance = b.op("sub", q_pos, kv_idx)
    mask = b.op("and", b.op("le", b.const(0), distance), b.op("lt", distance, window))
    ranges = {"q_pos": IntInterval(-5, 9), "kv_idx": IntInterval(0, 7), "window": IntInterval(1, 3)}
    found = static_intervals([mask], lambda node: ranges[str(node.attr)])
    assert found[distance] == IntInterval(-12, 9)
    assert found[mask] == EITHER
    assert set(found) >= {q_pos, kv_idx, window, mask}
    ranges["q_pos"] = IntInterval(-5, -1)
    assert static_intervals([mask], lambda node: ranges[str(node.attr)])[mask] == Truth(False, True)
    assert anything(BOOL) == EITHER
