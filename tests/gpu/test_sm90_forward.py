"""Compiled Hopper kernels against float64. Skipped where there is no GPU of compute capability 9.0."""

import math
from pathlib import Path

import pytest
import torch
from forward_specs import (
    GALLERY_REFUSED,
    HEAD,
    IN_SEQUENCES,
    LAYOUTS,
    SPECS,
    assert_close,
    sequence_inputs,
    spec_in_sequences,
    spec_of,
)
from gallery_cases import CASES

import attn_dsl
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.lowering.forward import pack_of
from attn_dsl.runtime import random_inputs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _reason() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    found = torch.cuda.get_device_capability()
    return None if found == (9, 0) else f"compute capability {found[0]}.{found[1]}, and these kernels are for 9.0"


pytestmark = pytest.mark.skipif(_reason() is not None, reason=_reason() or "")

LENGTHS = [(1, 1), (1, 300), (63, 257), (128, 128), (129, 640), (255, 384), (640, 127), (384, 255), (0, 5), (5, 0)]
LENGTHS += [(200, 333), (17, 90), (64, 64), (65, 129)]
HEADS = [(3, 3), (4, 2), (6, 2), (5, 1), (16, 1)]
DIMS = [(8, 8), (40, 24), (64, 64), (72, 96), (128, 128), (120, 64), (64, 128)]
DIMS += [(192, 128), (256, 256), (200, 136), (40, 256)]


def check(spec, compiled, inputs, *, exact=None) -> None:
    """Runs `compiled` into poisoned buffers and holds both outputs to float64."""
    tensors = inputs.tensors | dict(inputs.params)
    o_exact, lse_exact = exact or attn_dsl.compile(spec, target="reference-f64")(**tensors, return_lse=True)
    o = torch.full(o_exact.shape, math.nan, dtype=o_exact.dtype, device="cuda")
    lse = torch.full(lse_exact.shape, math.nan, dtype=torch.float32, device="cuda")
    compiled(**tensors, out=o, lse=lse)
    assert_close(spec, (o, lse), (o_exact, lse_exact))


@pytest.mark.parametrize("name", sorted(set(CASES) - GALLERY_REFUSED))
def test_gallery(name):
    """Each gallery spec that the target takes, against its formula written out in float64."""
    found = CASES[name]()
    spec = attn_dsl.load(EXAMPLES / f"{name}.attn", **found.constants)
    compiled = attn_dsl.compile(spec, target="sm90")
    tensors = {key: value.cuda() for key, value in found.tensors.items()}
    params = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in found.params.items()}
    o, lse = compiled(**tensors, **params, return_lse=True)
    assert_close(spec, (o, lse), (found.o, found.lse))


@pytest.mark.parametrize("name", sorted(SPECS))
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_lengths_and_groups(name, dtype):
    """One kernel serves every length; groups whose heads share tiles have one each."""
    spec = spec_of(name, dtype)
    compiled = attn_dsl.compile(spec, target="sm90")
    for place, (seq_q, seq_k) in enumerate(LENGTHS):
        heads, kv_heads = HEADS[place % len(HEADS)]
        extents = {"batch": 2, "seq_q": seq_q, "seq_k": seq_k, "heads": heads, "kv_heads": kv_heads}
        check(spec, compiled, random_inputs(spec, extents | {"dim": 64, "dim_v": 64}, seed=place, device="cuda"))
    packed = {pack_of(spec, heads // kv_heads) for heads, kv_heads in HEADS}
    assert packed == ({1} if name == "reach_by_head" else {1, 2, 3, 5, 16})
    assert len(compiled.backend.loaded) == len(packed)


@pytest.mark.parametrize(("dim", "dim_v"), DIMS)
@pytest.mark.parametrize("name", ["causal", "softcap", "documents"])
def test_head_dims(name, dim, dim_v):
    spec = spec_of(name)
    extents = {"batch": 2, "seq_q": 200, "seq_k": 330, "heads": 4, "kv_heads": 2, "dim": dim, "dim_v": dim_v}
    check(spec, attn_dsl.compile(spec, target="sm90"), random_inputs(spec, extents, seed=dim, device="cuda"))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("name", sorted(IN_SEQUENCES))
def test_sequences_that_do_not_fill_their_axis(name, layout):
    """NaN lies wherever no row of a sequence does; one kernel serves every batch."""
    spec = spec_in_sequences(name, layout)
    compiled = attn_dsl.compile(spec, target="sm90")
    batches = [
        [(0, 4), (70, 100), (0, 0), (200, 130), (1, 257), (128, 128), (65, 2), (9, 0)],
        [(b % 7, b % 5) for b in range(100)],
        [(0, 3), (0, 0)],
        [(3, 0)],
        [],
        [(1000, 1000), (1, 5000), (255, 640)],
    ]
    for place, lengths in enumerate(batches):
        check(spec, compiled, sequence_inputs(spec, lengths, spare=place % 2 * 5, seed=place, device="cuda"))


def test_thousands_of_sequences():
    """A search of three steps."""
    spec = spec_in_sequences("causal", "packed")
    lengths = [(b % 5, b % 3) for b in range(3000)]
    inputs = sequence_inputs(spec, lengths, heads=(1, 1), seed=8, device="cuda")
    check(spec, attn_dsl.compile(spec, target="sm90"), inputs)


def test_parameters_come_as_numbers_or_tensors():
    spec = spec_of("window")
    compiled = attn_dsl.compile(spec, target="sm90")
    extents = {"batch": 2, "seq_q": 300, "seq_k": 300, "heads": 2, "kv_heads": 1, "dim": 64, "dim_v": 64}
    inputs = random_inputs(spec, extents, device="cuda")
    for left in (0, 1, 127, 128, attn_dsl.UNBOUNDED):
        expected = attn_dsl.compile(spec, target="reference-f64")(**inputs.tensors, left=left, right=0)
        for value in (left, torch.tensor(left, device="cuda"), torch.tensor(left, dtype=torch.int32, device="cuda")):
            o = compiled(**inputs.tensors, left=value, right=0)
            assert compare_output(o, expected, spec.output.dtype).ok
    # left as a number, as an i64 and as an i32 tensor
    assert len(compiled.backend.loaded) == 3


def test_prefix_per_batch_entry():
    spec = spec_of("prefix")
    extents = {"batch": 3, "seq_q": 333, "seq_k": 400, "heads": 2, "kv_heads": 2, "dim": 128, "dim_v": 128}
    inputs = random_inputs(spec, extents, seed=3, device="cuda")
    params = {"prefix": torch.tensor([0, 129, 400], dtype=torch.int32, device="cuda")}
    expected = attn_dsl.compile(spec, target="reference-f64")(**inputs.tensors, **params, return_lse=True)
    o, lse = attn_dsl.compile(spec, target="sm90")(**inputs.tensors, **params, return_lse=True)
    assert compare_output(o, expected[0], spec.output.dtype).ok
    assert compare_lse(lse, expected[1]).ok


def test_parameters_per_head():
    """Heads that share a tile have their own values."""
    for name in ("reach_by_head", "gain_by_head"):
        spec = spec_of(name)
        extents = {"batch": 2, "seq_q": 333, "seq_k": 400, "heads": 8, "kv_heads": 2, "dim": 128, "dim_v": 128}
        inputs = random_inputs(spec, extents, seed=4, device="cuda")
        params = {"gain": torch.linspace(-1, 2, 8, device="cuda")}
        if name == "reach_by_head":
            params["reach"] = torch.tensor([1, 2, 5, 64, 128, 129, 400, 2**31 - 1], dtype=torch.int32, device="cuda")
        expected = attn_dsl.compile(spec, target="reference-f64")(**inputs.tensors, **params, return_lse=True)
        o, lse = attn_dsl.compile(spec, target="sm90")(**inputs.tensors, **params, return_lse=True)
        assert compare_output(o, expected[0], spec.output.dtype).ok
        assert compare_lse(lse, expected[1]).ok


@pytest.mark.parametrize("order", ["bhsd", "bshd", "sbhd"])
def test_any_outer_strides(order):
    """Axes of q, k, v and out in any order in memory, as long as the inner one is dense."""
    spec = spec_of("causal")
    extents = {"batch": 2, "seq_q": 150, "seq_k": 260, "heads": 4, "kv_heads": 2, "dim": 64, "dim_v": 64}
    inputs = random_inputs(spec, extents, seed=5, device="cuda")
    places = ["bshd".index(letter) for letter in order]
    back = [order.index(letter) for letter in "bshd"]
    turned = {key: x.permute(places).contiguous().permute(back) for key, x in inputs.tensors.items()}
    out = torch.full_like(turned["q"], math.nan)
    expected = attn_dsl.compile(spec, target="reference-f64")(**inputs.tensors)
    attn_dsl.compile(spec, target="sm90")(**turned, out=out)
    assert compare_output(out, expected, spec.output.dtype).ok


def test_skipped_tiles_are_not_read():
    """NaN in keys and values that no tile visits reaches nothing."""
    spec = spec_of("causal")
    extents = {"batch": 1, "seq_q": 256, "seq_k": 1024, "heads": 2, "kv_heads": 1, "dim": 64, "dim_v": 64}
    spec = attn_dsl.parse(HEAD.format(dtype="bf16") + "align top_left\nmask = kv_idx <= q_pos")
    inputs = random_inputs(spec, extents, seed=6, device="cuda")
    expected = attn_dsl.compile(spec, target="reference-f64")(**inputs.tensors)
    compiled = attn_dsl.compile(spec, target="sm90")
    compiled(**inputs.tensors)
    (kernel,) = compiled.backend.loaded.values()
    tile_k = kernel.signature.tile_k
    for name in ("k", "v"):
        inputs.tensors[name][:, -(-256 // tile_k) * tile_k :] = math.nan
    o = compiled(**inputs.tensors)
    assert compare_output(o, expected, spec.output.dtype).ok


def test_repeated_runs_are_equal():
    spec = spec_of("causal")
    extents = {"batch": 2, "seq_q": 1000, "seq_k": 1000, "heads": 8, "kv_heads": 2, "dim": 128, "dim_v": 128}
    inputs = random_inputs(spec, extents, seed=7, device="cuda")
    compiled = attn_dsl.compile(spec, target="sm90")
    first, first_lse = compiled(**inputs.tensors, return_lse=True)
    for _ in range(200):
        o, lse = compiled(**inputs.tensors, return_lse=True)
        assert torch.equal(o, first)
        assert torch.equal(lse, first_lse)


def test_layouts_that_cannot_be_read():
    spec = spec_of("causal")
    compiled = attn_dsl.compile(spec, target="sm90")
    extents = {"batch": 1, "seq_q": 64, "seq_k": 64, "heads": 2, "kv_heads": 2, "dim": 64, "dim_v": 64}
    tensors = random_inputs(spec, extents, device="cuda").tensors
    padded = torch.zeros(1, 64, 2, 68, dtype=torch.bfloat16, device="cuda")[..., :64]
    with pytest.raises(attn_dsl.CallError, match=r"E279.*k has stride 68 along kv_heads"):
        compiled(**{**tensors, "k": padded})
    with pytest.raises(attn_dsl.CallError, match=r"E279.*v has stride 128 along dim_v"):
        compiled(**{**tensors, "v": tensors["v"].transpose(1, 3).contiguous().transpose(1, 3)})


def test_what_it_does_not_do():
    spec = spec_of("causal")
    compiled = attn_dsl.compile(spec, target="sm90")
    extents = {"batch": 1, "seq_q": 64, "seq_k": 64, "heads": 2, "kv_heads": 2, "dim": 64, "dim_v": 64}
    tensors = random_inputs(spec, extents, device="cuda").tensors
    with pytest.raises(attn_dsl.UnsupportedError, match=r"E282.*not on cpu"):
        compiled(**{name: tensor.cpu() for name, tensor in tensors.items()})
    wide = {**tensors, **{name: torch.zeros(1, 64, 2, 264, dtype=torch.bfloat16, device="cuda") for name in "qk"}}
    with pytest.raises(attn_dsl.PlanError, match="dim is 264"):
        compiled(**wide)
