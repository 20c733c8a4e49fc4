"""Launches and kernels as users of Triton write and see them. Compiles one kernel, for sm_90a, without a GPU."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from stand_in_kernels import stand_in

import attn_dsl
from attn_dsl import CallError, UnsupportedError
from attn_dsl.runtime import cache, random_inputs
from attn_dsl.runtime.artifact import _triton_tool
from attn_dsl.runtime.cubin import resources
from attn_dsl.runtime.kernel import GpuTarget
from attn_dsl.runtime.splitting import Join, cached_join

TEXT = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
param window: int in 1.. = 4096
mask = 0 <= q_pos - kv_idx < window
"""
SPEC = attn_dsl.parse(TEXT, name="window")
SIZES = {"batch": 2, "seq_q": 300, "seq_k": 50, "heads": 4, "kv_heads": 4, "dim": 64}
TENSORS = list(random_inputs(SPEC, SIZES).tensors.values())


@pytest.fixture(scope="module")
def kernel():
    pytest.importorskip("cutlass")
    compiled = attn_dsl.compile(SPEC, target="sm90")
    made = compiled.warmup(*TENSORS)
    assert compiled.warmup(*TENSORS, window=7) is made is compiled.kernel
    assert (compiled.metadata, compiled.n_regs, compiled.n_spills) == (made.metadata, made.n_regs, made.n_spills)
    return made


def test_what_a_kernel_is_compiled_to(kernel):
    metadata = kernel.metadata
    assert f".entry {metadata.name}(" in kernel.asm["ptx"]
    assert metadata.target == GpuTarget("cuda", 90, 32)
    assert re.search(r"\.target sm_90a", kernel.asm["ptx"])
    assert metadata.num_warps * 32 == kernel.signature.threads
    assert f".reqntid {kernel.signature.threads}, 1, 1" in kernel.asm["ptx"]
    assert metadata.shared == kernel.signature.shared
    assert kernel.asm["cubin"].startswith(b"\x7fELF")
    assert 64 <= kernel.n_regs <= 65536 // kernel.signature.threads
    assert kernel.n_spills == resources(kernel.asm["cubin"]).stack // 4
    assert list(kernel.asm) == ["ptx", "cubin", "sass"]
    with pytest.raises(KeyError, match="there are ptx, cubin, sass"):
        kernel.asm["ttir"]


@pytest.mark.skipif(not (shutil.which("nvdisasm") or _triton_tool("nvdisasm")), reason="no nvdisasm")
def test_sass(kernel):
    assert "HGMMA" in kernel.asm["sass"]


def test_sass_without_the_tool(kernel, monkeypatch):
    monkeypatch.setattr("attn_dsl.runtime.artifact._triton_tool", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match=r"E282.*nvdisasm, which was not found"):
        kernel.asm["sass"]


def test_what_joins_parts_is_kept_like_any_kernel(monkeypatch, tmp_path):
    pytest.importorskip("cutlass")
    monkeypatch.setenv("ATTN_DSL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "read_sources", lambda: cache.SOURCES)  # whoever edits them while the tests run
    join = Join("sm90", "sm_90a", "bf16", 64, ("batch", "seq_q", "heads", "dim"), ("batch", "heads", "seq_q"), "e")
    cached_join.cache_clear()
    cached_join(join)
    (kept,) = cache.kernel_cache().entries()
    assert (kept.info.spec, kept.info.dim_v, kept.info.signature.arch) == ("join", 64, "sm_90a")
    monkeypatch.setattr("attn_dsl.runtime.splitting.build", None)  # nothing is compiled again
    cached_join.cache_clear()
    cached_join(join)
    cached_join.cache_clear()


def test_a_launch_writes_its_buffers_and_gives_its_kernel():
    with stand_in(SPEC) as made:
        compiled = attn_dsl.compile(SPEC, target="sm90")
        tile = compiled.warmup(*TENSORS).signature.tile_q
        grid = (-(-300 // tile) * 4 * 2,)
        for given in (None, grid, (*grid, 1), (*grid, 1, 1)):
            o, lse = torch.full_like(TENSORS[0], torch.nan), torch.full((2, 4, 300), torch.nan)
            assert compiled[given](*TENSORS, o, lse, window=9) is compiled.kernel
            true_o, true_lse = attn_dsl.compile(SPEC)(*TENSORS, window=9, return_lse=True)
            assert torch.equal(o, true_o)
            assert torch.equal(lse, true_lse)
        assert made.launches == 4
        q, k, v = TENSORS
        compiled[None](q, k, o, v=v, window=30)
        assert torch.equal(o, attn_dsl.compile(SPEC)(q, k, v, window=30))


def test_what_a_launch_refuses():
    o = torch.full_like(TENSORS[0], 7.0)
    with stand_in(SPEC) as made:
        compiled = attn_dsl.compile(SPEC, target="sm90")
        cases = [
            ((1,), (*TENSORS, o), "E324", "grid (1,); the plan of this kernel launches ("),
            ((1, 2, 3, 4), (*TENSORS, o), "E324", "grid (1, 2, 3, 4)"),
            (None, TENSORS, "E270", "3 tensors given by position, expected q, k, v, o and maybe lse"),
            (None, (*TENSORS, o, o, o), "E270", "6 tensors given by position"),
            (None, (*TENSORS, o[:1]), "E278", "out has shape [1, 300, 4, 64]"),
            (None, (*TENSORS[:2], TENSORS[2].float(), o), "E272", "v has dtype f32"),
        ]
        for grid, args, code, message in cases:
            with pytest.raises(CallError) as caught:
                compiled[grid](*args)
            assert caught.value.code == code
            assert message in str(caught.value)
        assert made.launches == 0
        assert (o == 7).all()


def test_who_has_no_kernel_says_so():
    reference = attn_dsl.compile(SPEC)
    for ask in (
        lambda: reference.asm,
        lambda: reference.warmup(*TENSORS),
        lambda: reference[None](*TENSORS, TENSORS[0]),
    ):
        with pytest.raises(UnsupportedError, match=r"E281.*target 'reference' has no kernels"):
            ask()
    with stand_in(SPEC):
        compiled = attn_dsl.compile(SPEC, target="sm90")
        with pytest.raises(CallError, match=r"E325.*window has no kernel yet"):
            compiled.n_regs  # noqa: B018
        compiled.warmup(*TENSORS)
        wider = list(random_inputs(SPEC, SIZES | {"dim": 128}).tensors.values())
        compiled.warmup(*wider)
        with pytest.raises(CallError, match=r"E325.*window has 2 kernels \(dim 64, dim_v 64, dim 128, dim_v 128\)"):
            compiled.metadata  # noqa: B018
