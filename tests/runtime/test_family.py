"""Layouts that differ from one before in extents and strides alone: not checked in full again, and as right and as
strict as if they were. Kernels are stand-ins of the CPU."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from stand_in_kernels import stand_in

import attn_dsl
from attn_dsl import CallError
from attn_dsl.runtime import compiled as compiled_module
from attn_dsl.runtime import kernels, random_inputs, splitting
from attn_dsl.runtime.binding import bind
from attn_dsl.runtime.kernel import Kernel
from attn_dsl.runtime.signature import Signature
from attn_dsl.runtime.splitting import Splitting
from attn_dsl.spec.model import AXIS_LIMITS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
DENSE = attn_dsl.parse(
    HEAD
    + "slopes: f32[heads]\nallowed: bool[batch, seq_k]\nparam window: int in 1.. = 4\nparam gain: float[heads] = 1.0\n"
    "mask = 0 <= q_pos - kv_idx < window and allowed[b, kv_idx]\nscore = gain * score + slopes[h]",
    name="dense",
)
PACKED = attn_dsl.parse(
    "q: bf16[total_q, heads, dim]\nk, v: bf16[total_k, kv_heads, dim]\ncu_q, cu_k: i32[batch + 1]\n"
    "lse: f32[heads, total_q]\nlengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k }\n"
    "mask = kv_idx <= q_pos",
    name="packed",
)
TABLE = attn_dsl.parse(
    HEAD + "table: f32[heads, 2 * seq_q + 1]\nmask = kv_idx <= q_pos\nscore = score + table[h, q_idx]", name="table"
)
SIZES = {"batch": 2, "seq_q": 5, "seq_k": 9, "heads": 4, "kv_heads": 2, "dim": 16}


def inputs(spec, seed=0, **sizes):
    return dict(random_inputs(spec, SIZES | sizes, seed=seed).tensors)


def right(compiled, tensors, **more):
    o, lse = compiled(**tensors, **more, return_lse=True)
    params = {name: value for name, value in more.items() if name not in ("out", "lse")}
    true_o, true_lse = attn_dsl.compile(compiled.spec)(**tensors, **params, return_lse=True)
    return torch.equal(o, true_o) and torch.equal(lse, true_lse)


@pytest.fixture
def bound(monkeypatch):
    """The calls of kernels that are checked in full."""
    calls = []
    real = compiled_module.bind

    def bind(spec, *rest):
        calls.append(spec)
        return real(spec, *rest)

    monkeypatch.setattr(compiled_module, "bind", bind)
    return lambda run: (calls.clear(), run(), len(calls))[-1]


def new_layouts(spec):
    if spec is PACKED:
        return [
            {"batch": 3, "total_q": 20, "total_k": 31},
            {"batch": 1, "total_q": 4, "total_k": 7},
            {"total_q": 9, "total_k": 9},
        ]
    return [{"batch": 3}, {"seq_q": 1}, {"seq_k": 300}, {"batch": 1, "seq_q": 7, "seq_k": 11}]


@pytest.mark.parametrize("spec", [DENSE, PACKED, TABLE], ids=lambda spec: spec.name)
@pytest.mark.parametrize("buffers", [False, True], ids=["memory of its own", "buffers"])
def test_new_extents_are_not_checked_in_full(bound, spec, buffers):
    first = {"total_q": 6, "total_k": 12} if spec is PACKED else {}

    def call(seed, sizes):
        tensors = inputs(spec, seed, **(sizes | {} if spec is not PACKED else first | sizes))
        more = {}
        if buffers:
            o, lse = exact(**tensors, return_lse=True)
            more = {"out": torch.empty_like(o), "lse": torch.empty_like(lse)}
        assert right(compiled, tensors, **more)

    exact = attn_dsl.compile(spec)
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        reference = 1 + buffers
        assert bound(lambda: call(0, {})) == reference + 1
        for seed, sizes in enumerate(new_layouts(spec)):
            assert bound(lambda seed=seed, sizes=sizes: call(seed, sizes)) == reference
            assert bound(lambda seed=seed, sizes=sizes: call(seed + 9, sizes)) == reference
        assert (len(made.plans), len(compiled.backend.families)) == (1, 1)


def test_new_strides_are_not_checked_in_full(bound):
    """A cache that grows: its first slots, whatever room it has."""
    tensors = inputs(DENSE)
    room = torch.randn(2, 40, 2, 48).bfloat16()
    with stand_in(DENSE):
        compiled = attn_dsl.compile(DENSE, target="sm90")
        assert right(compiled, tensors)
        for length in (9, 10, 33):
            k = room[:, :length, :, 16:32]
            grown = tensors | {"k": k, "v": k, "allowed": torch.rand(2, length) < 0.7}
            assert bound(lambda grown=grown: right(compiled, grown)) == 1
            assert right(compiled, grown)


def test_o_is_dense_whatever_q_is(bound):
    tensors = inputs(DENSE)
    wide = torch.randn(2, 4, 7, 16).bfloat16().transpose(1, 2)
    with stand_in(DENSE):
        compiled = attn_dsl.compile(DENSE, target="sm90")
        assert right(compiled, tensors)
        found = []
        assert bound(lambda: found.append(compiled(**tensors | {"q": wide}))) == 0
        assert found[0].is_contiguous()


def test_what_decides_a_kernel_makes_another_family():
    with stand_in(DENSE) as made:
        compiled = attn_dsl.compile(DENSE, target="sm90")
        changes = [{}, {"heads": 8}, {"kv_heads": 1}, {"dim": 32}]
        for place, sizes in enumerate(changes):
            assert right(compiled, inputs(DENSE, **sizes))
            assert right(compiled, inputs(DENSE, **sizes, seq_k=20))
            assert len(compiled.backend.families) == place + 1
        assert right(compiled, inputs(DENSE), gain=torch.rand(4))
        assert right(compiled, inputs(DENSE, seq_q=3), gain=torch.rand(4))
        assert right(compiled, inputs(DENSE, seq_q=3), gain=torch.tensor(0.5))
        assert len(compiled.backend.families) == len(changes) + 2
        assert len({(plan.dim, plan.pack, plan.params) for plan in made.plans}) == len(made.plans)


def test_a_new_layout_is_refused_as_if_it_were_the_first():
    """Each differs from calls that went well in its length of k, too, so that none has a recipe."""
    tensors = inputs(DENSE, seq_k=20)
    q, k = tensors["q"], tensors["k"]
    o = torch.empty_like(q)
    wider = torch.zeros(2, 20, 2, 20, dtype=q.dtype)
    shifted = torch.zeros(k.numel() + 1, dtype=q.dtype)[1:].view(k.shape)
    cases = [
        ({"v": tensors["v"][:, :19]}, "E271", "axis 'seq_k' is 20 in k and 19 in v"),
        ({"allowed": tensors["allowed"][:, :19]}, "E271", "axis 'seq_k' is 20 in k and 19 in allowed"),
        ({"allowed": tensors["allowed"][:1]}, "E271", "axis 'batch' is 2 in q and 1 in allowed"),
        ({"slopes": torch.zeros(3)}, "E271", "axis 'heads' is 4 in q and 3 in slopes"),
        ({"k": k[..., :8]}, "E271", "axis 'dim' is 16 in q and 8 in k"),
        ({"k": k[0]}, "E271", "k has 3 axes"),
        (
            {"k": wider[..., :16]},
            "E279",
            "k has stride 20 along kv_heads",
        ),
        ({"k": k.transpose(1, 3).contiguous().transpose(1, 3)}, "E279", "along dim, expected 1"),
        ({"k": torch.zeros(*k.shape, 8, dtype=q.dtype)[..., 0]}, "E279", "k has stride 8 along dim, expected 1"),
        ({"k": shifted}, "E279", "k starts at an address that is no multiple of 16 bytes"),
        ({"k": k.half()}, "E272", "k has dtype f16"),
        ({"q": q[:, :, :3]}, "E271", "axis 'heads' is 3 in q and 4 in slopes"),
        ({"gain": torch.rand(3)}, "E274", "shape [3]"),
        ({"window": 0}, "E274", "parameter 'window' is 0"),
        ({"window": 2.0}, "E274", "parameter 'window' is 2.0 (float)"),
        ({"out": o[:, :4]}, "E278", "out has shape [2, 4, 4, 16]"),
        ({"out": o.float()}, "E278", "out has dtype f32"),
        ({"out": o.as_strided(o.shape, (0, 64, 16, 1))}, "E278", "two elements of out share memory"),
        ({"out": q}, "E278", "the memory of out overlaps the memory of q"),
        ({"lse": torch.empty(2, 5, 4)}, "E278", "lse has shape [2, 5, 4]"),
        ({"out": torch.empty(2, 5, 4, 24, dtype=q.dtype)[..., :17][..., 1:]}, "E279", "out starts at an address"),
    ]
    with stand_in(DENSE) as made:
        compiled = attn_dsl.compile(DENSE, target="sm90")
        for buffers in ({}, {"out": torch.empty_like(q)}, {"lse": torch.empty(2, 4, 5)}):
            for window in (3, 4):
                compiled(**inputs(DENSE, seq_k=9 + window), window=window, **buffers)
        compiled(**inputs(DENSE), window=3, gain=torch.rand(4))
        launches, recipes = made.launches, len(compiled.backend.recipes)
        for change, code, message in cases:
            with pytest.raises(CallError) as caught:
                compiled(**{**tensors, "window": 3, **change})
            assert caught.value.code == code, caught.value
            assert message in str(caught.value)
        assert (made.launches, len(compiled.backend.recipes)) == (launches, recipes)


def test_cumulative_lengths_have_to_agree():
    tensors = inputs(PACKED, total_q=6, total_k=12)
    with stand_in(PACKED) as made:
        compiled = attn_dsl.compile(PACKED, target="sm90")
        assert right(compiled, tensors)
        for name in ("cu_q", "cu_k"):
            with pytest.raises(CallError, match="E271"):
                compiled(**{**tensors, name: torch.tensor([0, 1, 2, 6], dtype=torch.int32)})
        assert made.launches == 1
        nobody = {name: torch.zeros(1, dtype=torch.int32) for name in ("cu_q", "cu_k")}
        assert right(compiled, {**tensors, **nobody})


def test_formulas_hold():
    with stand_in(TABLE) as made:
        compiled = attn_dsl.compile(TABLE, target="sm90")
        assert right(compiled, inputs(TABLE))
        with pytest.raises(CallError, match=r"axis 1 of table is 11, expected .* 15"):
            compiled(**{**inputs(TABLE, seq_q=7), "table": inputs(TABLE)["table"]})
        assert made.launches == 1


def test_extents_have_limits():
    """Axes of stride 0 take no memory."""
    tensors = inputs(DENSE, batch=1)
    many = {name: t.expand(AXIS_LIMITS["batch"] + 1, *t.shape[1:]) for name, t in tensors.items() if name != "slopes"}
    with stand_in(DENSE) as made:
        compiled = attn_dsl.compile(DENSE, target="sm90")
        compiled(**tensors)
        with pytest.raises(CallError, match=r"E249.*axis 'batch' is"):
            compiled(**tensors | many)
        assert made.launches == 1


def test_a_tensor_that_is_read_has_elements():
    text = HEAD + "table: f32[heads, seq_q - 1]\nscore = score + table[h, 0]"
    spec = attn_dsl.parse(text, name="one less")
    with stand_in(spec) as made:
        compiled = attn_dsl.compile(spec, target="sm90")
        assert right(compiled, inputs(spec))
        assert right(compiled, inputs(spec, seq_q=3))
        tensors = inputs(spec, seq_q=2)
        tensors |= {"q": tensors["q"][:, :1], "table": tensors["table"][:, :0]}
        with pytest.raises(CallError, match=r"E249.*is 0, and the spec reads table"):
            compiled(**tensors)
        assert made.launches == 2


def test_extents_of_nothing_and_back():
    with stand_in(DENSE) as made:
        compiled = attn_dsl.compile(DENSE, target="sm90")
        assert right(compiled, inputs(DENSE))
        for sizes in ({"seq_k": 0}, {"batch": 0}, {"seq_q": 0}, {"seq_k": 1}, {"seq_q": 1, "seq_k": 2}):
            assert right(compiled, inputs(DENSE, **sizes))
        assert len(made.plans) == 1


def launched(monkeypatch, spec):
    """A compiled object whose launches are recorded: (parts, what follows lse) of each."""
    seen = []
    monkeypatch.setattr(kernels, "check_here", lambda target, device: target)
    monkeypatch.setattr(
        kernels,
        "compiled_kernel",
        lambda plan, target: Kernel(Signature.of(plan, target.arch), lambda *given: seen.append(given[5]), None),
    )
    monkeypatch.setattr(kernels, "cached_join", lambda join: lambda parts, *_: seen.append(len(parts)))
    return attn_dsl.compile(spec, target="sm90"), seen


def test_pages_are_counted(bound, monkeypatch):
    """Pages, and the longest list of them: what a launch is told is what it would be told at a first call."""
    spec = attn_dsl.load(EXAMPLES / "paged_decode.attn")
    sizes = {"seq_q": 1, "seq_k": 30, "heads": 8, "kv_heads": 2, "dim": 64, "page_size": 16}
    compiled, seen = launched(monkeypatch, spec)
    checked = []
    for batch, pages, longest in ((1, 9, 5), (3, 40, 11), (7, 1000, 100), (2, 5, 2), (9, 41, 12)):
        tensors = random_inputs(spec, sizes | {"batch": batch, "pages": pages, "max_pages": longest}).tensors
        seen.clear()
        checked.append(bound(lambda tensors=tensors: compiled(**tensors)))
        told = [item if isinstance(item, int) else item[:2] for item in seen]
        first, seen_first = launched(monkeypatch, spec)
        first(**tensors)
        assert told == [item if isinstance(item, int) else item[:2] for item in seen_first]
    assert checked[0] == 1
    assert sum(checked) == len(compiled.backend.families) <= 2


def test_keys_in_parts(bound, monkeypatch):
    """A longer k may want more parts, or none."""
    spec = attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos", name="causal")
    compiled, seen = launched(monkeypatch, spec)
    monkeypatch.setattr(splitting, "_processors", lambda device: 132)
    counts = []
    for length in (4096, 4112, 100, 9000, 112, 70000):
        tensors = inputs(spec, seq_q=1, seq_k=length, batch=1)
        checked = bound(lambda tensors=tensors: compiled(**tensors))
        call = bind(spec, (), tensors)
        expected = compiled.backend.kernel_for(call).function
        parts = [item for item in seen if isinstance(item, int)]
        assert parts == ([expected.count] if isinstance(expected, Splitting) else [])
        assert next(item for item in seen if not isinstance(item, int))[0] == length
        counts.append((checked, parts))
        seen.clear()
    assert [checked for checked, _ in counts] == [1, 0, 1, 0, 0, 0]
    assert len({tuple(parts) for _, parts in counts}) > 2


def test_it_keeps_no_tensor_alive():
    with stand_in(DENSE):
        compiled = attn_dsl.compile(DENSE, target="sm90")
        tensors = [inputs(DENSE, seq_k=length) for length in (9, 10)]
        found = [compiled(**each, return_lse=True) for each in tensors]
        seen = [weakref.ref(tensor) for group in (*(t.values() for t in tensors), *found) for tensor in group]
        assert len(compiled.backend.families) == 1
        del tensors, found
        gc.collect()
        assert [ref() for ref in seen] == [None] * len(seen)


def test_families_are_bounded(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_FAMILIES", 2)
    with stand_in(DENSE):
        compiled = attn_dsl.compile(DENSE, target="sm90")
        for heads in (2, 4, 6, 2):
            assert right(compiled, inputs(DENSE, heads=heads))
            assert right(compiled, inputs(DENSE, heads=heads, seq_q=3))
            assert len(compiled.backend.families) <= 2
