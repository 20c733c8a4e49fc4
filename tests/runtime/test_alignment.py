"""The way out that an error about a memory layout names works, whatever place the head dimension has (E279)."""

from __future__ import annotations

import re

import pytest
import torch

from attn_dsl.diagnostics import Diagnostics
from attn_dsl.runtime.recipe import _tma_strides

SIZES = {"batch": 2, "seq_q": 5, "heads": 3, "dim": 16}


def reported(name: str, tensor: torch.Tensor, axes: list[str]) -> tuple[str, str] | None:
    """(message, hint), or None if TMA reads the tensor."""
    problems = Diagnostics()
    _tma_strides(name, tuple(tensor.shape), tensor.stride(), axes, tensor.dtype, problems)
    return None if not problems.errors else (problems.errors[0].message, str(problems.errors[0].hint))


@pytest.mark.parametrize(
    "axes", [["batch", "seq_q", "heads", "dim"], ["batch", "seq_q", "dim", "heads"], ["dim", "batch", "heads", "seq_q"]]
)
@pytest.mark.parametrize("padding", [0, 4])
def test_the_hint_makes_a_tensor_that_fits(axes: list[str], padding: int) -> None:
    shape = [SIZES[axis] for axis in axes]
    inner = axes.index("dim")
    q = torch.randn(*shape, dtype=torch.float32).to(torch.bfloat16)
    if padding:  # the head dimension is innermost, but rows begin where TMA cannot read them
        wide = torch.zeros(*(extent for axis, extent in zip(axes, shape, strict=True) if axis != "dim"), 16 + padding)
        q = wide.to(torch.bfloat16)[..., :16].movedim(-1, inner)
    elif inner == len(axes) - 1:
        q = q.transpose(2, 3).contiguous().transpose(2, 3)
    found = reported("q", q, axes)
    assert found is not None
    message, hint = found
    assert message.startswith("q has stride ")
    (way_out,) = re.findall(r"q\.(?:\w+\([-\d, ]*\)\.?)+", hint)
    assert reported("q", eval(way_out, {"q": q}), axes) is None
