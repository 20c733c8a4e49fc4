"""What the checker makes of sound texts: typed expressions, proofs, defaults, constants."""

from __future__ import annotations

import math

import pytest

import attn_dsl
from attn_dsl.expr.text import to_text
from attn_dsl.spec.model import AlignKind, DType, Lengths, Paging, Role

PRELUDE = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"


def parse(text: str, **constants: object) -> attn_dsl.AttentionSpec:
    return attn_dsl.parse(PRELUDE + text, **constants)


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ("0 <= q_pos - kv_idx < 4", "0 <= q_pos - kv_idx and q_pos - kv_idx < 4"),
        ("q_pos > kv_idx", "kv_idx < q_pos"),
        ("kv_idx < 2 + 3 * 4", "kv_idx < 14"),
        ("kv_idx < 7 // -2 + 10", "kv_idx < 6"),
        ("kv_idx % 4 == -1 % 4", "kv_idx % 4 == 3"),
        ("kv_idx < 1.5", "float(kv_idx) < 1.5"),
        ("true and kv_idx < 3", "kv_idx < 3"),
        ("any(i in 0..3: kv_idx == i * i)", "kv_idx == 0 or kv_idx == 1 or kv_idx == 4"),
        ("all(i in 0..0: kv_idx == i)", "true"),
        ("clamp(kv_idx, 1, 5) == 1", "max(min(kv_idx, 5), 1) == 1"),
        ("kv_idx < unbounded", "kv_idx < 2147483647"),
        ("not not (kv_idx < 3)", "kv_idx < 3"),
        ("(kv_idx if q_idx > 1 else q_idx) == 0", "(kv_idx if 1 < q_idx else q_idx) == 0"),
    ],
)
def test_masks_are_typed_and_folded(written, typed):
    assert to_text(parse(f"mask = {written}").mask) == typed


def test_functions_lets_and_named_arguments_expand():
    spec = parse(
        "def near(reach: int, to: int) -> bool {\n  let d = abs(q_pos - to)\n  d <= reach\n}\n"
        "let centre = kv_idx\nmask = near(to = centre, reach = 3)"
    )
    assert to_text(spec.mask) == "abs(q_pos - kv_idx) <= 3"


def test_tensor_arguments_of_any_element_type_of_their_kind():
    spec = parse(
        "bias: bf16[heads, 5]\ndef at(table: float[_, _], i: int) -> float = table[h, i]\nscore = score + at(bias, 4)"
    )
    assert to_text(spec.score) == "score + bias[h, 4]"


def test_defaults():
    spec = parse("")
    assert spec.mask.attr is True
    assert to_text(spec.score) == "score"
    assert to_text(spec.scale) == "1.0 / sqrt(float(dim))"
    assert spec.align.kind is AlignKind.BOTTOM_RIGHT
    assert (spec.sink, spec.paging, spec.lse, spec.lse_base, spec.pack_gqa) == (None, None, None, "e", "auto")
    assert [str(axis) for axis in spec.output.axes] == ["batch", "seq_q", "heads", "dim"]
    assert spec.output.dtype is DType.BF16


def test_fixed_axes_and_constants_fold_and_can_be_given():
    text = "const n: int = 3\nconst elem: dtype = f16\nbias: elem[heads, n]\nscore = score + bias[h, n - 1]"
    spec = parse(text, dim=64, n=5, elem="f32")
    assert spec.scale.attr == pytest.approx(0.125)
    assert spec.fixed_axes == (("dim", 64),)
    assert to_text(spec.score) == "score + bias[h, 4]"
    assert spec.tensor("bias").dtype is DType.F32
    assert dict(spec.constants) == {"n": 5, "elem": DType.F32}
    for wrong in ({"m": 1}, {"n": 1.5}, {"elem": "f64"}, {"dim": "x"}, {"dim": 0}):
        with pytest.raises(attn_dsl.SpecError):
            parse(text, **wrong)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", 2**63, "the value given for constant 'c' exceeds 64 bits"),
        ("float", -(10**400), "the value given for constant 'c' exceeds 64 bits"),
        ("float", math.inf, "constant 'c' is a finite float; given inf .float."),
        ("float", math.nan, "given nan .float."),
        ("int", True, "constant 'c' is int; given True .bool."),
        ("int", None, "constant 'c' is given None"),
    ],
)
def test_given_constants_are_numbers_a_file_could_hold(kind, value, message):
    with pytest.raises(attn_dsl.SpecError, match=message) as error:
        parse(f"const c: {kind} = 3\nscore = score * c", c=value)
    assert error.value.code == "E223"


def test_numpy_integers_are_ints():
    numpy = pytest.importorskip("numpy")
    text = "const c: int = 3\nmask = kv_idx < c * dim"
    assert parse(text, c=numpy.int64(5), dim=numpy.int32(8)) == parse(text, c=5, dim=8)


def test_compile_changes_constants_of_a_typed_spec():
    spec = parse("const n: int = 3\nmask = kv_idx < n", n=4)
    compiled = attn_dsl.compile(spec, target="reference", dim=32)
    assert to_text(compiled.spec.mask) == "kv_idx < 4"
    assert compiled.spec.fixed("dim") == 32


def test_without_kv_heads_a_head_is_its_own():
    spec = attn_dsl.parse(
        "q: f16[batch, heads, seq_q, dim]\nk, v: f16[batch, heads, seq_k, dim]\nbias: f32[heads]\n"
        "score = score + bias[kv_h]"
    )
    assert spec.kv_heads_axis == "heads"
    assert to_text(spec.score) == "score + bias[h]"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # proved by numbers, by the axis of the index, or as a linear inequality over extents
        ("t: f32[heads]\nscore = score + t[h]", "t[h]"),
        ("t: f32[64]\nscore = score + t[kv_idx % 64]", "t[kv_idx % 64]"),
        ("t: f32[batch, seq_k]\nscore = score + t[b, kv_idx]", "t[b, kv_idx]"),
        ("t: f32[seq_q + seq_k - 1]\nscore = score + t[kv_idx - q_idx + seq_q - 1]", "t[kv_idx - q_idx + seq_q - 1]"),
        ("t: f32[seq_q]\nscore = score + t[q_idx // 2]", "t[q_idx // 2]"),
        # not proved: clamped
        ("t: f32[batch, seq_k]\nscore = score + t[b, q_pos]", "t[b, max(min(q_pos, seq_k - 1), 0)]"),
        ("t: f32[n]\nscore = score + t[kv_idx]", "t[max(min(kv_idx, n - 1), 0)]"),
        ("align top_left\nt: f32[batch, seq_k]\nscore = score + t[b, q_pos]", "t[b, max(min(q_pos, seq_k - 1), 0)]"),
    ],
)
def test_reads_are_proved_inside_or_clamped(text, read):
    assert to_text(parse(text).score) == f"score + {read}"


def test_a_clamp_is_said_in_a_note(check):
    checked = check("t: f32[n]\nscore = score + t[kv_idx]")
    assert [(d.code, d.severity.value) for d in checked.diagnostics] == [("W266", "note")]
    assert checked.spec is not None


def test_a_mask_that_is_never_true_is_said_in_a_warning(check):
    checked = check("mask = kv_idx < 0")
    assert [(d.code, d.severity.value) for d in checked.diagnostics] == [("W265", "warning")]


def test_widths():
    spec = parse("param n: int\nmask = kv_idx * 2 + 1 < n or kv_idx * kv_idx < n")
    wide = {to_text(node) for node in spec.wide}
    assert wide == {"kv_idx * kv_idx", "kv_idx * 2 + 1"} - {"kv_idx * 2 + 1"}
    spec = parse("param n: int\nmask = q_pos - kv_idx < n - 1")
    assert {to_text(node) for node in spec.wide} == {"n - 1"}


@pytest.mark.parametrize("align", ["bottom_right", "top_left", "offset(start)"])
def test_differences_of_positions_always_fit_32_bits(align):
    param = "param start: int[batch]\n" if "start" in align else ""
    spec = parse(f"{param}align {align}\nmask = abs(q_pos - kv_idx) <= 3")
    assert "abs(q_pos - kv_idx)" not in {to_text(node) for node in spec.wide}
    assert "q_pos - kv_idx" not in {to_text(node) for node in spec.wide}


def test_geometry_and_roles():
    spec = attn_dsl.parse(
        "q: f16[total_q, heads, dim]\nkv: f16[pages, 2, page_size, kv_heads, dim]\n"
        "view k = kv[:, 0, :, :, :]\nview v = kv[:, 1, :, :, :]\n"
        "cu: i32[batch + 1]\nused: i32[batch]\npad: i32[batch]\npage_table: i32[batch, max_pages]\n"
        "lse: f32[heads, total_q]\n"
        "lengths q { cu_seqlens = cu }\nlengths k { used = used, left_pad = pad }\npaged { table = page_table }\n"
        "lse_base = 2"
    )
    assert spec.lengths_q == Lengths(cu_seqlens="cu")
    assert spec.lengths_k == Lengths(used="used", left_pad="pad")
    assert spec.paging == Paging(table="page_table")
    assert spec.lse is not None
    assert spec.lse_base == "2"
    roles = {tensor.name: tensor.role for tensor in spec.tensors}
    assert roles["kv"] is Role.POOL
    assert {roles[name] for name in ("cu", "used", "pad", "page_table")} == {Role.GEOMETRY}
    assert [str(axis) for axis in spec.tensor("v").axes] == ["pages", "page_size", "kv_heads", "dim"]


def test_a_view_of_k_as_v():
    spec = attn_dsl.parse(
        "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, kv_heads, dim]\nview v = k[:, :, :, 0..512]\n"
        "axis dim = 576"
    )
    assert spec.fixed("dim_v") == 512
    assert spec.dim_v_axis == "dim_v"
    assert [str(axis) for axis in spec.output.axes] == ["batch", "seq_q", "heads", "dim_v"]


def test_params():
    spec = parse(
        "param w: int[heads] in 1.. = 128\nparam cap: float in 1.0..=100.0 = 50\nparam n: int in 0..10\n"
        "mask = q_pos - kv_idx < w + n\nscore = cap * tanh(score / cap)"
    )
    w, cap, n = spec.params
    assert (w.per, w.low, w.high, w.default) == ("heads", 1, None, 128)
    assert (cap.low, cap.high, cap.default) == (1.0, 100.0, 50.0)
    assert isinstance(cap.default, float)
    assert (n.low, n.high, n.default) == (0, 9, None)


def test_folding_matches_double_precision():
    spec = parse("score = score * (exp2(-8.0 / 3) + 1 / 7)")
    assert to_text(spec.score) == f"score * {2.0 ** (-8.0 / 3) + 1 / 7!r}"
    assert parse("score = score + log(0.0)").score.args[1].attr == -math.inf
