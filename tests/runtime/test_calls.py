"""Calls of targets with kernels, without a GPU: what is launched with what, what is compiled when, what is refused."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from stand_in_kernels import stand_in

import attn_dsl
from attn_dsl import CallError
from attn_dsl.runtime import compiled as compiled_module
from attn_dsl.runtime import kernels, random_inputs
from attn_dsl.runtime.kernel import Kernel
from attn_dsl.runtime.shortcut import RECENT
from attn_dsl.runtime.signature import Signature

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

HEAD = (
    "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, kv_heads, dim]\nv: bf16[batch, seq_k, kv_heads, dim_v]\n"
)
TEXT = (
    HEAD
    + """
slopes: f32[heads]
allowed: bool[batch, seq_k]
param window: int in 1.. = 4
param cap: float in 1.0.. = 3.0
param gain: float[heads] = 1.0
mask = 0 <= q_pos - kv_idx < window and allowed[b, kv_idx]
score = gain * cap * tanh(score / cap) + slopes[h]
"""
)
SPEC = attn_dsl.parse(TEXT, name="everything")
SIZES = {"batch": 2, "seq_q": 5, "seq_k": 9, "heads": 4, "kv_heads": 2, "dim": 16, "dim_v": 8}


def inputs(seed=0, **sizes):
    return random_inputs(SPEC, SIZES | sizes, seed=seed).tensors


def right(compiled, tensors, **params) -> bool:
    """Whether a call gives what the reference does."""
    o, lse = compiled(**tensors, **params, return_lse=True)
    true_o, true_lse = attn_dsl.compile(compiled.spec)(**tensors, **params, return_lse=True)
    return torch.equal(o, true_o) and torch.equal(lse, true_lse)


@pytest.fixture
def bound(monkeypatch):
    """Counts the calls that are checked in full."""
    calls = []
    real = compiled_module.bind
    monkeypatch.setattr(compiled_module, "bind", lambda *args: calls.append(1) or real(*args))
    return calls


def test_a_call_like_one_before_is_launched_with_its_own_values(bound):
    with stand_in(SPEC) as made:
        compiled = attn_dsl.compile(SPEC, target="sm90")
        for seed, (window, cap) in enumerate([(3, 2.0), (7, 30.0), (1, 1.0), (2**31 - 1, 4)]):
            tensors = inputs(seed)
            assert right(compiled, tensors, window=window, cap=cap)
        checked_by_the_reference = 4
        assert len(bound) == checked_by_the_reference + 2  # an int where a float was: another layout
        assert (made.launches, len(made.plans)) == (4, 1)


def test_nothing_is_compiled_for_new_extents_and_values():
    """Only head dimensions, the heads that share a tile, and forms of parameters make another kernel."""
    with stand_in(SPEC) as made:
        compiled = attn_dsl.compile(SPEC, target="sm90")
        for place, sizes in enumerate([{}, {"batch": 5}, {"seq_q": 1, "seq_k": 700}, {"seq_k": 0}, {"batch": 0}]):
            for window, cap in ((1, 1.5), (1000, 50.0)):
                assert right(compiled, inputs(place, **sizes), window=window, cap=cap)
        assert len(made.plans) == 1
        assert right(compiled, inputs(heads=8, kv_heads=4))
        assert len(made.plans) == 1
        assert right(compiled, inputs(dim=32))
        assert len(made.plans) == 2
        assert right(compiled, inputs(), window=torch.tensor(3, dtype=torch.int32))
        assert len(made.plans) == 3
        assert right(compiled, inputs(), window=torch.tensor(6, dtype=torch.int32))
        assert right(compiled, inputs(), gain=torch.rand(4))
        assert len(made.plans) == 4


def test_nothing_is_compiled_for_more_pages(monkeypatch):
    """Pages, pages of a sequence, and sequences; a page size whose pages TMA copies whole makes another kernel."""
    spec = attn_dsl.load(EXAMPLES / "paged_decode.attn")
    plans = []
    monkeypatch.setattr(kernels, "check_here", lambda target, device: target)
    monkeypatch.setattr(
        kernels,
        "compiled_kernel",
        lambda plan, target: plans.append(plan) or Kernel(Signature.of(plan, target.arch), lambda *_: None, None),
    )
    compiled = attn_dsl.compile(spec, target="sm90")
    sizes = {"seq_q": 1, "seq_k": 30, "heads": 8, "kv_heads": 2, "dim": 64, "page_size": 16}
    for batch, pages, longest in ((1, 9, 5), (3, 40, 11), (7, 1000, 100), (2, 5, 2)):
        compiled(**random_inputs(spec, sizes | {"batch": batch, "pages": pages, "max_pages": longest}).tensors)
    assert len(plans) == 1
    compiled(**random_inputs(spec, sizes | {"batch": 1, "pages": 9, "max_pages": 5, "page_size": 96}).tensors)
    assert [plan.page_size for plan in plans] == [plans[0].page_size, 96]


def test_the_scale_is_no_part_of_a_kernel():
    spec = attn_dsl.parse(HEAD + "param factor: float = 0.5\nscale = factor\nmask = kv_idx <= q_pos", name="scaled")
    tensors = random_inputs(spec, SIZES).tensors
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm100")
        assert all(right(compiled, tensors, factor=factor) for factor in (0.1, 1.0, -2.0))
        assert len(made.plans) == 1


def test_packed_sequences_get_their_lengths(bound):
    text = (
        "q: bf16[total_q, heads, dim]\nk, v: bf16[total_k, kv_heads, dim]\ncu_q, cu_k: i32[batch + 1]\n"
        "lengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k }\nmask = kv_idx <= q_pos"
    )
    spec = attn_dsl.parse(text, name="packed")
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        sizes = {"batch": 3, "total_q": 20, "total_k": 31, "heads": 2, "kv_heads": 1, "dim": 16}
        assert all(right(compiled, random_inputs(spec, sizes, seed=seed).tensors) for seed in range(3))
        assert (made.launches, len(made.plans), len(bound)) == (3, 1, 3 + 1)


def test_whatever_a_recipe_was_checked_for_is_seen_again():
    """Each of these is like a call that went well but for one thing."""
    tensors = inputs()
    q = tensors["q"]
    wider = torch.zeros(*q.shape[:-1], 17, dtype=q.dtype)
    cases = [
        ({"q": q.float()}, "E272", "q has dtype f32"),
        ({"q": wider[..., :16]}, "E279", "q has stride 340 along batch, expected a multiple of 8"),
        ({"q": q.transpose(2, 3).contiguous().transpose(2, 3)}, "E279", "q has stride 4 along dim, expected 1"),
        ({"q": torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)}, "E279", "no multiple of 16 bytes"),
        ({"q": q[:1]}, "E271", "axis 'batch' is 1 in q and 2 in k"),
        ({"q": q.to("meta")}, "E279", "k is on cpu, expected meta"),
        ({"q": q.to_sparse()}, "E279", "q has the layout torch.sparse_coo"),
        ({"q": None}, "E272", "q is a NoneType"),
        ({"q": [1]}, "E272", "q is a list"),
        ({"slopes": tensors["slopes"].double()}, "E272", "slopes has dtype torch.float64"),
        ({"window": 0}, "E274", "parameter 'window' is 0"),
        ({"window": 2**31}, "E274", "parameter 'window' is 2147483648"),
        ({"window": 3.0}, "E274", "parameter 'window' is 3.0 (float)"),
        ({"window": True}, "E274", "parameter 'window' is True (bool)"),
        ({"window": None}, "E274", "parameter 'window' is None"),
        ({"cap": float("nan")}, "E274", "parameter 'cap' is nan"),
        ({"cap": 0.5}, "E274", "parameter 'cap' is 0.5"),
        ({"other": 3}, "E270", "no tensor or parameter 'other'"),
    ]
    with stand_in(SPEC) as made:
        compiled = attn_dsl.compile(SPEC, target="sm90")
        for buffers in ({}, {"out": torch.empty(2, 5, 4, 8, dtype=q.dtype), "lse": torch.empty(2, 4, 5)}):
            assert right(compiled, tensors, window=3, cap=2.0)
            compiled(**tensors, window=3, cap=2.0, **buffers)  # the layout that all of them have but for one thing
            for buffer in buffers.values():
                buffer.fill_(7)
            launches = made.launches
            for change, code, message in cases:
                with pytest.raises(CallError) as caught:
                    compiled(**{**tensors, "window": 3, "cap": 2.0, **change}, **buffers)
                assert caught.value.code == code, caught.value
                assert message in str(caught.value)
            assert made.launches == launches
            assert all((buffer == 7).all() for buffer in buffers.values())
            assert right(compiled, tensors, window=3, cap=2.0)


def test_the_shortest_path_sees_as_much():
    """Three tensors by position and nothing else."""
    spec = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
    good = list(random_inputs(spec, SIZES | {"dim_v": 16}).tensors.values())
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        expected = compiled(*good)
        assert torch.equal(compiled(*good), expected)
        assert torch.equal(compiled(-good[0], *good[1:]), attn_dsl.compile(spec)(-good[0], *good[1:]))
        launches = made.launches
        for place, name in enumerate("qkv"):
            tensor = good[place]
            wider = torch.zeros(*tensor.shape[:-1], 17, dtype=tensor.dtype)
            bad = {
                f"{name} has dtype f32": tensor.float(),
                f"{name} has dtype f16": tensor.half(),
                f"{name} has stride {tensor.shape[2] * 17 * tensor.shape[1]} along batch": wider[..., :16],
                f"{name} has stride 4 along dim": torch.zeros(*tensor.shape, 4, dtype=tensor.dtype)[..., 0],
                f"{name} starts at an address": torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(
                    tensor.shape
                ),
                f"{name} is a NoneType": None,
                f"{name} has the layout torch.sparse_coo": tensor.to_sparse(),
                f"{name} has 3 axes": tensor[0],
            }
            for message, changed in bad.items():
                with pytest.raises(CallError) as caught:
                    compiled(*good[:place], changed, *good[place + 1 :])
                assert message in str(caught.value)
        assert made.launches == launches
        strided = torch.zeros(2, 5, 4, 32, dtype=torch.bfloat16)[..., :16].copy_(good[0])
        assert torch.equal(compiled(strided, *good[1:]), expected)
        assert torch.equal(compiled(torch.nn.Parameter(good[0]), *good[1:]).detach(), expected)
        assert compiled(good[0].clone().requires_grad_(), *good[1:]).requires_grad


def test_the_shortest_path_is_not_for_parameters():
    """A call that it was not made for, such as one of learned queries, leaves nothing there for the next one."""
    spec = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
    good, other = (
        [torch.nn.Parameter(t) for t in random_inputs(spec, SIZES | {"dim_v": 16} | sizes).tensors.values()]
        for sizes in ({}, {"seq_q": 7, "heads": 8})
    )
    with stand_in(spec):
        compiled, reference = attn_dsl.compile(spec, target="sm90"), attn_dsl.compile(spec)
        with torch.no_grad():
            for tensors in (good, other, good):
                assert torch.equal(compiled(*tensors), reference(*tensors))
        assert compiled(*good).requires_grad
        with pytest.raises(CallError, match="E272"):
            compiled(None, None, None)


def test_a_new_place_of_a_buffer_is_checked():
    """The layouts are those of a call before; the memory is not."""
    spec = attn_dsl.parse(HEAD, name="full")
    tensors = random_inputs(spec, SIZES | {"dim_v": 16, "seq_k": 5, "kv_heads": 4}).tensors
    room = torch.zeros(2, 2 * tensors["q"].numel() + 1, dtype=torch.bfloat16)
    count, shape = tensors["q"].numel(), tensors["q"].shape
    pool = room.view(-1)
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        free = pool[:count].view(shape)
        assert compiled(**tensors, out=free) is free
        taken = pool[count : 2 * count].view(shape)
        with pytest.raises(CallError, match=r"E278.*the memory of out overlaps the memory of q"):
            compiled(**{**tensors, "q": taken}, out=pool[count + 8 : 2 * count + 8].view(shape))
        with pytest.raises(CallError, match=r"E279.*out starts at an address that is no multiple of 16 bytes"):
            compiled(**tensors, out=pool[count + 1 : 2 * count + 1].view(shape))
        assert made.launches == 1


def test_axes_of_extent_1_may_have_any_stride():
    spec = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
    tensors = random_inputs(spec, SIZES | {"batch": 1}).tensors
    odd = {name: t.as_strided(t.shape, (3, *t.stride()[1:])) for name, t in tensors.items()}
    with stand_in(spec):
        compiled = attn_dsl.compile(spec, target="sm90")
        assert right(compiled, odd)
        assert right(compiled, odd)


def test_an_lse_that_nobody_asks_for_is_nobodys():
    """It has no memory of its own, so it is never handed out."""
    spec = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
    tensors = random_inputs(spec, SIZES).tensors
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        q, k, v = tensors.values()
        for args, named in (((q, k, v), {}), ((), tensors)):
            o, lse = compiled(*args, **named, return_lse=True)
            before = lse.clone()
            assert all(torch.equal(compiled(*args, **named), o) for _ in range(2))
            compiled(*((-q, k, v) if args else ()), **(named and {**named, "q": -q}))
            assert torch.equal(lse, before)
            again = compiled(*args, **named, return_lse=True)[1]
            assert torch.equal(again, before)
            compiled(*((-q, k, v) if args else ()), **(named and {**named, "q": -q}))
            assert torch.equal(again, before)
        assert made.launches == 12


def test_threads_share_a_compiled_object_and_its_kernel():
    """Eight threads call at once before anything is compiled: one kernel, and everybody's result is right."""
    together = threading.Barrier(8)
    with stand_in(SPEC) as made:
        made.slow = lambda: time.sleep(0.05)
        compiled = attn_dsl.compile(SPEC, target="sm90")

        def work(seed: int) -> bool:
            tensors = inputs(seed, batch=1 + seed % 3)
            together.wait()
            return all(right(compiled, tensors, window=window, cap=2.0) for window in (seed + 1, 3))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(8)))
        assert len(made.plans) == 1


def test_recipes_are_bounded(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_RECIPES", 3)
    with stand_in(SPEC):
        compiled = attn_dsl.compile(SPEC, target="sm90")
        for extent in range(1, 8):
            assert right(compiled, inputs(seq_q=extent), window=2)
            assert len(compiled.backend.recipes) <= 3
            assert right(compiled, inputs(seq_q=extent), window=2)
            assert len(compiled.backend.shortcuts) <= 3
        assert len(compiled.backend.recent) == RECENT


def test_gradients_of_a_kernel_are_those_of_the_reference():
    def gradients(compiled):
        tensors = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in inputs(3).items()}
        gain = torch.tensor(0.7, requires_grad=True)
        o, lse = compiled(**tensors, window=6, gain=gain, return_lse=True)
        seen = torch.isfinite(lse)
        (o.float().square().sum() + lse[seen].sum()).backward()
        return [tensors[name].grad for name in ("q", "k", "v", "slopes")] + [gain.grad]

    with stand_in(SPEC) as made:
        found = gradients(attn_dsl.compile(SPEC, target="sm90"))
        assert made.launches == 1
    for one, other in zip(found, gradients(attn_dsl.compile(SPEC)), strict=True):
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, other)


def test_no_gradients_are_recorded_where_none_are_wanted():
    tensors = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in inputs().items()}
    with stand_in(SPEC):
        compiled = attn_dsl.compile(SPEC, target="sm90")
        with torch.no_grad():
            assert not compiled(**tensors).requires_grad
            assert right(compiled, tensors)
        with torch.inference_mode():
            assert right(compiled, tensors)
        assert compiled(**tensors).requires_grad
