"""Time and memory of the tile analysis, beside FlexAttention's create_block_mask at the sizes that it can do.

    python benchmarks/tile_analysis.py [--tokens 1048576] [--block-mask 16384] [--threads 1]

One batch entry, one head, tiles of 128 x 128, on the CPU. Each row is a process of its own: it warms up on 4,096
tokens, then takes the best of five runs. Memory is how far the process's peak resident set grows after the warm-up.
The analysis is timed whole: solving the mask, evaluating all tiles, counting them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention.flex_attention import create_block_mask

import attn_dsl
from attn_dsl.lowering.tiles import Binding, analyze

WARM_UP = 4096  # tokens
TILE = 128  # rows and keys
HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
Index = torch.Tensor
Predicate = Callable[[Index, Index, Index, Index], Index]  # FlexAttention's mask_mod(b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class Case:
    """One mask, in both languages."""

    name: str
    text: str
    values: dict[str, int]
    predicate: Predicate


CASES = (
    Case("causal", "mask = kv_idx <= q_pos", {}, lambda b, h, q, k: k <= q),
    Case(
        "window",
        "from std.window import window\nparam tokens: int in 1..\nmask = window(tokens)",
        {"tokens": 4096},
        lambda b, h, q, k: (k <= q) & (q - k < 4096),
    ),
    Case(
        "prefix",
        "from std.prefix import prefix\nparam keys: int\nmask = prefix(keys) or kv_idx <= q_pos",
        {"keys": 3000},
        lambda b, h, q, k: (k < 3000) | (k <= q),
    ),
    Case(
        "chunked",
        "from std.chunked import same_chunk\nparam tokens: int in 1..\nmask = same_chunk(tokens) and kv_idx <= q_pos",
        {"tokens": 8192},
        lambda b, h, q, k: (q // 8192 == k // 8192) & (k <= q),
    ),
    Case(
        "sinks + window",
        "param tokens: int in 1..\nmask = kv_idx <= q_pos and (kv_idx < 4 or q_pos - kv_idx < tokens)",
        {"tokens": 1024},
        lambda b, h, q, k: (k <= q) & ((k < 4) | (q - k < 1024)),
    ),
)


def analysis_once(case: Case, tokens: int) -> str:
    """Runs the whole analysis; returns the counts of visited and full tiles."""
    call = Binding.of({"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": tokens, "seq_k": tokens}, dict(case.values))
    counts = analyze(attn_dsl.parse(HEAD + case.text)).evaluate(call, TILE, TILE).counts()
    return f"{counts.visited:,} / {counts.full:,}"


def block_mask_once(case: Case, tokens: int) -> str:
    """Runs create_block_mask; returns the same counts."""
    mask = create_block_mask(case.predicate, None, None, tokens, tokens, device="cpu", BLOCK_SIZE=TILE)
    full = int(mask.full_kv_num_blocks.sum()) if mask.full_kv_num_blocks is not None else 0
    return f"{int(mask.kv_num_blocks.sum()) + full:,} / {full:,}"


def measured(once: Callable[[Case, int], str], case: Case, tokens: int, threads: int) -> tuple[float, float, str]:
    """(milliseconds, megabytes, tiles) of the best of five runs."""
    torch.set_num_threads(threads)
    once(case, WARM_UP)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best, tiles = float("inf"), ""
    for _ in range(5):
        start = time.perf_counter()
        tiles = once(case, tokens)
        best = min(best, time.perf_counter() - start)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return best * 1e3, grown / 1024, tiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2**20, help="sequence length for the analysis")
    parser.add_argument("--block-mask", type=int, default=2**14, help="sequence length for create_block_mask")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    given = parser.parse_args()
    runs = [("attn-dsl", analysis_once, given.block_mask), ("attn-dsl", analysis_once, given.tokens)]
    runs.insert(0, ("create_block_mask", block_mask_once, given.block_mask))
    print("| mask | method | tokens | ms | MB | tiles visited / full |\n|---|---|---:|---:|---:|---:|")
    context = multiprocessing.get_context("fork")
    for case in CASES:
        for method, once, tokens in runs:
            with context.Pool(1) as pool:
                ms, megabytes, tiles = pool.apply(_run, (once, CASES.index(case), tokens, given.threads))
            print(f"| {case.name} | {method} | {tokens:,} | {ms:,.1f} | {megabytes:,.1f} | {tiles} |", flush=True)


def _run(once: Callable[[Case, int], str], case: int, tokens: int, threads: int) -> tuple[float, float, str]:
    return measured(once, CASES[case], tokens, threads)


if __name__ == "__main__":
    main()
