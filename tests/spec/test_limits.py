"""Texts made to explode: each ends in one error, or in a small spec, and none of them takes long."""

from __future__ import annotations

import pytest

from attn_dsl.expr import children_first


def chain(count: int, step: str) -> str:
    """`count` functions, each calling the one before it as `step` says."""
    lines = ["def g0(x: int) -> int = x + kv_idx"]
    for index in range(1, count):
        lines.append(f"def g{index}(x: int) -> int = {step.format(previous=f'g{index - 1}')}")
    return "\n".join(lines)


def test_doubling_is_shared(check):
    checked = check(chain(20, "{previous}(x) ^ {previous}(x) ^ 1") + "\nmask = g19(q_idx) > 0")
    assert checked.spec is not None
    assert sum(1 for _ in children_first(checked.spec.roots)) < 200


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (chain(40, "{previous}(x + 1) ^ {previous}(x * 2 & 65535)") + "\nmask = g39(q_idx) > 0", "E263"),
        (chain(400, "{previous}(x)") + "\nmask = g399(q_idx) > 0", "E263"),
        ("\n".join(f"let x{i} = x{i + 1} + 1" for i in range(900)) + "\nlet x900 = 1\nmask = x0 > 0", "E263"),
        ("mask = any(i in 0..4000: any(j in 0..4000: i * j == kv_idx))", "E263"),
        ("mask = any(i in 0..4000: any(j in 0..4000: i * j == 3))", "E263"),
        ("param n: int\nlet x0 = n * n\n" + "\n".join(f"let x{i + 1} = x{i} * x{i}" for i in range(90))
         + "\nmask = x90 > 0", "E261"),
    ],
    ids=["growing", "calls", "lets", "sums", "constant sums", "squares"],
)  # fmt: skip
def test_too_large_is_one_error(codes, text, code):
    assert codes(text) == [code]
