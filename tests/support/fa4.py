"""flash-attn-4's own kernels on the emulated device, and the same attention in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from attn_dsl import emulator


@dataclass(frozen=True)
class Case:
    """One call. Lengths in tokens; `lengths` makes it variable-length (of q and k alike, or pairs)."""

    name: str
    arch: str
    batch: int = 1
    seq_q: int = 200
    seq_k: int = 200
    heads: int = 2
    kv_heads: int = 1
    dim: int = 128
    dim_v: int | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float = 0.0
    sink: bool = False
    lengths: tuple[tuple[int, int], ...] = ()
    page: int = 0
    splits: int = 1
    dtype: torch.dtype = torch.bfloat16
    backward: bool = False
    deterministic: bool = False

    @property
    def values(self) -> int:
        return self.dim if self.dim_v is None else self.dim_v


def cases(arch: str) -> list[Case]:
    """What the emulator must run without a finding."""
    common = [
        Case("causal", arch, causal=True),
        Case("full", arch, seq_q=130, seq_k=257),
        Case("window", arch, window=(64, 0)),
        Case("window-both", arch, seq_q=140, seq_k=300, window=(50, 30)),
        Case("softcap", arch, causal=True, softcap=15.0),
        Case("sink", arch, causal=True, sink=True),
        Case("gqa4", arch, seq_q=77, seq_k=150, heads=8, kv_heads=2, causal=True),
        Case("mha", arch, heads=2, kv_heads=2, causal=True),
        Case("varlen", arch, causal=True, lengths=((100, 100), (1, 1), (180, 180), (0, 0), (129, 129))),
        Case("varlen-cross", arch, lengths=((40, 300), (1, 17), (129, 128))),
        Case("q-longer", arch, seq_q=300, seq_k=100, causal=True),
        Case("q-shorter", arch, batch=2, seq_q=70, seq_k=260, causal=True),
        Case("decode", arch, batch=2, seq_q=1, seq_k=300, heads=4),
        Case("hd64", arch, dim=64, causal=True),
        Case("hd64-full", arch, dim=64),
        Case("hd96", arch, dim=96, causal=True),
        Case("fp16", arch, causal=True, dtype=torch.float16),
        Case("paged128", arch, batch=2, seq_q=150, seq_k=290, causal=True, page=128),
        Case("paged16", arch, batch=2, seq_q=150, seq_k=290, causal=True, page=16),
        Case("paged64", arch, batch=2, seq_k=290, causal=True, page=64),
        Case("paged128-window", arch, batch=2, seq_k=290, window=(100, 0), page=128),
        Case("hd32", arch, dim=32, causal=True),
        Case("hd40", arch, dim=40, causal=True),
        Case("hd80", arch, dim=80, causal=True),
        Case("hd64-32", arch, dim=64, dim_v=32, causal=True),
        Case("hd192-128", arch, dim=192, dim_v=128, causal=True),
        Case("hd256", arch, seq_q=300, seq_k=300, dim=256, causal=True),
        Case("hd256-full", arch, dim=256),
        Case("hd256-window", arch, dim=256, window=(64, 0)),
        Case("hd256-varlen", arch, dim=256, causal=True, lengths=((100, 100), (129, 129))),
        Case("hd256-paged128", arch, batch=2, dim=256, causal=True, page=128),
        Case("window-sink-softcap", arch, window=(50, 0), sink=True, softcap=20.0),
        Case("bwd", arch, causal=True, backward=True),
        Case("bwd-full", arch, seq_q=130, seq_k=257, backward=True),
        Case("bwd-mha", arch, kv_heads=2, causal=True, backward=True),
        Case("bwd-hd64", arch, dim=64, causal=True, backward=True),
        Case("bwd-hd96", arch, dim=96, causal=True, backward=True),
        Case("bwd-hd256", arch, dim=256, causal=True, backward=True),
        Case("bwd-window", arch, window=(64, 0), backward=True),
        Case("bwd-softcap", arch, causal=True, softcap=15.0, backward=True),
        Case("bwd-sink", arch, causal=True, sink=True, backward=True),
        Case("bwd-fp16", arch, causal=True, dtype=torch.float16, backward=True),
        Case("bwd-varlen", arch, causal=True, lengths=((100, 100), (180, 180), (129, 129)), backward=True),
    ]
    if arch == "sm_90a":
        return [*common, Case("hd192", arch, dim=192, causal=True)]
    return [
        *common,
        Case("bwd-hd192-128", arch, dim=192, dim_v=128, causal=True, backward=True),
        Case("split", arch, seq_q=64, seq_k=1024, causal=True, splits=3),
        Case("split-window", arch, seq_q=64, seq_k=1024, window=(700, 0), splits=3),
        Case("split-paged", arch, seq_q=64, seq_k=1024, causal=True, splits=3, page=128),
        Case("fp8", arch, seq_q=300, seq_k=300, causal=True, dtype=torch.float8_e4m3fn),
        Case("fp8-e5m2", arch, causal=True, dtype=torch.float8_e5m2),
    ]


# What flash-attn-4 4.0.0b36 refuses, and how it says so.
REFUSED = (
    (Case("hd192", "sm_100a", dim=192, causal=True), "not supported on SM100"),
    (Case("split", "sm_90a", seq_q=64, seq_k=1024, causal=True, splits=3), "SplitKV not supported on SM 9.0"),
    (Case("fp8", "sm_90a", causal=True, dtype=torch.float8_e4m3fn), "FP8 is only supported on SM100"),
    (
        Case("bwd-hd192-128", "sm_90a", dim=192, dim_v=128, causal=True, backward=True),
        "GQA backward requires head_dim == head_dim_v",
    ),
)


_last_opened: list[str] = []  # the architecture of the device before


@contextmanager
def device(arch: str, **options: Any) -> Iterator[emulator.Device]:
    """The emulated device, with what flash-attn-4 remembers of another one forgotten first.

    It keeps what it learnt about the hardware, and compiled kernels, of which not all are kept by architecture.
    """
    from flash_attn.cute import cute_dsl_utils, interface

    for function in (
        interface._get_device_arch,
        cute_dsl_utils._get_device_arch_and_num_sms,
        cute_dsl_utils.get_device_capacity,
        cute_dsl_utils.get_max_active_clusters,
    ):
        function.cache_clear()
    if _last_opened != [arch]:
        _last_opened[:] = [arch]
        for function in vars(interface).values():
            if (kept := getattr(function, "compile_cache", None)) is not None:
                kept.clear()
    with emulator.device(arch, **options) as gpu:
        yield gpu


@dataclass
class Inputs:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None
    call: dict[str, Any]  # arguments of _flash_attn_fwd besides q, k, v


def inputs(case: Case, seed: int = 0) -> Inputs:
    """Random inputs with NaN wherever nothing may be read."""
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make).to(case.dtype)

    call: dict[str, Any] = {"causal": case.causal, "return_lse": True, "num_splits": case.splits}
    if case.window is not None:
        call |= {"window_size_left": case.window[0], "window_size_right": case.window[1]}
    if case.softcap:
        call["softcap"] = case.softcap
    sink = torch.randn(case.heads, generator=make).bfloat16() if case.sink else None
    if sink is not None:
        call["learnable_sink"] = sink
    if case.lengths:
        total_q, total_k = (sum(pair[i] for pair in case.lengths) for i in (0, 1))
        q, k, v = (
            normal(total_q, case.heads, case.dim),
            normal(total_k, case.kv_heads, case.dim),
            normal(total_k, case.kv_heads, case.values),
        )
        cu = [torch.tensor([0, *(pair[i] for pair in case.lengths)], dtype=torch.int32).cumsum(0).int() for i in (0, 1)]
        call |= {"cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1]}
        call |= {"max_seqlen_q": max(p[0] for p in case.lengths), "max_seqlen_k": max(p[1] for p in case.lengths)}
        return Inputs(q, k, v, sink, call)
    q = normal(case.batch, case.seq_q, case.heads, case.dim)
    k = normal(case.batch, case.seq_k, case.kv_heads, case.dim)
    v = normal(case.batch, case.seq_k, case.kv_heads, case.values)
    if case.page:
        used = torch.tensor([case.seq_k - 5 * b for b in range(case.batch)], dtype=torch.int32)
        call |= {"seqused_k": used}
    return Inputs(q, k, v, sink, call)


def paged(case: Case, given: Inputs, seed: int = 1) -> dict[str, torch.Tensor]:
    """k and v scattered over the pages of a pool in random order; unused places hold NaN."""
    pages = -(-case.seq_k // case.page)
    order = torch.randperm(case.batch * pages + 3, generator=torch.Generator().manual_seed(seed))[: case.batch * pages]
    table = order.reshape(case.batch, pages).int()
    found = {"page_table": table}
    for name in ("k", "v"):
        dense = getattr(given, name)
        pool = torch.full((case.batch * pages + 3, case.page, *dense.shape[2:]), math.nan, dtype=dense.dtype)
        padded = torch.zeros(case.batch, pages * case.page, *dense.shape[2:], dtype=dense.dtype)
        padded[:, : case.seq_k] = dense
        pool[order] = padded.reshape(case.batch * pages, case.page, *dense.shape[2:])
        found[name] = pool
    return found


def run(case: Case, given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE of flash-attn-4. Call it inside `device`."""
    from flash_attn.cute import interface

    k, v, call = given.k, given.v, dict(given.call)
    if case.page:
        found = paged(case, given)
        k, v, call["page_table"] = found["k"], found["v"], found["page_table"]
    out, lse, *_ = interface._flash_attn_fwd(given.q, k, v, **call)
    return out, lse


def run_backward(
    case: Case, given: Inputs, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv of flash-attn-4. Call it inside `device`."""
    from flash_attn.cute import interface

    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    names += ("window_size_left", "window_size_right", "softcap")
    call = {name: given.call[name] for name in names if name in given.call}
    found = interface._flash_attn_bwd(given.q, given.k, given.v, out, grad, lse, causal=case.causal, **call)
    return found[0], found[1], found[2]


def reference(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor | None, call: dict[str, Any]
):
    """Output and LSE in float64, in the layouts of flash-attn-4. Rows that see nothing are 0 and -inf."""
    q, k, v = q.double(), k.double(), v.double()
    if not case.lengths:
        used = call.get("seqused_k")
        outs = [
            _attend(
                case,
                q[b],
                k[b][: used[b]] if used is not None else k[b],
                v[b][: used[b]] if used is not None else v[b],
                sink,
            )
            for b in range(q.shape[0])
        ]
        return torch.stack([out for out, _ in outs]), torch.stack([lse for _, lse in outs])
    outs, at_q, at_k = [], 0, 0
    for length_q, length_k in case.lengths:
        outs.append(
            _attend(case, q[at_q : at_q + length_q], k[at_k : at_k + length_k], v[at_k : at_k + length_k], sink)
        )
        at_q, at_k = at_q + length_q, at_k + length_k
    return torch.cat([out for out, _ in outs]), torch.cat([lse for _, lse in outs], 1)


def _attend(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor | None):
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(case.dim)
    if case.softcap:
        score = case.softcap * torch.tanh(score / case.softcap)
    q_idx = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    kv_idx = torch.arange(k.shape[0])
    seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if case.causal:
        seen &= kv_idx <= q_idx
    if case.window is not None:
        seen &= (kv_idx >= q_idx - case.window[0]) & (kv_idx <= q_idx + case.window[1])
    score = score.masked_fill(~seen, -math.inf)
    columns = score if sink is None else torch.cat([score, sink.double()[:, None, None].expand(-1, q.shape[0], 1)], 2)
    lse = torch.logsumexp(columns, 2)
    probability = torch.where(seen, torch.exp(score - lse[..., None]), 0.0).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", probability, v), lse


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Difference by norm, relative; infinite if there is a NaN."""
    difference = (got.double() - want).norm() / want.norm().clamp_min(1e-30)
    return float(difference.nan_to_num(math.inf))
