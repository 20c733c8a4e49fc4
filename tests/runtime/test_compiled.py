"""The compiled object: how it is called, what it returns, what it writes, and which targets exist."""

import pytest
import torch

import attn_dsl
from attn_dsl import CallError, UnsupportedError
from attn_dsl.reference import attention
from attn_dsl.runtime import CompiledAttention, capabilities
from attn_dsl.runtime.capabilities import FEATURES, TARGETS
from attn_dsl.runtime.compiled import ReferenceBackend

TEXT = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
param window: int in 1.. = 4
mask = 0 <= q_pos - kv_idx < window
"""


def _operands(dtype=torch.bfloat16):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw).to(dtype) for shape in ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6))]


def _compiled(more="", target="reference"):
    return attn_dsl.compile(attn_dsl.parse(TEXT + more, name="window"), target=target)


def test_positional_and_named_tensors_give_the_same():
    q, k, v = _operands()
    one = _compiled()(q, k, v, window=3)
    assert torch.equal(one, _compiled()(q, v=v, k=k, window=3))
    assert torch.equal(one, _compiled()(window=3, q=q, k=k, v=v))
    assert not torch.equal(one, _compiled()(q, k, v))


def test_outputs_have_the_declared_dtype_and_axes():
    q, k, v = _operands()
    o = _compiled()(q, k, v)
    assert (o.dtype, o.shape) == (torch.bfloat16, (2, 5, 4, 6))
    o, lse = _compiled("o: f32[heads, batch, dim_v, seq_q]\n")(q, k, v, return_lse=True)
    assert (o.dtype, o.shape, lse.dtype, lse.shape) == (torch.float32, (4, 2, 6, 5), torch.float32, (2, 4, 5))
    assert o.is_contiguous()
    exact, exact_lse = attention(_compiled().spec, {"q": q, "k": k, "v": v}, {}, precision="float64")
    torch.testing.assert_close(o.permute(1, 3, 0, 2).double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


def test_lse_is_returned_when_declared_or_asked_for():
    q, k, v = _operands()
    declared = _compiled("lse: f32[batch, seq_q, heads]\n")
    assert isinstance(_compiled()(q, k, v), torch.Tensor)
    assert declared(q, k, v)[1].shape == (2, 5, 4)
    assert isinstance(declared(q, k, v, return_lse=False), torch.Tensor)
    assert len(_compiled()(q, k, v, lse=torch.empty(2, 4, 5))) == 2


def test_two_precisions():
    q, k, v = _operands(torch.float32)
    text = TEXT.replace("bf16", "f32")
    spec = attn_dsl.parse(text)
    single, double = (attn_dsl.compile(spec, target=target)(q, k, v) for target in ("reference", "reference-f64"))
    assert single.dtype == double.dtype == torch.float32
    exact = attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64")[0]
    assert torch.equal(double, exact.float())
    assert not torch.equal(single, double)


def test_gradients_flow_through_a_call():
    operands = [operand.requires_grad_() for operand in _operands()]
    _compiled()(*operands).float().square().sum().backward()
    assert all(operand.grad.dtype == torch.bfloat16 and operand.grad.abs().sum() > 0 for operand in operands)


def test_buffers_are_filled_whatever_they_held_and_whatever_their_strides():
    q, k, v = _operands()
    o, lse = _compiled()(q, k, v, window=1, return_lse=True)
    buffer = torch.full((2, 4, 5, 6), torch.nan, dtype=torch.bfloat16).transpose(1, 2)
    lse_buffer = torch.full((2, 4, 5), torch.nan)
    found, found_lse = _compiled()(q, k, v, window=1, out=buffer, lse=lse_buffer)
    assert found is buffer
    assert found_lse is lse_buffer
    assert torch.equal(buffer, o)
    assert torch.equal(lse_buffer, lse)


def test_bad_buffers():
    q, k, v = _operands()
    shared = torch.zeros(2 * 5 * 4 * 8, dtype=torch.bfloat16)
    cases = [
        (
            {"out": torch.empty(2, 5, 4, 8, dtype=torch.bfloat16)},
            "out has shape [2, 5, 4, 8], expected [2, 5, 4, 6] = [batch",
        ),
        ({"out": torch.empty(2, 5, 4, 6)}, "out has dtype f32, expected bf16"),
        ({"out": torch.empty(2, 5, 4, 6, dtype=torch.bfloat16, device="meta")}, "out is on meta, expected cpu"),
        ({"out": torch.empty(1, 5, 4, 6, dtype=torch.bfloat16).expand(2, 5, 4, 6)}, "two elements of out share memory"),
        ({"out": [1]}, "out is no strided tensor"),
        ({"lse": torch.empty(2, 5, 4)}, "lse has shape [2, 5, 4], expected [2, 4, 5] = [batch, heads, seq_q]"),
        ({"lse": torch.empty(2, 4, 5, dtype=torch.bfloat16)}, "lse has dtype bf16, expected f32"),
        (
            {"out": shared[: 2 * 5 * 4 * 6].view(2, 5, 4, 6), "q": shared.view(2, 5, 4, 8)},
            "memory of out overlaps the memory of q",
        ),
    ]
    for more, message in cases:
        with pytest.raises(CallError) as caught:
            _compiled()(**{"q": q, "k": k, "v": v} | more)
        assert caught.value.code == "E278"
        assert message in str(caught.value)


def test_out_and_lse_do_not_share_memory():
    spec = attn_dsl.parse("q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, heads, dim]")
    x, buffer = torch.ones(1, 2, 2, 1), torch.empty(4)
    with pytest.raises(CallError, match="the memory of lse overlaps the memory of out"):
        attn_dsl.compile(spec)(x, x, x, out=buffer.view(1, 2, 2, 1), lse=buffer.view(1, 2, 2))


def test_buffers_and_autograd_do_not_mix():
    operands = [operand.requires_grad_() for operand in _operands()]
    buffer = torch.empty(2, 5, 4, 6, dtype=torch.bfloat16)
    with pytest.raises(CallError, match=r"under torch.no_grad\(\)"):
        _compiled()(*operands, out=buffer)
    with torch.no_grad():
        assert _compiled()(*operands, out=buffer) is buffer


def test_nothing_is_written_when_a_call_is_wrong():
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, heads, dim]\nused: i32[batch]\n"
        "lengths k { used = used }"
    )
    x, buffer, lse = torch.ones(1, 2, 1, 4), torch.full((1, 2, 1, 4), 7.0), torch.full((1, 1, 2), 7.0)
    with pytest.raises(CallError) as caught:
        attn_dsl.compile(spec)(x, x, x, torch.tensor([3], dtype=torch.int32), out=buffer, lse=lse)
    assert caught.value.code == "E276"
    assert (buffer == 7).all()
    assert (lse == 7).all()


def test_it_is_frozen_and_says_what_it_is():
    compiled = _compiled()
    with pytest.raises(AttributeError):
        compiled.target = "other"
    assert repr(compiled) == (
        "CompiledAttention('window', target='reference': (q: bf16[batch, seq_q, heads, dim], "
        "k: bf16[batch, seq_k, kv_heads, dim], v: bf16[batch, seq_k, kv_heads, dim_v], window: int = 4) "
        "-> o: bf16[batch, seq_q, heads, dim_v])"
    )


def test_targets():
    spec = attn_dsl.parse(TEXT)
    assert attn_dsl.compile(spec) == CompiledAttention(spec, "reference", ReferenceBackend("float32"))
    for target in ("sm90", "sm100"):
        compiled = attn_dsl.compile(spec, target=target)
        with pytest.raises(UnsupportedError) as caught:
            compiled(*(torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16) for _ in range(3)))
        assert caught.value.code == "E282"
        assert f"target '{target}' runs on CUDA tensors of a " in str(caught.value)
    with pytest.raises(UnsupportedError) as caught:
        attn_dsl.compile(spec, target="sm9")
    assert caught.value.code == "E280"
    assert "did you mean 'sm90'?" in str(caught.value)


def test_capabilities_are_one_table_that_compile_obeys():
    table = capabilities()
    assert list(table) == [feature.name for feature in FEATURES]
    assert all(list(row) == list(TARGETS) for row in table.values())
    assert all(row["reference"] == "yes" for row in table.values())
    for target in TARGETS:
        works = table["forward"][target] == "yes"
        if works:
            assert attn_dsl.compile(attn_dsl.parse(TEXT), target=target).target == target
        else:
            assert " " in table["forward"][target]  # a reason in words
            with pytest.raises(UnsupportedError):
                attn_dsl.compile(attn_dsl.parse(TEXT), target=target)
