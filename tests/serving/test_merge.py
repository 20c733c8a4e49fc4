"""Two results over disjoint keys joined by LSE, against the reference on all keys at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import attn_dsl
from attn_dsl import CallError
from attn_dsl.reference import attention

PART = """
q: {dtype}[{q_axes}]
k, v: {dtype}[batch, seq_k, kv_heads, dim]
o: {dtype}[{q_axes}]
lse: f32[{lse_axes}]
param low: int in 0..
param high: int in 0..
mask = low <= kv_idx and kv_idx < high and kv_idx != q_idx
lse_base = {base}
"""
AXES = (("batch, seq_q, heads, dim", "batch, heads, seq_q"), ("heads, batch, seq_q, dim", "seq_q, batch, heads"))
EXTENTS = {"batch": 2, "seq_q": 5, "heads": 4, "dim": 16}


def part_of(axes: tuple[str, str] = AXES[0], base: str = "e") -> attn_dsl.AttentionSpec:
    return attn_dsl.parse(PART.format(dtype="f32", q_axes=axes[0], lse_axes=axes[1], base=base))


def operands(axes: str = AXES[0][0], seq_k: int = 9) -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(seq_k)
    shape = [EXTENTS[name] for name in axes.split(", ")]
    k, v = (torch.randn(2, seq_k, 2, 16, generator=make, dtype=torch.float64) for _ in range(2))
    return {"q": torch.randn(shape, generator=make, dtype=torch.float64), "k": k, "v": v}


def part(spec: attn_dsl.AttentionSpec, tensors: dict[str, Tensor], low: int, high: int) -> tuple[Tensor, Tensor]:
    return attention(spec, tensors, {"low": low, "high": high}, precision="float64")


@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("cut", [0, 1, 4, 9])
def test_equals_the_joined_problem(base: str, axes: tuple[str, str], cut: int) -> None:
    """With cuts that leave one side empty, or with one key that some row may not see: then that row is empty there."""
    spec, tensors = part_of(axes, base), operands(axes[0])
    first, second = part(spec, tensors, 0, cut), part(spec, tensors, cut, 9)
    names = {"o_axes": axes[0].replace(",", ""), "lse_axes": axes[1].replace(",", "")}
    o, lse = attn_dsl.merge(*first, *second, lse_base=base, **names)
    true_o, true_lse = part(spec, tensors, 0, 9)
    torch.testing.assert_close(o, true_o, atol=1e-14, rtol=1e-13)
    torch.testing.assert_close(lse, true_lse, atol=1e-14, rtol=1e-13)


def test_rows_empty_on_both_sides() -> None:
    spec, tensors = part_of(), operands(seq_k=3)
    o, lse = attn_dsl.merge(*part(spec, tensors, 2, 2), *part(spec, tensors, 2, 3))  # row 2 sees nothing
    assert (o[:, 2] == 0).all()
    assert torch.isneginf(lse[:, :, 2]).all()
    assert torch.isfinite(lse[:, :, [0, 1, 3, 4]]).all()


def test_packed_rows_and_a_sink_once() -> None:
    """Defaults for three axes; the sink joins the denominator of one side."""
    text = "q: f32[total_q, heads, dim]\nk, v: f32[total_k, heads, dim]\ncu_q, cu_k: i32[batch + 1]\n"
    text += "lengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k }\n"
    text += "param low: int in 0..\nparam high: int in 0..\nmask = low <= kv_idx and kv_idx < high\nsinks: f32[heads]\n"
    with_sink = attn_dsl.parse(text + "sink = sinks[h]")
    without = attn_dsl.parse(text.replace("sinks: f32[heads]\n", ""))
    make = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(12, 2, 8, generator=make) for name in "qkv"}
    cumulative = torch.tensor([0, 7, 7, 12], dtype=torch.int32)
    tensors |= {"cu_q": cumulative, "cu_k": cumulative}
    sinks = {"sinks": torch.tensor([0.5, -1.0])}
    first = part(with_sink, tensors | sinks, 0, 3)
    o, lse = attn_dsl.merge(*first, *part(without, tensors, 3, 12))
    true_o, true_lse = part(with_sink, tensors | sinks, 0, 12)
    torch.testing.assert_close(o, true_o, atol=1e-14, rtol=1e-13)
    torch.testing.assert_close(lse, true_lse, atol=1e-14, rtol=1e-13)


def random_parts(dtype: torch.dtype, spread: float) -> list[Tensor]:
    make = torch.Generator().manual_seed(7)
    o1, o2 = (torch.randn(2, 33, 3, 8, generator=make).to(dtype) for _ in range(2))
    lse1, lse2 = (torch.randn(2, 3, 33, generator=make) * spread for _ in range(2))
    lse1[0, 0, :5] = -math.inf
    lse2[0, 0, 3:9] = -math.inf
    return [o1, lse1, o2, lse2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("spread", [1.0, 1e4])
@pytest.mark.parametrize("base", ["e", "2"])
def test_is_exact_to_rounding(dtype: torch.dtype, spread: float, base: str) -> None:
    """The error beyond the one rounding to o's dtype is that of a few f32 operations; nothing overflows."""
    parts = random_parts(dtype, spread)
    o, lse = attn_dsl.merge(*parts, lse_base=base)
    true_o, true_lse = attn_dsl.merge(*(x.double() for x in parts), lse_base=base)
    assert (o.dtype, lse.dtype) == (dtype, torch.float32)
    rounding = torch.finfo(dtype).eps / 2 if dtype is not torch.float32 else 0.0
    scale = torch.maximum(parts[0].double().abs(), parts[2].double().abs())
    assert ((o.double() - true_o).abs() <= rounding * true_o.abs() + 2.0**-21 * scale + 2.0**-25).all()
    seen = torch.isfinite(true_lse)
    assert torch.equal(seen, torch.isfinite(lse))
    assert ((lse - true_lse)[seen].abs() <= 2.0**-22 * (1 + true_lse[seen].abs())).all()


def test_an_empty_side_changes_nothing() -> None:
    """Not even NaN that lies in its rows."""
    o1, lse1, o2, lse2 = random_parts(torch.bfloat16, 1.0)
    for args in ((o1, lse1, o2 * math.nan, lse2 - math.inf), (o2 * math.nan, lse2 - math.inf, o1, lse1)):
        o, lse = attn_dsl.merge(*args)
        empty = torch.isneginf(lse1).transpose(1, 2)[..., None]
        assert torch.equal(o, torch.where(empty, 0, o1))
        assert torch.equal(lse, lse1)


def test_order_does_not_matter() -> None:
    spec, tensors = part_of(), operands()
    a, b, c = (part(spec, tensors, low, low + 3) for low in (0, 3, 6))
    left, right = attn_dsl.merge(*attn_dsl.merge(*a, *b), *c), attn_dsl.merge(*a, *attn_dsl.merge(*c, *b))
    for x, y in zip(left, right, strict=True):
        torch.testing.assert_close(x, y, atol=1e-14, rtol=1e-13)


def test_finite_differences() -> None:
    make = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make, dtype=torch.float64).requires_grad_()

    inputs = (leaf(1, 2, 2, 3), leaf(1, 2, 2), leaf(1, 2, 2, 3), leaf(1, 2, 2))
    for base in ("e", "2"):
        assert torch.autograd.gradcheck(lambda *x, b=base: attn_dsl.merge(*x, lse_base=b), inputs)
        assert torch.autograd.gradgradcheck(lambda *x, b=base: attn_dsl.merge(*x, lse_base=b), inputs)


def test_gradients_at_empty_sides() -> None:
    """Of a row that one side does not see all goes to the other; of an empty row nothing goes anywhere."""
    o1, lse1, o2, lse2 = (x.double().requires_grad_() for x in random_parts(torch.float32, 1.0))
    o, lse = attn_dsl.merge(o1, lse1, o2, lse2)
    g_o = torch.randn_like(o)
    reached = torch.isfinite(lse)
    torch.autograd.backward([o, lse[reached].sum()], [g_o, torch.ones((), dtype=torch.float64)])
    for tensor in (o1, lse1, o2, lse2):
        assert torch.isfinite(tensor.grad).all()
    assert (lse1.grad[0, 0, :5] == 0).all()
    assert (o1.grad[0, :5, 0] == 0).all()
    assert torch.equal(o2.grad[0, :3, 0], g_o[0, :3, 0])  # only the second side saw rows 0 to 2
    torch.testing.assert_close(lse2.grad[0, 0, :3], torch.ones(3, dtype=torch.float64))
    for tensor in (o1, o2):
        assert (tensor.grad[0, 3:5, 0] == 0).all()  # nobody saw rows 3 and 4
    assert torch.equal(o1.grad[0, 5:9, 0], g_o[0, 5:9, 0])


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"o2": torch.zeros(1, 3, 4, 8)}, "E271", "o2 has shape [1, 3, 4, 8], expected [batch, seq_q, heads, dim]"),
        (
            {"lse1": torch.zeros(1, 2, 4)},
            "E271",
            "lse1 has shape [1, 2, 4], expected [batch, heads, seq_q] = [1, 4, 2]",
        ),
        ({"o_axes": "batch seq_q heads"}, "E271", "expected all but one of them"),
        ({"lse_axes": "batch heads dim"}, "E271", "lse1 has shape [1, 4, 2], expected [batch, heads, dim] = [1, 4, 8]"),
        ({"o2": torch.zeros(1, 2, 4, 8).half()}, "E272", "o2 has dtype torch.float16, expected torch.float32"),
        ({"lse2": torch.zeros(1, 4, 2).half()}, "E272", "lse2 has dtype torch.float16"),
        ({"lse1": [1.0]}, "E272", "lse1 is a list"),
        ({"o2": torch.zeros(1, 2, 4, 8, device="meta")}, "E273", "o2 is on meta, expected cpu"),
        ({"lse_base": 2}, "E274", "lse_base is 2, expected 'e' or '2'"),
    ],
)
def test_what_does_not_fit(change: dict, code: str, text: str) -> None:
    given = {"o1": torch.zeros(1, 2, 4, 8), "lse1": torch.zeros(1, 4, 2)}
    given |= {"o2": torch.zeros(1, 2, 4, 8), "lse2": torch.zeros(1, 4, 2)}
    with pytest.raises(CallError) as caught:
        attn_dsl.merge(**(given | change))
    assert caught.value.code == code
    assert text in str(caught.value)
