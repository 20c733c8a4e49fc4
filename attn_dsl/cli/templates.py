"""What `attn-dsl new` writes: a spec of a kind, and a test that holds it to the same attention written out."""

from __future__ import annotations

from dataclasses import dataclass

_OPERANDS = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"


@dataclass(frozen=True)
class Template:
    """A kind of spec, and the parts of its test that are its own."""

    what: str  # one line, the spec's first comment
    imports: str  # lines
    declarations: str  # lines behind q, k and v
    clauses: str  # lines
    inputs: str  # Python: keyword arguments of a call
    score: str  # Python: what is added to `score`, or ""
    visible: str  # Python: a mask that broadcasts to [batch, heads, seq_q, seq_k]

    def spec(self) -> str:
        """The text of the `.attn` file."""
        gap = "\n" if self.clauses else ""
        return f"# {self.what}\n{self.imports}\n{_OPERANDS}{self.declarations}{gap}{self.clauses}"

    def test(self, name: str) -> str:
        """The text of the Python file."""
        score = f"    score = score + {self.score}\n" if self.score else ""
        return _TEST.format(name=name, inputs=self.inputs, score=score, visible=self.visible)


TEMPLATES = {
    "causal": Template(
        "Causal attention: a query sees itself and every key before it.",
        "from std.causal import causal\n",
        "",
        "mask = causal\n",
        "",
        "",
        "kv_idx <= q_pos",
    ),
    "window": Template(
        "Causal attention over the last `window_tokens` tokens, the query among them.",
        "from std.window import window\n",
        "param window_tokens: int in 1.. = 4096\n",
        "mask = window(tokens = window_tokens)\n",
        "window_tokens=5",
        "",
        '(kv_idx <= q_pos) & (q_pos - kv_idx < inputs["window_tokens"])',
    ),
    "encoder": Template(
        "Every token sees the `length` real tokens of its sequence; the rest is padding.",
        "from std.padding import not_padding\n",
        "length: i32[batch]\n",
        "mask = not_padding(length[b])\n",
        "length=torch.tensor([SEQ_K, 11], dtype=torch.int32)",
        "",
        'kv_idx < inputs["length"][:, None, None, None]',
    ),
    "bias": Template(
        "Causal attention with a learned value for each head and distance, clipped at `reach`.",
        "from std.causal import causal\nfrom std.relative import relative_clipped\n",
        "const reach: int = 32\ntable: f32[heads, 2 * reach + 1]\n",
        "score = score + relative_clipped(table, reach)\nmask = causal\n",
        "table=torch.randn(HEADS, 65, generator=generator)",
        'inputs["table"][:, (kv_idx - q_pos).clamp(-32, 32) + 32]',
        "kv_idx <= q_pos",
    ),
}

_TEST = '''"""{name}.attn against the same attention written out in PyTorch."""

from pathlib import Path

import torch

import attn_dsl

SPEC = attn_dsl.load(Path(__file__).with_name("{name}.attn"))
BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, DIM = 2, 4, 2, 13, 29, 16


def expected(q, k, v, inputs):
    """o in float32, every score in memory."""
    k, v = (x.float().repeat_interleave(HEADS // KV_HEADS, dim=2) for x in (k, v))
    score = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) / DIM**0.5
    kv_idx = torch.arange(SEQ_K)
    q_pos = torch.arange(SEQ_Q)[:, None] + SEQ_K - SEQ_Q  # the last query stands at the last key
{score}    visible = {visible}
    weights = score.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def test_{name}():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(BATCH, SEQ_Q, HEADS, DIM, generator=generator).to(torch.bfloat16)
    k, v = torch.randn(2, BATCH, SEQ_K, KV_HEADS, DIM, generator=generator).to(torch.bfloat16)
    inputs = dict({inputs})
    o = attn_dsl.compile(SPEC)(q, k, v, **inputs)
    torch.testing.assert_close(o.float(), expected(q, k, v, inputs), atol=2e-2, rtol=2e-2)
'''
