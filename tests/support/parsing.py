"""Short ways from a text to its tree and to its problems."""

from __future__ import annotations

from typing import Any

import pytest

from attn_dsl.diagnostics import AttnSyntaxError, Diagnostic, Source
from attn_dsl.syntax import parse_source, tree


def parse(text: str) -> tree.File:
    return parse_source(Source("test.attn", text))


def statement(text: str) -> Any:
    """The one statement of a text."""
    (only,) = parse(text).statements
    return only


def value(text: str) -> Any:
    """The tree of an expression."""
    return statement(f"let x = {text}").value


def problems(text: str) -> tuple[Diagnostic, ...]:
    """What the parser refuses a text for."""
    with pytest.raises(AttnSyntaxError) as caught:
        parse(text)
    return caught.value.diagnostics


def problem(text: str) -> Diagnostic:
    """The one thing the parser refuses a text for."""
    (only,) = problems(text)
    return only


def under(found: Diagnostic | tree.Node) -> str:
    """The text of a span."""
    assert found.span is not None
    return found.span.source.text[found.span.start : found.span.end]
