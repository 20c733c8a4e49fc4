"""The masks of the standard library as the tile analysis takes them: docs/tiles.md has the same list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Sizes = Mapping[str, int]
Fill = Callable[[Sizes, torch.Generator], Tensor]

PROVED = "exact, proved"
SORTED = "exact if ids are sorted"
SOUND = "sound"

EXTENTS = {"documents": 4, "drafts": 9, "query_blocks": 6, "key_blocks": 6}

_HEAD = """
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
"""


@dataclass(frozen=True)
class StandardMask:
    """A mask expression, the statements it needs, and values for a call."""

    mask: str
    modules: str  # of the standard library with the name that each gives: "window: window, causal: causal"
    tiles: str  # PROVED, SORTED or SOUND
    declared: tuple[str, ...] = ()
    given: Mapping[str, int | Fill] = field(default_factory=dict)

    @property
    def text(self) -> str:
        parts = [part.split(":") for part in self.modules.split(",") if part.strip()]
        imports = [f"from std.{module.strip()} import {name.strip()}" for module, name in parts]
        return "\n".join([_HEAD, *imports, *self.declared, f"mask = {self.mask}"])

    def values(self, sizes: Sizes, rng: torch.Generator) -> dict[str, Tensor | int]:
        return {name: value if isinstance(value, int) else value(sizes, rng) for name, value in self.given.items()}


def _ints(low: int, high: int, *axes: str) -> Fill:
    return lambda sizes, rng: torch.randint(low, high, [sizes[a] for a in axes], generator=rng, dtype=torch.int32)


def _bools(share: float, *axes: str) -> Fill:
    return lambda sizes, rng: torch.rand([sizes[a] for a in axes], generator=rng) < share


def _sorted_ids(sizes: Sizes, rng: torch.Generator) -> Tensor:
    return _ints(0, 4, "batch", "seq_k")(sizes, rng).sort(-1).values


_N, _N_OF_ENTRY, _SIZE = ("param n: int",), ("param n: int[batch]",), ("param n: int in 1..",)
_DOCUMENT = "document: i32[batch, seq_k]"
_IDS: Mapping[str, int | Fill] = {"document": _sorted_ids}
_LENGTHS: Mapping[str, int | Fill] = {"n": _ints(0, 60, "batch")}
_CAUSAL_DOCUMENT = "causal: causal, document: same_document"

STANDARD_MASKS = (
    StandardMask("true", "", PROVED),
    StandardMask("causal", "causal: causal", PROVED),
    StandardMask("window(n)", "window: window", PROVED, _N, {"n": 9}),
    StandardMask("lookback(n)", "window: lookback", PROVED, ("param n: int[heads]",), {"n": _ints(-1, 30, "heads")}),
    StandardMask("around(n)", "window: around", PROVED, _N_OF_ENTRY, {"n": _ints(0, 20, "batch")}),
    StandardMask("band(m, n)", "window: band", PROVED, ("param m: int", *_N), {"m": 5, "n": -2}),
    StandardMask("prefix(n) or causal", "prefix: prefix, causal: causal", PROVED, _N_OF_ENTRY, _LENGTHS),
    StandardMask("same_chunk(n)", "chunked: same_chunk", PROVED, _SIZE, {"n": 7}),
    StandardMask("same_chunk(n) and causal", "chunked: same_chunk, causal: causal", PROVED, _SIZE, {"n": 24}),
    StandardMask("chunk_causal(n)", "chunked: chunk_causal", PROVED, _SIZE, {"n": 10}),
    StandardMask(
        "chunk_window(n, m)", "chunked: chunk_window", PROVED, (*_SIZE, "param m: int in 1.."), {"n": 5, "m": 3}
    ),
    StandardMask(
        "causal and (sink_tokens(m) or window(n))",
        "causal: causal, sink_tokens: sink_tokens, window: window",
        PROVED,
        ("param m: int", *_N),
        {"m": 3, "n": 12},
    ),
    StandardMask("causal and not_padding(n)", "causal: causal, padding: not_padding", PROVED, _N_OF_ENTRY, _LENGTHS),
    StandardMask(
        "causal and not_left_padding(n)", "causal: causal, padding: not_left_padding", PROVED, _N_OF_ENTRY, _LENGTHS
    ),
    StandardMask(
        "window(9) and not_left_padding(n)", "window: window, padding: not_left_padding", PROVED, _N_OF_ENTRY, _LENGTHS
    ),
    StandardMask("neighbourhood(7)", "natten: neighbourhood", PROVED),
    StandardMask(
        "block_diffusion(half, 4)",
        "block_diffusion: block_diffusion",
        PROVED,
        ("param half: int in 1..",),
        {"half": 28},
    ),
    StandardMask("same_document(document)", "document: same_document", SORTED, (_DOCUMENT,), _IDS),
    StandardMask("causal and same_document(document)", _CAUSAL_DOCUMENT, SORTED, (_DOCUMENT,), _IDS),
    StandardMask(
        "same_document(document) and window(n)",
        "document: same_document, window: window",
        SOUND,
        (_DOCUMENT, *_N),
        {**_IDS, "n": 9},
    ),
    StandardMask(
        "causal and shared_prefix(document, prefix_of)",
        "causal: causal, shared_prefix: shared_prefix",
        SOUND,
        (_DOCUMENT, "prefix_of: i32[batch, documents]"),
        {**_IDS, "prefix_of": _ints(0, 4, "batch", "documents")},
    ),
    StandardMask(
        "around(9) or global_tokens(is_global)",
        "window: around, global_tokens: global_tokens",
        SOUND,
        ("is_global: bool[batch, seq_k]",),
        {"is_global": _bools(0.05, "batch", "seq_k")},
    ),
    StandardMask(
        "block_kept(kept, 16, 16)",
        "block_sparse: block_kept",
        SOUND,
        ("kept: bool[heads, query_blocks, key_blocks]",),
        {"kept": _bools(0.3, "heads", "query_blocks", "key_blocks")},
    ),
    StandardMask(
        "tree(ancestor)",
        "tree: tree",
        SOUND,
        ("ancestor: bool[batch, seq_q, drafts]",),
        {"ancestor": _bools(0.3, "batch", "seq_q", "drafts")},
    ),
    StandardMask("around(9) and every(2)", "window: around, dilated: every", SOUND),
    StandardMask("strided(16)", "strided: strided", SOUND),
    StandardMask("fixed(16, 2)", "strided: fixed", SOUND),
    StandardMask("neighbourhood_2d(8, 8, 3)", "natten: neighbourhood_2d", SOUND),
    StandardMask("sliding_tile(8, 2, 2, 2, 1)", "sliding_tile: sliding_tile", SOUND),
    StandardMask("swin_window(8, 8, 4, 2)", "swin: swin_window", SOUND),
)
