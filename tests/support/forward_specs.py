"""Specs and inputs that forward kernels are held to float64 with, on the virtual device and on GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

import attn_dsl
from attn_dsl.cli.accuracy import compare_lse, compare_output
from attn_dsl.diagnostics import Diagnostics
from attn_dsl.reference.geometry import Side, read_geometry
from attn_dsl.runtime import Inputs, random_inputs
from attn_dsl.spec.shapes import solve_extents

HEAD = """
q: {dtype}[batch, seq_q, heads, dim]
k: {dtype}[batch, seq_k, kv_heads, dim]
v: {dtype}[batch, seq_k, kv_heads, dim_v]
"""
GALLERY_REFUSED = {"bert_padding", "deepseek_mla_absorbed"}  # by sm90: f32, a head dimension of 576
SPECS = {
    "full": "",
    "causal": "mask = kv_idx <= q_pos",
    "window": """
        param left: int in 0.. = 70
        param right: int in 0.. = 3
        mask = q_pos - left <= kv_idx <= q_pos + right""",
    "sinks_and_window": """
        sinks: f32[heads]
        param width: int in 1.. = 60
        mask = kv_idx <= q_pos and (kv_idx < 4 or q_pos - kv_idx < width)
        sink = sinks[h]""",
    "prefix": """
        param prefix: int[batch] in 0.. = 150
        mask = kv_idx <= q_pos or kv_idx < prefix""",
    "documents": """
        doc_q: i32[batch, seq_q]
        doc_k: i32[batch, seq_k]
        mask = doc_q[b, q_idx] == doc_k[b, kv_idx]""",
    "chunks": """
        param chunk: int in 1.. = 16
        mask = kv_idx < q_pos // chunk * chunk + 20 and (kv_idx - q_pos) % chunk != 5""",
    "dilated": "mask = kv_idx <= q_pos and (q_pos - kv_idx) % 3 == 0",
    "tree": """
        seen: bool[batch, seq_q, seq_k]
        mask = seen[b, q_idx, kv_idx]""",
    "softcap": """
        param cap: float in 1.0.. = 5.0
        mask = kv_idx <= q_pos
        score = cap * tanh(score / cap)""",
    "alibi": """
        slopes: f32[heads]
        score = score + slopes[h] * float(kv_idx - q_pos)""",
    "relative": """
        table: bf16[heads, seq_q + seq_k]
        mask = kv_idx <= q_pos
        score = score + table[h, q_idx - kv_idx + seq_k]""",
    "negative_scale": """
        param factor: float = -0.3
        scale = factor
        mask = kv_idx <= q_pos""",
    "nothing_visible": """
        sinks: f32[heads]
        mask = kv_idx < q_pos - 40
        sink = sinks[h]""",
    "reach_by_head": """
        param reach: int[heads] in 1.. = 77
        param gain: float[heads] = 0.5
        mask = 0 <= q_pos - kv_idx < reach
        score = gain * score""",
    "gain_by_head": """
        param gain: float[heads] = 0.5
        sinks: f32[heads]
        mask = kv_idx <= q_pos
        score = gain * score
        sink = sinks[h]""",
    "base_2": """
        lse_base = 2
        mask = kv_idx <= q_pos""",
    "descaled": """
        gain_q: f32[heads]
        gain_k, gain_v: f32[batch, kv_heads]
        sinks: f32[heads]
        mask = kv_idx <= q_pos
        descale q = gain_q[h]
        descale k = gain_k[b, kv_h]
        descale v = gain_v[b, kv_h]
        sink = sinks[h]""",
}
# Where the rows of sequences lie, and what else the tensors are called there.
PACKED_Q = "q: {dtype}[total_q, heads, dim]\ncu_q: i32[batch + 1]\n"
PACKED_K = "k: {dtype}[total_k, kv_heads, dim]\nv: {dtype}[total_k, kv_heads, dim_v]\ncu_k: i32[batch + 1]\n"
DENSE_Q = "q: {dtype}[batch, seq_q, heads, dim]\n"
DENSE_K = "k: {dtype}[batch, seq_k, kv_heads, dim]\nv: {dtype}[batch, seq_k, kv_heads, dim_v]\n"
USED_Q, USED_K = "used_q: i32[batch]\n", "used_k: i32[batch]\n"
LAYOUTS = {
    "packed": PACKED_Q + PACKED_K + "lengths q {{ cu_seqlens = cu_q }}\nlengths k {{ cu_seqlens = cu_k }}\n",
    "packed_used": PACKED_Q
    + PACKED_K
    + USED_Q
    + USED_K
    + "lengths q {{ cu_seqlens = cu_q, used = used_q }}\nlengths k {{ cu_seqlens = cu_k, used = used_k }}\n",
    "packed_q": PACKED_Q + DENSE_K + USED_K + "lengths q {{ cu_seqlens = cu_q }}\nlengths k {{ used = used_k }}\n",
    "packed_k": DENSE_Q + PACKED_K + USED_Q + "lengths q {{ used = used_q }}\nlengths k {{ cu_seqlens = cu_k }}\n",
    "left_padded": DENSE_Q + DENSE_K + USED_K + "pad: i32[batch]\nlengths k {{ used = used_k, left_pad = pad }}\n",
}
IN_SEQUENCES = {
    "full": "",
    "causal": "mask = kv_idx <= q_pos",
    "window": SPECS["window"],
    "sinks_and_window": SPECS["sinks_and_window"],
    "prefix": SPECS["prefix"],
    "documents": """
        doc_q: i32[{rows_q}]
        doc_k: i32[{rows_k}]
        mask = doc_q[{b_q}q_idx] == doc_k[{b_k}kv_idx]""",
    "position_bound": """
        until: i32[{rows_q}]
        mask = kv_idx < until[{b_q}q_idx]""",
    "decay": """
        decay: f32[heads, {rows_k}]
        mask = kv_idx <= q_pos
        score = score - abs(decay[h, {b_k}kv_idx])""",
    "softcap": SPECS["softcap"],
    "top_left": "align top_left\nmask = kv_idx <= q_pos",
    "nothing_visible": SPECS["nothing_visible"],
}


def _parse(text: str, name: str) -> attn_dsl.AttentionSpec:
    return attn_dsl.parse("\n".join(line.strip() for line in text.splitlines()), name=name)


def spec_of(name: str, dtype: str = "bf16") -> attn_dsl.AttentionSpec:
    """A spec of `SPECS`, whose sequences fill their axis."""
    return _parse(HEAD.format(dtype=dtype) + SPECS[name], name)


def spec_in_sequences(name: str, layout: str, dtype: str = "bf16") -> attn_dsl.AttentionSpec:
    """A spec of `IN_SEQUENCES` on a layout of `LAYOUTS`."""
    head = LAYOUTS[layout].format(dtype=dtype)
    packed_q, packed_k = "total_q" in head, "total_k" in head
    body = IN_SEQUENCES[name].format(
        rows_q="total_q" if packed_q else "batch, seq_q",
        rows_k="total_k" if packed_k else "batch, seq_k",
        b_q="" if packed_q else "b, ",
        b_k="" if packed_k else "b, ",
    )
    return _parse(head + body, f"{name}_{layout}")


def _cumulative(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def sequence_inputs(
    spec: attn_dsl.AttentionSpec,
    lengths: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (64, 64),
    spare: int = 0,
    seed: int = 0,
    device: str = "cpu",
) -> Inputs:
    """Inputs of a batch whose sequences have `lengths` slots (q, k); `spare` packed rows follow the last of them.

    Used lengths and padding are random; q, k and v are NaN in every slot that is no row of a sequence.
    """
    make = torch.Generator().manual_seed(seed)
    names = {tensor.name for tensor in spec.tensors}
    given: dict[str, Tensor] = {}
    extents = {"batch": len(lengths), "heads": heads[0], "kv_heads": heads[1], "dim": dims[0], "dim_v": dims[1]}
    for place, side in enumerate("qk"):
        slots = [pair[place] for pair in lengths]
        if f"cu_{side}" in names:
            given[f"cu_{side}"] = _cumulative(slots)
            extents[f"total_{side}"] = sum(slots) + spare
        else:
            extents[f"seq_{side}"] = max(slots, default=0) + spare
        used = [int(torch.randint(0, n + 1, (), generator=make)) if b % 3 else n for b, n in enumerate(slots)]
        if f"used_{side}" in names:
            given[f"used_{side}"] = torch.tensor(used, dtype=torch.int32)
    if "pad" in names:
        pads = [int(torch.randint(0, n + 1, (), generator=make)) for n in given["used_k"].tolist()]
        given["pad"] = torch.tensor(pads, dtype=torch.int32)
    inputs = random_inputs(spec, extents, seed=seed, given=given)
    _poison(spec, inputs.tensors)
    tensors = {name: value.to(device) for name, value in inputs.tensors.items()}
    return Inputs(tensors, inputs.params, inputs.extents, inputs.notes)


def _poison(spec: attn_dsl.AttentionSpec, tensors: Mapping[str, Tensor]) -> None:
    """Writes NaN where no row of a sequence lies."""
    problems = Diagnostics()
    extents = solve_extents(spec, {name: tuple(value.shape) for name, value in tensors.items()}, problems)
    geometry = read_geometry(spec, tensors, extents, problems)
    assert geometry is not None, problems.errors
    for name, side in (("q", geometry.q), ("k", geometry.k), ("v", geometry.k)):
        tensor = tensors[name]
        rows = tensor if spec.tensor(name).axes[0].name != "batch" else tensor.flatten(0, 1)
        rows[~_in_use(side, len(rows))] = math.nan


def _in_use(side: Side, slots: int) -> Tensor:
    used = torch.zeros(slots, dtype=torch.bool)
    for start, length in zip(side.starts, side.lengths, strict=True):
        used[start : start + length] = True
    return used


def assert_close(spec: attn_dsl.AttentionSpec, given: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> None:
    """Holds (o, lse) of a kernel to those in float64."""
    o, lse = compare_output(given[0], exact[0], spec.output.dtype), compare_lse(given[1], exact[1])
    assert o.ok, (spec.name, o)
    assert lse.ok, (spec.name, lse)
