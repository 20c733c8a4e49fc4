"""flash-attn-4's own kernels on the emulated device: output and LSE against float64, and what they are told.

The kernels are other people's, so they show that the emulator runs what it was not written for. What is found in them
is listed here with the reason; anything else found, or any of it not found, fails.
"""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("flash_attn.cute", reason="flash-attn-4 is not installed")

import fa4

from attn_dsl.emulator import gpu as gpu_module


def known(case: fa4.Case) -> set[str]:
    """Kinds of findings that are defects of flash-attn-4 4.0.0b36."""
    found = set()
    # Pages that are no TMA box come by cp.async (generic proxy), and the MMAs read them through the async proxy with no
    # fence.proxy.async between (PTX ISA, "Async proxy").
    tile = 80 if (case.dim, case.arch) == (256, "sm_90a") else 128
    if case.page not in (0, tile):
        found.add("proxy-fence")
    # The last bulk reductions are neither committed nor waited for before the CTA ends, so their source in shared
    # memory may be gone.
    if case.backward and case.arch == "sm_100a" and case.dim != 256:
        found.add("async-left")
    return found


# Relative, by norm.
OUTPUT = {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float8_e4m3fn: 2.5e-2, torch.float8_e5m2: 5e-2}
LSE = 1e-4  # absolute; sm_100 computes exp2 partly by a polynomial
GRADIENT = 4e-3
SAMPLE = {("causal", "sm_100a"), ("causal", "sm_90a"), ("paged16", "sm_100a"), ("varlen", "sm_90a")}


def params(**choice: bool) -> list[object]:
    found = []
    for case in (*fa4.cases("sm_100a"), *fa4.cases("sm_90a")):
        if choice.get("backward", False) == case.backward:
            marks = () if (case.name, case.arch) in SAMPLE else (pytest.mark.slow,)
            found.append(pytest.param(case, id=f"{case.arch}-{case.name}", marks=marks))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", params())
def test_forward(case: fa4.Case):
    given = fa4.inputs(case)
    with fa4.device(case.arch, findings="collect") as gpu:
        out, lse = fa4.run(case, given)
    want_out, want_lse = fa4.reference(case, given.q, given.k, given.v, given.sink, given.call)
    check_forward(case, out, lse, want_out, want_lse)
    assert {finding.kind for finding in gpu.findings} == known(case)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", params(backward=True))
def test_backward(case: fa4.Case):
    given = fa4.inputs(case)
    with fa4.device(case.arch, findings="collect") as gpu:
        out, lse = fa4.run(case, given)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out.dtype)
        found = fa4.run_backward(case, given, out, lse, grad)
    q, k, v = (tensor.double().requires_grad_() for tensor in (given.q, given.k, given.v))
    want_out, want_lse = fa4.reference(case, q, k, v, given.sink, given.call)
    check_forward(case, out, lse, want_out.detach(), want_lse.detach())
    want_out.backward(grad.double())
    for name, got, leaf in zip("qkv", found, (q, k, v), strict=True):
        assert leaf.grad is not None
        assert fa4.relative_error(got, leaf.grad) < GRADIENT, f"d{name}"
    assert {finding.kind for finding in gpu.findings} == known(case)


def check_forward(
    case: fa4.Case, out: torch.Tensor, lse: torch.Tensor, want_out: torch.Tensor, want_lse: torch.Tensor
) -> None:
    assert fa4.relative_error(out, want_out) < OUTPUT[case.dtype]
    assert torch.equal(lse.isneginf(), want_lse.isneginf())
    seen = ~want_lse.isneginf()
    assert (lse.double() - want_lse)[seen].abs().max() < LSE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize(("case", "words"), fa4.REFUSED, ids=lambda value: getattr(value, "name", ""))
def test_what_it_refuses(case: fa4.Case, words: str):
    def call(given: fa4.Inputs) -> None:
        out, lse = fa4.run(case, given)
        fa4.run_backward(case, given, out, lse, torch.ones_like(out))

    with fa4.device(case.arch, findings="collect"), pytest.raises(AssertionError, match=words):
        call(fa4.inputs(case))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_schedules_and_late_completion_change_no_bit(arch: str, late: int, seed: int):
    case = next(case for case in fa4.cases(arch) if case.name == "causal")
    given = fa4.inputs(case)
    with fa4.device(arch) as gpu:
        plain = fa4.run(case, given)
    with fa4.device(arch, seed=seed, late=late) as other:
        moved = fa4.run(case, given)
    assert torch.equal(plain[0], moved[0])
    assert torch.equal(plain[1], moved[1])
    assert other.reports[0].instructions >= gpu.reports[0].classes["mma_f16"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_dependent_launch_without_its_wait(monkeypatch: pytest.MonkeyPatch):
    """The main kernel of the backward may overlap with the one before it. Without griddepcontrol.wait that is found."""
    case = next(case for case in fa4.cases("sm_90a") if case.name == "bwd")
    given, load = fa4.inputs(case), gpu_module._loaded
    monkeypatch.setattr(
        gpu_module, "_loaded", lambda ptx, kernel: load(ptx.replace("griddepcontrol.wait;", ""), kernel)
    )
    with fa4.device(case.arch, findings="collect") as gpu:
        out, lse = fa4.run(case, given)
        fa4.run_backward(case, given, out, lse, torch.ones_like(out))
    assert {finding.kind for finding in gpu.findings} == {"grid-order"}
    assert {"FlashAttentionBackwa" in finding.kernel for finding in gpu.findings} == {True}


@pytest.mark.filterwarnings("ignore")
def test_what_a_strict_launch_finds():
    """flash-attn-4's forward has no tcgen05.fence and no tcgen05.wait::ld: it hands tensor memory from thread to thread
    by mbarriers alone and takes a register dependence for the end of a load, which PTX says it is not (PTX ISA,
    "Register dependencies, same thread")."""
    case = next(case for case in fa4.cases("sm_100a") if case.name == "causal")
    with fa4.device(case.arch, findings="collect", strict=True) as gpu:
        fa4.run(case, fa4.inputs(case))
    assert {finding.kind for finding in gpu.findings} == {"tcgen05-order"}
    without = {re.search(r"no (tcgen05.fence::\w+)", finding.text) for finding in gpu.findings}
    assert {match and match[1] for match in without} == {
        "tcgen05.fence::before_thread_sync",  # probabilities, before the products that read them
        "tcgen05.fence::after_thread_sync",  # scores and outputs, after the products that wrote them
        None,  # scores are overwritten though no wait::ld says that they have been read
    }
