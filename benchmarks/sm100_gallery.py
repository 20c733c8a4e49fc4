"""Which specs of examples/ the SM100 kernel computes on the virtual device, by dtype and head dimension.

Every cell is one call with outputs full of NaN before, all findings on, held to float64 by the bounds of `attn-dsl run
--check`. A cell is `ok`, the output that is off, the kind of the first finding, or `-` where a spec fixes another head
dimension.

    python benchmarks/sm100_gallery.py [--target sm90] [--dims 64,128] [--dtypes bf16,f16] [SPEC ...]
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.cli.run import with_dtype
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import KERNEL_TARGETS, Kernels
from attn_dsl.spec import DType

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DTYPES = {"bf16": DType.BF16, "f16": DType.F16}
SIZES = {"batch": 2, "seq_q": 150, "seq_k": 277, "heads": 4, "kv_heads": 2}


def cell(spec: attn_dsl.AttentionSpec, target: str, dim: int, seed: int) -> str:
    """One call of the kernel."""
    fixed = dict(spec.fixed_axes)
    if fixed.get("dim", dim) != dim:
        return "-"
    wanted = {**SIZES, "dim": dim, "dim_v": dim, **fixed}
    if spec.kv_heads_axis != "kv_heads":
        wanted.pop("kv_heads")
    named = {str(axis.name) for tensor in spec.tensors for axis in tensor.axes}
    extents = {axis: extent for axis, extent in wanted.items() if axis in named}
    extents |= {axis: 64 for axis in named - set(extents) if axis not in wanted and axis not in fixed}
    inputs = random_inputs(spec, extents, seed=seed)
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    o_exact, lse_exact = reference.attention(spec, call.tensors, call.params, precision="float64")
    o = torch.full(o_exact.shape, math.nan, dtype=inputs.tensors["q"].dtype)
    lse = torch.full(lse_exact.shape, math.nan)
    with emulator.device(KERNEL_TARGETS[target].arch, findings="collect", late=1 + seed % 2, seed=seed) as gpu:
        Kernels(spec, KERNEL_TARGETS[target]).launch(call, o, lse)
    if gpu.findings:
        return gpu.findings[0].kind
    for comparison in (compare_output(o, o_exact, spec.output.dtype), compare_lse(lse, lse_exact)):
        if not comparison.ok:
            return f"{comparison.output} off"
    return "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="*", help="names of examples (default: all)")
    parser.add_argument("--target", default="sm100", choices=tuple(KERNEL_TARGETS))
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--dtypes", default="bf16,f16")
    options = parser.parse_args()
    columns = [(dtype, int(dim)) for dtype in options.dtypes.split(",") for dim in options.dims.split(",")]
    print("| spec | " + " | ".join(f"{dtype} {dim}" for dtype, dim in columns) + " |")
    print("|---|" + "---|" * len(columns))
    passed, refused, failed = 0, [], 0
    for name in options.specs or sorted(path.stem for path in EXAMPLES.glob("*.attn")):
        spec = attn_dsl.load(EXAMPLES / f"{name}.attn")
        cells = []
        for place, (dtype, dim) in enumerate(columns):
            try:
                attn_dsl.compile(with_dtype(spec, DTYPES[dtype]), target=options.target)
            except attn_dsl.UnsupportedError as refusal:
                refused.append(f"{name}: {refusal.diagnostics[0].message}")
                break
            cells.append(cell(with_dtype(spec, DTYPES[dtype]), options.target, dim, place + 1))
        else:
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
            bad = any(result not in ("ok", "-") for result in cells)
            passed, failed = passed + (not bad), failed + bad
    print(f"\n{passed} specs pass, {failed} fail, {len(refused)} are refused:")
    print("\n".join(f"- {line}" for line in refused))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
