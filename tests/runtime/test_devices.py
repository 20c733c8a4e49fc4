"""Which GPU runs which kernels, without a GPU."""

from __future__ import annotations

import pytest
import torch

from attn_dsl import UnsupportedError
from attn_dsl.runtime import kernels
from attn_dsl.runtime.kernels import SM90, SM100, SM103, check_here

HERE = torch.device("cuda:0")


@pytest.fixture
def gpu(monkeypatch):
    """Makes the first GPU one of a compute capability."""

    def be(major, minor, name="NVIDIA GPU"):
        monkeypatch.setattr(kernels, "_capability", lambda device: (major, minor))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)

    return be


def refusal(target, device=HERE):
    with pytest.raises(UnsupportedError) as caught:
        check_here(target, device)
    return str(caught.value)


def test_a_gpu_runs_its_own_kernels(gpu):
    for capability, target in (((9, 0), SM90), ((10, 0), SM100)):
        gpu(*capability)
        assert check_here(target, HERE) is target


def test_a_b300_runs_kernels_of_its_own_architecture_under_the_same_name(gpu):
    gpu(10, 3)
    assert check_here(SM100, HERE) is SM103
    assert (SM103.name, SM103.arch, SM100.arch) == ("sm100", "sm_103a", "sm_100a")
    assert "target 'sm90' needs compute capability 9.0" in refusal(SM90)


def test_another_gpu_is_named_with_what_it_could_use(gpu):
    gpu(9, 0, "NVIDIA H200")
    assert refusal(SM100) == (
        "error[E282]: target 'sm100' needs compute capability 10.0; cuda:0 is NVIDIA H200 with 9.0\n"
        "  hint: target='sm90' has kernels for it"
    )
    gpu(8, 0, "NVIDIA A100")
    assert refusal(SM90) == (
        "error[E282]: target 'sm90' needs compute capability 9.0; cuda:0 is NVIDIA A100 with 8.0\n"
        "  hint: target='reference' runs everywhere"
    )


def test_tensors_elsewhere():
    for device in ("cpu", "meta"):
        assert refusal(SM90, torch.device(device)).startswith(
            f"error[E282]: target 'sm90' runs on CUDA tensors of a Hopper GPU, not on {device}"
        )
