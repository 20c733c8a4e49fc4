"""Blackwell kernels on sequences that do not fill their axis, on the virtual device, against float64."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("cutlass")

from forward_specs import IN_SEQUENCES, LAYOUTS, assert_close, sequence_inputs, spec_in_sequences

from attn_dsl import emulator, reference
from attn_dsl.runtime import Inputs, bind
from attn_dsl.runtime.kernels import SM100, Kernels

# Slots of queries and keys: tiles that are full, cut, behind the last query, without a key.
SEQUENCES = [(257, 300), (0, 5), (130, 128), (1, 1), (128, 0), (40, 200)]


def check(kernels: Kernels, inputs: Inputs, *, late: int) -> None:
    """One launch into outputs full of NaN, without a finding."""
    spec = kernels.spec
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    exact = reference.attention(spec, call.tensors, call.params, precision="float64")
    o, lse = torch.full(exact[0].shape, math.nan, dtype=inputs.tensors["q"].dtype), torch.full(exact[1].shape, math.nan)
    with emulator.device("sm_100a", late=late, seed=late + 1) as gpu:
        kernels.launch(call, o, lse)
    assert not gpu.findings
    assert_close(spec, (o, lse), exact)


@pytest.mark.parametrize(
    ("name", "layout", "heads", "dims"),
    [
        ("decay", "packed", (6, 2), (64, 64)),
        ("sinks_and_window", "packed_used", (2, 1), (256, 256)),
        pytest.param("documents", "packed_k", (5, 1), (64, 64), marks=pytest.mark.slow),
        pytest.param("decay", "packed_q", (8, 2), (40, 24), marks=pytest.mark.slow),
        pytest.param("window", "left_padded", (2, 2), (192, 128), marks=pytest.mark.slow),
    ],
)
def test_sequences_that_do_not_fill_their_axis(name, layout, heads, dims) -> None:
    """Lengths of all kinds, NaN wherever no row of a sequence lies; one kernel serves every batch."""
    spec = spec_in_sequences(name, layout)
    kernels = Kernels(spec, SM100)
    check(kernels, sequence_inputs(spec, SEQUENCES, heads=heads, dims=dims, spare=3, seed=3), late=1)
    check(kernels, sequence_inputs(spec, [(0, 3), (0, 0)], heads=heads, dims=dims, seed=4), late=2)
    assert len(kernels.compiled) <= 1


def test_wrong_lengths_touch_nothing_else() -> None:
    """Contents are checked on the host with debug=True only; whatever they are, no access leaves the tensors."""
    spec = spec_in_sequences("documents", "packed_used")
    inputs = sequence_inputs(spec, [(70, 100), (30, 20)], seed=3)
    kernels = Kernels(spec, SM100)
    wrong = {"cu_q": [5, 90, -7], "cu_k": [0, 2**31 - 1, 60], "used_q": [-3, 2**30], "used_k": [500, -1]}
    for name, values in wrong.items():
        tensors = {**inputs.tensors, name: torch.tensor(values, dtype=torch.int32)}
        o, lse = torch.zeros_like(tensors["q"]), torch.zeros(4, 100)
        with emulator.device("sm_100a", late=1) as gpu:
            kernels.launch(bind(spec, (), tensors, False), o, lse)
        assert not gpu.findings, (name, gpu.findings[:3])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_SEQUENCES)
def test_every_layout_of_sequences(name, layout) -> None:
    spec = spec_in_sequences(name, layout)
    for place, (heads, dims) in enumerate([((4, 2), (64, 64)), ((6, 1), (128, 128)), ((2, 1), (256, 256))]):
        check(Kernels(spec, SM100), sequence_inputs(spec, SEQUENCES, heads=heads, dims=dims, seed=place), late=place)
