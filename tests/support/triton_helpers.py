"""Helper functions as Triton kernels have them, and what Triton itself computes with them.

Run as a script with TRITON_INTERPRET=1 it evaluates every helper on its pairs and writes the results to the file that
its argument names: the interpreter has to be chosen before Triton is imported.
"""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

ROWS, KEYS, HEADS = 16, 32, 4
SOFTCAP: tl.constexpr = tl.constexpr(20.0)
MINUS_INFINITY: tl.constexpr = tl.constexpr(float("-inf"))
BIAS = torch.linspace(-1.0, 1.0, HEADS * (ROWS + KEYS)).reshape(HEADS, ROWS + KEYS)
DOCUMENT = (torch.arange(max(ROWS, KEYS)) // 7).int()


@triton.jit
def causal(offs_m, offs_n):
    return offs_m[:, None] >= offs_n[None, :]


@triton.jit
def inside(distance, WINDOW: tl.constexpr):
    return (distance >= 0) & (distance < WINDOW)


@triton.jit
def window(offs_m, offs_n, WINDOW: tl.constexpr, CAUSAL: tl.constexpr):
    distance = offs_m[:, None] - offs_n[None, :]
    if CAUSAL:
        seen = inside(distance, WINDOW)
    else:
        seen = tl.abs(distance) < WINDOW
    return seen


@triton.jit
def dilated(offs_m, offs_n, dilation, reach):
    distance = offs_m[:, None] - offs_n[None, :]
    return (tl.maximum(distance, -distance) <= reach) & (distance % dilation == 0)


@triton.jit
def rounded_to_zero(offs_m, offs_n):
    """Ints divide as in C: -1 // 4 is 0 and -1 % 4 is -1."""
    distance = offs_m[:, None] - offs_n[None, :]
    return (distance // 4 == 0) | (distance % 4 == -1) | (distance // 4 == -3)


@triton.jit
def chunks(offs_m, offs_n, CHUNK: tl.constexpr):
    blocks: tl.constexpr = (CHUNK + 3) // 4
    return offs_m[:, None] // blocks == offs_n[None, :] // blocks


@triton.jit
def documents(offs_m, offs_n, document_ptr, N_CTX_K):
    own = tl.load(document_ptr + offs_m)
    other = tl.load(document_ptr + offs_n, mask=offs_n < N_CTX_K, other=-1)
    return own[:, None] == other[None, :]


@triton.jit
def powers_of_two(offs_m, offs_n, STEPS: tl.constexpr):
    distance = offs_m[:, None] - offs_n[None, :]
    seen = distance == 0
    for step in tl.static_range(STEPS):
        seen |= distance == 2**step
    return seen


@triton.jit
def either(offs_m, offs_n):
    bits = (offs_m[:, None] ^ offs_n[None, :]) & 3
    return (bits == 0) | ~(offs_n[None, :] > 5)


@triton.jit
def softcapped(qk):
    return (2 * tl.sigmoid(2 * (qk / SOFTCAP)) - 1) * SOFTCAP


@triton.jit
def alibi(qk, off_h, offs_m, offs_n, HEADS: tl.constexpr):
    slope = tl.exp2(-8.0 * (off_h + 1).to(tl.float32) / HEADS)
    qk += slope * (offs_n[None, :] - offs_m[:, None]).to(tl.float32)
    return qk


@triton.jit
def causal_score(qk, offs_m, offs_n):
    return tl.where(offs_m[:, None] >= offs_n[None, :], qk * 1.5, MINUS_INFINITY)


@triton.jit
def table(qk, off_h, offs_m, offs_n, bias_ptr, stride_h, last):
    place = offs_m[:, None] - offs_n[None, :] + last
    return qk + tl.load(bias_ptr + off_h * stride_h + place)


@triton.jit
def truncated(qk, offs_m, offs_n):
    shifted = (offs_m[:, None] - offs_n[None, :]) / 3
    whole = shifted.to(tl.int32)
    return tl.where(whole < 0, qk - whole, qk + tl.sqrt(tl.abs(shifted)) * tl.minimum(whole, 2))


@dataclass(frozen=True)
class Case:
    function: Any
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


MASKS = (
    Case(causal),
    Case(window, {"WINDOW": 5, "CAUSAL": True}),
    Case(window, {"WINDOW": 5, "CAUSAL": False}),
    Case(dilated, {"dilation": 3, "reach": 10}),
    Case(rounded_to_zero),
    Case(chunks, {"CHUNK": 18}),
    Case(documents, {"N_CTX_K": KEYS - 6}, {"document_ptr": DOCUMENT}),
    Case(powers_of_two, {"STEPS": 4}),
    Case(either),
)
SCORES = (
    Case(softcapped),
    Case(alibi, {"HEADS": HEADS}),
    Case(causal_score),
    Case(table, {"stride_h": ROWS + KEYS, "last": KEYS - 1}, {"bias_ptr": BIAS}),
    Case(truncated),
)


def logits() -> torch.Tensor:
    """Scores of every pair, [heads, rows, keys]."""
    return torch.linspace(-3.0, 3.0, HEADS * ROWS * KEYS).reshape(HEADS, ROWS, KEYS)


def _interpreted(case: Case, folder: Path) -> torch.Tensor:
    """What Triton's interpreter makes of a helper, [heads, rows, keys]."""
    given = {"offs_m": "rows", "offs_n": "keys", "off_h": "head", "qk": "tl.load(qk + place)"}
    given |= {name: name for name in (*case.values, *case.tensors)}
    constants = [f"{name}: tl.constexpr" for name in case.values]
    arguments = ", ".join(["out", "qk", *case.tensors, *constants])
    helper = f"helper({', '.join(given[name] for name in case.function.arg_names)})"
    text = (
        f"@triton.jit\ndef kernel({arguments}, ROWS: tl.constexpr, KEYS: tl.constexpr):\n"
        "    head = tl.program_id(0)\n    rows = tl.arange(0, ROWS)\n    keys = tl.arange(0, KEYS)\n"
        "    place = (head * ROWS + rows[:, None]) * KEYS + keys[None, :]\n"
        f"    tl.store(out + place, {helper}.to(tl.float32))\n"
    )
    path = folder / "kernel.py"  # triton.jit reads the text of a function from its file
    path.write_text(text, encoding="utf-8")
    linecache.checkcache(str(path))
    scope: dict[str, Any] = {"triton": triton, "tl": tl, "helper": case.function}
    exec(compile(text, str(path), "exec"), scope)
    out = torch.empty(HEADS, ROWS, KEYS)
    scope["kernel"][(HEADS,)](out, logits(), *case.tensors.values(), *case.values.values(), ROWS=ROWS, KEYS=KEYS)
    return out


if __name__ == "__main__":
    result = Path(sys.argv[1])
    torch.save([_interpreted(case, result.parent) for case in (*MASKS, *SCORES)], result)
