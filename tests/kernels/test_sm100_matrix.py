"""The gallery on the virtual Blackwell device: dtypes, head dimensions, lengths, groups, schedules, nothing found.

`benchmarks/sm100_gallery.py` runs the same cells and writes the table.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

pytest.importorskip("cutlass")

import kernel_matrix as matrix
from kernel_matrix import Cell

from attn_dsl import reference

TARGET = "sm100"
QUICK = [cell for cell in matrix.cells((40, 64, 128)) if cell.spec in matrix.FIRST]
SAMPLE = random.Random(11).sample(QUICK, 2)


def run(cell: Cell, lengths: list[tuple[int, int]], schedule: Mapping[str, int] | None = None) -> None:
    kernels = matrix.kernels_of(cell, TARGET, schedule)
    for place, pair in enumerate(lengths):
        assert matrix.launch(kernels, cell, pair, seed=place + 1, late=place % 3) == "", (cell, pair)
    assert len(kernels.compiled) == 1


@pytest.mark.parametrize("cell", SAMPLE, ids=str)
def test_a_sample(cell: Cell) -> None:
    run(cell, [(129, 257), (257, 130), (0, 5)])


def test_division_of_negative_positions_rounds_down() -> None:
    """Queries before the first key have negative positions, which a window of an image divides by its width."""
    run(Cell("swin_window", "bf16", 40, 1), [(640, 127)])


@pytest.mark.slow
@pytest.mark.parametrize("cell", list(matrix.cells()), ids=str)
def test_every_cell(cell: Cell) -> None:
    run(cell, list(matrix.LENGTHS))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [{"tile_q": 128}, {"exp2_share": 0}, {"exp2_share": 100}], ids=str)
@pytest.mark.parametrize(
    "cell",
    [
        Cell("llama_causal", "bf16", 128, 4),
        Cell("gpt_oss_local", "f16", 64, 7),
        Cell("gemma2_local", "bf16", 96, 2),
        Cell("longformer", "f16", 256, 1),
        Cell("alphafold_pair_bias", "bf16", 40, 1),
    ],
    ids=str,
)
def test_schedules(cell: Cell, schedule: dict[str, int]) -> None:
    run(cell, [(129, 257), (640, 127), (63, 384)], schedule)


def test_nothing_is_refused() -> None:
    """Nothing of the gallery, whose first two dozen variants the project set out with."""
    for cell in matrix.cells((64,)):
        matrix.kernels_of(cell, TARGET)
    assert len(matrix.FIRST) == 24
    assert set(matrix.FIRST) <= set(matrix.SPECS)


def test_the_bound_is_tight_and_can_fail() -> None:
    """What rounds its weights like a kernel is inside; outputs off by three units in the last place are not."""
    cell = Cell("gpt_oss_local", "bf16", 64, 3)
    spec = matrix.load(cell.spec)
    call = matrix.call_of(spec, cell, (65, 130), seed=3)
    exact, lse = reference.attention(spec, call.tensors, call.params, precision="float64")
    rounded = matrix.rounded_weights(spec, call)
    error = float((rounded - exact).abs().max())
    assert 0 < error < 2**-8 * float(exact.abs().max())
    assert matrix.compare(spec, call, rounded.bfloat16(), exact) == ""
    place = exact.abs().argmax()
    off = rounded.bfloat16().flatten()
    off[place] *= 1 + 2 ** (-7 + 2) + 0.02
    assert "past a bound" in matrix.compare(spec, call, off.reshape(exact.shape), exact)
    off[place] = float("nan")
    assert "not finite" in matrix.compare(spec, call, off.reshape(exact.shape), exact)
    assert matrix.compare_lse(lse.float(), lse) == ""
    assert "off by" in matrix.compare_lse(lse.float() + 3e-4, lse)
    assert "infinite" in matrix.compare_lse(torch.zeros_like(lse).float(), torch.full_like(lse, -torch.inf))


def test_rounded_weights_without_rounding_are_the_oracle() -> None:
    """f32 rounds so little that slices of weights, sinks and shared heads must come out as the oracle has them."""
    for name in ("gpt_oss_local", "packed_documents", "swin_v2_cosine"):
        spec = matrix.load(name)
        call = matrix.call_of(spec, Cell(name, "bf16", 40, 3 if name != "swin_v2_cosine" else 1), (33, 97), seed=2)
        wide = {key: value.float() if key in ("q", "k", "v") else value for key, value in call.tensors.items()}
        exact, _ = reference.attention(spec, wide, call.params, precision="float64")
        torch.testing.assert_close(
            matrix.rounded_weights(spec, replace(call, tensors=wide)), exact, atol=1e-7, rtol=1e-6
        )
