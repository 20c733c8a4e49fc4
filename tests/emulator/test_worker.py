"""A device in a process of its own."""

import os

import pytest
import torch

pytest.importorskip("cutlass")  # CuTe DSL is an extra

import worker_functions as functions

from attn_dsl import emulator


def test_a_function_runs_in_a_fresh_process_and_writes_into_its_tensors():
    a, b, c = torch.randn(200), torch.randn(200), torch.zeros(200)
    done = emulator.run_in_worker(functions.add, a, b, out=c, arch="sm_90a", options={"seed": 3})
    assert torch.equal(c, a + b)
    assert done.value != os.getpid()
    assert [report.classes["f32"] for report in done.reports] == [7, 7]  # warps
    assert done.reports[0].config.seed == 3


def test_errors_come_back_with_what_they_know():
    out = torch.zeros(8)
    with pytest.raises(emulator.KernelFinding, match="oob") as caught:
        emulator.run_in_worker(functions.store_far, out, 1 << 20)
    assert caught.value.code == "E319"
    assert [finding.kind for finding in caught.value.findings] == ["oob"]


def test_a_process_that_dies_is_named():
    with pytest.raises(emulator.EmulatorError, match="die") as caught:
        emulator.run_in_worker(functions.die)
    assert caught.value.code == "E313"
