"""New keys and values into the pages of their sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..diagnostics import CallError, Diagnostics
from ..runtime.dtypes import spelling
from ..runtime.outputs import may_share, overlaps_itself

_POOL_AXES = "[pages, page_size, kv_heads, dim]"


@dataclass(frozen=True)
class Places:
    """Where each new token goes, all i64[tokens] but `exists`."""

    page: Tensor  # of the pool; 0 where the token has no slot
    row: Tensor  # of that page
    exists: Tensor  # bool[tokens]: whether the token has a slot in a page of the pool


def append_kv(
    k_pages: Tensor,
    v_pages: Tensor | None,
    k: Tensor,
    v: Tensor | None,
    page_table: Tensor,
    used: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    page_size: int | None = None,
    debug: bool = False,
) -> Tensor:
    """Writes k and v behind the rows in use of each sequence, in place, and returns the new `used`.

    Token i of sequence b goes to slot `used[b] + i`, which is row `slot % page_size` of page
    `page_table[b, slot // page_size]`: the slots of `docs/language.md`, "Paging". Runs as torch operations on any
    device, without waiting for it; only with `debug`, or on CPU tensors, contents are read on the host and checked.
    Unchecked, a token whose slot or page does not exist is not written.

    Args:
        k_pages, v_pages: [pages, page_size, kv_heads, dim], any strides: `pool.transpose(1, 2)` of an HND pool,
            `pool[:, 0]` and `pool[:, 1]` of a joint one. v_pages may have another dim. None for both v_pages and v
            where values are a part of the keys (MLA).
        k, v: [batch, seq_new, kv_heads, dim], or packed [total_new, kv_heads, dim] with `cu_seqlens`; the dtype of
            their pool.
        page_table: i32[batch, max_pages].
        used: i32[batch], slots in use, left padding included; not changed.
        cu_seqlens: i32[batch + 1], where the tokens of each sequence begin in packed k and v.
        page_size: what the caller believes it to be; None: the pool says.
        debug: check the contents of used, page_table and cu_seqlens on any device.

    Raises CallError before anything is written: shapes and page size (E271), dtypes (E272), devices (E273), packed
    tensors without cu_seqlens or dense ones with (E270), cumulative lengths (E275), lengths beyond the table (E276),
    pages that do not exist (E277), memory that overlaps or is written twice, and tensors that need gradients (E278).
    """
    problems = Diagnostics()
    pairs = {"k": (k_pages, k)}
    if v_pages is not None and v is not None:
        pairs["v"] = (v_pages, v)
    elif v_pages is not None or v is not None:
        given, missing = ("v_pages", "v") if v is None else ("v", "v_pages")
        problems.error("E270", f"{given} is given and {missing} is None", hint="None for both: values are part of keys")
    if _are_tensors({"page_table": page_table, "used": used, "cu_seqlens": cu_seqlens}, pairs, problems):
        _check_shapes(pairs, page_table, used, cu_seqlens, page_size, problems)
    if problems.errors:
        raise CallError(problems.errors)
    _check_memory(pairs, problems)
    places = places_of(k_pages, k, page_table, used, cu_seqlens)
    if (debug or used.device.type == "cpu") and not problems.errors:
        _check_contents(k_pages, k, page_table, used, cu_seqlens, places, problems)
    if problems.errors:
        raise CallError(problems.errors)
    with torch.no_grad():
        for pool, new in pairs.values():
            write(pool, new.reshape(-1, *new.shape[-2:]), places)
    return used + (cu_seqlens.diff() if cu_seqlens is not None else k.shape[1])


def places_of(k_pages: Tensor, k: Tensor, page_table: Tensor, used: Tensor, cu_seqlens: Tensor | None) -> Places:
    """Where the tokens of `k` go, whatever the tensors hold."""
    batch, max_pages = page_table.shape
    pages, page_size = k_pages.shape[:2]
    if cu_seqlens is None:
        count = k.shape[1]
        sequence = torch.arange(batch, device=k.device).repeat_interleave(count)
        local = torch.arange(count, device=k.device).repeat(batch)
        exists = torch.ones_like(local, dtype=torch.bool)
    else:
        token = torch.arange(k.shape[0], device=k.device)
        ends = cu_seqlens[1:].long()
        sequence = torch.searchsorted(ends.contiguous(), token, right=True)
        exists = sequence < batch
        sequence = sequence.clamp(max=max(batch - 1, 0))
        local = token - cu_seqlens.long()[sequence]
    if not batch or not max_pages or not pages:
        nothing = torch.zeros_like(local)
        return Places(nothing, nothing, torch.zeros_like(exists))
    slot = used.long()[sequence] + local
    exists = exists & (local >= 0) & (slot >= 0) & (slot < max_pages * page_size)
    slot = torch.where(exists, slot, 0)
    page = page_table[sequence, slot // page_size].long()
    exists = exists & (page >= 0) & (page < pages)
    return Places(torch.where(exists, page, 0), torch.where(exists, slot % page_size, 0), exists)


def write(pool: Tensor, new: Tensor, places: Places) -> None:
    """pool[page, row] = new, for tokens that have a place. `new`: [tokens, kv_heads, dim].

    Tokens without a place repeat what the first one with a place writes, and if none has one, what is there already.
    The work depends on no contents, so a CUDA graph can hold it, and every row is written with one value.
    """
    if not new.shape[0] or not pool.numel():
        return
    if pool.element_size() == 1:
        pool, new = pool.view(torch.uint8), new.view(torch.uint8)  # indexed writes know no fp8
    # one element and not a number, reading which would wait for the device
    first = places.exists.int().argmax(0, keepdim=True)
    spare = torch.where(places.exists[first], new[first], pool[places.page[first], places.row[first]])
    page = torch.where(places.exists, places.page, places.page[first])
    row = torch.where(places.exists, places.row, places.row[first])
    pool.index_put_((page, row), torch.where(places.exists[:, None, None], new, spare))


def _are_tensors(
    geometry: Mapping[str, object], pairs: Mapping[str, tuple[Tensor, Tensor]], problems: Diagnostics
) -> bool:
    named = {name: value for name, value in geometry.items() if value is not None or name != "cu_seqlens"}
    named |= {f"{name}_pages": pool for name, (pool, _) in pairs.items()} | {n: new for n, (_, new) in pairs.items()}
    for name, value in named.items():
        if not isinstance(value, Tensor):
            problems.error("E272", f"{name} is a {type(value).__name__}, expected a tensor")
    return not problems.errors


def _check_shapes(
    pairs: Mapping[str, tuple[Tensor, Tensor]],
    page_table: Tensor,
    used: Tensor,
    cu_seqlens: Tensor | None,
    page_size: int | None,
    problems: Diagnostics,
) -> None:
    k_pages, k = pairs["k"]
    if k_pages.dim() != 4:
        problems.error("E271", f"k_pages has shape {list(k_pages.shape)}, expected {_POOL_AXES}")
        return
    if page_size is not None and page_size != k_pages.shape[1]:
        message = f"page_size is {page_size}, the pages of k_pages have {k_pages.shape[1]} rows"
        problems.error("E271", message, hint="an HND pool is given as pool.transpose(1, 2)")
    if page_table.dim() != 2:
        problems.error("E271", f"page_table has shape {list(page_table.shape)}, expected [batch, max_pages]")
        return
    batch = page_table.shape[0]
    if cu_seqlens is None and k.dim() == 3:
        problems.error("E270", "k is packed [total_new, kv_heads, dim] and cu_seqlens is missing")
        return
    if cu_seqlens is not None and k.dim() == 4:
        problems.error("E270", "k is dense [batch, seq_new, kv_heads, dim] and cu_seqlens is given")
        return
    geometry = {"page_table": (page_table, list(page_table.shape)), "used": (used, [batch])}
    if cu_seqlens is not None:
        geometry["cu_seqlens"] = (cu_seqlens, [batch + 1])
    for name, (tensor, shape) in geometry.items():
        if list(tensor.shape) != shape:
            problems.error(
                "E271", f"{name} has shape {list(tensor.shape)}, expected {shape}: page_table has {batch} rows"
            )
        if tensor.dtype != torch.int32:
            problems.error("E272", f"{name} has dtype {spelling(tensor.dtype)}, expected i32", hint=f"{name}.int()")
        if tensor.device != k_pages.device:
            problems.error("E273", f"{name} is on {tensor.device}, expected {k_pages.device}, where k_pages is")
    tokens = list(k.shape[:-2]) if cu_seqlens is not None else [batch, *k.shape[1:2]]
    for name, (pool, new) in pairs.items():
        if list(pool.shape[:3]) != list(k_pages.shape[:3]) or pool.dim() != 4:
            expected = f"{_POOL_AXES} like k_pages, {list(k_pages.shape[:3])} and any dim"
            problems.error("E271", f"{name}_pages has shape {list(pool.shape)}, expected {expected}")
            continue
        expected_shape = [*tokens, *pool.shape[2:]]
        if list(new.shape) != expected_shape:
            message = f"{name} has shape {list(new.shape)}, expected {expected_shape} for these pages and sequences"
            problems.error("E271", message)
        if new.dtype != pool.dtype:
            message = f"{name} has dtype {spelling(new.dtype)}, its pages have {spelling(pool.dtype)}"
            problems.error("E272", message, hint=f"convert it: {name}.to({pool.dtype})")
        for what, tensor in ((f"{name}_pages", pool), (name, new)):
            if tensor.device != k_pages.device:
                problems.error("E273", f"{what} is on {tensor.device}, expected {k_pages.device}, where k_pages is")


def _check_memory(pairs: Mapping[str, tuple[Tensor, Tensor]], problems: Diagnostics) -> None:
    for name, (pool, new) in pairs.items():
        if overlaps_itself(pool):
            problems.error("E278", f"two elements of {name}_pages share memory (strides {list(pool.stride())})")
        for other, (_, source) in pairs.items():
            if may_share(pool, source):
                problems.error("E278", f"the memory of {name}_pages overlaps the memory of {other}")
        if torch.is_grad_enabled():
            for what, tensor in ((f"{name}_pages", pool), (name, new)):
                if tensor.requires_grad:
                    message = f"{what} requires a gradient, which rows of a page do not carry"
                    problems.error("E278", message, hint="call under torch.no_grad()")


def _check_contents(
    k_pages: Tensor,
    k: Tensor,
    page_table: Tensor,
    used: Tensor,
    cu_seqlens: Tensor | None,
    places: Places,
    problems: Diagnostics,
) -> None:
    """The first bad value of each tensor. Waits for the device."""
    batch, max_pages = page_table.shape
    pages, page_size = k_pages.shape[:2]
    cumulative = [b * k.shape[1] for b in range(batch + 1)] if cu_seqlens is None else cu_seqlens.tolist()
    for place, (before, after) in enumerate(pairwise([0, *cumulative])):
        if after < before or (place == 0 and after):
            expected = "0" if place == 0 else f"{before} or more"
            problems.error("E275", f"cu_seqlens[{place}] is {after}, expected {expected}")
            return
    if cumulative[-1] != k.shape[0] and cu_seqlens is not None:
        problems.error("E275", f"cu_seqlens ends at {cumulative[-1]}, k has {k.shape[0]} tokens")
        return
    capacity = max_pages * page_size
    for b, (slots, (before, after)) in enumerate(zip(used.tolist(), pairwise(cumulative), strict=True)):
        if not 0 <= slots <= capacity - (after - before):
            message = f"used[{b}] is {slots} and {after - before} tokens are new, expected 0 to {capacity} together"
            problems.error("E276", f"{message}: {max_pages} pages of {page_size} rows")
            return
    if not places.exists.all():
        token = int((~places.exists).int().argmax())
        b = next(b for b, end in enumerate(cumulative[1:]) if token < end)
        entry = (int(used[b]) + token - cumulative[b]) // page_size
        message = (
            f"page_table[{b}, {entry}] is {int(page_table[b, entry])}, expected 0 to {pages - 1}, a page of the pool"
        )
        problems.error("E277", message)
        return
    slots = places.page * page_size + places.row
    ordered, order = slots.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero().flatten()
    if len(twice):
        first, second = order[twice[0] :][:2].tolist()
        message = f"tokens {first} and {second} are both written to row {int(places.row[first])} of page"
        problems.error(
            "E278", f"{message} {int(places.page[first])}", hint="sequences that grow need pages of their own"
        )
