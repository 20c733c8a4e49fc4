"""Every rule of the checker: a text that breaks it gives its code, alone, with a caret under the culprit."""

from __future__ import annotations

import pytest

# code, text behind the declarations of q, k and v, the text under the caret
CASES = [
    ("E220", "mask = kv_idxx <= q_pos", "kv_idxx"),
    ("E220", "mask = kv_idx <= pages", "pages"),
    ("E220", "mask = inside(3)", "inside"),
    ("E220", "mask = some(i in 0..3: i == kv_idx)", "some(i in 0..3: i == kv_idx)"),
    ("E221", "let h = 3", "h"),
    ("E221", "let a = 3\nlet a = 4", "a"),
    ("E221", "param exp: int = 3", "exp"),
    ("E221", "debug: f32[heads]\nscore = score * debug[h]", "debug"),
    ("E221", "def f(q_idx: int) -> bool = q_idx > 0", "q_idx"),
    ("E221", "mask = any(h in 0..3: h == 1)", "h"),
    ("E222", "def f(x: int) -> int = f(x - 1)\nmask = f(3) > 0", "f(x - 1)"),
    ("E222", "let x = y\nlet y = x\nmask = x > 0", "x"),
    ("E224", "mask = score > 0.0", "score > 0.0"),
    ("E224", "scale = 1.0 / float(1 + q_idx)", "1.0 / float(1 + q_idx)"),
    ("E224", "param t: float[heads] = 1.0\nscale = t", "t"),
    ("E224", "sink = float(kv_idx)", "float(kv_idx)"),
    ("E224", "t: f32[total_k]\nsink = t[0]", "t[0]"),
    ("E207", "score = score * 1e-20 * 1e39", "1e39"),
    ("E207", "score = score + 1e30 * 1e30", "1e30 * 1e30"),
    ("E252", "lengths k { }", "lengths k { }"),
    ("E252", "schedule { }", "schedule { }"),
    ("E230", "mask = not kv_idx", "not kv_idx"),
    ("E230", "mask = (kv_idx < q_pos) & (q_pos > 3)", "(kv_idx < q_pos) & (q_pos > 3)"),
    ("E230", "mask = 3 if kv_idx > 2 else q_pos > 1", "3 if kv_idx > 2 else q_pos > 1"),
    ("E230", "mask = 1.5 // 2 == kv_idx", "1.5 // 2"),
    ("E231", "def f(x: int) -> bool = x > 0\nmask = f()", "f()"),
    ("E231", "def f(x: int) -> bool = x > 0\nmask = f(1, 2)", "f(1, 2)"),
    ("E231", "def f(x: int) -> bool = x > 0\nmask = f(y = 1)", "y = 1"),
    ("E231", "def f(x: int) -> bool = x > 0\nmask = f(1, x = 1)", "x = 1"),
    ("E231", "def f(x: int) -> bool = x > 0\nmask = f(1.5)", "1.5"),
    ("E231", "mask = clamp(kv_idx, 3) > 1", "clamp(kv_idx, 3)"),
    ("E231", "let a = 3\nmask = a(2) > 1", "a"),
    ("E232", "def f(x: int) -> bool = x + 1\nmask = f(1)", "x + 1"),
    ("E232", "const n: int = 1.5\nmask = kv_idx < n", "1.5"),
    ("E233", "mask = kv_idx", "kv_idx"),
    ("E233", "score = q_pos > kv_idx", "q_pos > kv_idx"),
    ("E234", "const n: int = seq_q\nmask = kv_idx < n", "seq_q"),
    ("E234", "mask = any(i in 0..seq_k: i == kv_idx)", "seq_k"),
    ("E235", "param w: bool = 1\nmask = w > 0", "bool"),
    ("E235", "bias: f64[heads]\nscore = score + bias[h]", "f64"),
    ("E235", "def f(x: real) -> bool = x > 0", "real"),
    ("E242", "bias: f32[heads, heads]\nscore = score + bias[h, h]", "f32[heads, heads]"),
    ("E243", "axis heads = 8\naxis kv_heads = 3", "axis kv_heads = 3"),
    ("E244", "bias: f32[heads]\nscore = score + bias[h, b]", "bias[h, b]"),
    ("E244", "bias: f32[heads]\nscore = score + bias", "bias"),
    ("E245", "bias: f32[heads]\nscore = score + bias[b]", "b"),
    ("E245", "doc: i32[batch, seq_k]\nmask = doc[b, q_idx] == doc[b, kv_idx]", "q_idx"),
    ("E246", "bias: f32[4]\nscore = score + bias[q_idx + 4]", "q_idx + 4"),
    ("E248", "lengths k { used = lens }", "lens"),
    ("E248", "lens: i32[heads]\nlengths k { used = lens }", "lens"),
    ("E248", "cu: i32[batch + 1]\nlengths k { cu_seqlens = cu }", "lengths k { cu_seqlens = cu }"),
    ("E248", "t: i32[batch, max_pages]\npaged { table = t }", "paged { table = t }"),
    ("E249", "axis dim = 0", "axis dim = 0"),
    ("E249", "bias: f32[heads, seq_q // 2]\nscore = score + bias[h, 0]", "seq_q // 2"),
    ("E250", "mask = kv_idx > 1\nmask = kv_idx > 2", "mask = kv_idx > 2"),
    ("E250", "align top_left\nalign bottom_right", "align bottom_right"),
    ("E251", "mask = k[b, kv_idx, kv_h, 0] > 0.0", "k"),
    ("E251", "score = softmax(score)", "softmax"),
    ("E251", "n: i32[batch]\nlengths k { used = n }\nmask = kv_idx < n[b]", "n"),
    ("E252", "align middle", "middle"),
    ("E252", "pack gqa maybe", "maybe"),
    ("E252", "lse_base = 10", "10"),
    ("E252", "descale o = 2.0", "o"),
    ("E250", "descale v = 2.0\ndescale v = 3.0", "descale v = 3.0"),
    ("E233", "descale v = true", "true"),
    ("E224", "descale k = score", "score"),
    ("E224", "f: f32[seq_k]\ndescale v = f[kv_idx]", "f[kv_idx]"),
    ("E252", "schedule { tile_q = 4096 }", "4096"),
    ("E252", "schedule { tiles = 3 }", "tiles"),
    ("E253", "bias: f32[heads]", "bias"),
    ("E253", "param window: int = 3", "window"),
    ("E253", "const n: int = 3", "n"),
    ("E254", "param w: int in 1..3 = 3\nmask = kv_idx < w", "3"),
    ("E254", "param w: int in 3..3\nmask = kv_idx < w", "3..3"),
    ("E254", "param c: float in 0.0..1.0\nscore = score * c", "0.0..1.0"),
    ("E254", "param w: int = 1.5\nmask = kv_idx < w", "1.5"),
    ("E260", "param n: int\nmask = kv_idx % n == 0", "kv_idx % n"),
    ("E260", "const n: int = 0\nmask = kv_idx // n == 0", "kv_idx // n"),
    ("E261", "param n: int\nmask = n * n * n * n > kv_idx", "n * n * n"),
    ("E262", "mask = kv_idx << q_idx > 3", "kv_idx << q_idx"),
    ("E263", "mask = any(i in 0..5000: i == kv_idx)", "any(i in 0..5000: i == kv_idx)"),
    ("E264", "mask = min(i in 3..3: i) == kv_idx", "3..3"),
]


@pytest.mark.parametrize(("code", "text", "culprit"), CASES, ids=[f"{c}-{i}" for i, (c, _, _) in enumerate(CASES)])
def test_each_rule_has_its_code_and_place(check, code, text, culprit):
    errors = check(text).errors
    assert [problem.code for problem in errors] == [code]
    span = errors[0].span
    assert span is not None
    assert span.source.text[span.start : span.end] == culprit


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("E240", "mask = kv_idx <= q_pos"),
        ("E240", "q: bf16[batch, seq_q, heads, dim]\nmask = kv_idx <= q_pos"),
        ("E241", "q: bf16[batch, seq_q, heads]\nk, v: bf16[batch, seq_k, heads, dim]"),
        ("E241", "q: i32[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]"),
        ("E241", "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, heads, dim]\nv: bf16[total_k, heads, dim]"),
        ("E247", "q: bf16[batch, seq_q, heads, dim]\nkv: bf16[batch, seq_k, 2, heads, dim]\n"
                 "view k = kv[:, :, 2, :, :]\nview v = kv[:, :, 1, :, :]"),
        ("E247", "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, heads, dim]\nview v = k[:, :, :]"),
        ("E248", "q: bf16[total_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]"),
        ("E248", "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[pages, page_size, heads, dim]\nused: i32[batch]\n"
                 "lengths k { used = used }"),
    ],
)  # fmt: skip
def test_layout_rules(codes, code, text):
    assert codes(text, prelude="") == [code]


def test_every_problem_of_a_file_in_one_run(codes):
    text = "mask = kv_idxx < 3\nscore = score + slope\nparam w: int in 3..2\nscale = q_idx\nsink = softmax(1.0)"
    assert sorted(codes(text)) == ["E220", "E220", "E224", "E251", "E253", "E254"]


def test_a_wrong_part_is_reported_once_where_it_is_written(check):
    errors = check("def f(x: int) -> bool = x < limit\nmask = f(kv_idx) and f(q_pos)").errors
    assert [problem.code for problem in errors] == ["E220"]
    assert errors[0].span is not None
    assert errors[0].span.line == 4


def test_definitions_without_a_use_are_checked(codes):
    assert codes("def f(x: int) -> bool = x") == ["E232"]
    assert codes("let n = 3 + true") == ["E230"]


@pytest.mark.parametrize(
    "text",
    ["let causal = kv_idx <= q_pos", "def near(n: int) -> bool = kv_idx < n", "from std.window import window"],
)
def test_a_definition_without_a_use_is_a_warning(check, text):
    checked = check(text)
    assert [(d.code, d.severity.value) for d in checked.diagnostics] == [("W267", "warning")]
    assert checked.spec is not None


@pytest.mark.parametrize(
    "text",
    [
        "param p: int\nlet y = p + kv_idx\nmask = kv_idx < 3",
        "t: f32[heads]\ndef f() -> float = t[h]\nmask = kv_idx < 3",
        "const c: int = 3\nlet y = c\nmask = kv_idx < 3",
    ],
)
def test_what_a_caller_gives_must_reach_a_clause(codes, text):
    assert codes(text) == ["E253"]


def test_what_a_definition_needs_is_reached_through_it(check):
    text = "param p: int\nlet y = p\ndef f(n: int) -> bool = kv_idx < n + y\nmask = f(3)"
    assert check(text).diagnostics == ()


def test_hints_name_what_was_meant(check):
    assert check("mask = kv_idxx <= q_pos").errors[0].hint == "did you mean 'kv_idx'?"
    assert "max(x, 1)" in (check("mask = kv_idx % seq_q == 0").errors[0].hint or "")


def test_a_function_that_reads_at_a_read_is_checked_by_itself(codes):
    function = "def f(a: int[_], c: int[_]) -> bool = a[c[kv_idx]] == 1"
    assert codes(function) == []
    assert codes(f"{function}\nt: i32[n]\nmask = f(t, missing)") == ["E220"]


@pytest.mark.parametrize(
    "text",
    [
        "t: f32[2]\nscore = score + t[min(i in 0..380: kv_idx ^ i)]",
        "t: f32[2]\nscore = score + t[" + "min(" * 90 + "kv_idx" + ", 3)" * 90 + "]",
        "let x0 = kv_idx ^ 1\n" + "".join(f"let x{i} = min(x{i - 1} ^ {i}, q_idx)\n" for i in range(1, 180))
        + "t: f32[2]\nscore = score + t[x179]",
    ],
    ids=["reduction", "nested", "lets"],
)  # fmt: skip
def test_deep_indices_are_clamped_not_crashed_on(check, text):
    checked = check(text)
    assert checked.spec is not None
    assert {d.code for d in checked.diagnostics} <= {"W266"}
