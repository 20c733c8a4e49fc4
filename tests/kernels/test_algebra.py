"""Every operator as instructions, run on the virtual device, against its meaning on Python values."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass")

from cute_values import evaluated

import attn_dsl
from attn_dsl.expr import BOOL, FLOAT, INT, OPERATORS, Expr, ExprBuilder, evaluate
from attn_dsl.expr.interval import FloatInterval, IntervalAlgebra, IntInterval, static_intervals
from attn_dsl.expr.number_backend import ScalarNumbers
from attn_dsl.expr.operators import I32_MAX, I32_MIN
from attn_dsl.expr.scalars import ScalarAlgebra
from attn_dsl.lowering.forward import ForwardPlan, ShapeClass, select
from attn_dsl.spec.model import AlignKind, DType
from attn_dsl.spec.proofs import Ranges

CAPTURES = {"x": "i32", "y": "i32", "n": "i8", "m": "i8", "u": "u8", "f": "f32", "g": "f32", "c": "bool", "d": "bool"}
CAPTURES |= {"p": "f16", "r": "bf16"}
READ_ALL = " + ".join(
    f"({name}[q_idx] * 1.0)" if dtype != "bool" else f"(1.0 if {name}[q_idx] else 0.0)"
    for name, dtype in CAPTURES.items()
)
SPEC = attn_dsl.parse(
    "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\n"
    + "".join(f"{name}: {dtype}[seq_q]\n" for name, dtype in CAPTURES.items())
    + f"score = score + {READ_ALL}"
)
EXACT = ("add", "sub", "mul", "neg", "abs", "min", "max", "select")  # of floats: rounded once, or not at all
WHOLE = [I32_MIN, I32_MIN + 1, -1000, -129, -17, -3, -2, -1, 0, 1, 2, 3, 5, 16, 1000, I32_MAX - 1, I32_MAX]
FLOATS = [0.0, -0.0, 1e-6, 0.03, 0.07, 0.5, 1.0, 2.5, 7.0, 88.0, 130.0, 3e9, 1e30, math.inf]
FLOATS += [-x for x in FLOATS] + [math.nan]

build = ExprBuilder()
TYPES = {name: DType[dtype.upper()].value_type for name, dtype in CAPTURES.items()}
LEAVES = {name: build.read(name, (build.var("q_idx"),), kind) for name, kind in TYPES.items()}


def plan_for(roots: list[Expr]) -> ForwardPlan:
    """A plan that reads every capture and knows which of the nodes need 64 bits."""
    dtypes = {name: DType[dtype.upper()] for name, dtype in CAPTURES.items()}
    known = static_intervals(roots, Ranges({}, (), dtypes, AlignKind.BOTTOM_RIGHT).leaf)
    wide = frozenset(
        node
        for node, interval in known.items()
        if isinstance(interval, IntInterval) and not (interval.lo >= I32_MIN and interval.hi <= I32_MAX)
    )
    return replace(select(SPEC, ShapeClass(64, 64)), wide=wide)


def inputs() -> dict[str, Tensor]:
    """Pairs of edge values, then random ones; p, r and u are other element types of the same kinds."""
    make = torch.Generator().manual_seed(11)
    whole = torch.tensor(list(itertools.product(WHOLE, WHOLE)), dtype=torch.int64)
    real = torch.tensor(list(itertools.product(FLOATS, FLOATS)))
    rows = 1500

    def filled(edges: Tensor, more: Tensor) -> Tensor:
        return torch.cat([edges, more])[:rows].contiguous()

    def ints(low: int, high: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, (rows,), generator=make).to(dtype)

    found = {
        "x": filled(whole[:, 0], ints(I32_MIN, I32_MAX, torch.int64)).to(torch.int32),
        "y": filled(whole[:, 1], ints(-50, 50, torch.int64)).to(torch.int32),
        "n": ints(-128, 128, torch.int8),
        "m": ints(-9, 10, torch.int8),
        "u": ints(0, 256, torch.uint8),
        "f": filled(real[:, 0], torch.randn(rows, generator=make) * 4),
        "g": filled(real[:, 1], torch.randn(rows, generator=make)),
        "c": ints(0, 2, torch.bool),
        "d": ints(0, 2, torch.bool),
    }
    return {**found, "p": (found["g"] * 3).half(), "r": (found["f"] * 3).bfloat16()}


def applications() -> dict[str, Expr]:
    """Every operator on every signature, ints in 32 and in 64 bits, constants where code is chosen by them."""
    op, const = build.op, build.const
    found: dict[str, Expr] = {}
    for name, operator in OPERATORS.items():
        for types, _ in operator.signatures:
            for label, ints in (("i32", "xy"), ("i8", "nm")) if INT in types else (("", "xy"),):
                bools = [LEAVES["c"], LEAVES["d"], op("lt", LEAVES["m"], LEAVES["n"])]
                kinds = {INT: [LEAVES[x] for x in ints], FLOAT: [LEAVES["f"], LEAVES["g"]], BOOL: bools}
                operands = [kinds[kind].pop(0) for kind in types]
                if name in ("floordiv", "mod"):  # a divisor is proved not to be 0
                    operands[1] = op("select", op("eq", operands[1], const(0)), const(3), operands[1])
                if name in ("shl", "shr"):  # a count is proved to lie in 0..64, and the result in 64 bits
                    operands[1] = build.clamp(operands[1], const(0), const(31 if name == "shl" else 63))
                found[f"{name} {label} {'/'.join(map(str, types))}"] = op(name, *operands)
    for divisor in (1, 2, 64, 7, -3, -8, I32_MIN):
        for name in ("floordiv", "mod"):
            found[f"{name} by {divisor}"] = op(name, LEAVES["x"], const(divisor))
    for count in (0, 3, 31, 40):
        found[f"shr by {count}"] = op("shr", LEAVES["x"], const(count))
        found[f"shl by {count}"] = op("shl", LEAVES["m"], const(count))
    found["small tanh"] = op("tanh", op("mul", LEAVES["g"], const(1e-3)))
    found["fused"] = op("add", op("mul", LEAVES["f"], LEAVES["g"]), LEAVES["f"])
    found["reciprocal"] = op("div", const(1.0), LEAVES["g"])
    for name in ("p", "r", "u"):
        found[f"read {name}"] = LEAVES[name] if TYPES[name] is FLOAT else op("add", LEAVES[name], const(1))
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[Expr, list[int] | list[float]]]:
    roots = applications()
    ints, floats = evaluated(plan_for(list(roots.values())), list(roots.values()), inputs())
    return {
        name: (root, (floats if root.type is FLOAT else ints)[place].tolist())
        for place, (name, root) in enumerate(roots.items())
    }


VALUES = {name: value.tolist() for name, value in inputs().items()}


def at(node: Expr, row: int) -> object:
    return row if node.op == "var" else VALUES[str(node.attr)][row]


@pytest.mark.parametrize("name", applications())
def test_operators(name: str, results: dict[str, tuple[Expr, list[int] | list[float]]]) -> None:
    root, got = results[name]
    for row, value in enumerate(got):
        (wanted,) = evaluate([root], ScalarAlgebra(), lambda node, _, row=row: at(node, row))
        where = (name, row, [at(leaf, row) for leaf in LEAVES.values()], value, wanted)
        if root.type is not FLOAT:
            assert value == int(wanted), where
        elif name.split()[0] in (*EXACT, "to_float", "read"):
            wanted = torch.tensor(wanted, dtype=torch.float64).to(torch.float32).item()
            assert value == wanted or (math.isnan(value) and math.isnan(wanted)), where
        else:
            assert _allows(root, row, value), where


def _allows(root: Expr, row: int, value: float) -> bool:
    """Whether the interval rules, with which proofs are made, allow `value` for exactly known operands."""

    def leaf(node: Expr, _: object) -> object:
        known = at(node, row)
        if node.type is INT:
            return IntInterval(known, known)
        nan = isinstance(known, float) and math.isnan(known)
        return FloatInterval(math.inf if nan else known, -math.inf if nan else known, nan)

    (interval,) = evaluate([root], IntervalAlgebra(ScalarNumbers()), leaf)
    assert isinstance(interval, FloatInterval)
    return bool(interval.nan) if math.isnan(value) else interval.lo <= value <= interval.hi


def test_ints_take_64_bits_only_where_a_proof_asks_for_them() -> None:
    roots = list(applications().values())
    plan = plan_for(roots)
    assert build.op("add", LEAVES["x"], LEAVES["y"]) in plan.wide
    assert build.op("add", LEAVES["n"], LEAVES["m"]) not in plan.wide
    assert build.op("bitxor", LEAVES["x"], LEAVES["y"]) not in plan.wide
