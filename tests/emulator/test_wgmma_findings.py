"""Missing wgmma fences and waits are found; the product they are taken from has no finding."""

from __future__ import annotations

from collections.abc import Callable

import engine_gemm
import pytest
import torch

from attn_dsl.emulator import KernelFinding

FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


def product(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], *, registers: bool) -> None:
    original = engine_gemm.launch

    def launch(text: str, args: object, **options: object) -> object:
        changed = change(text)
        return original(changed, args, **options)

    monkeypatch.setattr(engine_gemm, "launch", launch)
    got, a, b = engine_gemm.wgmma_gemm(64, 64, torch.bfloat16, False, False, 128, registers=registers)
    assert torch.equal(got, a.double() @ b.double().T)


@pytest.mark.parametrize("registers", [False, True])
def test_the_unchanged_product_has_no_finding(monkeypatch: pytest.MonkeyPatch, registers: bool) -> None:
    product(monkeypatch, lambda text: text, registers=registers)


@pytest.mark.parametrize(
    ("old", "new", "registers"),
    [
        (FENCE, "", True),  # the registers of A were written just before
        (WAIT, "", False),  # D is read while the wgmma may still write it
        (WAIT, "wgmma.wait_group.sync.aligned 1;", False),
        (COMMIT, f"{COMMIT}\nmov.b32 %r200, 0;", False),  # writes an accumulator in flight
        (COMMIT, f"{COMMIT}\nmov.b32 %r120, 0;", True),  # writes a register of A in flight
        (COMMIT, f"{COMMIT}\n@%p0 st.shared.b32 [%r1+1024], %r0;", False),  # overwrites A in shared memory
    ],
)
def test_missing_order_is_found(monkeypatch: pytest.MonkeyPatch, old: str, new: str, registers: bool) -> None:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    with pytest.raises(KernelFinding) as caught:
        product(monkeypatch, change, registers=registers)
    assert caught.value.findings[0].kind == "wgmma-order"
