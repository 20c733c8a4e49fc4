"""Calls as an operator of torch: compiled, exported, faked, differentiated, transformed."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext

import pytest
import torch
import torch._dynamo.testing
from stand_in_kernels import stand_in
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.export import Dim
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import attn_dsl
from attn_dsl.runtime import random_inputs, torch_op

TEXT = """
q: f32[batch, seq_q, heads, dim]
k: f32[batch, seq_k, kv_heads, dim]
v: f32[batch, seq_k, kv_heads, dim_v]
slopes: f32[heads]
ids: i32[batch, seq_k]
param window: int in 1.. = 5
param cap: float in 1.0.. = 3.0
mask = 0 <= q_pos - kv_idx < window and ids[b, kv_idx] < 3
score = cap * tanh(score / cap) + slopes[h]
"""
SPEC = attn_dsl.parse(TEXT, name="windowed")
SIZES = {"batch": 2, "seq_q": 7, "seq_k": 9, "heads": 4, "kv_heads": 2, "dim": 8, "dim_v": 6}
NAMES = ("q", "k", "v", "slopes", "ids")


class Layer(torch.nn.Module):
    """A model of one attention."""

    def __init__(self, compiled):
        super().__init__()
        self.compiled = compiled

    def forward(self, q, k, v, slopes, ids, window=4):
        return self.compiled(q, k, v, slopes=slopes, ids=ids, window=window, cap=2.0, return_lse=True)


class Watching(TorchDispatchMode):
    """Sees every operator."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def layer():
    return Layer(attn_dsl.compile(SPEC))


def operands(seed=0, grad=False, **sizes):
    found = random_inputs(SPEC, SIZES | sizes, seed=seed).tensors
    return [found[name].requires_grad_(grad and found[name].is_floating_point()) for name in NAMES]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_compiled_without_a_break_and_not_again_for_new_lengths(layer):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    for seq in (7, 12, 30):
        values = operands(seq, seq_q=seq, seq_k=seq + 2)
        assert same(compiled(*values), layer(*values))
    assert counter.frame_count == 1


def test_compiled_gradients(layer):
    def gradients(function):
        values = operands(grad=True)
        o, lse = function(*values)
        (o.square().sum() + lse[torch.isfinite(lse)].sum()).backward()
        return [value.grad for value in values[:4]]

    found = gradients(torch.compile(layer, fullgraph=True, backend="aot_eager"))
    for one, other in zip(found, gradients(layer), strict=True):
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, other)


def test_buffers_of_a_compiled_call(layer):
    values = operands()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(out, lse, *tensors):
        return layer.compiled(*tensors, out=out, lse=lse)

    out, lse = torch.full((2, 7, 4, 6), 7.0), torch.full((2, 4, 7), 7.0)
    run(out, lse, *values)
    assert same((out, lse), layer.compiled(*values, return_lse=True))


def test_exported_with_symbolic_lengths_and_loaded(layer):
    rows, keys = Dim("rows", min=2, max=512), Dim("keys", min=2, max=512)
    shapes = ({1: rows}, {1: keys}, {1: keys}, None, {1: keys})
    program = torch.export.export(layer, tuple(operands()), dynamic_shapes=shapes)
    held = io.BytesIO()
    torch.export.save(program, held)
    held.seek(0)
    loaded = torch.export.load(held).module()
    for sizes in ({}, {"seq_q": 20, "seq_k": 31}):
        values = operands(1, **sizes)
        assert same(loaded(*values), layer(*values))


def test_a_graph_of_another_process_names_what_it_needs():
    with pytest.raises(
        attn_dsl.UnsupportedError, match=r"E282.*'absent/sm90/00', and no spec of that key was compiled"
    ):
        torch_op._attention("absent/sm90/00", "", [torch.zeros(1)], [], [], False)


def test_fake_tensors_inside_and_outside_of_their_mode(layer):
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(value) for value in operands()]
    with mode:
        inside = layer(*fakes)
    for o, lse in (inside, layer(*fakes)):
        assert (o.shape, o.dtype, lse.shape, lse.dtype) == ((2, 7, 4, 6), torch.float32, (2, 4, 7), torch.float32)
        assert type(o).__name__ == type(lse).__name__ == "FakeTensor"


LAYOUTS = {
    "head first": "q: bf16[heads, batch, seq_q, dim]\nk, v: bf16[batch, seq_k, heads, dim]\n"
    "lse: f32[heads, seq_q, batch]",
    "packed": "q: bf16[total_q, heads, dim]\nk, v: bf16[total_k, kv_heads, dim]\ncu_q, cu_k: i32[batch + 1]\n"
    "lengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k }",
    "a view": "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, kv_heads, dim]\nview v = k[:, :, :, 0..4]\n"
    "o: f32[heads, batch, dim_v, seq_q]",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_fake_outputs_are_like_the_real_ones(name):
    spec = attn_dsl.parse(LAYOUTS[name], name="laid_out")
    compiled = attn_dsl.compile(spec)
    sizes = {"batch": 3, "heads": 4, "dim": 8}
    axes = {str(axis) for tensor in spec.tensors for axis in tensor.axes}
    more = {"total_q": 11, "total_k": 13} if "total_q" in axes else {"seq_q": 5, "seq_k": 6}
    more["kv_heads"] = 2
    values = random_inputs(spec, {k: v for k, v in (sizes | more).items() if k in axes | {"batch"}}).tensors
    real = compiled(**values, return_lse=True)
    mode = FakeTensorMode()
    fake = compiled(**{n: mode.from_tensor(value) for n, value in values.items()}, return_lse=True)
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


@pytest.mark.parametrize("kinds", ["numbers", "tensors", "defaults"])
@pytest.mark.parametrize("grad", [False, True])
def test_the_operator_keeps_torchs_rules(layer, kinds, grad):
    params = {
        "numbers": {"window": 4, "cap": 2.0},
        "tensors": {"window": torch.tensor(3, dtype=torch.int32), "cap": torch.tensor(2.0)},
        "defaults": {},
    }[kinds]
    tensors, forms, ints, floats = torch_op._arguments(SPEC, operands(grad=grad), params)
    found = opcheck(torch_op._attention, (layer.compiled.key, forms, tensors, ints, floats, False))
    assert set(found.values()) == {"SUCCESS"}


def test_kernels_go_the_same_way():
    """What a graph runs on a target with kernels is the kernel."""
    spec = attn_dsl.parse(TEXT.replace("f32[batch", "bf16[batch"), name="kernels")
    values = random_inputs(spec, SIZES | {"dim": 16, "dim_v": 8}).tensors
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        graph = torch.compile(lambda **named: compiled(**named, window=3), fullgraph=True, backend="aot_eager")
        assert torch.equal(graph(**values), compiled(**values, window=3))
        assert (made.launches, len(made.plans)) == (2, 1)


def test_a_second_derivative_is_an_error():
    spec = attn_dsl.parse(TEXT.replace("f32[batch", "bf16[batch"), name="kernels")
    values = random_inputs(spec, SIZES | {"dim": 16, "dim_v": 8}).tensors
    q = values["q"].requires_grad_()
    with stand_in(spec):
        o = attn_dsl.compile(spec, target="sm90")(**values)
        (gradient,) = torch.autograd.grad(o.float().square().sum(), q, create_graph=True)
        with pytest.raises(attn_dsl.UnsupportedError, match=r"E281.*has first derivatives, and a second one is asked"):
            gradient.sum().backward()


def test_a_transform_that_has_no_rule_says_so(layer):
    q, *rest = operands()
    with pytest.raises(RuntimeError, match="attn_dsl::attention"):
        torch.func.vmap(lambda x: layer(x, *rest))(q[None])


def test_bad_calls_are_refused_while_tracing(layer):
    q, k, v, slopes, ids = operands()
    mode = FakeTensorMode()
    fake = mode.from_tensor(q)
    with pytest.raises(attn_dsl.CallError, match="E270"):
        layer.compiled(fake, k, v, slopes)
    with pytest.raises(attn_dsl.CallError, match=r"E270.*'other'"):
        layer.compiled(fake, k, v, slopes, ids, other=3)
    with pytest.raises(attn_dsl.CallError, match=r"E271.*q has 3 axes, expected 4"):
        layer.compiled(*map(mode.from_tensor, (q[0], k, v, slopes, ids)))
    with pytest.raises(attn_dsl.CallError, match=r"E274.*'window' is True \(bool\)"):
        layer.compiled(fake, k, v, slopes, ids, window=True)


@pytest.mark.parametrize(
    ("out", "grad", "message"),
    [
        (torch.zeros(2, 7, 4, 6, dtype=torch.float16), False, "out has dtype f16, expected f32"),
        (torch.zeros(3, 2, 7, 4, 6), False, "out has shape [3, 2, 7, 4, 6], expected [2, 7, 4, 6]"),
        (torch.zeros(2, 7, 4, 6), True, "out cannot be written while autograd records"),
    ],
)
@pytest.mark.parametrize("way", ["eager", "a mode", "compiled"])
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile looks at values where it stops
def test_buffers_are_refused_alike_whoever_looks(layer, way, out, grad, message):
    """The copy into a buffer neither casts nor broadcasts."""

    def run(out, *tensors):
        return layer.compiled(*tensors, out=out)

    run = torch.compile(run, backend="aot_eager") if way == "compiled" else run
    values = operands(grad=grad)
    with (
        Watching() if way == "a mode" else nullcontext(),
        pytest.raises(attn_dsl.CallError, match=re.escape(message)) as caught,
    ):
        run(out, *values)
    assert caught.value.code == "E278"
    assert not out.any()


def test_forward_mode_derivatives_are_an_error_not_zeros(layer):
    q, *rest = operands()
    with pytest.raises(attn_dsl.UnsupportedError, match=r"E281.*no forward-mode derivatives"):
        torch.func.jvp(lambda q: layer.compiled(q, *rest), (q,), (q,))
    with forward_ad.dual_level(), pytest.raises(attn_dsl.UnsupportedError, match="E281"):
        layer.compiled(forward_ad.make_dual(q, q.clone()), *rest)
    assert layer.compiled(q, *rest).shape == (2, 7, 4, 6)
