"""Shared pieces of the checker's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attn_dsl import spec as checker
from attn_dsl import syntax
from attn_dsl.diagnostics import Source

PRELUDE = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
"""


@pytest.fixture
def check() -> Callable[..., checker.Checked]:
    """Checks a text: `check("mask = kv_idx <= q_pos")` behind declarations of q, k and v, or a whole text."""

    def run(text: str, *, prelude: str = PRELUDE, folder: Path | None = None, **constants: object) -> checker.Checked:
        file = syntax.parse_source(Source("<text>", prelude + text))
        return checker.check(file, folder=folder, constants=constants)

    return run


@pytest.fixture
def codes(check: Callable[..., checker.Checked]) -> Callable[..., list[str]]:
    """The codes of the errors of a text, in order."""

    def run(text: str, **options: object) -> list[str]:
        return [problem.code for problem in check(text, **options).errors]

    return run
