"""Every spec of examples/ means its formula: compared in float64 with a dense computation of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gallery_cases import CASES

import attn_dsl
from attn_dsl.reference import attention
from attn_dsl.syntax import format_file, parse_source, read_source

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(EXAMPLES.glob("*.attn"))


def test_every_spec_has_a_case():
    assert {path.stem for path in SPECS} == set(CASES)
    assert len(SPECS) >= 28


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_equals_the_dense_formula(path):
    case = CASES[path.stem]()
    spec = attn_dsl.load(path, **case.constants)
    o, lse = attention(spec, case.tensors, case.params, precision="float64")
    torch.testing.assert_close(o, case.o, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(lse, case.lse, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_compiles_and_runs_in_its_own_dtypes(path):
    case = CASES[path.stem]()
    compiled = attn_dsl.compile(path, target="reference", **case.constants)
    o, lse = compiled(**case.tensors, **case.params, return_lse=True)
    assert (o.dtype, lse.dtype) == (case.tensors["q"].dtype, torch.float32)
    torch.testing.assert_close(o.double(), case.o, atol=1e-5, rtol=2.0**-8)  # half a step of bf16, and f32 arithmetic
    torch.testing.assert_close(lse.double(), case.lse, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_is_short_formatted_and_says_what_it_is(path):
    source = read_source(path)
    assert format_file(parse_source(source)) == source.text
    lines = source.text.splitlines()
    meaningful = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(meaningful) <= 15
    header = [line for line in lines[:3] if line.startswith("# ")]
    assert len(header) == 3, "first the variant, then its formula, then who uses it"
    assert header[1].startswith("#     ")
