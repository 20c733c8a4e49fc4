"""Proofs by linear forms: the indices of the language's own examples, and no proof of anything false."""

from __future__ import annotations

import itertools
import random

import pytest

from attn_dsl.expr import INT, Expr, ExprBuilder, evaluate
from attn_dsl.expr.affine import Bounds, proves_inside, proves_nonnegative
from attn_dsl.expr.interval import ANY_INT, Interval, IntInterval, static_intervals
from attn_dsl.expr.scalars import ScalarAlgebra

B = ExprBuilder()
Q, K, SQ, SK, P = (B.var(name) for name in ("q_idx", "kv_idx", "seq_q", "seq_k", "q_pos"))
AXIS_Q, AXIS_K, HEADS, H = B.size("seq_q"), B.size("seq_k"), B.size("heads"), B.var("h")
W = B.param("w", INT)  # at least 1


def _c(value: int) -> Expr:
    return B.const(value)


def _op(name: str, *operands: Expr | int) -> Expr:
    return B.op(name, *(_c(x) if isinstance(x, int) else x for x in operands))


def _bounds(leaf: Expr) -> Bounds:
    zero = (_c(0),)
    table = {
        Q: Bounds(zero, (_op("sub", SQ, 1),)),
        K: Bounds(zero, (_op("sub", SK, 1),)),
        SQ: Bounds(zero, (AXIS_Q,)),
        SK: Bounds(zero, (AXIS_K,)),
        H: Bounds(zero, (_op("sub", HEADS, 1),)),
        P: Bounds(*[(_op("sub", _op("add", Q, SK), SQ),)] * 2),
        W: Bounds((_c(1),)),
    }
    return table.get(leaf, Bounds(zero))


def _interval(leaf: Expr) -> Interval:
    return IntInterval(1, 2**31 - 1) if leaf == W else IntInterval(-(2**30), 2**30)


def _inside(index: Expr, extent: Expr) -> bool:
    return proves_inside(index, extent, static_intervals([index], _interval), _bounds)


@pytest.mark.parametrize(
    ("index", "extent", "expected"),
    [
        (_op("sub", _op("add", _op("sub", K, Q), SQ), 1), _op("sub", _op("add", AXIS_Q, AXIS_K), 1), True),
        (_op("add", _op("sub", K, Q), SQ), _op("sub", _op("add", AXIS_Q, AXIS_K), 1), False),
        (_op("floordiv", Q, 2), AXIS_Q, True),
        (_op("add", _op("mul", _op("floordiv", Q, 2), 2), 1), AXIS_Q, False),
        (_op("mul", _op("floordiv", Q, 2), 2), AXIS_Q, True),
        (_op("floordiv", Q, W), AXIS_Q, True),
        (_op("mod", Q, W), AXIS_Q, True),
        (_op("mod", K, 8), _c(8), True),
        (_op("mod", K, 8), _c(7), False),
        (_op("shr", Q, 3), AXIS_Q, True),
        (_op("bitand", K, 31), _c(32), True),
        (P, AXIS_K, False),  # negative for the first rows when seq_q > seq_k
        (_op("max", P, 0), AXIS_K, False),  # q_pos is below seq_k, but an empty sequence has no row 0
        (_op("sub", _op("add", _op("sub", P, K), SK), 1), _op("add", AXIS_K, AXIS_K), False),
        (_op("sub", _op("add", _op("sub", P, K), SQ), 1), _op("add", AXIS_Q, AXIS_K), True),
        (_op("abs", _op("sub", Q, K)), _op("add", AXIS_Q, AXIS_K), True),
        (_op("min", _op("abs", _op("sub", Q, K)), 7), _c(8), True),
        (_op("max", _op("min", P, _op("sub", AXIS_K, 1)), 0), AXIS_K, False),
        (_op("select", _op("lt", Q, K), Q, _c(0)), _op("add", AXIS_Q, 1), True),
        (H, HEADS, True),
        (H, AXIS_Q, False),
        (_op("shl", Q, 1), _op("mul", AXIS_Q, 2), True),
    ],
    ids=str,
)
def test_proofs(index: Expr, extent: Expr, expected: bool) -> None:
    assert _inside(index, extent) is expected


def test_products_of_symbols() -> None:
    """w >= 1: w * x >= x holds for x >= 0 only."""
    for x, expected in ((Q, True), (P, False)):
        value = _op("sub", _op("mul", W, x), x)
        assert proves_nonnegative(value, static_intervals([value], _interval), _bounds) is expected


def test_a_deep_index_gives_up_in_time() -> None:
    deep = Q
    for step in range(5000):
        deep = _op("min", _op("add", deep, 1), _op("sub", K, step))
    assert not _inside(deep, AXIS_K)


def test_nothing_false_is_proved() -> None:
    """Random indices against every value of the leaves in a small world: a proved index never leaves its axis."""
    rng = random.Random(7)
    world = [
        {Q: q, K: k, SQ: sq, SK: sk, AXIS_Q: axis_q, AXIS_K: axis_k, W: w, P: q + sk - sq}
        for axis_q, axis_k, w in itertools.product((1, 2, 3), (1, 2, 4), (1, 3))
        for sq, sk in itertools.product(range(1, axis_q + 1), range(1, axis_k + 1))
        for q, k in itertools.product(range(sq), range(sk))
    ]
    proved = 0
    for _ in range(600):
        index, extent = _random_index(rng, 3), _random_extent(rng)
        intervals = static_intervals([index], lambda leaf: ANY_INT if leaf == P else IntInterval(0 + (leaf == W), 9))
        if proves_inside(index, extent, intervals, _bounds):
            proved += 1
            for values in world:
                i, n = _values([index, extent], values)
                assert 0 <= i < n, (index, extent, values)
    assert proved > 30


def _random_index(rng: random.Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([Q, K, SQ, SK, P, W, _c(rng.randrange(-2, 4))])
    name = rng.choice(["add", "sub", "min", "max", "abs", "floordiv", "mod", "select", "mul", "bitand", "shr"])
    x, y = _random_index(rng, depth - 1), _random_index(rng, depth - 1)
    if name == "abs":
        return _op("abs", x)
    if name in ("floordiv", "mod"):
        return _op(name, x, rng.choice([W, _c(2), _c(3)]))
    if name == "select":
        return _op("select", _op("lt", x, y), x, y)
    if name in ("mul", "bitand", "shr"):
        return _op(name, x, rng.randrange(0, 4))
    return _op(name, x, y)


def _random_extent(rng: random.Random) -> Expr:
    base = rng.choice([AXIS_Q, AXIS_K, _op("add", AXIS_Q, AXIS_K), _c(3)])
    return _op("add", base, rng.randrange(-1, 3))


def _values(roots: list[Expr], leaves: dict[Expr, int]) -> list[int]:
    return evaluate(roots, ScalarAlgebra(), lambda node, indices: leaves[node])
