"""Calls on pages that are wrong: an error that says which, and no output is touched."""

from __future__ import annotations

import pytest
import torch
from serving import BAD_CALLS, QUERIES, TABLE, USED, paged, random
from torch import Tensor

import attn_dsl

TEXT = "axis page_size = 8\n" + QUERIES + TABLE + USED


def tensors() -> dict[str, Tensor]:
    return {"q": random(torch.Generator().manual_seed(3), 2, 1, 4, 64), **paged([20, 7], 8, (4, 2), 64)}


@pytest.mark.parametrize(("change", "code"), BAD_CALLS)
def test_bad_calls_write_nothing(change: dict[str, Tensor], code: str) -> None:
    spec = attn_dsl.parse(TEXT, name="serving")
    given = {tensor.name: (tensors() | change)[tensor.name] for tensor in spec.tensors}
    out, lse = torch.full((2, 1, 4, 64), 7.0, dtype=torch.bfloat16), torch.full((2, 4, 1), 7.0)
    with pytest.raises(attn_dsl.CallError) as caught:
        attn_dsl.compile(spec)(**given, out=out, lse=lse, debug=True)
    assert caught.value.code == code
    assert (out == 7).all()
    assert (lse == 7).all()


def test_the_call_that_they_change_is_right() -> None:
    spec = attn_dsl.parse(TEXT, name="serving")
    given = {tensor.name: tensors()[tensor.name] for tensor in spec.tensors}
    assert attn_dsl.compile(spec)(**given, debug=True).isfinite().all()


@pytest.mark.parametrize("count", [0, 257, -1])
def test_parts_over_the_limit(count: int) -> None:
    with pytest.raises(attn_dsl.SpecError, match=r"E252.*splits"):
        attn_dsl.parse(TEXT + f"schedule {{ splits = {count} }}\n", name="serving")
