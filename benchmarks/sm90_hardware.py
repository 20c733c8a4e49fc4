"""Records our Hopper kernels on the virtual device, so that an H200 can run the same machine code on the same bytes.

    python benchmarks/sm90_hardware.py record OUT.pt         # here: no GPU is needed
    python benchmarks/hardware_replay.py OUT.pt RESULT.json  # on a machine with an H200
    python benchmarks/emulator_hardware.py table RESULT.json

`emulator_hardware.py` documents a recording. Names are those of the specs in `tests/support/forward_specs.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from emulator_hardware import record_calls
from forward_specs import sequence_inputs, spec_in_sequences, spec_of
from serving import DESCALES, QUERIES, TABLE, USED, descaled, narrow, paged, random

import attn_dsl
from attn_dsl.runtime import Inputs, bind, random_inputs
from attn_dsl.runtime.kernels import SM90, Kernels
from attn_dsl.spec.model import AttentionSpec

Extents = tuple[int, int, int, int, int, int]  # seq_q, seq_k, heads, kv_heads, dim, dim_v
DENSE: tuple[tuple[str, str, Extents], ...] = (
    ("full", "bf16", (150, 333, 2, 2, 128, 128)),
    ("causal", "bf16", (200, 200, 2, 1, 128, 128)),
    ("causal", "f16", (100, 300, 3, 1, 64, 64)),
    ("causal", "bf16", (70, 200, 1, 1, 256, 256)),
    ("causal", "bf16", (70, 200, 1, 1, 192, 128)),
    ("window", "bf16", (200, 300, 1, 1, 64, 64)),
    ("sinks_and_window", "f16", (70, 200, 5, 1, 64, 64)),
    ("softcap", "bf16", (150, 200, 1, 1, 128, 128)),
    ("alibi", "bf16", (200, 300, 2, 2, 40, 24)),
    ("relative", "bf16", (100, 200, 1, 1, 128, 128)),
    ("dilated", "bf16", (200, 300, 1, 1, 64, 64)),
    ("tree", "bf16", (129, 200, 2, 1, 64, 64)),
    ("documents", "f16", (150, 200, 1, 1, 128, 128)),
)
PACKED = (("causal", "packed"), ("documents", "packed_used"), ("window", "left_padded"))
PAGES = (("bf16", 7), ("bf16", 16), ("e4m3", 7), ("e4m3", 16))  # of k and v, rows of a page
LENGTHS = ((70, 100), (0, 3), (30, 40), (5, 0), (1, 140))


def call_of(spec: AttentionSpec, inputs: Inputs) -> Callable[[], Sequence[torch.Tensor]]:
    def call() -> Sequence[torch.Tensor]:
        bound = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
        shape, rows = [*inputs.tensors["q"].shape[:-1], bound.extents["dim_v"]], inputs.tensors["q"].shape[:-1]
        out = torch.full(shape, math.nan, dtype=inputs.tensors["q"].dtype)
        lse = torch.full((*rows[:-2], rows[-1], rows[-2]), math.nan)
        return Kernels(spec, SM90).launch(bound, out, lse)

    return call


def calls() -> dict[str, Callable[[], Sequence[torch.Tensor]]]:
    found = {}
    for name, dtype, sizes in DENSE:
        spec = spec_of(name, dtype)
        names = ("seq_q", "seq_k", "heads", "kv_heads", "dim", "dim_v")
        extents = dict(zip(names, sizes, strict=True)) | {"batch": 1}
        label = f"{name}, {dtype}, {sizes[0]} x {sizes[1]}, heads {sizes[2]}/{sizes[3]}, dim {sizes[4]}/{sizes[5]}"
        found[label] = call_of(spec, random_inputs(spec, extents, seed=len(found)))
    for name, layout in PACKED:
        spec = spec_in_sequences(name, layout)
        found[f"{name}, {layout.replace('_', ' ')}, {len(LENGTHS)} sequences"] = call_of(
            spec, sequence_inputs(spec, LENGTHS, heads=(2, 1), seed=len(found))
        )
    for kind, page_size in PAGES:
        tensors = paged([0, 20, 300, 129], page_size, (4, 2), 64)
        tensors["q"] = random(torch.Generator().manual_seed(page_size), 4, 3, 4, 64)
        text = QUERIES + TABLE + USED + "mask = kv_idx <= q_pos\nschedule { splits = 1 }\n"
        if kind != "bf16":
            text, tensors = narrow(text, kind) + DESCALES, descaled(tensors, kind)
        spec = attn_dsl.parse(text, name="pages")
        given = {tensor.name: tensors[tensor.name] for tensor in spec.tensors}
        found[f"causal, pages of {page_size} in {kind}, 4 sequences"] = call_of(spec, Inputs(given, {}, {}, ()))
    return found


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] != "record":
        raise SystemExit(__doc__)
    torch.save(record_calls(calls()), sys.argv[2])


if __name__ == "__main__":
    main()
