"""The prefill cases of `h200_forward.py`: what is computed, and how peers are asked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import attn_dsl
from attn_dsl.lowering.tiles import Binding, analyze

Tensor = torch.Tensor
DEVICE = "cuda"


@dataclass(frozen=True)
class Case:
    """One shape of one variant."""

    name: str
    text: str  # statements besides q, k and v
    batch: int
    seq: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int | None = None  # None: dim
    values: Mapping[str, Any] = field(default_factory=dict)  # parameters
    captures: Callable[[Case], dict[str, Tensor]] = lambda case: {}
    mask_mod: Callable[..., Callable[..., Tensor]] | None = None  # of (captures) for FlexAttention; None: no mask
    score_mod: Callable[..., Callable[..., Tensor]] | None = None
    mask_per_batch: bool = False  # whether batch entries differ in mask_mod
    fa4: Mapping[str, Any] | None = None  # keywords of flash_attn_func; None: it cannot do this
    document: int = 0  # tokens of one document, for flash_attn_varlen_func
    causal: bool | None = None  # what SDPA is asked for; None: it cannot do this
    pairs: Callable[[Case], int] | None = None  # of one head and batch entry, where the analysis cannot say

    @property
    def spec(self) -> attn_dsl.AttentionSpec:
        values = "dim" if self.dim_v is None else "dim_v"
        head = "q: bf16[batch, seq_q, heads, dim]\nk: bf16[batch, seq_k, kv_heads, dim]\n"
        return attn_dsl.parse(f"{head}v: bf16[batch, seq_k, kv_heads, {values}]\n{self.text}", name=self.name)


CAUSAL = "mask = kv_idx <= q_pos"


def _causal(_: dict[str, Tensor]) -> Callable[..., Tensor]:
    return lambda b, h, q, k: k <= q


def _window(width: int) -> Callable[..., Callable[..., Tensor]]:
    return lambda captures: lambda b, h, q, k: (k <= q) & (q - k < width)


def _windowed(name: str, width: int, batch: int, seq: int, dim: int) -> Case:
    """A causal sliding window, 32 query heads on 8."""
    text = "param width: int in 1..\nmask = 0 <= q_pos - kv_idx < width"
    asked = {"causal": True, "window_size": (width - 1, 0)}
    return Case(name, text, batch, seq, 32, 8, dim, values={"width": width}, mask_mod=_window(width), fa4=asked)


def _documents(case: Case) -> dict[str, Tensor]:
    first = torch.arange(case.seq, device=DEVICE, dtype=torch.int32) // 1024 * 1024
    return {"start": first[None].repeat(case.batch, 1)}


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def _tree(_: Case) -> dict[str, Tensor]:
    """Ancestors of each node of a random tree of 64 nodes that follows a prompt."""
    parent = [max(0, int(torch.randint(node, (1,)))) if node else -1 for node in range(64)]
    seen = torch.zeros(64, 64, dtype=torch.bool)
    for node in range(64):
        seen[node] = seen[parent[node]] if node else seen[node]
        seen[node, node] = True
    return {"ancestor": seen.to(DEVICE)}


def _sees_ancestors(captures: dict[str, Tensor]) -> Callable[..., Tensor]:
    ancestor, prompt = captures["ancestor"], 8192 - 64
    return lambda b, h, q, k: (
        (k < prompt) | ((q >= prompt) & ancestor[(q - prompt).clamp(min=0), (k - prompt).clamp(min=0)])
    )


CASES = (
    Case("full", "", 4, 8192, 16, 16, 128, fa4={}, causal=False),
    Case("causal", CAUSAL, 4, 8192, 16, 16, 128, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_16k_gqa", CAUSAL, 2, 16384, 32, 8, 128, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_dim_64", CAUSAL, 4, 8192, 32, 32, 64, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("full_dim_64", "", 4, 8192, 32, 32, 64, fa4={}, causal=False),
    Case("causal_dim_256", CAUSAL, 2, 8192, 16, 8, 256, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_192_128", CAUSAL, 2, 8192, 16, 16, 192, 128, mask_mod=_causal, fa4={"causal": True}, causal=True),
    _windowed("window", 1024, 4, 8192, 128),
    _windowed("window_4096", 4096, 2, 16384, 128),
    _windowed("window_128", 128, 4, 8192, 128),
    _windowed("window_dim_64", 1024, 4, 8192, 64),
    Case(
        "softcap",
        f"param cap: float in 1.0..\nscore = cap * tanh(score / cap)\n{CAUSAL}",
        4,
        8192,
        32,
        8,
        128,
        values={"cap": 30.0},
        mask_mod=_causal,
        score_mod=lambda captures: lambda s, b, h, q, k: 30.0 * torch.tanh(s / 30.0),
        fa4={"causal": True, "softcap": 30.0},
    ),
    Case(
        "documents",
        f"start: i32[batch, seq_q]\n{CAUSAL} and start[b, q_idx] <= kv_idx",
        1,
        32768,
        16,
        4,
        128,
        captures=_documents,
        mask_per_batch=True,
        fa4={"causal": True},
        document=1024,
        mask_mod=lambda captures: lambda b, h, q, k: (k <= q) & (captures["start"][b, q] <= k),
        pairs=lambda case: case.seq // 1024 * (1024 * 1025 // 2),
    ),
    Case(
        "prefix_lm",
        "param prefix: int in 0..\nmask = kv_idx <= q_pos or kv_idx < prefix",
        4,
        8192,
        16,
        16,
        128,
        values={"prefix": 1024},
        mask_mod=lambda captures: lambda b, h, q, k: (k <= q) | (k < 1024),
    ),
    Case(
        "alibi",
        f"slopes: f32[heads]\nscore = score + slopes[h] * float(kv_idx - q_pos)\n{CAUSAL}",
        4,
        8192,
        16,
        16,
        128,
        captures=lambda case: {"slopes": 2.0 ** -torch.linspace(0.5, 8, case.heads, device=DEVICE)},
        mask_mod=_causal,
        score_mod=lambda captures: lambda s, b, h, q, k: s + captures["slopes"][h] * (k - q),
    ),
    Case(
        "relative_table",
        f"table: f32[heads, seq_q + seq_k]\nscore = score + table[h, q_idx - kv_idx + seq_k]\n{CAUSAL}",
        4,
        8192,
        16,
        16,
        128,
        captures=lambda case: {"table": _normal(case.heads, 2 * case.seq)},
        mask_mod=_causal,
        score_mod=lambda captures: lambda s, b, h, q, k: s + captures["table"][h, q - k + 8192],
    ),
    Case(
        "chunked",
        "param chunk: int in 1..\nmask = kv_idx <= q_pos and q_pos // chunk == kv_idx // chunk",
        1,
        32768,
        40,
        8,
        128,
        values={"chunk": 8192},
        mask_mod=lambda captures: lambda b, h, q, k: (k <= q) & (q // 8192 == k // 8192),
    ),
    Case(
        "dilated",
        "mask = 0 <= q_pos - kv_idx < 1024 and (q_pos - kv_idx) % 2 == 0",
        4,
        8192,
        16,
        16,
        128,
        mask_mod=lambda captures: lambda b, h, q, k: (k <= q) & (q - k < 1024) & ((q - k) % 2 == 0),
        pairs=lambda case: sum(min(row // 2 + 1, 512) for row in range(case.seq)),
    ),
    Case(
        "gpt_oss",
        "sinks: f32[heads]\nparam width: int in 1..\nmask = 0 <= q_pos - kv_idx < width\nsink = sinks[h]",
        4,
        8192,
        64,
        8,
        64,
        values={"width": 128},
        captures=lambda case: {"sinks": _normal(case.heads)},
        mask_mod=_window(128),
        fa4={"causal": True, "window_size": (127, 0), "learnable_sink": "sinks"},
    ),
    Case(
        "tree",
        "ancestor: bool[nodes, ancestors]\nlet prompt = seq_k - nodes\n"
        "mask = kv_idx < prompt or ancestor[q_pos - prompt, kv_idx - prompt] and q_pos >= prompt",
        4,
        8192,
        16,
        16,
        128,
        captures=_tree,
        mask_mod=_sees_ancestors,
    ),
    Case(
        "t5_buckets",
        "table: f32[heads, 32]\nlet distance = max(q_pos - kv_idx, 0)\n"
        "let bucket = distance if distance < 16 else min(31, 16 + floor(log(float(distance) / 16.0) * 7.6944))\n"
        f"score = score + table[h, bucket]\n{CAUSAL}",
        4,
        8192,
        16,
        16,
        128,
        captures=lambda case: {"table": _normal(case.heads, 32)},
        mask_mod=_causal,
        score_mod=lambda captures: lambda s, b, h, q, k: s + captures["table"][h, _bucket(q, k)],
    ),
)


def _bucket(q: Tensor, k: Tensor) -> Tensor:
    distance = (q - k).clamp(min=0)
    far = (16 + torch.floor(torch.log(distance.clamp(min=1).float() / 16.0) * 7.6944)).to(torch.int32).clamp(max=31)
    return torch.where(distance < 16, distance.to(torch.int32), far)


def visible_pairs(case: Case) -> int:
    """Visible pairs over all heads and batch entries."""
    if case.pairs is not None:
        return case.pairs(case) * case.batch * case.heads
    extents = {"batch": 1, "heads": case.heads, "kv_heads": case.kv_heads, "seq_q": case.seq, "seq_k": case.seq}
    found = analyze(case.spec).visible_pairs(Binding.of(extents, case.values))
    return case.seq * case.seq * case.batch * case.heads if found is None else found * case.batch
