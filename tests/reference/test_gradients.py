"""Gradients of the reference: against finite differences, and against autograd through the row-by-row softmax."""

import math

import pytest
import torch
from dense import Sequence, dense_attention

import attn_dsl
from attn_dsl.reference import attention

BSHD = """
q: f32[batch, seq_q, heads, dim]
k: f32[batch, seq_k, kv_heads, dim]
v: f32[batch, seq_k, kv_heads, dim_v]
"""
EVERYTHING = (
    BSHD
    + """
slopes: f32[heads]
bias: f32[heads, seq_q, seq_k]
table: f32[5]
sinks: f32[heads]
param cap: float in 1.0.. = 5.0
param factor: float = 0.7
param tilt: float[kv_heads] = 0.0
scale = factor / sqrt(float(dim))
mask = kv_idx <= q_pos and (kv_idx + h) % 4 != 0
let far = slopes[h] * float(kv_idx - q_pos) + table[q_pos - kv_idx]
score = cap * tanh(score / cap) + far + bias[h, q_idx, kv_idx] * tilt
sink = sinks[h] * factor
"""
)
SHAPES = {
    "q": (2, 4, 4, 3),
    "k": (2, 6, 2, 3),
    "v": (2, 6, 2, 2),
    "slopes": (4,),
    "bias": (4, 4, 6),
    "table": (5,),
    "sinks": (4,),
}


def _randn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _leaves():
    tensors = {name: _randn(shape, seed).requires_grad_() for seed, (name, shape) in enumerate(SHAPES.items())}
    params = {
        "cap": torch.tensor(4.0, dtype=torch.float64, requires_grad=True),
        "factor": torch.tensor(0.8, dtype=torch.float64, requires_grad=True),
        "tilt": _randn((2,), 20).requires_grad_(),
    }
    return tensors, params


def _everything_densely(tensors, params):
    t, cap, factor, tilt = tensors, params["cap"], params["factor"], params["tilt"]

    def score(s, row):
        capped = cap * torch.tanh(s / cap)
        bias = t["bias"][row.h, row.i] * tilt[row.kv_h]
        return capped + t["slopes"][row.h] * (row.j - row.p) + bias + t["table"][(row.p - row.j).clamp(0, 4)]

    pairs = dense_attention(
        [Sequence(t["q"][b], t["k"][b], t["v"][b], 2) for b in range(2)],
        lambda row: (row.j <= row.p) & ((row.j + row.h) % 4 != 0),
        score,
        scale=factor / math.sqrt(3),
        sink=lambda b, h: t["sinks"][h] * factor,
    )
    return torch.stack([o for o, _ in pairs]), torch.stack([lse for _, lse in pairs]).transpose(1, 2)


@pytest.mark.parametrize("through", ["o", "lse", "both"])
@pytest.mark.parametrize(("block_q", "block_k"), [(None, None), (3, 2)])
def test_every_gradient_of_a_spec_with_everything(through, block_q, block_k):
    spec = attn_dsl.parse(EVERYTHING)
    tensors, params = _leaves()
    wanted = [*tensors.values(), *params.values()]
    found = attention(spec, tensors, params, precision="float64", block_q=block_q, block_k=block_k)
    expected = _everything_densely(tensors, params)
    weights = [_randn(part.shape, 30 + i) for i, part in enumerate(expected)]
    used = {"o": [0], "lse": [1], "both": [0, 1]}[through]
    losses = [sum((parts[i] * weights[i]).sum() for i in used) for parts in (found, expected)]
    gradients = [torch.autograd.grad(loss, wanted, allow_unused=True) for loss in losses]
    for name, one, other in zip([*tensors, *params], *gradients, strict=True):
        other = torch.zeros_like(one) if other is None else other
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def test_finite_differences():
    spec = attn_dsl.parse(EVERYTHING)
    tensors, params = _leaves()
    names = [*tensors, *params]

    def function(*values):
        by_name = dict(zip(names, values, strict=True))
        some = {name: by_name[name] for name in tensors}
        return attention(spec, some, {n: by_name[n] for n in params}, precision="float64", block_q=3, block_k=4)

    assert torch.autograd.gradcheck(function, (*tensors.values(), *params.values()))


def test_finite_differences_of_packed_paged_queries_and_a_shared_pool():
    """Gradients are scattered back through cu_seqlens, page tables and both views of one pool."""
    spec = attn_dsl.parse(
        "q: f32[total_q, heads, dim]\npool: f32[pages, page_size, kv_heads, dim]\nview k = pool[:, :, :, :]\n"
        "view v = pool[:, :, :, 1..3]\ncu: i32[batch + 1]\nused, pad: i32[batch]\ntable: i32[batch, max_pages]\n"
        "bonus: f32[total_q]\nlengths q { cu_seqlens = cu }\nlengths k { used = used, left_pad = pad }\n"
        "paged { table = table }\nmask = kv_idx <= q_pos\nscore = score * bonus[q_idx]\nlse_base = 2\n"
        "factor: f32[batch, heads]\ndescale v = factor[b, h]"
    )
    shapes = [(6, 4, 3), (4, 2, 2, 3), (6,), (3, 4)]
    q, pool, bonus, factor = (_randn(shape, i).requires_grad_() for i, shape in enumerate(shapes))
    fixed = {"cu": [0, 2, 2, 5], "used": [4, 3, 3], "pad": [1, 0, 0], "table": [[2, 0], [1, 0], [2, 3]]}
    geometry = {name: torch.tensor(values, dtype=torch.int32) for name, values in fixed.items()}

    def function(q, pool, bonus, factor):
        given = {"q": q, "pool": pool, "bonus": bonus, "factor": factor, **geometry}
        o, lse = attention(spec, given, {}, precision="float64", block_k=2)
        return o, torch.where(lse.isfinite(), lse, 0.0)

    assert torch.autograd.gradcheck(function, (q, pool, bonus, factor))


def test_rows_that_see_nothing_have_no_gradient():
    spec = attn_dsl.parse(BSHD + "sinks: f32[heads]\nsink = sinks[h]\nmask = kv_idx < q_idx - 2")
    tensors = {name: _randn(SHAPES[name], i).requires_grad_() for i, name in enumerate(["q", "k", "v", "sinks"])}
    o, lse = attention(spec, tensors, {}, precision="float64")
    gradients = dict(zip(tensors, torch.autograd.grad(o.sum() + lse[:, :, :3].sum(), tensors.values()), strict=True))
    assert (gradients["q"][:, :3] == 0).all()
    assert gradients["q"][:, 3].abs().sum() > 0
    # lse of such a row is the sink itself
    empty = torch.autograd.grad(attention(spec, tensors, {}, precision="float64")[1][:, :, :3].sum(), tensors["sinks"])[
        0
    ]
    torch.testing.assert_close(empty, torch.full((4,), 6.0, dtype=torch.float64))


def test_scores_of_minus_infinity_give_no_gradient_and_no_nan():
    """log(weight) of a weight that is 0: a weight of 0 with an infinite derivative."""
    spec = attn_dsl.parse(BSHD + "weights: f32[seq_q, seq_k]\nscore = score + log(weights[q_idx, kv_idx])")
    tensors = {name: _randn(SHAPES[name], i).requires_grad_() for i, name in enumerate("qkv")}
    weights = torch.rand(4, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64) + 0.1
    weights[1, :4] = 0
    weights[2] = 0
    weights.requires_grad_()
    o, lse = attention(spec, {**tensors, "weights": weights}, {}, precision="float64", block_k=4)
    gradients = torch.autograd.grad((o**2).sum() + lse[:, :, [0, 1, 3]].sum(), [*tensors.values(), weights])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][:, 2] == 0).all()
    assert (gradients[3][weights == 0] == 0).all()


def test_a_branch_not_taken_makes_no_gradient_nan():
    """sqrt at 0 and 1 / 0 have infinite derivatives; the pairs that take the other branch are visible all the same."""
    spec = attn_dsl.parse(
        BSHD + "w: f32[seq_k]\nparam p: float\nlet risky = sqrt(w[kv_idx]) + p / w[kv_idx] + log(score * w[kv_idx])\n"
        "score = score + (risky if w[kv_idx] > 0.0 and score > 0.0 else score * 0.5)"
    )
    tensors = {name: _randn(SHAPES[name], i).requires_grad_() for i, name in enumerate("qkv")}
    w = torch.tensor([0.0, 0.5, 0.0, 2.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    p = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    leaves = [*tensors.values(), w, p]
    o, lse = attention(spec, {**tensors, "w": w}, {"p": p}, precision="float64", block_k=4)

    def score(s, _):
        taken = (w > 0) & (s > 0)
        safe_w, safe_s = torch.where(taken, w, 1.0), torch.where(taken, s, 1.0)
        risky = torch.sqrt(safe_w) + p / safe_w + torch.log(safe_s * safe_w)
        return s + torch.where(taken, risky, s * 0.5)

    pairs = dense_attention([Sequence(*(tensors[name][b] for name in "qkv"), 2) for b in range(2)], score=score)
    expected = torch.stack([part[0] for part in pairs]), torch.stack([part[1] for part in pairs]).transpose(1, 2)
    found = torch.autograd.grad(o.square().sum() + lse.sum(), leaves)
    wanted = torch.autograd.grad(expected[0].square().sum() + expected[1].sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_have_the_dtype_of_their_input(dtype):
    spec = attn_dsl.parse(
        BSHD + "slopes: f32[heads]\nscore = score + slopes[h] * float(kv_idx)\nmask = kv_idx <= q_pos"
    )
    tensors = {name: _randn(SHAPES[name], i) for i, name in enumerate(["q", "k", "v", "slopes"])}
    small = {
        name: tensor.to(dtype if name in "qkv" else torch.float32).requires_grad_() for name, tensor in tensors.items()
    }
    large = {name: tensor.detach().double().requires_grad_() for name, tensor in small.items()}
    found = torch.autograd.grad(attention(spec, small, {})[0].square().sum(), small.values())
    expected = torch.autograd.grad(attention(spec, large, {}, precision="float64")[0].square().sum(), large.values())
    for (name, tensor), one, other in zip(small.items(), found, expected, strict=True):
        assert one.dtype == tensor.dtype, name
        torch.testing.assert_close(one.double(), other, rtol=2 * torch.finfo(one.dtype).eps + 1e-4, atol=1e-4)


def test_only_asked_for_gradients_are_made():
    spec = attn_dsl.parse(EVERYTHING)
    tensors, params = _leaves()
    fixed = {name: tensor.detach() for name, tensor in tensors.items()}
    bias = fixed["bias"].requires_grad_()
    o, _ = attention(spec, fixed, {name: value.detach() for name, value in params.items()}, precision="float64")
    o.sum().backward()
    assert bias.grad is not None
    assert all(tensor.grad is None for name, tensor in fixed.items() if name != "bias")


def test_a_second_derivative_is_refused():
    spec = attn_dsl.parse(BSHD)
    tensors = {name: _randn(SHAPES[name], i).requires_grad_() for i, name in enumerate("qkv")}
    o, _ = attention(spec, tensors, {}, precision="float64")
    (first,) = torch.autograd.grad(o.square().sum(), tensors["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_inputs_changed_between_forward_and_backward_are_noticed():
    spec = attn_dsl.parse(BSHD + "keep: bool[seq_k]\nmask = keep[kv_idx]")
    tensors = {name: _randn(SHAPES[name], i).requires_grad_() for i, name in enumerate("qkv")}
    keep = torch.tensor([True, False] * 3)
    o, _ = attention(spec, {**tensors, "keep": keep}, {}, precision="float64")
    keep[1] = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
