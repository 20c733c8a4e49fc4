"""The three identities of a spec: what changes them and what does not."""

from __future__ import annotations

import pytest

import attn_dsl
from attn_dsl.spec import interface_key, meaning_key, plan_key

BASE = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
slopes: f32[heads]
param window: int in 1.. = 64
def near(n: int) -> bool = q_pos - kv_idx < n
let causal = kv_idx <= q_pos
mask = causal and near(window)
score = score + slopes[h]
"""

OPERANDS = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"

KEYS = {"meaning": meaning_key, "interface": interface_key, "plan": plan_key}


def keys(text: str, **constants: object) -> dict[str, str]:
    spec = attn_dsl.parse(text, **constants)
    return {name: key(spec) for name, key in KEYS.items()}


def changed(old: str, new: str) -> set[str]:
    assert old in BASE
    before, after = keys(BASE), keys(BASE.replace(old, new))
    return {name for name in KEYS if before[name] != after[name]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("near", "close"),
        ("causal", "past"),
        ("(n: int) -> bool = q_pos - kv_idx < n", "(width: int) -> bool {\n  let d = q_pos - kv_idx\n  d < width\n}"),
        ("let causal", "# a comment\n\nlet   causal"),
        ("let causal = kv_idx <= q_pos\nmask = causal", "mask = (kv_idx <= q_pos)"),
        ("kv_idx <= q_pos", "q_pos >= kv_idx"),
    ],
)
def test_spelling_changes_no_key(old, new):
    assert changed(old, new) == set()


def test_order_of_definitions_changes_no_key():
    lines = BASE.strip().splitlines()
    reordered = "\n".join([*lines[5:], *lines[:5]])
    assert keys(reordered) == keys(BASE)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("q_pos - kv_idx < n", "q_pos - kv_idx <= n", {"meaning", "plan"}),
        ("+ slopes[h]", "- slopes[h]", {"meaning", "plan"}),
        ("bf16", "f16", {"meaning", "interface", "plan"}),
        ("window", "width", {"interface", "plan"}),
        ("slopes", "bias", {"interface", "plan"}),
        ("= 64", "= 65", {"interface", "plan"}),
        ("batch, seq_q, heads, dim", "batch, heads, seq_q, dim", {"interface", "plan"}),
        ("score = score", "pack gqa on\nscore = score", {"plan"}),
        ("score = score", "schedule { tile_q = 64 }\nscore = score", {"plan"}),
        ("score = score", "align top_left\nscore = score", {"meaning", "plan"}),
        ("score = score", "sink = 0.0\nscore = score", {"meaning", "plan"}),
        ("score = score", "descale v = 2.0\nscore = score", {"meaning", "plan"}),
        ("score = score", "descale k = 2.0\nscore = score", {"meaning", "plan"}),
        ("score = score", "lse_base = 2\nscore = score", {"meaning", "plan"}),
    ],
)
def test_what_changes_which_key(old, new, names):
    assert changed(old, new) == names


# (base with two things of one kind, the same with the two swapped): renaming gives the first text again, so the meaning
# is the same, but a kernel of one computes something else for inputs of the same names
SWAPS = {
    "captures": "a: f32[heads]\nc: f32[heads]\nscore = score * {0}[h] + {1}[h]",
    "parameters": "param a: int\nparam c: int\nmask = kv_idx < {0} and q_idx < {1}",
    "scale and sink": "param a: float\nparam c: float\nscale = {0}\nsink = {1}",
    "lengths": "a: i32[batch]\nc: i32[batch]\nlengths k {{ used = {0}, left_pad = {1} }}",
}


@pytest.mark.parametrize("body", SWAPS.values(), ids=SWAPS)
def test_swapped_names_are_the_same_meaning_and_another_plan(body):
    one, other = (keys(OPERANDS + body.format(*names)) for names in (("a", "c"), ("c", "a")))
    assert one["meaning"] == other["meaning"]
    assert one["plan"] != other["plan"]


# pairs of texts that compute different things
DIFFERENT = {
    "extents of two axes": ("a: f32[m, n]\nmask = a[0, 0] > m", "a: f32[m, n]\nmask = a[0, 0] > n"),
    "sum of other axes": (
        "a: f32[m]\ne: f32[n]\nc: f32[2 * m]\nmask = a[0] + e[0] + c[kv_idx] > 0",
        "a: f32[m]\ne: f32[n]\nc: f32[2 * n]\nmask = a[0] + e[0] + c[kv_idx] > 0",
    ),
    "one tensor for two lengths": (
        "a: i32[batch]\nc: i32[batch]\nlengths q { used = a }\nlengths k { used = c }",
        "a: i32[batch]\nlengths q { used = a }\nlengths k { used = a }",
    ),
    "axes fixed": (
        "axis m = 3\naxis n = 4\na: f32[m, n]\nmask = a[0, 0] > 0",
        "axis m = 4\naxis n = 3\na: f32[m, n]\nmask = a[0, 0] > 0",
    ),
    "ranges": ("param a: int in 1..\nmask = kv_idx // a < 2", "param a: int in 2..\nmask = kv_idx // a < 2"),
    "owners of a parameter": ("param a: int[heads]\nmask = kv_idx < a", "param a: int[kv_heads]\nmask = kv_idx < a"),
    "element types": ("a: u8[heads]\nmask = kv_idx < a[h]", "a: i8[heads]\nmask = kv_idx < a[h]"),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_other_meanings_have_other_keys(one, other):
    assert keys(OPERANDS + one)["meaning"] != keys(OPERANDS + other)["meaning"]


def test_views_of_one_pool_and_of_two_are_different_meanings():
    query = "q: bf16[batch, seq_q, heads, dim]\n"
    pool = "{}: bf16[2, batch, seq_k, kv_heads, dim]\n"
    views = "view k = a[0, :, :, :, :]\nview v = {}[1, :, :, :, :]\n"
    one = keys(query + pool.format("a") + views.format("a"))
    two = keys(query + pool.format("a") + pool.format("c") + views.format("c"))
    assert one["meaning"] != two["meaning"]


def test_names_of_the_axes_of_captures_are_no_meaning():
    body = "a: f32[{0}, 2 * {0}]\nmask = a[0, kv_idx] > 0"
    one, other = (keys(OPERANDS + body.format(name)) for name in ("m", "n"))
    assert one["meaning"] == other["meaning"]
    assert one["plan"] != other["plan"]


def test_fixed_axes_are_part_of_the_meaning():
    assert keys(BASE, dim=64)["meaning"] != keys(BASE)["meaning"]


def test_specs_are_hashable_and_equal_by_content():
    assert attn_dsl.parse(BASE) == attn_dsl.parse(BASE.replace("near", "close"))
    assert len({attn_dsl.parse(BASE), attn_dsl.parse(BASE)}) == 1
