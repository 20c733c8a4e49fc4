"""`attn-dsl explain --target` lists what makes another kernel; tests/runtime/test_compilations.py counts kernels."""

from pathlib import Path

import pytest

import attn_dsl
from attn_dsl import UnsupportedError
from attn_dsl.cli.plan_report import shape_classes
from attn_dsl.lowering.forward import ShapeClass
from attn_dsl.runtime import compile_for
from attn_dsl.runtime.kernels import KERNEL_TARGETS

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.attn"))
MOST = (
    4  # kinds of change, of any example: head dimensions, heads of a tile, forms of parameters or pages, parts of keys
)
PARTS = "one for parts of keys, and one that joins up to 32 of them or one for up to 256"
POOLS = """q: bf16[batch, seq_q, heads, dim]
k, v: {dtype}[pages, page_size, kv_heads, dim]
page_table: i32[batch, max_pages]
{tensors}: i32[batch]
paged {{ table = page_table }}
lengths k {{ {lengths} }}
"""
USED = {"tensors": "used", "lengths": "used = used"}
PADDED = {"tensors": "used, pad", "lengths": "used = used, left_pad = pad"}


def listed(spec: attn_dsl.AttentionSpec, target: str) -> list[str]:
    """What `explain` says another kernel is compiled for."""
    shape = ShapeClass(spec.fixed("dim") or 64, spec.fixed(spec.dim_v_axis) or 64)
    first, second, *changes = shape_classes(spec, shape, KERNEL_TARGETS[target])
    assert first.startswith("shape class of this call: dim ")
    assert second == "another kernel is compiled for"
    return [change.strip() for change in changes]


def test_every_example_has_a_handful() -> None:
    most = 0
    for path in EXAMPLES:
        spec = attn_dsl.load(path)
        for target in KERNEL_TARGETS:
            try:
                compile_for(spec, target)
            except UnsupportedError:
                continue
            changes = listed(spec, target)
            assert len(changes) == len(set(changes)) <= MOST, path.name
            most = max(most, len(changes))
    assert most == MOST


@pytest.mark.parametrize("target", KERNEL_TARGETS)
def test_each_kind_of_change_has_one_line(target: str) -> None:
    text = """q: bf16[batch, seq_q, heads, dim]
k: bf16[batch, seq_k, kv_heads, dim]
v: bf16[batch, seq_k, kv_heads, dim_v]
param n: int = 7
param gain: float[heads] = 1.0
mask = 0 <= q_pos - kv_idx < n
score = gain * score
"""
    packs = {"sm90": "any", "sm100": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 32, 64, 128"}[target]
    forms = "each form of a parameter instead of a number, and each dtype of it: "
    assert listed(attn_dsl.parse(text, name="all"), target) == [
        "each dim that is called: multiples of 8 to 256",
        "each dim_v that is called: multiples of 8 to 256",
        f"each number of heads that share a tile: {packs}",
        f"{forms}n as a tensor of one element, gain as a tensor[heads]",
        f"few queries on many keys: {PARTS}",
    ]


@pytest.mark.parametrize("target", KERNEL_TARGETS)
def test_schedules_and_packed_queries_decide_on_parts(target: str) -> None:
    plain = "axis dim = 64\nq: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\n"
    packed = (
        "axis dim = 64\nq: bf16[total_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\ncu: i32[batch + 1]\n"
        "lengths q { cu_seqlens = cu }\n"
    )
    for text, changes in (
        (plain, [f"few queries on many keys: {PARTS}"]),
        (plain + "schedule { splits = 4 }", [f"all calls, by the schedule: {PARTS}"]),
        (plain + "schedule { splits = 1 }", ["nothing: this is the only one"]),
        (packed, ["nothing: this is the only one"]),
        (packed + "schedule { splits = 4 }", [f"all calls, by the schedule: {PARTS}"]),
    ):
        assert listed(attn_dsl.parse(text, name="parts"), target) == changes


@pytest.mark.parametrize("target", KERNEL_TARGETS)
def test_sizes_of_pages_that_have_kernels(write, run, target: str) -> None:
    line = "each page_size that whole tiles are copied from: multiples of 8"
    for dtype, lengths, has in (("bf16", USED, True), ("e4m3", USED, False), ("bf16", PADDED, False)):
        spec = attn_dsl.parse(POOLS.format(dtype=dtype, **lengths), name="paged")
        assert (line in listed(spec, target)) == has
    name = write("a.attn", POOLS.format(dtype="bf16", **USED))
    sizes = ("--seq-q", "1", "--seq-k", "20", "--batch", "1", "--heads", "2", "--kv-heads", "1", "--dim", "64")
    for page_size, words in ((16, ", pages of 16 rows"), (12, "")):
        shape = f"page_size={page_size},pages=9,max_pages=3"
        outcome = run("explain", name, *sizes, "--shape", shape, "--target", target)
        assert outcome.code == 0, outcome.err
        assert f"dim 64, dim_v 64, 2 query heads share a tile{words}\n" in outcome.out
