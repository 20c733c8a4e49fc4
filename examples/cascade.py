"""Decode requests that share a long prompt: attention over the prompt once for all of them, joined with their own rows.

Every request has its rows of K and V in pages; the pages of the shared prompt stand in every page table. Two calls,

    prompt   all queries of all requests as one sequence, over the prompt's rows, all of which they see
    own      each request over its own rows, by the rest of its page table (paged_decode.attn)

joined by `attn_dsl.merge`, equal one call over the whole page table, and read the prompt's rows once and not once for
each request. Each step appends its rows with `attn_dsl.append_kv`. The exit code is 0 if both ways agree to `BOUND`,
else 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import attn_dsl

PAGED = Path(__file__).with_name("paged_decode.attn")
PROMPT = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
"""
BOUND = 2**-8  # outputs are means of 500 random rows, below 0.5; each of both parts and the result is rounded to bf16
REQUESTS, PAGE_SIZE, HEADS, KV_HEADS, DIM = 8, 16, 8, 2, 64
PROMPT_PAGES, OWN_PAGES, STEPS = 32, 3, 20


def main() -> int:
    make = torch.Generator().manual_seed(0)
    everything = attn_dsl.compile(PAGED, target="reference")
    prompt_alone = attn_dsl.compile(attn_dsl.parse(PROMPT, name="prompt"), target="reference")

    # page tables: the prompt's pages first, then pages of one's own, shuffled in the pool
    pages = PROMPT_PAGES + REQUESTS * OWN_PAGES
    order = torch.randperm(pages, generator=make, dtype=torch.int32)
    shared = order[:PROMPT_PAGES].expand(REQUESTS, -1)
    table = torch.cat([shared, order[PROMPT_PAGES:].reshape(REQUESTS, OWN_PAGES)], 1)
    k_pages, v_pages = (
        torch.randn(pages, PAGE_SIZE, KV_HEADS, DIM, generator=make).to(torch.bfloat16) for _ in range(2)
    )
    prompt = PROMPT_PAGES * PAGE_SIZE
    prompt_k, prompt_v = (pool[order[:PROMPT_PAGES]].flatten(0, 1)[None] for pool in (k_pages, v_pages))
    used = torch.full((REQUESTS,), prompt, dtype=torch.int32)

    worst = 0.0
    for _ in range(STEPS):
        q, k, v = (
            torch.randn(REQUESTS, 1, heads, DIM, generator=make).to(torch.bfloat16)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        used = attn_dsl.append_kv(k_pages, v_pages, k, v, table, used)
        o, lse = everything(q, k_pages, v_pages, table, used, return_lse=True)

        prompt_o, prompt_lse = prompt_alone(q.flatten(0, 1)[None], prompt_k, prompt_v, return_lse=True)
        own = everything(q, k_pages, v_pages, table[:, PROMPT_PAGES:], used - prompt, return_lse=True)
        # [1, heads, requests] and [1, requests, heads, dim]: one row of queries per request
        parts = (prompt_o.transpose(0, 1), prompt_lse.permute(2, 1, 0))
        joined, joined_lse = attn_dsl.merge(*parts, *own)
        worst = max(worst, distance(o, joined), distance(lse, joined_lse))

    rows, once = REQUESTS * (prompt + STEPS), prompt + REQUESTS * STEPS
    print(f"{REQUESTS} requests, a prompt of {prompt} tokens, {STEPS} steps; K/V rows read by the last step:")
    print(f"    one call over everything:  {rows}")
    print(f"    prompt once, then merge:   {once}")
    print(f"largest difference of outputs and LSE:  {worst:.2e}")
    if worst > BOUND:
        print(f"BOTH WAYS DIFFER by more than {BOUND:.2e}")
        return 1
    return 0


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().max())


if __name__ == "__main__":
    sys.exit(main())
