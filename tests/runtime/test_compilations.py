"""Kernels that calls compile: one for each shape class that `attn-dsl explain --target` lists, and no other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import attn_dsl
from attn_dsl.cli.plan_report import shape_classes
from attn_dsl.lowering.forward import ForwardPlan, ShapeClass
from attn_dsl.runtime import kernels, splitting
from attn_dsl.runtime.kernel import Kernel
from attn_dsl.runtime.kernels import KERNEL_TARGETS, KernelTarget
from attn_dsl.runtime.signature import Signature
from attn_dsl.runtime.splitting import Join

TEXT = """q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
slopes: f32[heads]
param window: int in 1.. = 4
mask = 0 <= q_pos - kv_idx < window
score = score + slopes[h]
"""
PAGED = """q: bf16[batch, seq_q, heads, dim]
k, v: bf16[pages, page_size, kv_heads, dim]
page_table: i32[batch, max_pages]
used: i32[batch]
paged { table = page_table }
lengths k { used = used }
"""
LENGTHS = ((1, 0), (1, 5000), (3, 64), (64, 65), (300, 300), (700, 129), (0, 7))  # seq_q, seq_k
BATCHES = (0, 1, 4)
WINDOWS = (1, 1000)
HEADS = ((2, 2), (6, 2), (16, 1), (17, 1), (32, 1))  # heads, kv_heads


@dataclass
class Counted:
    """What calls compiled; nothing is computed."""

    plans: list[ForwardPlan] = field(default_factory=list)
    joins: list[Join] = field(default_factory=list)

    def compile(self, plan: ForwardPlan, target: KernelTarget) -> Kernel:
        self.plans.append(plan)
        return Kernel(Signature.of(plan, target.arch), lambda *_: None, None)

    def join(self, join: Join) -> Any:
        self.joins.append(join)
        return lambda *_: None


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """As on a GPU of 132 multiprocessors, whose calls compile and launch nothing."""
    found = Counted()
    monkeypatch.setattr(kernels, "compiled_kernel", found.compile)
    monkeypatch.setattr(kernels, "cached_join", found.join)
    monkeypatch.setattr(kernels, "check_here", lambda target, device: target)
    monkeypatch.setattr(splitting, "_processors", lambda device: 132)
    return found


def listed(spec: attn_dsl.AttentionSpec, target: str) -> list[str]:
    return list(shape_classes(spec, ShapeClass(64, 64), KERNEL_TARGETS[target]))


def packs_of(spec: attn_dsl.AttentionSpec, target: str, groups: set[int]) -> set[int]:
    """How many heads of groups of such sizes share a tile, by what is listed."""
    (line,) = [line for line in listed(spec, target) if line.startswith("  each number of heads that share a tile: ")]
    words = line.split(": ")[1]
    if words == "any":
        return groups
    known = set(map(int, words.split(", ")))
    return {group if group in known else 1 for group in groups}


def call(compiled: Any, lengths: tuple[int, int], batch: int, heads: tuple[int, int], dim: int, window: Any) -> None:
    q = torch.zeros(batch, lengths[0], heads[0], dim, dtype=torch.bfloat16)
    k = torch.zeros(batch, lengths[1], heads[1], dim, dtype=torch.bfloat16)
    compiled(q, k, k, slopes=torch.zeros(heads[0]), window=window)


@pytest.mark.parametrize("target", KERNEL_TARGETS)
def test_there_are_no_more_kernels_than_classes(counted: Counted, target: str) -> None:
    """Over lengths, batch sizes, values and heads, for two head dimensions and both forms of a parameter."""
    spec = attn_dsl.parse(TEXT, name="counted")
    compiled = attn_dsl.compile(spec, target=target)
    dims = (64, 128)
    for dim, heads, lengths, batch, value in itertools.product(dims, HEADS, LENGTHS, BATCHES, WINDOWS):
        for window in (value, torch.tensor(value, dtype=torch.int32)):
            call(compiled, lengths, batch, heads, dim, window)
    packs = packs_of(spec, target, {heads // kv_heads for heads, kv_heads in HEADS})
    classes = set(itertools.product(dims, packs, ("number", "scalar_tensor"), (False, True)))
    found = [(plan.dim, plan.pack, plan.params[0].form, plan.partial) for plan in counted.plans]
    assert len(found) == len(set(found))
    assert set(found) == classes
    assert {(join.dim_v, join.most) for join in counted.joins} <= set(itertools.product(dims, (32, 256)))
    assert {join.most for join in counted.joins} == {32, 256}


@pytest.mark.parametrize("target", KERNEL_TARGETS)
def test_a_class_is_compiled_once_and_for_all_its_calls(counted: Counted, target: str) -> None:
    """Heads that share no more tiles, lengths, batch sizes and values: the kernel of the first call, then none."""
    spec = attn_dsl.parse(TEXT, name="counted")
    compiled = attn_dsl.compile(spec, target=target)
    call(compiled, (300, 300), 2, (6, 2), 64, 9)
    assert len(counted.plans) == 1
    for (heads, kv_heads), batch, window in itertools.product(((3, 1), (24, 8)), (1, 7), (2, 2**31 - 1)):
        for lengths in ((129, 1), (1024, 5), (500, 2000)):
            call(compiled, lengths, batch, (heads, kv_heads), 64, window)
    assert len(counted.plans) == 1


@pytest.mark.parametrize("target", KERNEL_TARGETS)
def test_pages_have_the_kernels_that_are_listed(counted: Counted, target: str) -> None:
    """One for each size of pages that is listed, and one for all others."""
    spec = attn_dsl.parse(PAGED, name="paged")
    assert "  each page_size that whole tiles are copied from: multiples of 8" in listed(spec, target)
    compiled = attn_dsl.compile(spec, target=target)
    for page_size, pages, batch in itertools.product((1, 7, 12, 16, 24, 100), (3, 50), (1, 66)):
        q = torch.zeros(batch, 40, 8, 64, dtype=torch.bfloat16)
        k = torch.zeros(pages, page_size, 2, 64, dtype=torch.bfloat16)
        table = torch.zeros(batch, 2, dtype=torch.int32)
        compiled(q, k, k, page_table=table, used=torch.ones(batch, dtype=torch.int32))
    found = [(plan.page_size, plan.partial) for plan in counted.plans]
    assert len(found) == len(set(found))
    assert {size for size, _ in found} == {0, 16, 24}
