"""Hopper kernels on the virtual device against float64: outputs full of NaN before, every finding is an error."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from forward_specs import (
    GALLERY_REFUSED,
    IN_SEQUENCES,
    LAYOUTS,
    SPECS,
    assert_close,
    sequence_inputs,
    spec_in_sequences,
    spec_of,
)
from gallery_cases import CASES

pytest.importorskip("cutlass")

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.runtime import Inputs, bind, random_inputs
from attn_dsl.runtime.kernels import SM90, Kernels

EXAMPLES = Path(__file__).parents[2] / "examples"
LENGTHS = [(200, 150), (1, 300), (63, 257), (128, 128), (129, 640), (255, 384), (640, 127), (0, 5), (5, 0)]
GROUPS = [(3, 3), (4, 2), (6, 1), (10, 2), (8, 2), (16, 1), (12, 1), (7, 1), (5, 1)]
DIMS = [(8, 8), (64, 64), (72, 96), (128, 128), (64, 128), (192, 128), (256, 256)]
# slots of q and of k: an empty sequence first, last and between; fewer keys than queries; tiles cut and filled
SEQUENCES = [(0, 4), (70, 100), (0, 0), (200, 130), (1, 257), (128, 128), (65, 2), (9, 0)]


def check(kernels: Kernels, inputs: Inputs, *, late: int, seed: int = 0) -> None:
    """One launch into outputs full of NaN."""
    spec = kernels.spec
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    exact = reference.attention(spec, call.tensors, call.params, precision="float64")
    o, lse = torch.full(exact[0].shape, math.nan, dtype=inputs.tensors["q"].dtype), torch.full(exact[1].shape, math.nan)
    with emulator.device("sm_90a", late=late, seed=seed) as gpu:
        kernels.launch(call, o, lse)
    assert not gpu.findings, gpu.findings[:3]
    assert_close(spec, (o, lse), exact)


def extents_of(lengths: tuple[int, int], heads: tuple[int, int], dims: tuple[int, int]) -> dict[str, int]:
    names = ("seq_q", "seq_k", "heads", "kv_heads", "dim", "dim_v")
    return dict(zip(names, (*lengths, *heads, *dims), strict=True)) | {"batch": 2}


def test_what_is_refused_of_the_gallery() -> None:
    """Exactly what the tests on a GPU leave out."""
    refused = set()
    for name, case in CASES.items():
        try:
            attn_dsl.compile(attn_dsl.load(EXAMPLES / f"{name}.attn", **case().constants), target="sm90")
        except attn_dsl.UnsupportedError:
            refused.add(name)
    assert refused == GALLERY_REFUSED


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "lengths", "heads"),
    [
        ("causal", "bf16", (256, 256), (70, 170), (2, 1)),
        ("softcap", "f16", (192, 128), (130, 150), (2, 2)),
        ("sinks_and_window", "bf16", (40, 24), (150, 129), (6, 2)),
        ("gain_by_head", "f16", (64, 64), (65, 100), (7, 1)),
        ("descaled", "bf16", (64, 64), (65, 100), (6, 2)),
        ("documents", "bf16", (128, 128), (50, 300), (12, 1)),
        ("chunks", "bf16", (64, 64), (150, 70), (2, 2)),  # positions below 0, which divide towards minus infinity
    ],
)
def test_head_dims_and_groups(name, dtype, dims, lengths, heads) -> None:
    spec = spec_of(name, dtype)
    check(Kernels(spec, SM90), random_inputs(spec, extents_of(lengths, heads, dims), seed=5), late=1)


@pytest.mark.parametrize(
    ("name", "layout", "heads"),
    [
        ("causal", "packed", (4, 2)),
        ("causal", "packed", (6, 2)),
        ("documents", "packed_used", (2, 1)),
        ("sinks_and_window", "packed_k", (5, 1)),
        ("decay", "packed_q", (8, 2)),
        ("window", "left_padded", (2, 2)),
    ],
)
def test_sequences_that_do_not_fill_their_axis(name, layout, heads) -> None:
    """Lengths of all kinds, NaN wherever no row of a sequence lies; one kernel serves every batch."""
    spec = spec_in_sequences(name, layout)
    kernels = Kernels(spec, SM90)
    check(kernels, sequence_inputs(spec, SEQUENCES, heads=heads, spare=3, seed=3), late=1)
    check(kernels, sequence_inputs(spec, [(0, 3), (0, 0)], heads=heads, seed=4), late=2)
    assert len(kernels.compiled) <= 1


def test_many_short_sequences() -> None:
    """More than the lanes of a warp can look at together."""
    spec = spec_in_sequences("causal", "packed")
    check(Kernels(spec, SM90), sequence_inputs(spec, [(b % 3, b % 4) for b in range(70)], heads=(1, 1)), late=2)


def test_wrong_lengths_touch_nothing_else() -> None:
    """Contents are checked on the host with debug=True only; whatever they are, no access leaves the tensors."""
    spec = spec_in_sequences("documents", "packed_used")
    inputs = sequence_inputs(spec, [(70, 100), (30, 20)], seed=3)
    kernels = Kernels(spec, SM90)
    wrong = {"cu_q": [5, 90, -7], "cu_k": [0, 2**31 - 1, 60], "used_q": [-3, 2**30], "used_k": [500, -1]}
    for name, values in wrong.items():
        tensors = {**inputs.tensors, name: torch.tensor(values, dtype=torch.int32)}
        o, lse = torch.zeros_like(tensors["q"]), torch.zeros(4, 100)
        with emulator.device("sm_90a", late=1) as gpu:
            kernels.launch(bind(spec, (), tensors, False), o, lse)
        assert not gpu.findings, (name, gpu.findings[:3])


@pytest.mark.slow
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", SPECS)
def test_every_length_and_head_dim(name, dtype, dims) -> None:
    spec = spec_of(name, dtype)
    kernels = Kernels(spec, SM90)
    for place, (lengths, heads) in enumerate(zip(LENGTHS, GROUPS, strict=True)):
        check(kernels, random_inputs(spec, extents_of(lengths, heads, dims), seed=place), late=place % 3)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", IN_SEQUENCES)
def test_every_layout_of_sequences(name, layout) -> None:
    spec = spec_in_sequences(name, layout)
    for place, (heads, dims) in enumerate([((4, 2), (64, 64)), ((6, 1), (128, 128)), ((2, 1), (256, 256))]):
        check(Kernels(spec, SM90), sequence_inputs(spec, SEQUENCES, heads=heads, dims=dims, seed=place), late=place)
