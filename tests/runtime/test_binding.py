"""Every rule of a call: the code, and a message that names the tensor, the axis, the given and the expected value."""

from pathlib import Path

import pytest
import torch

import attn_dsl
from attn_dsl import UNBOUNDED, CallError
from attn_dsl.runtime import bind

SPEC = attn_dsl.parse(
    """
    q: bf16[batch, seq_q, heads, dim]
    k, v: bf16[batch, seq_k, kv_heads, dim]
    slopes: f32[heads]
    relative: f32[seq_q + seq_k - 1]
    table: f32[2, 3]
    const far: int = 4
    axis dim = 8
    param window: int in 1..
    param cap: float in 1.0..=100.0 = 50.0
    param reach: int[heads] in 0..=9 = 9
    mask = kv_idx <= q_pos and q_pos - kv_idx < window and q_pos - kv_idx <= reach + far
    score = cap * tanh(score / cap) + slopes[h] + relative[kv_idx - q_idx + seq_q - 1] + table[h % 2, kv_idx % 3]
    """
)
SHAPES = {"q": (2, 3, 4, 8), "k": (2, 5, 2, 8), "v": (2, 5, 2, 8), "slopes": (4,), "relative": (7,), "table": (2, 3)}


def _tensors(**other):
    dtypes = {name: torch.bfloat16 if name in "qkv" else torch.float32 for name in SHAPES}
    return {name: torch.zeros(shape, dtype=dtypes[name]) for name, shape in SHAPES.items()} | other


def _bad(code, *messages, debug=False, args=(), drop=(), **other):
    """The error of a call that is right but for `other`."""
    kwargs = {name: value for name, value in (_tensors() | {"window": 3} | other).items() if name not in drop}
    with pytest.raises(CallError) as caught:
        bind(SPEC, args, kwargs, debug)
    text = str(caught.value)
    for message in messages:
        assert message in text
    assert code in {item.code for item in caught.value.diagnostics}
    return caught.value


def test_a_good_call():
    call = bind(SPEC, list(_tensors().values())[:3], {**dict(list(_tensors().items())[3:]), "window": 3}, debug=True)
    assert list(call.tensors) == list(SHAPES)
    assert call.params == {"window": 3, "cap": 50.0, "reach": 9}
    assert call.extents == {
        "batch": 2, "seq_q": 3, "seq_k": 5, "heads": 4, "kv_heads": 2, "dim": 8, "dim_v": 8,
    }  # fmt: skip
    assert call.device == torch.device("cpu")


def test_names():
    _bad("E270", "v is missing, expected bf16[batch, seq_k, kv_heads, dim]", drop=["v"])
    _bad("E270", "parameter 'window' is missing", "give window= a number", drop=["window"])
    _bad("E270", "no tensor or parameter 'slope'", "did you mean 'slopes'?", slope=torch.zeros(4))
    _bad("E270", "q is given twice, by position and by name", args=[torch.zeros(2, 3, 4, 8, dtype=torch.bfloat16)])
    _bad("E270", "7 tensors given by position, expected at most 6", args=[torch.zeros(1)] * 7, drop=list(SHAPES))
    _bad("E270", "'far' is a compile-time value: attn_dsl.compile(spec, far=...)", far=3)
    _bad("E270", "'dim' is a compile-time value", dim=8)


def test_a_view_is_not_given():
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk: f32[batch, seq_k, heads, dim]\nview v = k[:, :, :, 0..4]"
    )
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(CallError, match="'v' is a view of 'k'; give that tensor"):
        bind(spec, [], {"q": q, "k": q, "v": q})
    with pytest.raises(
        CallError, match=r"axis 3 of k \(dim\) is 3, too small for the view v, which takes elements 0 to 3"
    ):
        bind(spec, [q[..., :3], q[..., :3]], {})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q", (2, 3, 4), "q has 3 axes, expected 4: [batch, seq_q, heads, dim], given shape [2, 3, 4]"),
        ("v", (2, 6, 2, 8), "axis 'seq_k' is 5 in k and 6 in v"),
        ("k", (1, 5, 2, 8), "axis 'batch' is 2 in q and 1 in k"),
        ("slopes", (5,), "axis 'heads' is 4 in q and 5 in slopes"),
        ("relative", (8,), "axis 0 of relative is 8, expected seq_q + seq_k - 1 = 7"),
        ("table", (2, 4), "axis 1 of table is 4, expected 3"),
    ],
)
def test_shapes(name, shape, message):
    dtype = torch.bfloat16 if name in "qkv" else torch.float32
    _bad("E271", message, **{name: torch.zeros(shape, dtype=dtype)})


def test_fixed_axes():
    wrong = {name: torch.zeros(*SHAPES[name][:3], 16, dtype=torch.bfloat16) for name in "qkv"}
    _bad("E271", "axis 'dim' is 16 in q and 8 in the spec, which fixes it", **wrong)


def test_heads_are_a_multiple_of_kv_heads():
    three = {name: torch.zeros(2, 5, 3, 8, dtype=torch.bfloat16) for name in "kv"}
    _bad("E243", "heads is 4, which is no multiple of kv_heads = 3", **three)


def test_extents():
    none = {"q": torch.zeros(2, 3, 0, 8, dtype=torch.bfloat16), "slopes": torch.zeros(0)}
    _bad("E249", "axis 'heads' is 0, expected 1 to 65536", **none)


def test_a_capture_without_elements():
    """An error where a row reads it, and none where nothing is read."""
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk, v: f32[total_k, heads, dim]\ncu: i32[batch + 1]\n"
        "lengths k { cu_seqlens = cu }\nbias: f32[seq_k]\nscore = score + bias[0]"
    )

    def call(batch):
        rows, keys = torch.zeros(batch, 2, 1, 4), torch.zeros(3, 1, 4)
        return bind(spec, [rows, keys, keys, torch.zeros(batch + 1, dtype=torch.int32), torch.zeros(0)], {})

    with pytest.raises(CallError, match="axis 'seq_k' of bias is 0, and the spec reads bias"):
        call(1)
    assert call(0).extents["batch"] == 0


def test_dtypes():
    error = _bad("E272", "k has dtype f32, expected bf16", k=torch.zeros(SHAPES["k"]))
    assert "k.to(torch.bfloat16)" in str(error)
    assert "declare 'k' as f32" in str(error)
    _bad("E272", "slopes has dtype torch.float64, expected f32", slopes=torch.zeros(4, dtype=torch.float64))
    _bad("E272", "slopes is a list, expected a tensor of f32", slopes=[1.0] * 4)
    _bad("E272", "slopes is a NoneType, expected a tensor of f32", slopes=None)


def test_devices_and_layouts():
    _bad("E273", "slopes is on meta, expected cpu, where q is", slopes=torch.zeros(4, device="meta"))
    _bad("E273", "window is on meta, expected cpu", window=torch.zeros((), dtype=torch.int32, device="meta"))
    meta = {name: tensor.to("meta") for name, tensor in _tensors().items()}
    _bad("E279", "slopes is on the meta device and has no memory to read", **meta)
    _bad(
        "E279", "table has the layout torch.sparse_coo, expected a strided tensor", table=torch.zeros(2, 3).to_sparse()
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("window", 0, "parameter 'window' is 0, expected int in 1.."),
        ("window", -1, "for no limit give attn_dsl.UNBOUNDED (2147483647)"),
        ("window", 3.0, "parameter 'window' is 3.0 (float), expected int in 1.."),
        ("window", True, "parameter 'window' is True (bool), expected int in 1.."),
        ("window", None, "parameter 'window' is None (NoneType)"),
        ("window", "3", "parameter 'window' is '3' (str)"),
        ("window", float("inf"), "for no limit give attn_dsl.UNBOUNDED"),
        ("window", 2**31, "parameter 'window' is 2147483648"),
        ("cap", 0.5, "parameter 'cap' is 0.5, expected float in 1.0..=100.0"),
        ("cap", 101, "parameter 'cap' is 101, expected float in 1.0..=100.0"),
        ("cap", float("nan"), "parameter 'cap' is nan"),
        ("cap", True, "parameter 'cap' is True (bool)"),
        ("reach", UNBOUNDED, "parameter 'reach' is 2147483647, expected int in 0..=9"),
        ("window", torch.tensor([3]), "parameter 'window' is a tensor of shape [1], expected shape []"),
        ("window", torch.tensor(3.0), "parameter 'window' is a tensor of torch.float32, expected one of torch.int32"),
        ("reach", torch.zeros(3, dtype=torch.int32), "tensor of shape [3], expected shape [] or [heads] = [4]"),
        ("cap", torch.tensor(3), "parameter 'cap' is a tensor of torch.int64"),
    ],
)
def test_parameters(name, value, message):
    _bad("E274", message, **{name: value})


def test_values_a_parameter_may_have():
    for window in (1, UNBOUNDED, torch.tensor(3), torch.tensor(3, dtype=torch.int32)):
        for reach in (0, torch.tensor(2), torch.tensor([1, 2, 3, 4])):
            for cap in (1, 100.0, torch.tensor(7.0), torch.tensor(7.0, dtype=torch.bfloat16)):
                bind(SPEC, [], _tensors() | {"window": window, "reach": reach, "cap": cap})


def test_contents_of_parameter_tensors_are_checked_in_debug_mode_only():
    bad = {"reach": torch.tensor([1, 2, 10, 3]), "window": torch.tensor(0)}
    bind(SPEC, [], _tensors() | bad)
    error = _bad("E274", "parameter tensor reach[2] holds 10, expected int in 0..=9", debug=True, **bad)
    assert "parameter tensor window holds 0, expected int in 1.." in str(error)


def test_contents_of_geometry_are_checked_in_debug_mode():
    spec = attn_dsl.parse(
        "q: f32[total_q, heads, dim]\nk, v: f32[pages, page_size, heads, dim]\ncu: i32[batch + 1]\nused: i32[batch]\n"
        "table: i32[batch, most]\nlengths q { cu_seqlens = cu }\nlengths k { used = used }\npaged { table = table }"
    )

    def call(cu, used, table, debug):
        geometry = [torch.tensor(values, dtype=torch.int32) for values in (cu, used, table)]
        pool = torch.zeros(3, 4, 1, 2)
        return bind(spec, [torch.zeros(5, 1, 2), pool, pool, *geometry], {}, debug)

    good = ([0, 2, 5], [4, 5], [[0, -1], [2, 1]])
    assert call(*good, debug=True).extents["batch"] == 2
    for place, values, code in ((0, [0, 6, 5], "E275"), (1, [9, 0], "E276"), (2, [[3, 0], [2, 1]], "E277")):
        bad = [*good[:place], values, *good[place + 1 :]]
        assert call(*bad, debug=False).extents["most"] == 2
        with pytest.raises(CallError) as caught:
            call(*bad, debug=True)
        assert caught.value.code == code


def test_everything_that_is_wrong_is_said_at_once():
    error = _bad(
        "E270",
        k=torch.zeros(SHAPES["k"]),
        slopes=torch.zeros(7),
        window=0,
        cap="x",
        surplus=1,
        drop=["table"],
    )
    assert sorted({item.code for item in error.diagnostics}) == ["E270", "E271", "E272", "E274"]
    assert len(error.diagnostics) == 6


def test_cumulative_lengths_have_an_element_more_than_sequences():
    spec = attn_dsl.load(Path(__file__).parents[2] / "examples" / "packed_varlen.attn")
    rows = torch.zeros(0, 2, 8, dtype=torch.bfloat16)
    nothing, none = torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(CallError) as caught:
        bind(spec, (rows, rows, rows, nothing, nothing), {})
    assert [item.message for item in caught.value.diagnostics] == [
        "cu_seqlens_q has no elements, expected batch + 1",
        "cu_seqlens_k has no elements, expected batch + 1",
    ]
    with pytest.raises(CallError, match="axis 0 of cu_seqlens_q is 0, expected batch \\+ 1 = 1"):
        bind(spec, (rows, rows, rows, nothing, none), {})
    assert bind(spec, (rows, rows, rows, none, none), {}).extents["batch"] == 0
