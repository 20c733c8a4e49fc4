"""Forward speed of compiled specs on a Hopper GPU, beside cuDNN, FlexAttention and flash-attn-4 in the same process.

    python benchmarks/h200_forward.py [--case causal] [--repeat 30] [--peers cudnn,flex,fa4] [--limit 120]

Each number is a median over CUDA events; everyone's calls alternate, so that all see the same clocks. TFLOP/s count
visible (query, key) pairs alone, 2 (dim + dim_v) operations each, so a kernel that visits fewer tiles gains time and no
work. A peer that cannot express a case, or is not installed, has no number. Results of ours are compared with float64
on a sample of rows before anything is timed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attn_dsl
from attn_dsl.lowering.tiles import Binding, analyze

Tensor = torch.Tensor
DEVICE = "cuda"
BURST = 5  # calls in a row


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


CASES = (
    Case("full", "", 4, 8192, 16, 16, 128, fa4={}, causal=False),
    Case("causal", CAUSAL, 4, 8192, 16, 16, 128, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_16k_gqa", CAUSAL, 2, 16384, 32, 8, 128, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_dim_64", CAUSAL, 4, 8192, 32, 32, 64, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_dim_256", CAUSAL, 2, 8192, 16, 8, 256, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case("causal_192_128", CAUSAL, 2, 8192, 16, 16, 192, 128, mask_mod=_causal, fa4={"causal": True}, causal=True),
    Case(
        "window",
        "param width: int in 1..\nmask = 0 <= q_pos - kv_idx < width",
        4,
        8192,
        32,
        8,
        128,
        values={"width": 1024},
        mask_mod=_window(1024),
        fa4={"causal": True, "window_size": (1023, 0)},
    ),
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


def medians_ms(functions: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Median time of each function in milliseconds, measured in turns of `BURST` calls after a warm-up."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in functions}
    for turn in range(1 + -(-repeat // BURST)):
        for name, function in functions.items():
            for _ in range(BURST):
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                function()
                stop.record()
                if turn:
                    events[name].append((start, stop))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(stop) for start, stop in pairs) for name, pairs in events.items()
    }


def visible_pairs(case: Case) -> int:
    """Visible pairs over all heads and batch entries."""
    if case.pairs is not None:
        return case.pairs(case) * case.batch * case.heads
    extents = {"batch": 1, "heads": case.heads, "kv_heads": case.kv_heads, "seq_q": case.seq, "seq_k": case.seq}
    found = analyze(case.spec).visible_pairs(Binding.of(extents, case.values))
    return case.seq * case.seq * case.batch * case.heads if found is None else found * case.batch


class Runs:
    """The inputs of one case, and one function for each way to compute it."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        shape = (case.batch, case.seq)
        self.q = torch.randn(*shape, case.heads, case.dim, device=DEVICE, dtype=torch.bfloat16)
        self.k, self.v = (
            torch.randn(*shape, case.kv_heads, dim, device=DEVICE, dtype=torch.bfloat16)
            for dim in (case.dim, case.dim_v or case.dim)
        )
        self.captures = case.captures(case)

    def ours(self) -> Callable[[], Tensor]:
        attention = attn_dsl.compile(self.case.spec, target="sm90")
        out = torch.full_like(self.q[..., : self.case.dim_v], float("nan"))
        lse = torch.empty(self.case.batch, self.case.heads, self.case.seq, device=DEVICE)
        values = {**self.captures, **self.case.values}
        return lambda: attention(self.q, self.k, self.v, **values, out=out, lse=lse)[0]

    def cudnn(self) -> Callable[[], Tensor] | None:
        if self.case.causal is None:
            return None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))

        def run() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                o = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=bool(self.case.causal), enable_gqa=self.case.heads != self.case.kv_heads
                )
            return o.transpose(1, 2)

        return run

    def flex(self) -> Callable[[], Tensor] | None:
        case = self.case
        if case.mask_mod is None and case.score_mod is None and case.text:
            return None
        torch._dynamo.reset()  # or the cases would share one limit of recompilations
        compiled = torch.compile(flex_attention, dynamic=False)
        block_mask = None
        if case.mask_mod is not None:
            mask_mod = case.mask_mod(self.captures)
            batch = case.batch if case.mask_per_batch else None
            block_mask = torch.compile(create_block_mask)(mask_mod, batch, None, case.seq, case.seq, device=DEVICE)
        score_mod = case.score_mod(self.captures) if case.score_mod is not None else None
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        grouped = case.heads != case.kv_heads
        return lambda: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=grouped).transpose(1, 2)

    def fa4(self) -> Callable[[], Tensor] | None:
        if self.case.fa4 is None:
            return None
        from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

        keywords = {key: self.captures[x].bfloat16() if isinstance(x, str) else x for key, x in self.case.fa4.items()}

        starts = None
        if self.case.document:
            starts = torch.arange(0, self.case.seq + 1, self.case.document, device=DEVICE, dtype=torch.int32)
            keywords |= {f"max_seqlen_{side}": self.case.document for side in "qk"}

        def run() -> Tensor:
            if starts is None:
                found = flash_attn_func(self.q, self.k, self.v, **keywords)
            else:
                given = (self.q[0], self.k[0], self.v[0])
                found = flash_attn_varlen_func(*given, cu_seqlens_q=starts, cu_seqlens_k=starts, **keywords)
            return found[0] if isinstance(found, tuple) else found

        return run

    def check(self, o: Tensor) -> float:
        """The relative error of one head and batch entry in the norm, against the float64 reference."""
        case = self.case
        last = slice(case.seq - min(case.seq, 512), case.seq)
        spec = case.spec
        if any("seq_q" in str(axis) for tensor in spec.tensors[3:] for axis in tensor.axes):
            last = slice(0, case.seq)
        group = case.heads // case.kv_heads
        narrow = {"q": self.q[:1, last, :group], "k": self.k[:1, :, :1], "v": self.v[:1, :, :1]}
        captures = {}
        for tensor in spec.tensors:
            if tensor.name in self.captures:
                x = self.captures[tensor.name]
                for place, axis in enumerate(tensor.axes):
                    x = x.narrow(place, 0, {"heads": group, "batch": 1}.get(str(axis), x.shape[place]))
                captures[tensor.name] = x
        exact = attn_dsl.compile(spec, target="reference-f64")(**narrow, **captures, **case.values)
        return float((o[:1, last, :group].double() - exact.double()).norm() / exact.double().norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--peers", default="cudnn,flex,fa4")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a case; then it is shown where it hangs")
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {options.repeat}")
    header = "".join(f"{name:>8}{'ratio':>7}" for name in peers)
    print(f"{'case':<16}{'error':>10}{'ms':>9}{'TFLOP/s':>9}{header}")
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        faulthandler.dump_traceback_later(options.limit, exit=True)
        print(_row(case, peers, options.repeat), flush=True)
        faulthandler.cancel_dump_traceback_later()
        gc.collect()  # block masks and inputs of this case
        torch.cuda.empty_cache()


def _row(case: Case, peers: list[str], repeat: int) -> str:
    runs = Runs(case)
    ours = runs.ours()
    error = runs.check(ours())
    work = 2 * (case.dim + (case.dim_v or case.dim)) * visible_pairs(case)
    functions = {"ours": ours}
    for name in peers:
        try:
            function = getattr(runs, name)()
            if function is not None:
                function()
                functions[name] = function
        except Exception as problem:  # a peer that fails is a row without its number, and is told
            print(f"{case.name}: {name} failed: {type(problem).__name__}: {str(problem)[:160]}", file=sys.stderr)
    timed = medians_ms(functions, repeat)
    rate = {name: work / ms / 1e9 for name, ms in timed.items()}
    cells = "".join(
        f"{rate[name]:>8.0f}{rate['ours'] / rate[name]:>6.2f}x" if name in rate else f"{'-':>8}{'':>7}"
        for name in peers
    )
    return f"{case.name:<16}{error:>10.1e}{timed['ours']:>9.3f}{rate['ours']:>9.0f}{cells}"


if __name__ == "__main__":
    main()
