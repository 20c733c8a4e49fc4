"""Interval arithmetic on tensors: the same rules as on Python scalars, element by element."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from random_intervals import contains, random_interval

from attn_dsl.expr import FLOAT, OPERATORS, Operator
from attn_dsl.expr.evaluate import method_name
from attn_dsl.expr.interval import FloatInterval, Interval, IntervalAlgebra, IntInterval, Truth
from attn_dsl.expr.number_backend import ScalarNumbers
from attn_dsl.lowering.tiles.torch_numbers import TorchNumbers

CASES = 400
SCALARS, TENSORS = IntervalAlgebra(ScalarNumbers()), IntervalAlgebra(TorchNumbers())
SIGNATURES = [(row, operands) for row in OPERATORS.values() for operands, _ in row.signatures]


def _stacked(intervals: list[Interval]) -> Interval:
    first = intervals[0]
    if isinstance(first, Truth):
        return Truth(*(torch.tensor([getattr(i, f) for i in intervals]) for f in ("may_be_true", "may_be_false")))
    bounds = (torch.tensor([getattr(i, f) for i in intervals]) for f in ("lo", "hi"))
    if isinstance(first, IntInterval):
        return IntInterval(*bounds)
    low, high = (bound.to(torch.float64) for bound in bounds)
    return FloatInterval(low, high, torch.tensor([i.nan for i in intervals]))


def _element(interval: Interval, place: int) -> Interval:
    def at(values: torch.Tensor) -> Any:
        return values.expand(CASES)[place].item()

    if isinstance(interval, Truth):
        return Truth(at(interval.may_be_true), at(interval.may_be_false))
    if isinstance(interval, IntInterval):
        return IntInterval(at(interval.lo), at(interval.hi))
    return FloatInterval(at(interval.lo), at(interval.hi), at(interval.nan))


@pytest.mark.parametrize(("row", "operands"), SIGNATURES, ids=lambda p: p.name if isinstance(p, Operator) else "")
def test_tensors_follow_the_rules_of_scalars(row: Operator, operands: tuple[Any, ...]) -> None:
    rng = random.Random(f"tensors {row.name}{operands}")
    cases = [[random_interval(rng, kind, row.name, i) for i, kind in enumerate(operands)] for _ in range(CASES)]
    columns = [_stacked([case[i][0] for case in cases]) for i in range(len(operands))]
    together = getattr(TENSORS, method_name(row.name))(*columns)
    for place, case in enumerate(cases):
        found = _element(together, place)
        for members in itertools.product(*(members for _, members in case)):
            assert contains(found, row.define(*members)), (row.name, case, members, str(found))
        alone = getattr(SCALARS, method_name(row.name))(*(interval for interval, _ in case))
        if FLOAT not in operands and row.result(operands) is not FLOAT and _fits(alone):
            assert found == alone, (row.name, [str(i) for i, _ in case])


def _fits(interval: Interval) -> bool:
    """Tensors promise nothing outside i64: the checker refuses such expressions."""
    return not isinstance(interval, IntInterval) or (interval.lo >= -(2**63) and interval.hi < 2**63)


def test_rounding_to_f32_is_outward() -> None:
    numbers, scalars = TorchNumbers(), ScalarNumbers()
    rng = random.Random(3)
    values = [rng.uniform(-2, 2) * 10.0 ** rng.randint(-44, 40) for _ in range(3000)] + [0.0, 1e39, -1e39, float("inf")]
    tensor = torch.tensor(values, dtype=torch.float64)
    assert numbers.f32_down(tensor).tolist() == [scalars.f32_down(v) for v in values]
    assert numbers.f32_up(tensor).tolist() == [scalars.f32_up(v) for v in values]
