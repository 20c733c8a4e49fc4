"""What `from_flex` makes of names, numbers and tensors, and what it refuses, with the place."""

import functools

import pytest
import torch
from torch.nn.attention.flex_attention import and_masks

import attn_dsl
from attn_dsl import ConversionError

WINDOW = 5
DOCUMENT = torch.arange(12) // 4
TABLE = torch.ones(12, 3)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def local(b, h, q_idx, kv_idx):
    return q_idx - kv_idx < WINDOW


def same_document(b, h, q_idx, kv_idx):
    return DOCUMENT[q_idx] == DOCUMENT[kv_idx]


def window(size):
    def mask(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx).abs() < size

    return mask


def lines(converted):
    return converted.text.splitlines()


def test_the_text_is_the_one_a_person_writes():
    found = attn_dsl.from_flex(and_masks(causal, local, same_document), dtype=torch.float16)
    assert found.text == (
        "# Converted from FlexAttention: mask_mod and_mask.\n"
        "q: f16[batch, heads, seq_q, dim]\n"
        "k, v: f16[batch, kv_heads, seq_k, dim]\n"
        "DOCUMENT: i32[seq_k]\n"
        "const WINDOW: int = 5\n"
        "\n"
        "align top_left\n"
        "mask = kv_idx <= q_idx and q_idx - kv_idx < WINDOW and DOCUMENT[q_pos] == DOCUMENT[kv_idx]\n"
    )
    assert str(found) == found.text
    assert found.captures["DOCUMENT"].dtype is torch.int32
    assert found.notes == (
        "DOCUMENT was torch.int64; it is handed over as i32",
        "axis 0 of DOCUMENT is taken to be seq_k, for kv_idx reads it",
    )


def test_a_number_is_a_constant_that_compile_can_replace():
    found = attn_dsl.from_flex(local)
    assert dict(found.spec.constants) == {"WINDOW": 5}
    assert "q_idx - kv_idx < WINDOW" in found.text
    q = torch.zeros(1, 1, 9, 8)
    wider = attn_dsl.parse(attn_dsl.from_flex(local, dtype="f32").text, WINDOW=7)
    lse = attn_dsl.compile(wider)(q, q, q, return_lse=True)[1]
    assert lse[0, 0].exp().round().tolist() == [9, 9, 9, 9, 9, 9, 9, 8, 7][:9]


def test_a_number_can_be_a_run_time_parameter():
    found = attn_dsl.from_flex(local, params=["WINDOW"])
    assert "param WINDOW: int in 1.. = 5" in lines(found)


def test_a_tensor_of_one_element_is_a_parameter():
    cap = torch.tensor(30.0)
    found = attn_dsl.from_flex(None, lambda score, b, h, q, k: cap * torch.tanh(score / cap))
    assert "param cap: float = 30.0" in lines(found)
    assert found.captures == {"cap": cap}  # a call may give it, and the reference has its gradient


def test_numbers_of_one_name_and_two_values_keep_both():
    found = attn_dsl.from_flex(and_masks(window(3), window(5), window(3)))
    assert [line for line in lines(found) if line.startswith("const")] == [
        "const size: int = 3",
        "const size_2: int = 5",
    ]


def test_a_number_that_python_needs_is_no_constant():
    rounds, wide = 3, False

    def mask(b, h, q_idx, kv_idx):
        seen = q_idx == kv_idx
        for step in range(rounds):
            seen = seen | (q_idx - kv_idx == 2**step)
        return seen | (q_idx > kv_idx) if wide else seen

    found = attn_dsl.from_flex(mask)
    assert found.spec.constants == ()
    assert "q_idx - kv_idx == 4" in found.text or "t1 == 4" in found.text
    with pytest.raises(ConversionError, match="Python itself needs its value") as raised:
        attn_dsl.from_flex(mask, params=["rounds"])
    assert raised.value.code == "E400"


def test_reserved_names_get_another():
    scale, q = 2.0, torch.ones(4)
    found = attn_dsl.from_flex(None, lambda score, b, h, q_idx, kv_idx: score * scale * q[h])
    assert {"const scale_2: float = 2.0", "q_2: f32[heads]"} <= set(lines(found))


def test_extents_decide_whether_an_axis_gets_a_standard_name():
    slopes = torch.ones(8)
    mod = lambda score, b, h, q_idx, kv_idx: score + slopes[h]  # noqa: E731
    assert "slopes: f32[heads]" in lines(attn_dsl.from_flex(None, mod))
    assert "slopes: f32[heads]" in lines(attn_dsl.from_flex(None, mod, extents={"heads": 8}))
    found = attn_dsl.from_flex(None, mod, extents={"heads": 4})  # a longer table is legal in torch
    assert "slopes: f32[slopes_0]" in lines(found)


def test_a_score_of_minus_infinity_is_a_mask():
    mod = lambda score, b, h, q, k: torch.where(q >= k, score * 2, -torch.inf)  # noqa: E731
    assert lines(attn_dsl.from_flex(None, mod))[-2:] == ["mask = kv_idx <= q_idx", "score = score * 2.0"]


def test_what_hides_a_pair_is_compared_too(monkeypatch):
    from attn_dsl.convert import sheet

    right = sheet.Sheet.masked_by_score
    wrong = lambda self, mask, score: right(self, self.build.op("not", mask), score)  # noqa: E731
    monkeypatch.setattr(sheet.Sheet, "masked_by_score", wrong)
    with pytest.raises(ConversionError, match=r"score_mod of the score .* gives a visible pair") as raised:
        attn_dsl.from_flex(None, lambda score, b, h, q, k: torch.where(q >= k, score, -torch.inf))
    assert raised.value.code == "E401"


def test_an_infinity_deep_inside_stays_in_the_score():
    mod = lambda score, b, h, q, k: torch.maximum(score, torch.where(q >= k, 0.0, -torch.inf))  # noqa: E731
    found = attn_dsl.from_flex(None, mod)
    assert "log(0.0)" in found.text
    assert found.spec.mask.attr is True


def test_objects_partials_and_methods():
    class Near:
        def __init__(self):
            self.reach = 3
            self.table = torch.arange(10)

        def __call__(self, b, h, q_idx, kv_idx):
            return self.near(self.table[q_idx], kv_idx)

        def near(self, x, y):
            return torch.abs(x - y) <= self.reach

    expected = ["table: i32[seq_q]", "const reach: int = 3"]
    for mod in (Near(), Near().__call__, functools.partial(Near())):
        assert [line for line in lines(attn_dsl.from_flex(mod)) if line.startswith(("table", "const"))] == expected


def test_paged_masks_of_torch_itself():
    from torch.nn.attention.experimental._paged_attention import PagedAttention

    paged = PagedAttention(n_pages=8, page_size=4, max_batch_size=2, device="cpu")
    for sequence in range(2):
        paged.reserve(torch.tensor(sequence), torch.tensor(11))
    found = attn_dsl.from_flex(paged.get_mask_mod(causal), extents={"batch": 2, "seq_q": 11, "seq_k": 32})
    assert "physical_to_logical: i32[batch, physical_to_logical_1]" in lines(found)
    assert found.captures["physical_to_logical"].shape == (2, 8)


def test_masks_of_transformers():
    masking = pytest.importorskip("transformers.masking_utils")
    padding = torch.ones(2, 9, dtype=torch.bool)
    parts = masking.sliding_window_causal_mask_function(7), masking.padding_mask_function(padding)
    found = attn_dsl.from_flex(masking.and_masks(*parts))
    assert "padding_mask: bool[batch, seq_k]" in lines(found)
    seen = "q_idx - sliding_window < kv_idx and kv_idx <= q_idx and padding_mask[b, kv_idx]"
    assert lines(found)[-1] == f"mask = {seen}"


def test_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    size, scale = numpy.int64(4), numpy.float32(0.5)
    sizes = [numpy.int32(3)]
    found = attn_dsl.from_flex(
        lambda b, h, q_idx, kv_idx: (q_idx - kv_idx < size) & (kv_idx >= sizes[0]),
        lambda score, b, h, q_idx, kv_idx: score * scale,
    )
    assert {"const size: int = 4", "const scale_2: float = 0.5"} <= set(lines(found))
    assert "sizes <= kv_idx" in found.text


def test_modules_and_loops_over_tables():
    class Bias(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.arange(4.0))
            self.gain = torch.nn.Parameter(torch.tensor(2.5))

        def forward(self, score, b, h, q_idx, kv_idx):
            for step in steps:
                score = score + step * self.bias[h]
            return score * self.gain

    steps = torch.tensor([1.0, 2.0])
    module = Bias()
    found = attn_dsl.from_flex(None, module, dtype="f32")
    assert lines(found)[-1] == "score = (score + steps[0] * bias[h] + steps[1] * bias[h]) * gain"
    assert "param gain: float = 2.5" in lines(found)
    q, k, v = torch.randn(3, 1, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    attn_dsl.compile(found.spec)(q, k, v, **found.captures).square().sum().backward()
    assert module.gain.grad != 0


def test_attributes_of_an_object_that_could_be_called():
    embedding = torch.nn.Embedding(60, 2)
    found = attn_dsl.from_flex(None, lambda score, b, h, q, k: score + embedding.weight[(q - k).abs(), 1])
    assert lines(found)[-1] == "score = score + weight[abs(q_idx - kv_idx), 1]"
    assert found.captures["weight"] is embedding.weight


def test_pairs_outside_of_a_table_are_not_compared():
    table = torch.arange(7.0)
    found = attn_dsl.from_flex(None, lambda score, b, h, q_idx, kv_idx: score + table[(q_idx - kv_idx).abs()])
    assert "abs(q_idx - kv_idx)" in found.text
    nowhere = attn_dsl.from_flex(None, lambda score, b, h, q_idx, kv_idx: score + table[h + 100])
    assert any(note.startswith("nothing was compared") for note in nowhere.notes)


def test_a_negative_literal_index_counts_from_the_end():
    ends = torch.tensor([3, 7, 11])
    found = attn_dsl.from_flex(lambda b, h, q_idx, kv_idx: kv_idx < ends[-1])
    assert "mask = kv_idx < ends[2]" in lines(found)


def test_an_index_that_wraps_around_is_found_out():
    table = torch.arange(10.0)
    with pytest.raises(ConversionError) as raised:
        attn_dsl.from_flex(None, lambda score, b, h, q_idx, kv_idx: score + table[kv_idx % 10 - 5])
    assert raised.value.code == "E401"


def test_a_function_that_fails_for_a_pair_is_refused():
    with pytest.raises(ConversionError, match=r"E401.*mask_mod at b = 0, h = 0, .* fails: ZeroDivisionError"):
        attn_dsl.from_flex(lambda b, h, q_idx, kv_idx: q_idx // h == kv_idx)


def _if(b, h, q_idx, kv_idx):
    if q_idx > 3:
        return q_idx >= kv_idx
    return kv_idx < 3


def _chain(b, h, q_idx, kv_idx):
    return 0 <= q_idx - kv_idx < 4


def _python_max(b, h, q_idx, kv_idx):
    return kv_idx <= max(q_idx, 3)


def _item(b, h, q_idx, kv_idx):
    return kv_idx <= q_idx.item()


def _slice(b, h, q_idx, kv_idx):
    return (DOCUMENT[:4] == kv_idx).any()


def _whole_tensor(b, h, q_idx, kv_idx):
    return kv_idx == DOCUMENT


def _too_many_indices(b, h, q_idx, kv_idx):
    return DOCUMENT[q_idx, kv_idx] == 1


def _int_mask(b, h, q_idx, kv_idx):
    return q_idx & 1


def _half(b, h, q_idx, kv_idx):
    return q_idx.to(torch.float16) >= kv_idx


def _write(b, h, q_idx, kv_idx):
    DOCUMENT[q_idx] = 1
    return q_idx >= kv_idx


def _power(b, h, q_idx, kv_idx):
    return q_idx**kv_idx > 3


def _wrong_arity(b, h, q_idx):
    return q_idx > 3


def _latent(b, h, q_idx, kv_idx):
    return (TABLE[q_idx] * TABLE[kv_idx]).sum(-1) > 0


def _where(b, h, q_idx, kv_idx):
    return torch.where(q_idx >= kv_idx)


def _sum(b, h, q_idx, kv_idx):
    return (DOCUMENT[q_idx] * 1).sum() > kv_idx


@pytest.mark.parametrize(
    ("mask", "said", "line"),
    [
        (_if, "`if`, `and`", "if q_idx > 3:"),
        (_chain, "a chained comparison", "return 0 <= q_idx - kv_idx < 4"),
        (_python_max, "`min` or `max` needs", "return kv_idx <= max(q_idx, 3)"),
        (_item, "item() needs the value", "return kv_idx <= q_idx.item()"),
        (_slice, "'DOCUMENT' is read one element at a time", "return (DOCUMENT[:4] == kv_idx).any()"),
        (_whole_tensor, "'DOCUMENT' is used with 1 of its 1 axes unread", "return kv_idx == DOCUMENT"),
        (_too_many_indices, "'DOCUMENT' has 1 axes; given 2 indices", "return DOCUMENT[q_idx, kv_idx] == 1"),
        (_int_mask, "mask_mod gives int, and a mask is bool", None),
        (_half, "a conversion to torch.float16 rounds", "return q_idx.to(torch.float16) >= kv_idx"),
        (_write, "changes no tensor", "DOCUMENT[q_idx] = 1"),
        (_power, "an int to the power of an int", "return q_idx**kv_idx > 3"),
        (_wrong_arity, "mask_mod does not run on symbols: TypeError", None),
        (_latent, "'TABLE' is used with 1 of its 2 axes unread", "return (TABLE[q_idx] * TABLE[kv_idx]).sum(-1) > 0"),
        (_where, "'where' is called with arguments that have no meaning", "return torch.where(q_idx >= kv_idx)"),
        (_sum, "'sum' has no spelling", "return (DOCUMENT[q_idx] * 1).sum() > kv_idx"),
    ],
)
def test_refusals_name_the_reason_and_the_line(mask, said, line):
    with pytest.raises(ConversionError) as raised:
        attn_dsl.from_flex(mask)
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "E400"
    assert said in diagnostic.message
    if line is None:
        assert diagnostic.span is None
    else:
        source = diagnostic.span.source
        assert source.text[diagnostic.span.start : diagnostic.span.end] == line
        assert source.name == __file__


def test_tensors_that_no_dtype_holds():
    wide, large = torch.ones(4, dtype=torch.complex64), torch.tensor([2**40, 1])
    with pytest.raises(ConversionError, match="no dtype of the language holds its elements"):
        attn_dsl.from_flex(lambda b, h, q_idx, kv_idx: wide[q_idx].real > 0)
    with pytest.raises(ConversionError, match="do not fit i32"):
        attn_dsl.from_flex(lambda b, h, q_idx, kv_idx: large[q_idx] > 0)


def test_a_function_that_draws_is_found_out():
    with pytest.raises(ConversionError) as raised:
        attn_dsl.from_flex(lambda b, h, q_idx, kv_idx: torch.rand(()) < 0.5)
    assert raised.value.code == "E401"


def test_arguments_of_from_flex():
    with pytest.raises(TypeError, match="a mask_mod, a score_mod, or both"):
        attn_dsl.from_flex()
    with pytest.raises(TypeError, match="not of \\['rows'\\]"):
        attn_dsl.from_flex(causal, extents={"rows": 4})
    with pytest.raises(TypeError, match="dtype is one of"):
        attn_dsl.from_flex(causal, dtype="f31")
    with pytest.raises(ConversionError, match="params names 'size'"):
        attn_dsl.from_flex(causal, params=["size"])


def test_the_functions_are_not_changed():
    mask = window(4)
    before = mask.__closure__[0].cell_contents, WINDOW, DOCUMENT.clone()
    attn_dsl.from_flex(and_masks(mask, local, same_document))
    assert mask.__closure__[0].cell_contents == before[0]
    assert before[1] == WINDOW
    assert torch.equal(before[2], DOCUMENT)


def test_gradients_reach_a_captured_tensor():
    table = torch.zeros(4, requires_grad=True)
    found = attn_dsl.from_flex(causal, lambda score, b, h, q, k: score + table[h] * k, dtype="f32")
    q, k, v = torch.randn(3, 1, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    attn_dsl.compile(found.spec)(q, k, v, **found.captures).sum().backward()
    assert (table.grad != 0).all()


def test_a_notebook_shows_the_text_and_the_spec():
    shown = attn_dsl.from_flex(causal)._repr_html_()
    assert shown.startswith("<pre># Converted from FlexAttention: mask_mod causal.\n")
    assert "mask = kv_idx &lt;= q_idx\n</pre>" in shown
    assert "<svg" in shown


def test_a_converted_spec_is_saved_as_a_file(tmp_path):
    found = attn_dsl.from_flex(causal)
    found.save(tmp_path / "causal.attn")
    assert attn_dsl.load(tmp_path / "causal.attn").mask == found.spec.mask
