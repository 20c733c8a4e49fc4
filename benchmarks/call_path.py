"""Host time of one call, in microseconds: what a call costs before the GPU begins, beside SDPA in the same process.

    python benchmarks/call_path.py [BUNDLE]

B1 S128 H8 D128, bf16, causal. With a bundle nothing is compiled and CuTe DSL need not be installed. Each number is the
median over 15 rounds of 200 calls that start with an idle device, so that no call waits for room in its queue.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

import attn_dsl
from attn_dsl.runtime import random_inputs

TEXT = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
mask = kv_idx <= q_pos
"""
SIZES = {"batch": 1, "seq_q": 128, "seq_k": 128, "heads": 8, "kv_heads": 8, "dim": 128}
ROUNDS, CALLS = 15, 200


def host_time(call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    for _ in range(20):
        call()
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return statistics.median(found)


def main(bundle: str | None) -> None:
    target = {(9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}[torch.cuda.get_device_capability()]
    if bundle is None:
        ours = attn_dsl.compile(attn_dsl.parse(TEXT, name="causal"), target=target)
    else:
        ours = attn_dsl.load_bundle(bundle)
    q, k, v = (random_inputs(ours.spec, SIZES, device="cuda").tensors[name] for name in ("q", "k", "v"))
    heads_first = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    o, lse = ours(q, k, v, return_lse=True)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    rows = {
        "call": lambda: ours(q, k, v),
        "call, lse returned": lambda: ours(q, k, v, return_lse=True),
        "call into buffers": lambda: ours(q, k, v, out=o, lse=lse),
        "call of a new layout": lambda: ours.checked((q, k, v), {}, None, None, False),
        "an output allocated": lambda: torch.empty_like(q),
        "SDPA": lambda: sdpa(*heads_first, is_causal=True),
    }
    with torch.no_grad():
        for name, call in rows.items():
            print(f"{name:22} {host_time(call):7.2f} us")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
