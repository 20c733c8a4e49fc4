"""What a notebook shows of a spec: well-formed, with the mask, the formula and the plan of that very spec."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import attn_dsl
from attn_dsl.show import FULL, grid_of_counts, to_svg

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted(EXAMPLES.glob("*.attn"))
HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"


def page(spec):
    """The fragment as a tree: it is XML, so every tag is closed and every character escaped."""
    return ElementTree.fromstring(f"<div>{spec._repr_html_().replace('<br>', '<br/>')}</div>")


def text(tree):
    return "".join(tree.itertext())


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_example_has_a_picture(path):
    tree = page(attn_dsl.load(path))
    assert tree.find(".//{http://www.w3.org/2000/svg}svg") is not None
    assert "no picture" not in text(tree)
    assert path.stem in text(tree)


def test_formula_inputs_and_plan():
    spec = attn_dsl.load(EXAMPLES / "gemma2_local.attn")
    said = text(page(spec))
    assert "cap * tanh(score / cap)" in said
    assert "param int in 1.. = 4096" in said
    assert "bf16[batch, seq_k, kv_heads, dim]" in said
    assert "sm90: plan of the kernel, dim 128" in said
    assert "warps, 512 threads:" in said  # of the plan for sm100


def test_a_target_that_refuses_says_why():
    said = text(page(attn_dsl.parse(HEAD.replace("bf16", "f32"))))
    assert "sm100 refuses this spec" in said
    assert "target 'sm100' cannot do f32 q, k, v" in said


def test_the_picture_is_the_mask():
    spec = attn_dsl.parse(HEAD + "mask = kv_idx == q_pos or kv_idx < 2 and q_pos > 3", name="a <b> & c")
    svg = page(spec).find(".//{http://www.w3.org/2000/svg}svg")
    title = svg.find("{http://www.w3.org/2000/svg}title").text
    assert title == f"mask of 48 query rows and 48 keys, {48 + 44 * 2} pairs visible"
    assert "a <b> & c" in text(page(spec))


def test_a_spec_without_a_picture_shows_the_reason(monkeypatch):
    from attn_dsl.notebook import page as module

    monkeypatch.setattr(module, "_extents", lambda spec: {"seq_q": 4})
    said = text(page(attn_dsl.parse(HEAD + "mask = kv_idx <= q_pos")))
    assert "no picture:" in said
    assert "kv_idx <= q_pos" in said


def test_an_svg_has_one_rectangle_for_each_run():
    grid = grid_of_counts([[1, 1, 0], [0, 1, 1]], seq_q=2, seq_k=3)
    rects = ElementTree.fromstring(to_svg(grid)).findall("{http://www.w3.org/2000/svg}rect")
    assert [rect.get("width") for rect in rects] == ["212", "106", "106", "212"]
    assert grid.levels == bytes([FULL, FULL, 0, 0, FULL, FULL])
    with pytest.raises(ValueError, match="no pairs to draw"):
        to_svg(grid_of_counts([], seq_q=0, seq_k=3))


def test_parsing_still_loads_no_torch():
    text = "q: f32[batch, seq_q, heads, dim]\\nk, v: f32[batch, seq_k, heads, dim]"
    code = f"import sys, attn_dsl; attn_dsl.parse('{text}'); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout == "False\n"
