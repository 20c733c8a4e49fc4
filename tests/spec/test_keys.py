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
        ("score = score", "lse_base = 2\nscore = score", {"meaning", "plan"}),
    ],
)
def test_what_changes_which_key(old, new, names):
    assert changed(old, new) == names


def test_two_captures_swapped_are_another_meaning():
    text = BASE.replace("score + slopes[h]", "score * slopes[h] + offset[h]") + "offset: f32[heads]\n"
    swapped = text.replace("slopes[h] + offset[h]", "offset[h] + slopes[h]")
    # renaming both captures gives the first text again, so the meaning is the same and the interface is not
    assert keys(text)["meaning"] == keys(swapped)["meaning"]
    assert attn_dsl.parse(text).score != attn_dsl.parse(swapped).score
    assert keys(text)["plan"] == keys(text)["plan"]


def test_fixed_axes_are_part_of_the_meaning():
    assert keys(BASE, dim=64)["meaning"] != keys(BASE)["meaning"]


def test_specs_are_hashable_and_equal_by_content():
    assert attn_dsl.parse(BASE) == attn_dsl.parse(BASE.replace("near", "close"))
    assert len({attn_dsl.parse(BASE), attn_dsl.parse(BASE)}) == 1
