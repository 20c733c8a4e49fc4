"""Tile bounds, keep words and element masks of traced kernels, run on the virtual device, against the dense mask."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from random_masks import random_spec
from standard_masks import EXTENTS, PROVED, STANDARD_MASKS, StandardMask
from tile_oracle import dense_mask
from torch import Tensor

pytest.importorskip("cutlass")

from cute_walk import FULL, PARTIAL, ROWS, Walked, Walker

import attn_dsl
from attn_dsl import emulator
from attn_dsl.expr import Expr, ExprBuilder
from attn_dsl.lowering.tiles import Binding
from attn_dsl.lowering.tiles.dependence import rewrite
from attn_dsl.runtime.inputs import random_inputs
from attn_dsl.spec.model import AttentionSpec, Role

Values = Mapping[str, Tensor | int | float]
SIZES = [(100, 150), (130, 70), (64, 64), (1, 40), (65, 1), (7, 0)]  # seq_q, seq_k


def check(spec: AttentionSpec, extents: Mapping[str, int], values: Values, walker: Walker) -> Counter[str]:
    """Every score is what the mask says, no skipped tile holds a visible pair; returns what the tiles were."""
    found: Walked = walker.run(extents, values)
    call = Binding.of(extents, values)
    seq_q, seq_k, tile_k = extents["seq_q"], extents["seq_k"], walker.plan.tile_k
    shape = found.logits.shape
    visible = torch.zeros(shape, dtype=torch.bool)
    for b in range(extents["batch"]):
        visible[b, :, :seq_q, :seq_k] = dense_mask(spec, call, b)
    visits = found.visits.repeat_interleave(ROWS, 2).repeat_interleave(tile_k, 3) > 0
    got, dots, visible = (t[:, :, :seq_q] for t in (found.logits, found.dots, visible))
    visits = visits[:, :, :seq_q]
    assert not (visible & ~visits).any(), "a skipped tile holds a visible pair"
    hidden = torch.full_like(dots, -math.inf)
    expected = torch.where(visits, torch.where(visible, dots, hidden), torch.nan)
    assert torch.equal(got.nan_to_num(nan=-1e30), expected.nan_to_num(nan=-1e30))
    return _classes(found, visible, seq_q, tile_k)


def _classes(found: Walked, visible: Tensor, seq_q: int, tile_k: int) -> Counter[str]:
    counts: Counter[str] = Counter(full=int((found.visits == FULL).sum()), partial=int((found.visits == PARTIAL).sum()))
    counts["skipped"] = int((found.visits == 0).sum())
    for tile in range(found.visits.shape[2]):
        rows = slice(tile * ROWS, min((tile + 1) * ROWS, seq_q))
        for n in range(found.visits.shape[3]):
            part = visible[:, :, rows, n * tile_k : (n + 1) * tile_k].flatten(2)
            visit = found.visits[:, :, tile, n]
            counts["visited in vain"] += int(((visit > 0) & ~part.any(-1)).sum())
            counts["masked in vain"] += int(((visit == PARTIAL) & part.all(-1)).sum())
    return counts


QUOTIENTS = {  # 41, 47 and 55 are multiplied by an inverse an ulp away from where x / y would be an integer
    "constant": "mask = floor(float(kv_idx) / 41.0) == floor(float(q_idx) / 41.0)",
    "parameter": "param w: int in 1.. = 47\nmask = floor(float(kv_idx) / float(w)) == floor(float(q_idx) / float(w))",
    "compared": "mask = float(kv_idx) / float(seq_k - 109) >= 1.0 and kv_idx <= q_idx",
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_steps_of_quotients_are_where_they_are_written(name: str) -> None:
    head = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
    spec = attn_dsl.parse(head + QUOTIENTS[name])
    extents = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 130, "seq_k": 150}
    values: Values = {"w": 47} if name == "parameter" else {}
    with emulator.device("sm_90a"):
        check(spec, extents, values, Walker(spec, values))


@pytest.mark.parametrize("case", STANDARD_MASKS, ids=lambda case: case.mask)
def test_standard_masks(case: StandardMask) -> None:
    """At every size; where the tile analysis is proved exact, the kernel visits and masks no tile in vain."""
    spec = attn_dsl.parse(case.text)
    seen: Counter[str] = Counter()
    walker = None
    with emulator.device("sm_90a"):
        for seq_q, seq_k in SIZES:
            extents = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": seq_q, "seq_k": seq_k, **EXTENTS}
            values = case.values(extents, torch.Generator().manual_seed(seq_q))
            if seq_k == 0:  # what a launch gives a kernel for a tensor without elements
                values = {name: _filled(value) for name, value in values.items()}
            walker = walker or Walker(spec, values)
            seen += check(spec, extents, values, walker)
    assert walker is not None
    assert walker.plan.mask.kind == (
        "none" if case.mask == "true" else "ranges" if case.tiles == PROVED else "elements"
    )
    if case.tiles == PROVED:
        assert seen["visited in vain"] == seen["masked in vain"] == 0, seen


def _filled(value: Tensor | int | float) -> Tensor | int | float:
    return value.new_zeros([max(n, 1) for n in value.shape]) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("tile_k", [16, 128, 256])
@pytest.mark.parametrize("name", ["window(n)", "causal and (sink_tokens(m) or window(n))"])
def test_keep_words_of_every_tile_width(name: str, tile_k: int) -> None:
    """4, 32 and 64 columns per thread: part of a word, a word, two words."""
    case = next(case for case in STANDARD_MASKS if case.mask == name)
    spec = attn_dsl.parse(case.text)
    extents = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 300, "seq_k": 333}
    values = {**case.values(extents, torch.Generator()), "n": 100}
    with emulator.device("sm_90a"):
        seen = check(spec, extents, values, Walker(spec, values, tile_k=tile_k))
    assert seen["visited in vain"] == seen["masked in vain"] == 0
    assert seen["partial"] > 0


def test_full_tiles_run_no_mask_code() -> None:
    """Every tile class of a causal mask, counted by hand: 4 blocks of 64 rows, 8 tiles of 32 keys."""
    spec = attn_dsl.parse(next(case for case in STANDARD_MASKS if case.mask == "causal").text)
    extents = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 256, "seq_k": 256}
    with emulator.device("sm_90a"):
        seen = check(spec, extents, {}, Walker(spec, {}))
    assert (seen["full"], seen["partial"], seen["skipped"]) == (12, 8, 12)


def test_bounds_of_no_direction_are_taken_at_every_row() -> None:
    """Starts in any order along the rows, some rows guarded away: visits what brute force visits."""
    spec = attn_dsl.parse(
        "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\n"
        "start, stop: i32[batch, seq_q]\non: bool[batch, seq_q]\n"
        "mask = on[b, q_idx] and start[b, q_idx] <= kv_idx and kv_idx < stop[b, q_idx] and kv_idx < 150"
    )
    random_starts = torch.Generator().manual_seed(5)
    start = torch.randint(0, 90, (2, 200), generator=random_starts, dtype=torch.int32)
    start[:, 64:128] += 60
    on = torch.rand(2, 200, generator=random_starts) < 0.5
    on[1, 128:192] = False
    values = {"start": start, "stop": start + 40, "on": on}
    extents = {"batch": 2, "heads": 1, "kv_heads": 1, "seq_q": 200, "seq_k": 260}
    with emulator.device("sm_90a"):
        seen = check(spec, extents, values, Walker(spec, values, tile_k=16))
    assert seen["visited in vain"] == 0
    assert seen["skipped"] > seen["partial"]


def clamped(spec: AttentionSpec) -> AttentionSpec:
    """The spec with the clamps around indices that the checker puts there when it reads a text."""
    build = ExprBuilder()

    def inside(node: Expr) -> Expr:
        sizes = [build.size(str(axis.name)) for axis in spec.tensor(str(node.attr)).axes]
        zero, one = build.const(0), build.const(1)
        places = [build.clamp(i, zero, build.op("sub", n, one)) for i, n in zip(node.args, sizes, strict=True)]
        return build.read(str(node.attr), tuple(places), node.type)

    reads = _reads(spec.mask)
    return replace(spec, mask=rewrite(build, [spec.mask], {node: inside(node) for node in reads})[0])


def _reads(mask: Expr) -> list[Expr]:
    from attn_dsl.expr import children_first

    return [node for node in children_first([mask]) if node.op == "read"]


def _random_case(rng: random.Random, kind: str) -> Counter[str]:
    spec, packed = random_spec(rng, kind)
    while packed:
        spec, packed = random_spec(rng, kind)
    spec = clamped(spec)
    walker = None
    seen: Counter[str] = Counter()
    with emulator.device("sm_90a"):
        for _ in range(2):
            kv_heads, group = rng.choice([(1, 1), (2, 2), (1, 3)])
            extents = {"batch": 2, "heads": kv_heads * group, "kv_heads": kv_heads, "rows": 40, "columns": 30}
            extents |= {"seq_q": rng.randint(1, 140), "seq_k": rng.randint(1, 110), "dim": 8}
            made = random_inputs(spec, extents, seed=rng.randrange(2**31), given=_params(rng, extents), operands=False)
            values = {t.name: made.tensors[t.name] for t in spec.tensors if t.role is Role.CAPTURE} | made.params
            walker = walker or Walker(spec, values, tile_k=16)
            seen += check(spec, extents, values, walker)
    assert walker is not None
    seen[walker.plan.mask.kind] += 1
    return seen


def _params(rng: random.Random, extents: Mapping[str, int]) -> dict[str, Tensor | int]:
    random_tensor = torch.Generator().manual_seed(rng.randrange(2**31))

    def ints(low: int, high: int, axis: str) -> Tensor:
        return torch.randint(low, high, (extents[axis],), generator=random_tensor, dtype=torch.int32)

    numbers = {"wide": rng.randint(1, 40), "some": rng.randint(-4, 60)}
    per = {"of_head": ints(-2, 50, "heads"), "of_group": ints(0, 50, "kv_heads"), "of_entry": ints(-2, 50, "batch")}
    return {**numbers, **per, "start": ints(-3, 50, "batch")}


def _sweep(kind: str, seed: int, specs: int) -> Counter[str]:
    rng = random.Random(f"{kind} {seed}")
    return sum((_random_case(rng, kind) for _ in range(specs)), Counter[str]())


def test_random_masks() -> None:
    seen = _sweep("any", 1, 12)
    assert min(seen[kind] for kind in ("elements", "full", "partial")) >= 3, seen


def test_random_range_masks() -> None:
    seen = _sweep("ranges", 2, 12)
    assert min(seen[kind] for kind in ("ranges", "full", "partial", "skipped")) >= 3, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["any", "ranges"])
def test_sweep(kind: str, seed: int) -> None:
    _sweep(kind, 100 + seed, 50)
