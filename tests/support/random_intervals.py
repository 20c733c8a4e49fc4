"""Random intervals with known members, for every operand of every operator."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

from attn_dsl.expr import BOOL, INT
from attn_dsl.expr.interval import FloatInterval, Interval, IntInterval, Truth
from attn_dsl.expr.operators import I32_MAX, I32_MIN

FLOATS = [0.0, 1.0, -1.0, 0.5, 3.0, 1e-3, 88.0, -104.0, 1e-30, -1e-30, 1e-42, 3e38, -3e38, math.inf, -math.inf]


def random_int(rng: random.Random) -> int:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randint(-9, 9)
    if kind == 1:
        return rng.choice((-1, 1)) * (2 ** rng.randrange(31) + rng.randint(-1, 1))
    return rng.randint(-300, 300) if kind == 2 else rng.randint(I32_MIN, I32_MAX)


def _random_float(rng: random.Random) -> float:
    value = rng.choice(FLOATS) if rng.random() < 0.5 else rng.uniform(-8, 8) * 10.0 ** rng.randint(-3, 3)
    return _f32(value)


def _f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def random_interval(rng: random.Random, kind: Any, op: str, place: int) -> tuple[Interval, list[Any]]:
    """A random interval that `op` takes as its operand at `place`, and members of it, both ends among them."""
    if kind is BOOL:
        members = rng.choice([[True], [False], [True, False]])
        return Truth(True in members, False in members), members
    if kind is INT:
        low, high = sorted((random_int(rng), random_int(rng)))
        if rng.random() < 0.3:
            high = low + rng.randrange(12)
        if place == 1 and op in ("shl", "shr"):
            low, high = sorted((rng.randrange(32), rng.randrange(32)))
        if place == 1 and op in ("floordiv", "mod") and low <= 0 <= high and rng.random() < 0.7:
            low, high = 1, max(high, 1)
        members = {low, high, *(rng.randint(low, high) for _ in range(3)), *(v for v in (-1, 0, 1) if low <= v <= high)}
        if place == 1 and op in ("floordiv", "mod"):
            members.discard(0)
        return IntInterval(low, high), sorted(members)
    low, high = sorted((_random_float(rng), _random_float(rng)))
    nan = rng.random() < 0.2
    inside = [low, high, *(v for v in (0.0, -0.0, low / 2, high / 2, low / 2 + high / 2) if low <= v <= high)]
    return FloatInterval(low, high, nan), [
        *(_f32(v) for v in inside if low <= _f32(v) <= high),
        *([math.nan] if nan else []),
    ]


def contains(interval: Interval, value: Any) -> bool:
    if isinstance(interval, Truth):
        return interval.may_be_true if value else interval.may_be_false
    if isinstance(interval, FloatInterval) and math.isnan(value):
        return interval.nan
    return interval.lo <= value <= interval.hi
