"""Calls of serving, on the virtual device and by the reference: pages, lengths, parts of the keys."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import torch
from torch import Tensor

import attn_dsl
from attn_dsl import emulator, reference
from attn_dsl.runtime.binding import bind
from attn_dsl.runtime.kernels import SM90, Kernels, KernelTarget

QUERIES = "q: bf16[batch, seq_q, heads, dim]\n"
PACKED = "q: bf16[total_q, heads, dim]\ncu_q: i32[batch + 1]\nlengths q { cu_seqlens = cu_q }\n"
KEYS = "k, v: bf16[batch, seq_k, kv_heads, dim]\n"
POOLS = "k, v: bf16[pages, page_size, kv_heads, dim]\nused: i32[batch]\n"
TABLE = POOLS + "page_table: i32[batch, max_pages]\npaged { table = page_table }\n"
LISTS = POOLS + "indptr: i32[batch + 1]\nindices: i32[entries]\npaged { indptr = indptr, indices = indices }\n"
USED = "lengths k { used = used }\n"
LSE_BOUND = {"sm90": 1e-5, "sm100": 2e-4}  # absolute; some exponentials of sm100 are polynomials of degree 3
GARBAGE = 2**31 - 1  # a page number far outside of any pool


DESCALES = """k_descale, v_descale: f32[batch, kv_heads]
descale k = k_descale[b, kv_h]
descale v = v_descale[b, kv_h]
"""
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def _ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


# changes of a call with page_size 8, a table [2, 4], 6 pages and lengths 20 and 7, and the code of its error
BAD_CALLS = (
    ({"page_table": torch.zeros(2, 4, dtype=torch.int64)}, "E272"),
    ({"page_table": torch.zeros(3, 4, dtype=torch.int32)}, "E271"),
    ({"page_table": _ints([0, 1, 2, 9], [1, 0, 0, 0]), "used": _ints(25, 7)}, "E277"),
    ({"page_table": _ints([0, 1, 2, 0], [-1, 0, 0, 0])}, "E277"),
    ({"used": _ints(33, 7)}, "E276"),
    ({"used": _ints(20, -1)}, "E276"),
    ({"used": _ints(20, 7, 3)}, "E271"),
    ({name: torch.zeros(6, 16, 2, 64, dtype=torch.bfloat16) for name in ("k", "v")}, "E271"),
    ({"v": torch.zeros(6, 16, 2, 64, dtype=torch.bfloat16)}, "E271"),
)


def narrow(text: str, kind: str = "e4m3", query: str = "bf16") -> str:
    """A spec with k and v of `kind`."""
    return re.sub("(k, v: )bf16", rf"\1{kind}", text).replace("q: bf16", f"q: {query}")


def descaled(tensors: dict[str, Tensor], kind: str = "e4m3") -> dict[str, Tensor]:
    """`tensors` with k and v of `kind`, and the factors of `DESCALES`."""
    batch = len(tensors["used"]) if "used" in tensors else len(tensors["q"])
    made = {name: tensors[name].to(FORMATS[kind]) for name in ("k", "v")}
    make = torch.Generator().manual_seed(9)
    for name in ("k_descale", "v_descale"):
        made[name] = torch.rand(batch, tensors["k"].shape[2], generator=make) * 1.5 + 0.25
    return tensors | made


def random(make: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=make).bfloat16()


def paged(
    lengths: list[int],
    page_size: int,
    heads: tuple[int, int],
    dim: int,
    *,
    pads: list[int] | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Pools full of NaN but for the sequences' rows, in shuffled pages; both a table and lists, with garbage behind."""
    make = torch.Generator().manual_seed(seed)
    pads = pads or [0] * len(lengths)
    counts = [-(-(n + pad) // page_size) for n, pad in zip(lengths, pads, strict=True)]
    order = torch.randperm(sum(counts) + 2, generator=make)
    table = torch.full((len(lengths), max(counts) + 1), GARBAGE)
    k, v = (torch.full((len(order), page_size, heads[1], dim), math.nan).bfloat16() for _ in range(2))
    for b, (n, pad, count) in enumerate(zip(lengths, pads, counts, strict=True)):
        table[b, :count] = order[sum(counts[:b]) :][:count]
        slots = torch.arange(pad, pad + n)
        for pool in (k, v):
            pool[table[b, slots // page_size], slots % page_size] = random(make, n, heads[1], dim)
    return {
        "k": k,
        "v": v,
        "used": torch.tensor(lengths, dtype=torch.int32) + torch.tensor(pads, dtype=torch.int32),
        "pad": torch.tensor(pads, dtype=torch.int32),
        "page_table": table.int(),
        "indptr": torch.tensor([0, *counts]).cumsum(0).int(),
        "indices": order[: sum(counts)].int(),
    }


@cache
def kernels(text: str, target: KernelTarget = SM90) -> Kernels:
    """Compiled once for all calls of a text; on the virtual device."""
    return Kernels(attn_dsl.parse(text, name="serving"), target)


def check(
    text: str, tensors: dict[str, Tensor], late: int = 1, target: KernelTarget = SM90, seed: int = 0
) -> emulator.Device:
    """Runs a spec with those of `tensors` that it declares, against float64; any finding of the device is an error."""
    runner = kernels(text, target)
    given = {tensor.name: tensors[tensor.name] for tensor in runner.spec.tensors}
    with emulator.device(target.arch, late=late, seed=seed, strict=target is not SM90) as gpu:
        o, lse = runner.launch(bind(runner.spec, (), given, False), None, None)
    true_o, true_lse = reference.attention(runner.spec, given, {}, precision="float64")
    assert torch.isneginf(true_lse).equal(torch.isneginf(lse))
    seen = ~torch.isneginf(true_lse)
    assert not seen.any() or (lse - true_lse)[seen].abs().max() < LSE_BOUND[target.name]
    # weights are rounded to bf16 (2^-9), and so is the output
    error = (o.double() - true_o).abs()
    assert error.max() < 2**-7 * max(float(true_o.abs().max()), 1.0)
    return gpu


def gathered(tensors: dict[str, Tensor], lengths: list[int], page_size: int, fill: float) -> dict[str, Tensor]:
    """Keys and values out of the pages of `tensors`, as dense tensors that are `fill` past each length."""
    dense = {name: tensors[name] for name in ("q", "used")}
    for name in ("k", "v"):
        pool = tensors[name]
        rows = pool.new_full((len(lengths), max(lengths), *pool.shape[2:]), fill)
        for b, length in enumerate(lengths):
            slots = torch.arange(length)
            rows[b, :length] = pool[tensors["page_table"][b, slots // page_size].long(), slots % page_size]
        dense[name] = rows
    return dense


def moved(gpu: Any) -> int:
    """Bytes that the first launch on an emulated device read and wrote: queries, outputs and tables among them."""
    engines = gpu.reports[0].engines
    return sum(engines[name] for name in ("tma_load", "tma_store", "cpasync", "global_bytes"))


def least(lengths: list[int], page_size: int, kv_heads: int, dim: int) -> int:
    """Bytes of the keys and values of 16 bits of all sequences, and of their table entries for each head."""
    return sum(kv_heads * (2 * 2 * length * dim + 4 * (length // page_size)) for length in lengths)
