"""One small call of each kind of Hopper kernel, to be run under compute-sanitizer on a GPU.

    python benchmarks/sm90_sample.py                                  # compiles, and compares with float64
    compute-sanitizer --tool memcheck python benchmarks/sm90_sample.py
    compute-sanitizer --tool racecheck python benchmarks/sm90_sample.py

Kernels come from the cache that the first command fills, so that the tool watches launches and no compilation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from forward_specs import SPECS, sequence_inputs, spec_in_sequences, spec_of
from serving import DESCALES, KEYS, QUERIES, TABLE, USED, descaled, narrow, paged, random

import attn_dsl
from attn_dsl.runtime import random_inputs

Tensors = dict[str, torch.Tensor]
CAUSAL = "mask = kv_idx <= q_pos\n"
DENSE = (("full", 128), ("causal", 64), ("causal", 256), ("softcap", 128), ("sinks_and_window", 64), ("documents", 128))
PACKED = (("causal", "packed"), ("documents", "packed_used"), ("window", "left_padded"))
LENGTHS = ((70, 100), (0, 3), (30, 40), (5, 0), (1, 140))


def calls() -> Iterator[tuple[str, attn_dsl.AttentionSpec, Tensors]]:
    """(name, spec, what it is called with)."""
    for name, dim in DENSE:
        assert name in SPECS
        spec = spec_of(name)
        extents = {"batch": 1, "seq_q": 130, "seq_k": 200, "heads": 4, "kv_heads": 2, "dim": dim, "dim_v": dim}
        inputs = random_inputs(spec, extents, seed=dim)
        yield f"{name}, {dim}", spec, {**inputs.tensors, **inputs.params}
    for name, layout in PACKED:
        spec = spec_in_sequences(name, layout)
        inputs = sequence_inputs(spec, LENGTHS, heads=(4, 2), seed=1)
        yield f"{name}, {layout}", spec, {**inputs.tensors, **inputs.params}
    make = torch.Generator().manual_seed(5)
    q = random(make, 4, 3, 4, 128)
    for page_size in (7, 16):
        tensors = {"q": q, **paged([0, 20, 300, 129], page_size, (4, 2), 128)}
        for parts in (1, 3):
            text = QUERIES + TABLE + USED + CAUSAL + f"schedule {{ splits = {parts} }}\n"
            yield f"pages of {page_size}, {parts} parts", attn_dsl.parse(text, name="pages"), tensors
            text = narrow(text) + DESCALES
            yield f"e4m3, pages of {page_size}, {parts} parts", attn_dsl.parse(text, name="e4m3"), descaled(tensors)
    k, v = (random(make, 4, 300, 2, 128) for _ in range(2))
    dense = descaled({"q": q, "k": k, "v": v})
    yield "e4m3", attn_dsl.parse(narrow(QUERIES + KEYS) + DESCALES + CAUSAL, name="e4m3"), dense


def main() -> int:
    worst, count = 0.0, 0
    for name, spec, given in calls():
        wanted = {tensor.name for tensor in spec.tensors} | {param.name for param in spec.params}
        here = {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in given.items() if key in wanted}
        o = attn_dsl.compile(spec, target="sm90")(**here)
        torch.cuda.synchronize()
        on_host = {key: x for key, x in given.items() if key in wanted}
        exact = attn_dsl.compile(spec, target="reference-f64")(**on_host).double()
        error = float((o.cpu().double() - exact).norm() / exact.norm())
        print(f"{name}: {error:.1e}", flush=True)
        worst, count = max(worst, error), count + 1
    print(f"{count} calls, at most {worst:.1e} from float64 in the norm")
    return 0 if worst < 1e-2 else 1


if __name__ == "__main__":
    sys.exit(main())
