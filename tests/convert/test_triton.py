"""Helper functions of Triton kernels, converted, against Triton's own interpreter; and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attn_dsl
from attn_dsl import ConversionError
from attn_dsl.expr import evaluate
from attn_dsl.expr.torch_values import TorchAlgebra

helpers = pytest.importorskip("triton_helpers", exc_type=ImportError)

SUPPORT = Path(__file__).parents[1] / "support" / "triton_helpers.py"


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What Triton computes, from a process in which its interpreter is on."""
    path = tmp_path_factory.mktemp("triton") / "results.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, str(SUPPORT), str(path)], check=True, env=environment, capture_output=True)
    return torch.load(path)


def computed(found, root, head, qk):
    """An expression of a converted spec at every pair, [rows, keys]."""
    algebra = TorchAlgebra(torch.float32)
    index = {
        "q_idx": torch.arange(helpers.ROWS)[:, None],
        "q_pos": torch.arange(helpers.ROWS)[:, None],
        "kv_idx": torch.arange(helpers.KEYS)[None, :],
        "h": torch.tensor(head),
        "seq_k": torch.tensor(helpers.KEYS),
        "score": qk,
    }
    params = {param.name: param.default for param in found.spec.params}

    def leaf(node, indices):
        if node.op == "var":
            return index[node.attr]
        if node.op == "size":
            (tensor,) = found.captures.values()
            return torch.tensor(tensor.shape[0])
        if node.op == "param":
            return torch.tensor(params[node.attr], dtype=algebra.dtype(node.type))
        return found.captures[node.attr][indices].to(algebra.dtype(node.type))

    return evaluate([root], algebra, leaf)[0].expand(helpers.ROWS, helpers.KEYS)


@pytest.mark.parametrize("number", range(len(helpers.MASKS)))
def test_masks_equal_triton(number, interpreted):
    case = helpers.MASKS[number]
    found = attn_dsl.from_triton(case.function, values=case.values, tensors=case.tensors)
    expected = interpreted[number][0].bool()
    assert torch.equal(computed(found, found.spec.mask, 0, None), expected)
    assert 0 < expected.sum() < expected.numel()


@pytest.mark.parametrize("number", range(len(helpers.SCORES)))
def test_scores_equal_triton(number, interpreted):
    case, qk = helpers.SCORES[number], helpers.logits()
    found = attn_dsl.from_triton(score=case.function, values=case.values, tensors=case.tensors)
    for head in range(helpers.HEADS):
        expected = interpreted[len(helpers.MASKS) + number][head]
        visible = computed(found, found.spec.mask, head, None)
        assert torch.equal(visible, expected != -torch.inf)
        got = computed(found, found.spec.score, head, qk[head])
        torch.testing.assert_close(got[visible], expected[visible], atol=1e-5, rtol=1e-5)


def test_the_text_is_the_one_a_person_writes():
    found = attn_dsl.from_triton(
        helpers.dilated, helpers.alibi, values={"dilation": 3, "reach": 10, "HEADS": 4}, dtype="f16", scale=0.5
    )
    assert found.text == (
        "# Converted from Triton: mask dilated and score alibi.\n"
        "q: f16[batch, heads, seq_q, dim]\n"
        "k, v: f16[batch, kv_heads, seq_k, dim]\n"
        "param dilation: int in 1.. = 3\n"
        "param reach: int in 1.. = 10\n"
        "const HEADS: int = 4\n"
        "\n"
        "align top_left\n"
        "scale = 0.5\n"
        "mask = max(q_idx - kv_idx, -(q_idx - kv_idx)) <= reach and (q_idx - kv_idx) % dilation == 0\n"
        "score = score + exp2(-8.0 * (h + 1) / HEADS) * (kv_idx - q_idx)\n"
    )


def test_a_text_needs_no_triton():
    found = attn_dsl.from_triton(
        """
        def mask(row, col, n_prefix: int):
            return helper(row, col) | (col < n_prefix)

        def helper(x, y=0):
            return x >= y
        """,
        values={"n_prefix": 4},
    )
    assert found.text.splitlines()[-1] == "mask = kv_idx <= q_idx or kv_idx < n_prefix"
    assert "param n_prefix: int in 1.. = 4" in found.text


def test_positions_can_be_those_after_alignment():
    text = "def mask(i, j): return i >= j"
    found = attn_dsl.from_triton(text, names={"i": "q_pos", "j": "kv_idx"}, align="bottom_right")
    assert found.text.splitlines()[-2:] == ["align bottom_right", "mask = kv_idx <= q_pos"]


def test_a_number_that_decides_a_branch_is_no_constant():
    text = """
    def mask(m, n, WINDOW: tl.constexpr):
        if WINDOW > 0:
            return m - n < WINDOW
        return m >= n
    """
    assert "mask = q_idx - kv_idx < 5" in attn_dsl.from_triton(text, values={"WINDOW": 5}).text
    assert "mask = kv_idx <= q_idx" in attn_dsl.from_triton(text, values={"WINDOW": 0}).text


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("def f(m, n): return tl.dot(m, n)", "E400", "'tl.dot' has no spelling"),
        ("def f(m, n): return tl.arange(0, 4) > m", "E400", "'tl.arange' has no spelling"),
        ("def f(m, n): return m[0] > n", "E400", "'0' cuts a tile"),
        ("def f(m, n):\n    if m > n:\n        return m > n\n    return n > 3", "E400", "`if` needs the value"),
        ("def f(m, n):\n    while True:\n        pass", "E400", "the statement 'while True:'"),
        ("def f(m, n):\n    for i in m:\n        pass\n    return m > n", "E400", "the statement 'for i in m:'"),
        ("def f(m, n): return m + n", "E400", "gives int, and a mask is bool"),
        ("def f(m, n): return m > unknown", "E400", "'unknown' is no argument"),
        ("def f(m, n): return f(m, n)", "E400", "'f' calls itself"),
        ("def f(m, n):\n    x = m > n", "E400", "'f' returns nothing"),
        ("def f(m, n): return m.to(tl.float16) > n", "E400", "a conversion to float16 rounds"),
        ("def f(m, n): return (m / 3) // 2 > n", "E400", "Triton's '//' takes ints"),
        ("def f(m, n): return m // (n - 3) > 0", "E400", "the sign of this divisor is not known"),
        ("def f(m, n): return tl.load(m) > n", "E400", "tl.load reads what an argument points to"),
        ("def f(m, n, ptr): return m > n", "E402", "argument 'ptr' of f has no meaning"),
        ("x = 3", "E402", "holds no function"),
        ("def f(m, n: return m", "E402", "is no Python"),
    ],
)
def test_refusals_name_the_reason(text, code, said):
    with pytest.raises(ConversionError) as raised:
        attn_dsl.from_triton(text)
    assert raised.value.code == code
    assert said in raised.value.diagnostics[0].message


def test_a_refusal_shows_its_line():
    with pytest.raises(ConversionError) as raised:
        attn_dsl.from_triton("def f(m, n):\n    x = m > n\n    return tl.sum(x)\n")
    assert raised.value.diagnostics[0].span.line == 3
    assert "tl.sum(x)" in str(raised.value)


def test_arguments_of_from_triton():
    text = "def f(m, n): return m > n"
    with pytest.raises(TypeError, match="a mask, a score, or both"):
        attn_dsl.from_triton()
    with pytest.raises(TypeError, match="align is one of"):
        attn_dsl.from_triton(text, align="offset")
    for arguments, said in (
        ({"names": {"m": "query"}}, "which is no index"),
        ({"names": {"k": "kv_idx"}}, "no function has such an argument"),
        ({"values": {"window": 3}}, "no function has such an argument"),
        ({"names": {"m": "h"}, "tensors": {"n": torch.ones(4, 4).T}}, "not dense in memory"),
    ):
        with pytest.raises(ConversionError, match=said) as raised:
            attn_dsl.from_triton(text, **arguments)
        assert raised.value.code == "E402"


def test_one_function_of_a_text_is_named():
    """Both helpers of a kernel from one text; without a name it is the first."""
    text = """
    def inside(m, n):
        return n <= m

    def mask(offs_m, offs_n):
        return inside(offs_m, offs_n) & (offs_m - offs_n < 8)

    def score(qk, offs_m, offs_n):
        return qk + (offs_n - offs_m)
    """
    found = attn_dsl.from_triton((text, "mask"), (text, "score"))
    assert "mask = kv_idx <= q_idx and q_idx - kv_idx < 8\nscore = score + (kv_idx - q_idx)" in found.text
    assert attn_dsl.from_triton(text).text.endswith("mask = kv_idx <= q_idx\n")
    with pytest.raises(ConversionError, match=r"(?s)E402.*no function 'masks'.*did you mean 'mask'"):
        attn_dsl.from_triton((text, "masks"))
    with pytest.raises(ConversionError, match=r"(?s)E402.*no function 'x'.*known here: inside, mask, score"):
        attn_dsl.from_triton((text, "x"))
