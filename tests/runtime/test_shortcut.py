"""The shortest way of a call: who may take it, and that nothing is lost on it. Kernels are stand-ins of the CPU."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from stand_in_kernels import stand_in
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import attn_dsl
from attn_dsl import CallError, UnsupportedError
from attn_dsl.runtime import kernels, random_inputs, shortcut

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAUSAL = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
WINDOW = attn_dsl.parse(
    HEAD + "slopes: f32[heads]\nparam window: int in 1.. = 4\nparam gain: float = 1.0\n"
    "mask = 0 <= q_pos - kv_idx < window\nscore = gain * score + slopes[h]",
    name="window",
)
SIZES = {"batch": 2, "seq_q": 5, "seq_k": 9, "heads": 4, "kv_heads": 2, "dim": 16}

pytestmark = pytest.mark.skipif(shortcut._guards is None, reason="this release of torch has no TensorGuards")


def tensors_of(spec, seed=0, **sizes):
    return random_inputs(spec, SIZES | sizes, seed=seed).tensors


@pytest.fixture
def longer(monkeypatch):
    """The calls that no shortcut took."""
    calls = []
    real = kernels.Kernels.quick
    monkeypatch.setattr(kernels.Kernels, "quick", lambda self, *args: calls.append(1) or real(self, *args))
    return calls


def test_the_third_call_of_a_layout_is_the_first_to_take_it(longer):
    """The first is checked in full, the second found by its layout."""
    exact = attn_dsl.compile(CAUSAL)
    with stand_in(CAUSAL) as made:
        compiled = attn_dsl.compile(CAUSAL, target="sm90")
        for seed in range(6):
            q, k, v = tensors_of(CAUSAL, seed).values()
            o, lse = compiled(q, k, v, return_lse=True)
            true_o, true_lse = exact(q, k, v, return_lse=True)
            assert torch.equal(o, true_o)
            assert torch.equal(lse, true_lse)
            assert torch.equal(compiled(q, k, v), true_o)
        assert (len(longer), made.launches) == (2, 12)


def test_numbers_and_names(longer):
    """Numbers may change, their types and the names of a call may not."""
    exact = attn_dsl.compile(WINDOW)
    with stand_in(WINDOW):
        compiled = attn_dsl.compile(WINDOW, target="sm90")
        named = tensors_of(WINDOW, 3)
        q, k, v, slopes = named.values()
        for window in (3, 3, 1, 100):
            assert torch.equal(compiled(q, k, v, slopes, window=window), exact(**named, window=window))
        assert len(longer) == 2
        for args, more in (
            ((q, k, v, slopes), {"window": 3, "gain": 2.0}),
            ((q, k, v, slopes), {"window": 3, "gain": 2}),
            ((q, k, v, slopes), {"gain": 2.0, "window": 3}),
            ((q, k, v), {"slopes": slopes, "window": 7}),
            ((), {**named, "window": 7}),
            ((), {"q": q, "v": v, "k": k, "slopes": slopes, "window": 7}),
            ((q, k, v, slopes), {}),
        ):
            expected = exact(*args, **more)
            assert all(torch.equal(compiled(*args, **more), expected) for _ in range(4))
        assert len(longer) == 2 + 7 * 2
        for wrong in ({"window": 0}, {"window": 2.0}, {"window": True}, {"window": None}, {"windows": 3}):
            with pytest.raises(CallError):
                compiled(q, k, v, slopes, **wrong)


def test_whoever_looks_at_operators_sees_a_call():
    """Modes, fake tensors, transforms, autograd: none of them is passed by."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    spec = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="looked at")  # the operator finds objects by their key
    q, k, v = tensors_of(spec).values()
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        expected = compiled(q, k, v)
        for _ in range(3):
            assert torch.equal(compiled(q, k, v), expected)
        launches = made.launches
        with Seen():
            assert torch.equal(compiled(q, k, v), expected)
        assert "attn_dsl::attention" in names
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert compiled(*(mode.from_tensor(t) for t in (q, k, v))).shape == q.shape
        with pytest.raises(RuntimeError, match="Batching rule"):
            torch.vmap(compiled)(*(t[None] for t in (q, k, v)))
        with pytest.raises(UnsupportedError, match="E281"), torch.autograd.forward_ad.dual_level():
            compiled(q, k, v)
        assert made.launches == launches + 1  # of the first mode
        learned = q.clone().requires_grad_()
        assert compiled(learned, k, v).requires_grad
        with torch.no_grad():
            assert not compiled(learned, k, v).requires_grad
        with torch.inference_mode():
            assert all(torch.equal(compiled(q, k, v), expected) for _ in range(3))
            assert all(torch.equal(compiled(q.clone(), k, v), expected) for _ in range(3))
        with torch.autocast("cpu", dtype=torch.float16):
            assert all(torch.equal(compiled(q, k, v), expected) for _ in range(3))
        assert torch.equal(compiled(q, k, v), expected)


def test_more_layouts_than_are_remembered(longer):
    exact = attn_dsl.compile(CAUSAL)
    layouts = [tensors_of(CAUSAL, place, seq_q=place + 1, batch=1 + place % 2) for place in range(shortcut.RECENT + 3)]
    expected = [exact(**tensors) for tensors in layouts]
    with stand_in(CAUSAL):
        compiled = attn_dsl.compile(CAUSAL, target="sm90")
        for _ in range(3):
            for tensors, true in zip(layouts, expected, strict=True):
                assert torch.equal(compiled(*tensors.values()), true)
        assert len(longer) == 3 * len(layouts)  # taking turns, none is recent
        count = len(longer)
        for _ in range(3):
            for tensors, true in zip(layouts[: shortcut.RECENT], expected, strict=False):
                assert torch.equal(compiled(*tensors.values()), true)
        assert len(longer) == count + shortcut.RECENT


def test_it_keeps_no_tensor_alive():
    with stand_in(CAUSAL):
        compiled = attn_dsl.compile(CAUSAL, target="sm90")
        tensors = list(tensors_of(CAUSAL).values())
        found = [compiled(*tensors) for _ in range(3)]
        seen = [weakref.ref(tensor) for tensor in (*tensors, *found)]
        assert compiled.backend.recent
        del tensors, found
        gc.collect()
        assert [ref() for ref in seen] == [None] * 6


def other_guards(*tensors, sizes):
    """As a release might have them."""


@pytest.mark.parametrize("guards", [None, other_guards], ids=["none", "others"])
def test_a_torch_without_them(monkeypatch, longer, guards):
    """The guards and the allocator are private to torch."""
    monkeypatch.setattr(shortcut, "_guards", guards)
    with stand_in(CAUSAL):
        compiled = attn_dsl.compile(CAUSAL, target="sm90")
        q, k, v = tensors_of(CAUSAL).values()
        expected = attn_dsl.compile(CAUSAL)(q, k, v)
        assert all(torch.equal(compiled(q, k, v), expected) for _ in range(4))
        assert (len(longer), compiled.backend.recent) == (4, [])


def test_memory_is_of_the_device_of_the_tensors(monkeypatch):
    """The quick allocator knows the current device alone."""
    made = []

    class Room:
        shape, contiguous, dtype = (2, 3), (3, 1), torch.float32

        def make(self, device):
            made.append(device.index)
            return torch.empty(2, 3)

    monkeypatch.setattr(shortcut, "_allocate", torch._C._dynamo.guards._empty_strided_cpu)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    for count, index, expected in ((1, 0, []), (2, 1, []), (2, 0, [0])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        found = shortcut._maker(Room(), torch.device("cuda", index))()
        assert (found.shape, found.stride(), found.dtype) == ((2, 3), (3, 1), torch.float32)
        assert made == expected


def test_threads_take_it_together():
    """While some call with known layouts, others bring new ones."""
    exact = attn_dsl.compile(CAUSAL)
    layouts = [tensors_of(CAUSAL, place, seq_q=place + 1) for place in range(8)]
    expected = [exact(**tensors) for tensors in layouts]
    together = threading.Barrier(8)
    with stand_in(CAUSAL):
        compiled = attn_dsl.compile(CAUSAL, target="sm90")

        def work(first: int) -> bool:
            together.wait()
            places = [(first + step // 3) % 8 for step in range(60)]
            return all(torch.equal(compiled(*layouts[place].values()), expected[place]) for place in places)

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(8)))
        assert len(compiled.backend.recent) == shortcut.RECENT


@pytest.mark.parametrize("given", [("out",), ("lse",), ("out", "lse")], ids=" and ".join)
@pytest.mark.parametrize("spec", [CAUSAL, WINDOW], ids=lambda spec: spec.name)
def test_buffers(longer, spec, given):
    """The third call takes it; whatever else the buffers are, they are looked at."""
    exact = attn_dsl.compile(spec)
    number = {"window": 3} if spec is WINDOW else {}
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        for seed in range(5):
            q, k, v, *more = tensors_of(spec, seed).values()
            true_o, true_lse = exact(q, k, v, *more, **number, return_lse=True)
            room = {"out": torch.empty_like(true_o), "lse": torch.empty_like(true_lse)}
            buffers = {name: room[name] for name in given}
            o, lse = compiled(q, k, v, *more, **number, **buffers, return_lse=True)
            assert torch.equal(o, true_o)
            assert torch.equal(lse, true_lse)
            assert all(found is room[name] for name, found in (("out", o), ("lse", lse)) if name in given)
        assert len(longer) == 2
        again = compiled(q, k, v, *more, **number, **buffers, return_lse=False)
        assert torch.equal(again, true_o)
        assert (again is room["out"]) is ("out" in given)
        assert len(longer) == 2
        launches = made.launches
        wrong = {
            "out": [q, true_o.float(), true_o[:, :4], true_o.transpose(1, 2).contiguous().transpose(1, 2)[..., :8]],
            "lse": [true_lse.double(), true_lse[:, :, :4], true_lse[0]],
        }
        for name in given:
            for buffer in wrong[name]:
                with pytest.raises(CallError, match="E278"):
                    compiled(q, k, v, *more, **number, **(buffers | {name: buffer}))
            with pytest.raises(CallError, match="E278"):
                compiled(q, k, v, *more, **number, **(buffers | {name: room[name].clone().requires_grad_()}))
        with pytest.raises(CallError, match="E274" if number else "E270"):
            compiled(q, k, v, *more, window=0, **buffers)
        assert made.launches == launches


def test_buffers_and_what_they_may_meet(longer):
    """Addresses are all that differs from calls that went well."""
    tensors = tensors_of(CAUSAL, seq_k=5, kv_heads=4)
    shape, count = tensors["q"].shape, tensors["q"].numel()
    pool = torch.zeros(6 * count, dtype=torch.bfloat16)
    logs = torch.zeros(2, 4, 5)
    exact = attn_dsl.compile(CAUSAL)

    def at(place):
        return pool[place : place + count].view(shape)

    with stand_in(CAUSAL) as made:
        compiled = attn_dsl.compile(CAUSAL, target="sm90")
        q, k, v = (at(place * count).copy_(tensor) for place, tensor in enumerate(tensors.values()))
        free = at(3 * count)
        for _ in range(3):
            assert torch.equal(compiled(q, k, v, out=free, lse=logs)[0], exact(q, k, v))
        assert len(longer) == 2
        launches = made.launches
        touching = {
            "out overlaps the memory of q": {"out": at(8)},
            "out overlaps the memory of v": {"out": at(3 * count - 8)},
            "out starts at an address": {"out": at(3 * count + 1)},
            "lse overlaps the memory of k": {"lse": pool[2 * count - 16 :].view(torch.float32)[:40].view(2, 4, 5)},
            "lse overlaps the memory of out": {"lse": pool[4 * count - 8 :].view(torch.float32)[:40].view(2, 4, 5)},
        }
        for message, change in touching.items():
            with pytest.raises(CallError, match=message):
                compiled(q, k, v, **({"out": free, "lse": logs} | change))
        assert made.launches == launches
        pool[2 * count : 3 * count].zero_()  # as large as it can be without touching anything
        assert torch.equal(compiled(q, k, v, out=at(3 * count), lse=logs)[0], exact(q, k, v))
        misaligned = torch.zeros(count + 1, dtype=torch.bfloat16)[1:].view(shape)
        with pytest.raises(CallError, match="q starts at an address"):
            compiled(misaligned, k, v, out=free, lse=logs)


def test_shortcuts_into_buffers_keep_none_alive():
    with stand_in(CAUSAL):
        compiled = attn_dsl.compile(CAUSAL, target="sm90")
        tensors = list(tensors_of(CAUSAL).values())
        out = torch.empty_like(tensors[0])
        for _ in range(3):
            compiled(*tensors, out=out)
        seen = [weakref.ref(tensor) for tensor in (*tensors, out)]
        assert compiled.backend.recent_into
        assert not compiled.backend.recent
        del tensors, out
        gc.collect()
        assert [ref() for ref in seen] == [None] * 4


def test_a_buffer_more_or_less():
    """Shortcuts made for one buffer do not take calls with another, which nobody would have looked at."""
    q, k, v = tensors_of(CAUSAL).values()
    true_o, true_lse = attn_dsl.compile(CAUSAL)(q, k, v, return_lse=True)
    both = {"out": torch.empty_like(true_o), "lse": torch.empty_like(true_lse)}
    for name, other in (("out", "lse"), ("lse", "out")):
        with stand_in(CAUSAL) as made:
            compiled = attn_dsl.compile(CAUSAL, target="sm90")
            for _ in range(3):
                compiled(q, k, v, **{name: both[name]})
            with pytest.raises(CallError, match="E278"):
                compiled(q, k, v, **(both | {other: both[other][:1]}))
            assert made.launches == 3
            o, lse = compiled(q, k, v, **both)
            assert o is both["out"]
            assert torch.equal(lse, true_lse)
