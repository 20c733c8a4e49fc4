"""K and V that a spec cuts out of another tensor reach a kernel as views of it, at every call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attn_dsl
from attn_dsl import CallError, UnsupportedError
from attn_dsl.runtime import kernels
from attn_dsl.runtime.kernel import Kernel
from attn_dsl.runtime.signature import Signature

JOINT = """
q: bf16[batch, seq_q, heads, dim]
kv: bf16[batch, 2, seq_k, kv_heads, dim]
view k = kv[:, 0, :, :, :]
view v = kv[:, 1, :, :, :]
"""
LATENT = """
q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
view v = k[:, :, :, 16..48]
"""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """q, k and v of each launch; nothing is computed."""
    seen: list[tuple[Tensor, ...]] = []

    def compiled(plan, target) -> Kernel:
        def function(*arguments) -> None:
            seen.append(arguments[:3])

        return Kernel(Signature.of(plan, target.arch), function, None)

    monkeypatch.setattr(kernels, "compiled_kernel", compiled)
    monkeypatch.setattr(kernels, "check_here", lambda target, device: target)
    return seen


def test_halves_of_a_joint_tensor(launched: list[tuple[Tensor, ...]]) -> None:
    attention = attn_dsl.compile(attn_dsl.parse(JOINT, name="joint"), target="sm90")
    q = torch.randn(2, 3, 4, 64).bfloat16()
    room = torch.randn(5, 2, 7, 2, 64).bfloat16()
    for first in (0, 3, 1):  # another storage offset with the same layout
        kv = room[first : first + 2]
        attention(q, kv)
        _, k, v = launched[-1]
        assert k.data_ptr() == kv[:, 0].data_ptr()
        assert torch.equal(k, kv[:, 0])
        assert torch.equal(v, kv[:, 1])
    assert len(launched) == 3


def test_values_that_are_a_part_of_the_keys(launched: list[tuple[Tensor, ...]]) -> None:
    attention = attn_dsl.compile(attn_dsl.parse(LATENT, name="latent"), target="sm90")
    q, k = torch.randn(1, 3, 4, 64).bfloat16(), torch.randn(1, 9, 1, 64).bfloat16()
    o = attention(q, k)
    assert o.shape == (1, 3, 4, 32)
    assert torch.equal(launched[-1][1], k)
    assert torch.equal(launched[-1][2], k[..., 16:48])


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_a_cut_that_tma_cannot_read_is_refused(target: str) -> None:
    spec = attn_dsl.parse(LATENT.replace("16..48", "4..36"), name="latent")
    with pytest.raises(UnsupportedError, match=r"view v starts 8 bytes into a row of k, at element 4(.|\n)*element 0"):
        attn_dsl.compile(spec, target=target)


def test_a_view_that_tma_cannot_read_is_refused(launched: list[tuple[Tensor, ...]]) -> None:
    """Where k and v lie in a joint tensor is known at a call."""
    attention = attn_dsl.compile(attn_dsl.parse(JOINT, name="joint"), target="sm90")
    halves = 7 * 2 * 64 + 4  # elements from k to v: no multiple of 16 bytes
    kv = torch.zeros(2 * halves).bfloat16().as_strided((1, 2, 7, 2, 64), (2 * halves, halves, 128, 64, 1))
    with pytest.raises(CallError, match="v starts at an address that is no multiple of 16 bytes"):
        attention(torch.zeros(1, 3, 4, 64).bfloat16(), kv)
    assert not launched
