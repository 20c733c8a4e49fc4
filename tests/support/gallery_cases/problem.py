"""Attention written out in full: the oracle of the gallery. It shares no code with the package."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One call of a spec and what must come out of it."""

    tensors: Mapping[str, Tensor]
    params: Mapping[str, float | Tensor]
    o: Tensor  # float64, in the layout of q
    lse: Tensor  # float64, [batch, heads, seq_q], or [heads, total_q] if q is packed
    constants: Mapping[str, int] = field(default_factory=dict)


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register `build` as the case of the spec `examples/<its name>.attn`."""
    CASES[build.__name__] = build
    return build


class Problem:
    """Random q, k and v in [batch, seq, heads, dim] for the spec `name`, and the index grids its formula is written in.

    i, j and p are query row, key and the query's position when the last query meets the last key; b and h are batch and
    head. All broadcast to [batch, heads, seq_q, seq_k].
    """

    def __init__(
        self,
        name: str,
        *,
        batch: int = 2,
        seq_q: int = 23,
        seq_k: int = 37,
        heads: int = 6,
        kv_heads: int | None = None,
        dim: int = 8,
        dim_v: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        self.batch, self.seq_q, self.seq_k, self.heads, self.dim = batch, seq_q, seq_k, heads, dim
        kv_heads = heads if kv_heads is None else kv_heads
        self.dtype = dtype
        self.q = self.normal(batch, seq_q, heads, dim, dtype=dtype)
        self.k = self.normal(batch, seq_k, kv_heads, dim, dtype=dtype)
        self.v = self.normal(batch, seq_k, kv_heads, dim if dim_v is None else dim_v, dtype=dtype)
        self.b = torch.arange(batch)[:, None, None, None]
        self.h = torch.arange(heads)[None, :, None, None]
        self.i = torch.arange(seq_q)[None, None, :, None]
        self.j = torch.arange(seq_k)[None, None, None, :]
        self.p = self.i + (seq_k - seq_q)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self.random).to(dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Random i32 in low <= x < high."""
        return torch.randint(low, high, shape, generator=self.random, dtype=torch.int32)

    def coins(self, chance: float, *shape: int) -> Tensor:
        """Random booleans, true with probability `chance`."""
        return torch.rand(*shape, generator=self.random) < chance

    def scores(self, scale: float | None = None) -> Tensor:
        """scale * q.k in float64, [batch, heads, seq_q, seq_k]; scale is 1 / sqrt(dim) without one."""
        q, k = self.q.double(), self._per_head(self.k)
        return torch.einsum("bihd,bjhd->bhij", q, k) * (1.0 / math.sqrt(self.dim) if scale is None else scale)

    def case(
        self,
        visible: Tensor | bool = True,
        scores: Tensor | None = None,
        *,
        sink: Tensor | None = None,
        constants: Mapping[str, int] | None = None,
        **inputs: Tensor | float,
    ) -> Case:
        """What the softmax of `scores` over `visible` keys gives, with the spec's captures and parameters as `inputs`.

        A capture is a tensor; so is a parameter per head or batch, named `param_<name>` here.
        """
        o, lse = self.attend(visible, scores, sink)
        params = {name.removeprefix("param_"): x for name, x in inputs.items() if not _is_capture(name, x)}
        captures = {name: x for name, x in inputs.items() if isinstance(x, Tensor) and _is_capture(name, x)}
        tensors = {"q": self.q, "k": self.k, "v": self.v, **captures}
        return Case(tensors, params, o, lse, constants or {})

    def attend(
        self, visible: Tensor | bool = True, scores: Tensor | None = None, sink: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """o [batch, seq_q, heads, dim_v] and lse [batch, heads, seq_q], in float64; `sink` is [heads]."""
        scores = self.scores() if scores is None else scores
        seen = torch.as_tensor(visible).expand(scores.shape)
        columns = [scores.masked_fill(~seen, -math.inf)]
        if sink is not None:
            columns.append(sink.double()[None, :, None, None].expand(*scores.shape[:3], 1))
        logits = torch.cat(columns, dim=-1)
        lse = torch.logsumexp(logits, dim=-1)
        weights = torch.exp(logits - lse[..., None]).nan_to_num(nan=0.0)[..., : self.seq_k]
        return torch.einsum("bhij,bjhd->bihd", weights, self._per_head(self.v)), lse

    def _per_head(self, x: Tensor) -> Tensor:
        return x.double().repeat_interleave(self.heads // x.shape[2], dim=2)


def _is_capture(name: str, value: Tensor | float) -> bool:
    return isinstance(value, Tensor) and not name.startswith("param_")
