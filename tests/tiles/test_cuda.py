"""The analysis on the device the captures live on: the same tiles as on the CPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from random_masks import random_call, random_spec

from attn_dsl.lowering.tiles import Binding, TileAnalysis, analyze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _moved(call: Binding) -> Binding:
    starts = (None if start is None else start.cuda() for start in (call.packed_q, call.packed_k))
    values = {name: value.cuda() for name, value in call.values.items()}
    packed_q, packed_k = starts
    lengths = {"seq_q": call.seq_q.cuda(), "seq_k": call.seq_k.cuda()}
    return replace(call, **lengths, values=values, packed_q=packed_q, packed_k=packed_k)


def _compare(analysis: TileAnalysis, call: Binding, pack: bool) -> None:
    here, there = (analysis.evaluate(c, 8, 4, pack) for c in (call, _moved(call)))
    assert there.seen.start.is_cuda
    for one, other in ((here.seen, there.seen), (here.hidden, there.hidden)):
        assert torch.equal(one.start, other.start.cpu())
        assert torch.equal(one.stop, other.stop.cpu())
    assert here.counts() == there.counts()
    assert analysis.visible_pairs(call) == analysis.visible_pairs(_moved(call))


@pytest.mark.parametrize("kind", ["any", "ranges"])
def test_same_tiles_as_on_the_cpu(kind: str) -> None:
    rng = random.Random(f"cuda {kind}")
    for _ in range(100):
        spec, packed = random_spec(rng, kind)
        _compare(analyze(spec), random_call(rng, packed), rng.random() < 0.5)
