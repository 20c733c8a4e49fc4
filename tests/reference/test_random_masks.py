"""Random masks through the whole front end, against Python's own evaluation of the same text, pair by pair.

Operators of the language are spelled and bind as in Python and `//`, `%` and shifts round alike, so `eval` is an oracle
that shares no code with the parser, the checker or the reference.
"""

import random

import pytest
import torch

import attn_dsl
from attn_dsl.reference import mask_block

SEQ_Q, SEQ_K, HEADS, BATCH = 5, 7, 4, 2
NAMES = ("b", "h", "kv_h", "q_idx", "kv_idx", "q_pos", "seq_q", "seq_k", "window")
SPEC = """
q: f32[batch, seq_q, heads, dim]
k, v: f32[batch, seq_k, kv_heads, dim]
param window: int in -9..=9
mask = {mask} and (window == window)
"""


def _int(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(NAMES) if rng.random() < 0.75 else str(rng.randint(0, 9))
    left, right = _int(rng, depth - 1), _int(rng, depth - 1)
    return rng.choice(
        [
            f"({left} + {right})",
            f"{left} - ({right})",
            f"({left}) * {rng.randint(0, 3)}",
            f"({left}) // {rng.choice([1, 2, 3, -4])}",
            f"({left}) % {rng.choice([1, 2, 5, -3])}",
            f"({left} & {right})",
            f"({left} | {right})",
            f"({left} ^ {right})",
            f"~({left})",
            f"-({left})",
            f"(({left}) << {rng.randint(0, 3)})",
            f"(({left}) >> {rng.randint(0, 3)})",
            f"min({left}, {right})",
            f"max({left}, {right}, 1)",
            f"abs({left})",
            f"({left} if {_bool(rng, depth - 1)} else {right})",
        ]
    )


def _bool(rng: random.Random, depth: int) -> str:
    compare = rng.choice(["<", "<=", ">", ">=", "==", "!="])
    if depth == 0:
        return f"({rng.choice(NAMES)} {compare} {rng.choice(NAMES)})"
    left, right = _bool(rng, depth - 1), _bool(rng, depth - 1)
    return rng.choice(
        [
            f"({_int(rng, depth)} {compare} {_int(rng, depth)})",
            f"(0 <= {_int(rng, depth - 1)} < {_int(rng, depth - 1)} + 5)",
            f"({left} and {right})",
            f"({left} or {right})",
            f"(not {left})",
            f"({left} == {right})",
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_random_mask_means_what_python_says(seed):
    rng = random.Random(seed)
    text = _bool(rng, 3)
    spec = attn_dsl.parse(SPEC.format(mask=text))
    window = rng.randint(-9, 9)
    tensors = {"q": torch.zeros(BATCH, SEQ_Q, HEADS, 4), "k": torch.zeros(BATCH, SEQ_K, 2, 4)}
    tensors["v"] = tensors["k"]
    for b in range(BATCH):
        for h in range(HEADS):
            whole = slice(None)
            found = mask_block(spec, tensors, {"window": window}, batch=b, head=h, rows=whole, cols=whole)
            expected = [
                [
                    eval(
                        text,
                        {
                            "b": b, "h": h, "kv_h": h // 2, "q_idx": i, "kv_idx": j, "q_pos": i + SEQ_K - SEQ_Q,
                            "seq_q": SEQ_Q, "seq_k": SEQ_K, "window": window,
                        },
                    )
                    for j in range(SEQ_K)
                ]
                for i in range(SEQ_Q)
            ]  # fmt: skip
            assert found.tolist() == expected, text
