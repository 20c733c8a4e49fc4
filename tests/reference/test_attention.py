"""The reference against a row-by-row float64 softmax: layouts, alignments, groups of heads, scores, sinks, outputs."""

import math

import pytest
import torch
from dense import Sequence, dense_attention

import attn_dsl
from attn_dsl.reference import attention, mask_block, sequence_lengths

BSHD = """
q: f32[batch, seq_q, heads, dim]
k: f32[batch, seq_k, kv_heads, dim]
v: f32[batch, seq_k, kv_heads, dim_v]
"""


def _operands(batch=2, seq_q=13, seq_k=17, heads=6, kv_heads=2, dim=8, dim_v=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = (batch, seq_q, heads, dim), (batch, seq_k, kv_heads, dim), (batch, seq_k, kv_heads, dim_v)
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def _expected(q, k, v, mask=lambda row: True, score=lambda s, row: s, shift=None, **more):
    """o[batch, seq_q, heads, dim_v] and lse[batch, heads, seq_q] of unpacked operands."""
    shift = len(k[0]) - len(q[0]) if shift is None else shift
    sequences = [Sequence(q[b], k[b], v[b], shift if isinstance(shift, int) else shift[b]) for b in range(len(q))]
    o, lse = zip(*dense_attention(sequences, mask, score, **more), strict=True)
    return torch.stack(o), torch.stack(lse).transpose(1, 2)


def _close(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("block_q", "block_k"), [(None, None), (1, 1), (4, 3), (13, 17), (5, 100)])
def test_blocks_do_not_change_the_result(block_q, block_k):
    spec = attn_dsl.parse(BSHD + "mask = kv_idx <= q_pos")
    q, k, v = _operands()
    found = attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64", block_q=block_q, block_k=block_k)
    _close(found, _expected(q, k, v, lambda row: row.j <= row.p))


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (1, 9), (9, 1), (12, 7), (7, 12), (0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize(
    ("align", "shift"),
    [
        ("align bottom_right", lambda seq_q, seq_k: seq_k - seq_q),
        ("align top_left", lambda seq_q, seq_k: 0),
        ("align offset(3)", lambda seq_q, seq_k: 3),
        ("align offset(start)\nparam start: int", lambda seq_q, seq_k: -2),
    ],
    ids=["bottom_right", "top_left", "constant", "parameter"],
)
def test_alignments(seq_q, seq_k, align, shift):
    spec = attn_dsl.parse(BSHD + f"mask = kv_idx <= q_pos\n{align}")
    q, k, v = _operands(seq_q=seq_q, seq_k=seq_k)
    params = {"start": -2} if "start" in align else {}
    found = attention(spec, {"q": q, "k": k, "v": v}, params, precision="float64", block_q=4, block_k=4)
    _close(found, _expected(q, k, v, lambda row: row.j <= row.p, shift=shift(seq_q, seq_k)))


def test_an_offset_per_sequence():
    spec = attn_dsl.parse(BSHD + "cached: i32[batch]\nalign offset(cached[b])\nmask = kv_idx <= q_pos")
    q, k, v = _operands(batch=3, seq_q=3)
    cached = torch.tensor([0, 14, 5], dtype=torch.int32)
    found = attention(spec, {"q": q, "k": k, "v": v, "cached": cached}, {}, precision="float64", block_k=6)
    _close(found, _expected(q, k, v, lambda row: row.j <= row.p, shift=[0, 14, 5]))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 1), (6, 2), (4, 1), (8, 2), (7, 1), (14, 2), (3, 3)])
def test_groups_of_heads(heads, kv_heads):
    """kv_h = h // group in products and in expressions; masks and scores may differ between heads."""
    spec = attn_dsl.parse(
        BSHD + "wide: f32[heads]\nper_kv: f32[kv_heads]\nmask = kv_idx <= q_pos + h % 3\n"
        "score = score * wide[h] + per_kv[kv_h] * float(kv_idx)"
    )
    q, k, v = _operands(heads=heads, kv_heads=kv_heads)
    draw = torch.Generator().manual_seed(1)
    wide, per_kv = (torch.randn(n, generator=draw, dtype=torch.float64) for n in (heads, kv_heads))
    tensors = {"q": q, "k": k, "v": v, "wide": wide, "per_kv": per_kv}
    expected = _expected(
        q, k, v, lambda row: row.j <= row.p + row.h % 3, lambda s, row: s * wide[row.h] + per_kv[row.kv_h] * row.j
    )
    _close(attention(spec, tensors, {}, precision="float64", block_q=4, block_k=5), expected)


def test_as_many_kv_heads_as_heads_without_an_axis_of_their_own():
    spec = attn_dsl.parse(
        "q: f32[batch, seq_q, heads, dim]\nk, v: f32[batch, seq_k, heads, dim]\nmask = kv_h != 1 or kv_idx > 2"
    )
    q, k, v = _operands(heads=3, kv_heads=3, dim_v=8)
    found = attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64")
    _close(found, _expected(q, k, v, lambda row: torch.as_tensor(row.h != 1) | (row.j > 2)))


def test_any_axis_order_and_any_stride():
    spec = attn_dsl.parse(
        "q: f32[heads, dim, batch, seq_q]\nk: f32[batch, kv_heads, seq_k, dim]\nv: f32[dim_v, seq_k, kv_heads, batch]\n"
        "o: f32[dim_v, heads, seq_q, batch]\nlse: f32[seq_q, batch, heads]\nmask = kv_idx <= q_pos"
    )
    q, k, v = _operands()
    tensors = {
        "q": q.permute(2, 3, 0, 1),
        "k": k.permute(0, 2, 1, 3).contiguous(),
        "v": torch.stack([v, -v], -1)[..., 0].permute(3, 1, 2, 0),
    }
    o, lse = attention(spec, tensors, {}, precision="float64", block_q=4)
    expected = _expected(q, k, v, lambda row: row.j <= row.p)
    _close((o.permute(3, 2, 1, 0), lse.permute(1, 2, 0)), expected)


def test_scale_softcap_and_parameters_of_every_kind():
    spec = attn_dsl.parse(
        BSHD + "param cap: float in 1.0.. = 50.0\nparam factor: float\nparam reach: int[heads] in 1..\n"
        "param shift: float[batch]\nparam per_kv: float[kv_heads]\nscale = factor / sqrt(float(dim))\n"
        "mask = 0 <= q_pos - kv_idx < reach\n"
        "score = cap * tanh(score / cap) + shift * float(kv_idx) + per_kv * float(q_idx - kv_idx)"
    )
    q, k, v = _operands()
    reach = torch.tensor([1, 2, 3, 4, 50, 2**31 - 1])
    shift, per_kv = torch.tensor([0.1, -0.2], dtype=torch.float64), torch.tensor([0.3, -0.1], dtype=torch.float64)
    params = {
        "cap": torch.tensor(4.0, dtype=torch.float64),
        "factor": 3,
        "reach": reach,
        "shift": shift,
        "per_kv": per_kv,
    }
    expected = _expected(
        q,
        k,
        v,
        lambda row: (row.j <= row.p) & (row.p - row.j < reach[row.h]),
        lambda s, row: 4 * torch.tanh(s / 4) + shift[row.b] * row.j + per_kv[row.kv_h] * (row.i - row.j),
        scale=3 / math.sqrt(8),
    )
    _close(attention(spec, {"q": q, "k": k, "v": v}, params, precision="float64", block_q=4, block_k=5), expected)


def test_parameter_tensors_are_clamped_into_their_range():
    spec = attn_dsl.parse(BSHD + "param chunk: int in 1..=4\nmask = kv_idx // chunk == q_idx // chunk")
    q, k, v = _operands()
    for given, meant in ((0, 1), (-7, 1), (3, 3), (99, 4)):
        found = attention(spec, {"q": q, "k": k, "v": v}, {"chunk": torch.tensor(given)}, precision="float64")
        _close(found, _expected(q, k, v, lambda row, meant=meant: row.j // meant == row.i // meant))


@pytest.mark.parametrize(("given", "end"), [("1.0..=3.0", 3.0), ("2.0..", 2.0), ("..=3.0", 3.0)])
def test_nan_in_a_parameter_tensor_is_an_end_of_its_range(given, end):
    spec = attn_dsl.parse(BSHD + f"param size: float in {given}\nmask = kv_idx // max(floor(size), 1) == 0")
    tensors = dict(zip("qkv", _operands(), strict=True))
    expected = attention(spec, tensors, {"size": end})
    _close(attention(spec, tensors, {"size": torch.tensor(math.nan)}), expected)


def test_int_parameter_tensors_without_a_range_are_clamped_into_i32():
    """Proofs of integer widths rely on it: (2^31 - 1) * 2^31 fits i64, 2^40 * 2^31 does not."""
    spec = attn_dsl.parse(
        BSHD + "param reach: int\nmask = kv_idx * 2147483648 < reach * 2147483648 and kv_idx <= q_pos"
    )
    q, k, v = _operands()
    found = attention(spec, {"q": q, "k": k, "v": v}, {"reach": torch.tensor(2**40)}, precision="float64")
    _close(found, _expected(q, k, v, lambda row: row.j <= row.p))


def test_something_missing():
    spec = attn_dsl.parse(BSHD + "param reach: int\nmask = kv_idx < reach")
    q, k, v = _operands()
    with pytest.raises(attn_dsl.CallError, match="k is missing"):
        attention(spec, {"q": q, "v": v}, {"reach": 3})
    with pytest.raises(attn_dsl.CallError, match="parameter 'reach' has no default"):
        attention(spec, {"q": q, "k": k, "v": v}, {})


def test_captures_read_by_every_index():
    spec = attn_dsl.parse(
        BSHD + "bias: bf16[heads, seq_q, seq_k]\nids: i32[batch, seq_k]\nkeep: bool[seq_q]\n"
        "relative: f32[heads, seq_q + seq_k - 1]\nsmall: u8[2, 3]\n"
        "mask = ids[b, kv_idx] != 2 and keep[q_idx]\n"
        "score = score + bias[h, q_idx, kv_idx] + relative[h, kv_idx - q_idx + seq_q - 1] + float(small[1, kv_idx % 3])"
    )
    q, k, v = _operands()
    draw = torch.Generator().manual_seed(2)
    bias = torch.randn(6, 13, 17, generator=draw).bfloat16()
    ids = torch.randint(0, 3, (2, 17), generator=draw, dtype=torch.int32)
    keep = torch.rand(13, generator=draw) < 0.8
    relative = torch.randn(6, 29, generator=draw, dtype=torch.float64)
    small = torch.tensor([[0, 0, 0], [1, 0, 200]], dtype=torch.uint8)
    tensors = {"q": q, "k": k, "v": v, "bias": bias, "ids": ids, "keep": keep, "relative": relative, "small": small}
    expected = _expected(
        q,
        k,
        v,
        lambda row: (ids[row.b] != 2) & keep[row.i],
        lambda s, row: s + bias[row.h, row.i].double() + relative[row.h, row.j - row.i + 12] + small[1, row.j % 3],
    )
    _close(attention(spec, tensors, {}, precision="float64", block_q=5, block_k=7), expected)


def test_an_index_outside_its_axis_is_clamped():
    spec = attn_dsl.parse(BSHD + "table: f32[5]\nscore = score + table[kv_idx - q_idx]")
    q, k, v = _operands()
    table = torch.arange(5.0, dtype=torch.float64)
    found = attention(spec, {"q": q, "k": k, "v": v, "table": table}, {}, precision="float64")
    _close(found, _expected(q, k, v, score=lambda s, row: s + table[(row.j - row.i).clamp(0, 4)]))


@pytest.mark.parametrize("sink", [0.0, -3.0, 50.0, -math.inf])
def test_sinks(sink):
    """exp(sink) joins the denominator, untouched by scale and score; a row that sees nothing has O = 0, LSE = sink."""
    spec = attn_dsl.parse(
        BSHD + "sinks: f32[heads]\nsink = sinks[h]\nscale = 0.5\nscore = 2.0 * score\nmask = kv_idx < q_idx - 2"
    )
    q, k, v = _operands()
    sinks = torch.linspace(-1, 1, 6, dtype=torch.float64) + sink
    found = attention(spec, {"q": q, "k": k, "v": v, "sinks": sinks}, {}, precision="float64", block_k=4)
    expected = _expected(
        q, k, v, lambda row: row.j < row.i - 2, lambda s, row: 2 * s, scale=0.5, sink=lambda b, h: sinks[h]
    )
    _close(found, expected)
    assert (found[0][:, :3] == 0).all()
    assert torch.equal(found[1][:, :, 0], sinks.expand(2, 6))


def test_a_row_without_a_visible_key_gives_zero_and_minus_infinity():
    spec = attn_dsl.parse(BSHD + "mask = kv_idx < q_idx - 4 and h != 3")
    q, k, v = _operands()
    o, lse = attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64", block_q=4, block_k=4)
    assert (o[:, :5] == 0).all()
    assert (lse[:, :, :5] == -math.inf).all()
    assert (o[:, :, 3] == 0).all()
    assert lse[:, :3, 5:].isfinite().all()


def test_scores_of_minus_infinity_at_visible_keys():
    """A weight of 0; where all visible scores are -inf, a row without a visible key. NaN scores give NaN."""
    spec = attn_dsl.parse(BSHD + "bias: f32[seq_q, seq_k]\nscore = score + bias[q_idx, kv_idx]")
    q, k, v = _operands()
    bias = torch.zeros(13, 17, dtype=torch.float64)
    bias[2, :9] = -math.inf
    bias[3] = -math.inf
    bias[4, 16] = math.nan
    o, lse = attention(spec, {"q": q, "k": k, "v": v, "bias": bias}, {}, precision="float64", block_k=4)
    expected = _expected(q, k, v, score=lambda s, row: s + bias[row.i])
    rows = [i for i in range(13) if i != 4]
    _close((o[:, rows], lse[:, :, rows]), (expected[0][:, rows], expected[1][:, :, rows]))
    assert (o[:, 3] == 0).all()
    assert (lse[:, :, 3] == -math.inf).all()
    assert o[:, 4].isnan().all()
    assert lse[:, :, 4].isnan().all()


@pytest.mark.parametrize("sink", ["", "sink = 1.5", "sink = log(0.0)"])
def test_a_weight_of_zero_takes_nothing_from_v(sink):
    spec = attn_dsl.parse(BSHD + f"bias: f32[seq_k]\nscore = score + bias[kv_idx]\nmask = kv_idx > 14\n{sink}")
    q, k, v = _operands()
    v[:, 15:] = math.nan
    bias = torch.full((17,), -math.inf, dtype=torch.float64)
    o, lse = attention(spec, {"q": q, "k": k, "v": v, "bias": bias}, {}, precision="float64", block_k=5)
    assert (o == 0).all()
    assert (lse == (1.5 if "1.5" in sink else -math.inf)).all()


def test_lse_in_base_two():
    text = BSHD + "mask = kv_idx < q_idx\nsinks: f32[heads]\nsink = sinks[h]\n"
    q, k, v = _operands()
    tensors = {"q": q, "k": k, "v": v, "sinks": torch.linspace(-1, 1, 6, dtype=torch.float64)}
    o, lse = attention(attn_dsl.parse(text), tensors, {}, precision="float64")
    o2, lse2 = attention(attn_dsl.parse(text + "lse_base = 2"), tensors, {}, precision="float64")
    assert torch.equal(o, o2)
    torch.testing.assert_close(lse2, lse / math.log(2), rtol=1e-14, atol=0)


def test_descale_says_what_the_elements_of_q_k_and_v_stand_for():
    """The same as multiplied before, under everything that comes after the products."""
    text = BSHD + "sinks: f32[heads]\nsink = sinks[h]\nscore = 3.0 * tanh(score / 3.0)\nmask = kv_idx <= q_pos\n"
    factors = "fq: f32[heads]\nfk, fv: f32[batch, kv_heads]\n"
    factors += "descale v = fv[b, kv_h]\ndescale k = fk[b, kv_h]\ndescale q = fq[h]\n"
    q, k, v = _operands()
    sinks = {"sinks": torch.linspace(-1, 1, q.shape[2], dtype=torch.float64)}
    make = torch.Generator().manual_seed(3)
    fk, fv = (torch.rand(k.shape[0], k.shape[2], dtype=torch.float64, generator=make) + 0.5 for _ in range(2))
    fq = torch.rand(q.shape[2], dtype=torch.float64, generator=make) + 0.5
    given = {"q": q, "k": k, "v": v, "fq": fq, "fk": fk, "fv": fv} | sinks
    found = attention(attn_dsl.parse(text + factors), given, {}, precision="float64", block_k=4)
    before = {"q": q * fq[:, None], "k": k * fk[:, None, :, None], "v": v * fv[:, None, :, None]} | sinks
    _close(found, attention(attn_dsl.parse(text), before, {}, precision="float64"))


def test_large_logits_neither_overflow_nor_lose_a_row():
    spec = attn_dsl.parse(BSHD + "score = 1000.0 * score")
    q, k, v = _operands()
    found = attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64", block_k=3)
    assert found[0].isfinite().all()
    _close(found, _expected(q, k, v, score=lambda s, row: 1000 * s))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_inputs_of_every_dtype_are_converted_first(dtype):
    """The only error against float64 on the same rounded inputs is that of f32 arithmetic."""
    spec = attn_dsl.parse(BSHD + "mask = kv_idx <= q_pos")
    rounded = [operand.to(dtype) for operand in _operands()]
    o, lse = attention(spec, dict(zip("qkv", rounded, strict=True)), {})
    assert o.dtype == lse.dtype == torch.float32
    expected = _expected(*(operand.double() for operand in rounded), lambda row: row.j <= row.p)
    torch.testing.assert_close(o.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected[1], rtol=1e-5, atol=1e-5)


def test_autocast_around_it_changes_nothing():
    spec = attn_dsl.parse(BSHD + "mask = kv_idx <= q_pos")
    operands = [operand.float().requires_grad_() for operand in _operands()]
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            o, lse = attention(spec, dict(zip("qkv", operands, strict=True)), {})
            results.append((o, lse, *torch.autograd.grad(o.square().sum(), operands)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_batch_of_zero():
    spec = attn_dsl.parse(BSHD + "mask = kv_idx <= q_pos")
    q, k, v = _operands(batch=0)
    o, lse = attention(spec, {"q": q, "k": k, "v": v}, {})
    assert o.shape == (0, 13, 6, 5)
    assert lse.shape == (0, 6, 13)


def test_many_batch_entries_are_cut_into_groups():
    """More entries than fit one group, with a mask that tells them apart."""
    spec = attn_dsl.parse(BSHD + "mask = kv_idx <= q_pos and (kv_idx + b) % 3 != 0")
    q, k, v = _operands(batch=40, seq_q=3, seq_k=5, heads=4, kv_heads=2)
    found = attention(spec, {"q": q, "k": k, "v": v}, {}, precision="float64")
    _close(found, _expected(q, k, v, lambda row: (row.j <= row.p) & ((row.j + row.b) % 3 != 0)))


def test_the_mask_alone():
    spec = attn_dsl.parse(BSHD + "mask = kv_idx <= q_pos and h != 1")
    q, k, v = _operands()
    tensors = {"q": q, "k": k, "v": v}
    block = mask_block(spec, tensors, {}, batch=1, head=2, rows=slice(3, 9), cols=slice(2, 40))
    assert torch.equal(block, torch.arange(2, 17)[None] <= torch.arange(3, 9)[:, None] + 4)
    assert not mask_block(spec, tensors, {}, batch=0, head=1, rows=slice(None), cols=slice(None)).any()
    assert sequence_lengths(spec, tensors) == ([13, 13], [17, 17])
