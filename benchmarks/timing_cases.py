"""The kernels that the timing model is compared with: one table for the measurement on a GPU and for the prediction.

A kernel is a case and a maker, `ours` or `fa4` (flash-attn-4). Every second one of `KERNELS` is used to fit what the
model does not get from micro-benchmarks; the others are only predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import attn_dsl

Tensor = torch.Tensor
CAUSAL = "mask = kv_idx <= q_pos\n"


@dataclass(frozen=True)
class Case:
    """One call, bf16."""

    name: str
    text: str  # of the spec, behind q, k and v
    batch: int
    seq_q: int
    seq_k: int
    heads: int
    kv_heads: int
    dim: int
    values: dict[str, int | float] = field(default_factory=dict)
    fa4: dict[str, Any] | None = None  # keywords; None: flash-attn-4 is not asked
    document: int = 0  # rows of each document; 0: none

    @property
    def spec(self) -> attn_dsl.AttentionSpec:
        head = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
        return attn_dsl.parse(head + self.text, name=self.name)

    def inputs(self, device: str) -> dict[str, Tensor]:
        make = torch.Generator(device).manual_seed(0)

        def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.randn(*shape, generator=make, device=device, dtype=dtype)

        found = {"q": normal(self.batch, self.seq_q, self.heads, self.dim)}
        found |= {name: normal(self.batch, self.seq_k, self.kv_heads, self.dim) for name in "kv"}
        if self.document:
            first = torch.arange(self.seq_q, device=device, dtype=torch.int32) // self.document * self.document
            found["start"] = first[None].repeat(self.batch, 1)
        if "slopes" in self.text:
            found["slopes"] = normal(self.heads, dtype=torch.float32)
        if "sinks" in self.text:
            found["sinks"] = normal(self.heads, dtype=torch.float32)
        return found

    def peer(self, given: dict[str, Tensor]) -> Callable[[], object]:
        """A call of flash-attn-4."""
        from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

        q, k, v = given["q"], given["k"], given["v"]
        keywords = {name: given[x].bfloat16() if isinstance(x, str) else x for name, x in (self.fa4 or {}).items()}
        if not self.document:
            return lambda: flash_attn_func(q, k, v, **keywords)
        starts = torch.arange(0, self.seq_q + 1, self.document, device=q.device, dtype=torch.int32)
        keywords |= {f"max_seqlen_{side}": self.document for side in "qk"}
        return lambda: flash_attn_varlen_func(q[0], k[0], v[0], cu_seqlens_q=starts, cu_seqlens_k=starts, **keywords)


WINDOW = "param width: int in 1..\nmask = 0 <= q_pos - kv_idx < width\n"
CASES = (
    Case("full", "", 2, 4096, 4096, 16, 16, 128, fa4={}),
    Case("causal", CAUSAL, 2, 4096, 4096, 16, 16, 128, fa4={"causal": True}),
    Case("full_64", "", 2, 4096, 4096, 16, 16, 64, fa4={}),
    Case("causal_64", CAUSAL, 2, 4096, 4096, 16, 16, 64, fa4={"causal": True}),
    Case("full_256", "", 1, 4096, 4096, 16, 8, 256, fa4={}),
    Case("causal_256", CAUSAL, 1, 4096, 4096, 16, 8, 256, fa4={"causal": True}),
    Case("window", WINDOW, 2, 4096, 4096, 32, 8, 128, {"width": 1024}, {"causal": True, "window_size": (1023, 0)}),
    Case(
        "softcap",
        f"param cap: float in 1.0..\nscore = cap * tanh(score / cap)\n{CAUSAL}",
        2,
        4096,
        4096,
        16,
        4,
        128,
        {"cap": 30.0},
        {"causal": True, "softcap": 30.0},
    ),
    Case("gqa", CAUSAL, 1, 8192, 8192, 32, 8, 128, fa4={"causal": True}),
    Case(
        "documents",
        "start: i32[batch, seq_q]\nmask = kv_idx <= q_pos and kv_idx >= start[b, q_idx]\n",
        1,
        8192,
        8192,
        16,
        4,
        128,
        fa4={"causal": True},
        document=1024,
    ),
    Case("decode", CAUSAL, 64, 1, 4096, 32, 8, 128, fa4={"causal": True}),
    Case(
        "gpt_oss",
        f"{WINDOW}sinks: f32[heads]\nsink = sinks[h]\n",
        1,
        8192,
        8192,
        64,
        8,
        64,
        {"width": 128},
        {"causal": True, "window_size": (127, 0), "learnable_sink": "sinks"},
    ),
    Case("short", "", 16, 512, 512, 16, 16, 128, fa4={}),
    Case(
        "alibi",
        f"slopes: f32[heads]\nscore = score + slopes[h] * (kv_idx - q_pos)\n{CAUSAL}",
        2,
        4096,
        4096,
        16,
        16,
        128,
    ),
    Case(
        "prefix",
        "param prefix: int\nmask = kv_idx <= q_pos or kv_idx < prefix\n",
        2,
        4096,
        4096,
        16,
        16,
        128,
        {"prefix": 1024},
    ),
)
KERNELS = tuple((case, who) for case in CASES for who in ("ours", "fa4") if who == "ours" or case.fa4 is not None)


def name_of(case: Case, who: str) -> str:
    return f"{case.name}/{who}"


def fitted(name: str) -> bool:
    """Whether a kernel takes part in the fit: every second one of each maker."""
    own = [name_of(case, who) for case, who in KERNELS if name.endswith("/" + who)]
    return (own.index(name) + (name.endswith("fa4"))) % 2 == 0
