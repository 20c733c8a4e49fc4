"""Random specs and calls for the tile analysis: masks of every shape, ragged lengths, all alignments."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

import attn_dsl
from attn_dsl.expr import BOOL, INT, Expr, ExprBuilder
from attn_dsl.lowering.tiles import Binding
from attn_dsl.spec.model import AttentionSpec

_TEXT = """
q: bf16[{q_axes}, heads, dim]
k, v: bf16[{k_axes}, kv_heads, dim]
document: i32[{k_axes}]
limit: i32[{q_axes}]
flag: bool[{k_axes}]
kept: bool[heads, rows, columns]
param wide: int in 1.. = 4
param some: int = 0
param of_head: int[heads]
param of_group: int[kv_heads]
param of_entry: int[batch]
param start: int[batch]
{align}
{lengths}
mask = flag[{b}kv_idx] and kept[h, 0, 0] and document[{b}kv_idx] < limit[{b}q_idx] + {params}
"""
_PARAMS = ("wide", "some", "of_head", "of_group", "of_entry", "start")
_PACKED = "lengths q { cu_seqlens = cu_q }\nlengths k { cu_seqlens = cu_k }\ncu_q, cu_k: i32[batch + 1]"


class Masks:
    """A source of random masks over one spec's leaves."""

    def __init__(self, rng: random.Random, packed: bool) -> None:
        self.rng = rng
        self.build = ExprBuilder()
        b = self.build
        self.rows = [b.var("q_pos"), b.var("q_pos"), b.var("q_idx")]
        self.columns = [b.var("kv_idx")]
        self.fixed = [b.var(name) for name in ("seq_q", "seq_k", "h", "kv_h", "b")]
        self.fixed += [b.param(name, INT) for name in _PARAMS[:-1]]
        self.lead = () if packed else (b.var("b"),)

    def op(self, name: str, *operands: Expr | int) -> Expr:
        b = self.build
        return b.op(name, *(b.const(x) if isinstance(x, int) else x for x in operands))

    def const(self) -> Expr:
        return self.build.const(self.rng.choice([0, 1, 2, 3, 5, 8, 16, -1, -3]))

    def leaf(self) -> Expr:
        kind = self.rng.random()
        if kind < 0.3:
            return self.rng.choice(self.rows)
        if kind < 0.6:
            return self.rng.choice(self.columns)
        return self.rng.choice(self.fixed) if kind < 0.8 else self.const()

    def number(self, depth: int) -> Expr:
        """A random int."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.25:
            return self.leaf()
        x = self.number(depth - 1)
        kind = rng.random()
        if kind < 0.5:
            return self.op(rng.choice(["add", "sub", "sub", "min", "max"]), x, self.number(depth - 1))
        if kind < 0.7:
            divisor = rng.choice([self.build.param("wide", INT), self.build.const(rng.choice([2, 4, 7, -3]))])
            return self.op(rng.choice(["floordiv", "floordiv", "mod"]), x, divisor)
        if kind < 0.76:
            return self.op("mul", x, self.build.const(rng.choice([2, 3, -1, -2])))
        if kind < 0.82:
            return self.op(rng.choice(["abs", "neg", "bitnot"]), x)
        if kind < 0.87:
            return self.op(rng.choice(["bitand", "bitor", "bitxor"]), x, self.const())
        if kind < 0.9:
            return self.op(rng.choice(["shr", "shl"]), x, rng.randrange(4))
        if kind < 0.94:
            return self.op("select", self.condition(depth - 1), x, self.number(depth - 1))
        name, index = rng.choice([("document", rng.choice([self.columns[0], self.rows[0]])), ("limit", self.rows[2])])
        return self.build.read(name, (*self.lead, index), INT)

    def condition(self, depth: int) -> Expr:
        """A random bool."""
        rng = self.rng
        kind = rng.random()
        if depth > 0 and kind < 0.45:
            return self.op(rng.choice(["and", "and", "or"]), self.condition(depth - 1), self.condition(depth - 1))
        if depth > 0 and kind < 0.55:
            return self.op("not", self.condition(depth - 1))
        if depth > 0 and kind < 0.6:
            return self.op(rng.choice(["eq", "ne"]), self.condition(depth - 1), self.condition(depth - 1))
        if depth > 0 and kind < 0.64:
            return self.op("select", *(self.condition(depth - 1) for _ in range(3)))
        if kind < 0.68:
            return self.build.read("flag", (*self.lead, self.columns[0]), BOOL)
        if kind < 0.71:
            place = (self.build.var("h"), *(self.op("floordiv", x, 4) for x in (self.rows[2], self.columns[0])))
            return self.build.read("kept", place, BOOL)
        if kind < 0.74:
            x, y = self.number(1), self.op("mul", self.build.op("to_float", self.number(1)), self.build.const(0.3))
            return self.op("le", self.build.op("to_float", x), y)
        name = rng.choice(["lt", "le", "le", "eq", "ne"])
        return self.op(name, self.number(2), self.number(rng.choice([0, 1, 2])))

    def ranges(self) -> Expr:
        """A random mask made of what masks are usually made of."""
        q, k, rng = self.rows[0], self.columns[0], self.rng
        width = rng.choice([self.build.const(rng.randrange(-1, 12)), *self.fixed[5:]])
        wide = self.build.param("wide", INT)
        distance = self.op("sub", q, k)
        parts = [
            self.op("le", k, q),
            self.op("lt", distance, width),
            self.op("le", self.op("abs", distance), width),
            self.op("eq", self.op("floordiv", q, wide), self.op("floordiv", k, wide)),
            self.op("le", self.op("floordiv", k, 4), self.op("floordiv", q, 4)),
            self.op("lt", k, width),
            self.op("le", width, k),
            self.op("lt", self.rows[2], width),
            self.op("lt", self.op("sub", width, q), k),
            self.op("eq", self.op("floordiv", k, 2), self.op("mul", q, rng.choice([1, 2, 6]))),
        ]
        chosen = rng.sample(parts, rng.choice([1, 2, 2, 3]))
        mask = chosen[0]
        for part in chosen[1:]:
            mask = self.op(rng.choice(["and", "and", "or"]), mask, part)
        return self.op("not", mask) if rng.random() < 0.15 else mask


def random_spec(rng: random.Random, mask_of: str) -> tuple[AttentionSpec, bool]:
    """A spec whose mask is one of `Masks`' kinds, and whether it is packed."""
    packed = rng.random() < 0.3
    align = rng.choice(["align bottom_right", "align top_left", "align offset(start - 2)"])
    q_axes, k_axes = ("total_q", "total_k") if packed else ("batch, seq_q", "batch, seq_k")
    names = {"params": " + ".join(_PARAMS), "b": "" if packed else "b, ", "lengths": _PACKED if packed else ""}
    spec = _parsed(_TEXT.format(q_axes=q_axes, k_axes=k_axes, align=align, **names))
    masks = Masks(rng, packed)
    return replace(spec, mask=masks.ranges() if mask_of == "ranges" else masks.condition(2)), packed


_SPECS: dict[str, AttentionSpec] = {}


def _parsed(text: str) -> AttentionSpec:
    if text not in _SPECS:
        _SPECS[text] = attn_dsl.parse(text)
    return _SPECS[text]


def random_call(rng: random.Random, packed: bool) -> Binding:
    """Small sizes, ragged if the spec is packed or by chance (lengths by `used`), empty sequences among them."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    batch, kv_heads, group = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([1, 2, 3])
    heads, largest = kv_heads * group, rng.choice([1, 9, 24, 33])
    ragged = packed or rng.random() < 0.4
    seq_q = [rng.randint(0, largest) for _ in range(batch)] if ragged else [rng.randint(0, largest)] * batch
    seq_k = [rng.randint(0, largest) for _ in range(batch)] if ragged else [rng.randint(0, largest)] * batch
    starts = [[sum(lengths[:b]) for b in range(batch)] if packed else None for lengths in (seq_q, seq_k)]

    def ints(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)

    rows = (sum(seq_q),) if packed else (batch, max(seq_q))
    keys = (sum(seq_k),) if packed else (batch, max(seq_k))
    document = ints(0, 4, *keys)
    if rng.random() < 0.5:
        document = document.sort(-1).values
    values = {
        "document": document,
        "limit": ints(-2, largest + 2, *rows),
        "flag": torch.rand(keys, generator=generator) < rng.choice([0.05, 0.5, 0.95]),
        "kept": torch.rand(heads, 9, 9, generator=generator) < rng.choice([0.1, 0.5, 0.9]),
        "wide": rng.randint(1, 9),
        "some": rng.randint(-4, 12),
        "of_head": ints(-2, 12, heads),
        "of_group": ints(0, 12, kv_heads),
        "of_entry": rng.choice([rng.randint(0, 9), ints(-2, 12, batch)]),
        "start": ints(-3, 12, batch),
    }
    extents = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": max(seq_q), "seq_k": max(seq_k)}
    extents |= {"total_q": sum(seq_q), "total_k": sum(seq_k), "rows": 9, "columns": 9}
    return Binding.of(extents, values, seq_q, seq_k, *starts)
