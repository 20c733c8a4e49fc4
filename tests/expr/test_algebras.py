"""Every algebra has every operator of the table and agrees with the operator's own definition."""

import itertools
import math
import random

import pytest
import torch

from attn_dsl.expr import BOOL, FLOAT, INT, OPERATORS, ExprBuilder, evaluate
from attn_dsl.expr.evaluate import method_name
from attn_dsl.expr.interval import IntervalAlgebra
from attn_dsl.expr.number_backend import ScalarNumbers
from attn_dsl.expr.operators import CALL, I32_MAX, I32_MIN
from attn_dsl.expr.scalars import ScalarAlgebra
from attn_dsl.expr.text import TextAlgebra
from attn_dsl.expr.torch_values import TorchAlgebra

INTS = [0, 1, -1, 2, -2, 3, -7, 31, 63, 1000003, I32_MAX, I32_MIN, I32_MAX + 1, 2**53 + 1]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, 3e9, -3e9, 2147483647.0, 80.0, -80.0, math.inf, -math.inf, math.nan]
BOOLS = [False, True]
ROUNDED = {"div", "exp", "exp2", "log", "log2", "tanh", "sqrt", "sigmoid", "sin", "cos", "add", "sub", "mul"}
CASES = [
    pytest.param(row, operands, result, id=f"{row.name}-{'-'.join(map(str, operands))}")
    for row in OPERATORS.values()
    for operands, result in row.signatures
]


def _values(name, operands, seed):
    """Edge values in every combination and random ones, where the operator is defined."""
    rng = random.Random(seed)
    edges = {INT: INTS, FLOAT: FLOATS, BOOL: BOOLS}
    rows = list(itertools.product(*(edges[kind] for kind in operands)))
    draw = {
        INT: lambda: rng.randint(-(2**31), 2**31),
        FLOAT: lambda: rng.uniform(-50, 50),
        BOOL: lambda: rng.random() < 0.5,
    }
    rows += [tuple(draw[kind]() for kind in operands) for _ in range(200)]
    if name in ("floordiv", "mod"):
        rows = [row for row in rows if row[1] != 0]
    if name in ("shl", "shr"):
        rows = [(x, y % 64) for x, y in rows]
    if name == "shl":
        rows = [(x, y) for x, y in rows if -(2**63) <= x << y < 2**63]
    if name == "mul" and operands[0] is INT:
        rows = [(x, y) for x, y in rows if -(2**63) <= x * y < 2**63]
    return rows


def _torch(values, kind, dtype):
    return torch.tensor(values, dtype={INT: torch.int64, BOOL: torch.bool, FLOAT: dtype}[kind])


@pytest.mark.parametrize(
    "algebra",
    [TorchAlgebra(torch.float64), IntervalAlgebra(ScalarNumbers()), TextAlgebra(), ScalarAlgebra()],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_algebra_has_every_operator(algebra, name):
    assert callable(getattr(algebra, method_name(name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(("row", "operands", "result"), CASES)
def test_torch_values_agree_with_the_definition(row, operands, result, dtype):
    rows = _values(row.name, operands, seed=len(row.name))
    columns = [
        _torch(list(column), kind, dtype) for column, kind in zip(zip(*rows, strict=True), operands, strict=True)
    ]
    # the definition gets the operands as rounded to the precision, so that only the operator itself is compared
    given = list(zip(*(column.tolist() for column in columns), strict=True))
    found = getattr(TorchAlgebra(dtype), method_name(row.name))(*columns)
    expected = _torch([row.define(*values) for values in given], result, dtype)
    assert found.dtype == expected.dtype
    if row.name in ROUNDED and result is FLOAT:
        tiny = torch.finfo(dtype).tiny  # exp(-80) and below may be flushed
        close = torch.isclose(found, expected, rtol=8 * torch.finfo(dtype).eps, atol=tiny, equal_nan=True)
    else:
        close = (found == expected) | (found.isnan() & expected.isnan()) if result is FLOAT else found == expected
    assert close.all(), [
        (given[i], found[i].item(), expected[i].item()) for i in (~close).nonzero().flatten()[:5].tolist()
    ]


def _tree(build, rng, kind, depth):
    """A random expression of a type over int leaves i, j, float leaves x, y and bool leaves c, d."""
    if depth == 0 or rng.random() < 0.1:
        if kind is BOOL:
            return build.read(rng.choice("cd"), (), BOOL)
        return build.param(rng.choice("ij" if kind is INT else "xy"), kind)
    rows = [(row, operands) for row in OPERATORS.values() for operands, result in row.signatures if result is kind]
    rows = [
        (row, operands) for row, operands in rows if row.name not in ("floordiv", "mod", "shl", "shr", "div", "mul")
    ]
    row, operands = rng.choice(rows)
    return build.op(row.name, *(_tree(build, rng, operand, depth - 1) for operand in operands))


@pytest.mark.parametrize("kind", [INT, FLOAT, BOOL], ids=str)
def test_text_means_what_the_tree_means(kind):
    """The language's operators are spelled and bind as Python's do, so Python's own eval reads the text back."""
    rng = random.Random(11)
    names = {row.spelling: row.define for row in OPERATORS.values() if row.spelling.isidentifier()}
    for _ in range(300):
        node = _tree(ExprBuilder(), rng, kind, 4)
        leaves = {"i": rng.randint(-9, 9), "j": rng.randint(-9, 9), "x": rng.uniform(-2, 2), "y": rng.uniform(-2, 2)}
        leaves |= {"c": rng.random() < 0.5, "d": rng.random() < 0.5}
        expected = evaluate([node], ScalarAlgebra(), lambda leaf, _, leaves=leaves: leaves[leaf.attr])[0]
        text = evaluate([node], TextAlgebra(), lambda leaf, _: (leaf.attr, CALL))[0][0]
        found = eval(text, {**names, **leaves, "true": True, "false": False})
        assert found == expected or (math.isnan(found) and math.isnan(expected)), text


SMOOTH = [row for row in OPERATORS.values() if not isinstance(row.derivative, str)]


@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.name)
def test_derivative_rules_agree_with_autograd(row):
    """The rule's expressions, evaluated by the same evaluator, are the partial derivatives autograd finds."""
    operands = next(operands for operands, result in row.signatures if result is FLOAT)
    build = ExprBuilder()
    leaves = [
        build.param(f"x{i}", kind) if kind is FLOAT else build.read("c", (), BOOL) for i, kind in enumerate(operands)
    ]
    value = build.op(row.name, *leaves)
    rules = row.derivative(build, tuple(leaves), value)
    assert len(rules) == len(operands)
    draw = torch.Generator().manual_seed(5)
    low = 0.1 if row.name in ("log", "log2", "sqrt") else -2.0
    floats = {
        leaf.attr: (low + (2.0 - low) * torch.rand(500, generator=draw, dtype=torch.float64)).requires_grad_()
        for leaf in leaves
        if leaf.type is FLOAT
    }
    values = {**floats, "c": torch.rand(500, generator=draw) < 0.5}
    algebra = TorchAlgebra(torch.float64)
    result = evaluate([value], algebra, lambda node, _: values[node.attr])[0]
    found = torch.autograd.grad(result.sum(), list(floats.values()))
    wanted = [rule for rule, kind in zip(rules, operands, strict=True) if kind is FLOAT]
    assert all(rule is None for rule, kind in zip(rules, operands, strict=True) if kind is not FLOAT)
    for gradient, rule in zip(found, wanted, strict=True):
        expected = evaluate([rule], algebra, lambda node, _: values[node.attr])[0].expand(500)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


def test_every_operator_without_a_derivative_says_why():
    for row in OPERATORS.values():
        if isinstance(row.derivative, str):
            assert row.derivative.count(" ") > 4, row.name
