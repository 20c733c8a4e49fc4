"""Cases of the specs that say where the rows of a sequence are."""

from __future__ import annotations

import math

import torch

from .problem import Case, Problem, case


@case
def packed_varlen() -> Case:
    lengths_q, lengths_k = (5, 0, 11, 7), (9, 3, 11, 2)  # an empty sequence, and one with fewer keys than queries
    parts = [
        Problem(f"packed_varlen {n}", batch=1, seq_q=sq, seq_k=sk, kv_heads=2)
        for n, (sq, sk) in enumerate(zip(lengths_q, lengths_k, strict=True))
    ]
    solved = [x.attend(x.j <= x.p) for x in parts]
    q, k, v = (torch.cat([getattr(x, name)[0] for x in parts]) for name in "qkv")
    starts = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k)]
    return Case(
        {"q": q, "k": k, "v": v, "cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1]},
        {},
        torch.cat([o[0] for o, _ in solved]),
        torch.cat([lse[0] for _, lse in solved], dim=1),
    )


@case
def paged_decode() -> Case:
    page, used = 4, (13, 0, 8)
    x = Problem("paged_decode", batch=3, seq_q=2, seq_k=16, kv_heads=2)
    pages = torch.randperm(12, generator=x.random)[:10].split((4, 1, 5))  # of each sequence; some hold nothing
    table = torch.full((3, 5), -1, dtype=torch.int32)  # entries past the last used page are never read
    k, v = (torch.full((12, page, 2, 8), math.nan, dtype=torch.bfloat16) for _ in "kv")
    for b, count in enumerate(used):
        needed = -(-count // page)
        table[b, :needed] = pages[b][:needed]
        for slot in range(count):
            k[pages[b][slot // page], slot % page] = x.k[b, slot]
            v[pages[b][slot // page], slot % page] = x.v[b, slot]
    length = torch.tensor(used)[:, None, None, None]
    o, lse = x.attend((x.j < length) & (x.j <= x.i + length - 2))
    tensors = {"q": x.q, "k": k, "v": v, "page_table": table, "used": torch.tensor(used, dtype=torch.int32)}
    return Case(tensors, {}, o, lse)


@case
def chunked_prefill() -> Case:
    x = Problem("chunked_prefill", kv_heads=2, seq_q=6, seq_k=20)
    start = torch.tensor([0, 9], dtype=torch.int32)
    return x.case(x.j <= x.i + start[:, None, None, None], start=start)


@case
def deepseek_mla_prefill() -> Case:
    x = Problem("deepseek_mla_prefill", heads=3, dim=192, dim_v=128)
    return x.case(x.j <= x.p)


@case
def deepseek_mla_absorbed() -> Case:
    x = Problem("deepseek_mla_absorbed", heads=5, kv_heads=1, dim=576, seq_q=2)
    x.v = x.k[..., :512]
    solved = x.case(x.j <= x.p, x.scores(scale=192.0**-0.5))
    return Case({"q": x.q, "k": x.k}, {}, solved.o, solved.lse)


@case
def bert_padding() -> Case:
    x = Problem("bert_padding", batch=3, seq_q=37, dtype=torch.float32)
    length = torch.tensor([37, 12, 1], dtype=torch.int32)
    return x.case(x.j < length[:, None, None, None], length=length)


@case
def left_padded_batch() -> Case:
    x = Problem("left_padded_batch", kv_heads=2, seq_q=37)
    padding = torch.tensor([0, 10], dtype=torch.int32)
    return x.case((x.j >= padding[:, None, None, None]) & (x.j <= x.i), padding=padding)
