"""Pages with examples are run from top to bottom; what they show is what is printed."""

import re
from pathlib import Path

import pytest
from markdown_blocks import blocks, run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["tutorial", "integrations"])
def test_a_page_prints_what_it_shows(name, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    steps = run((DOCS / f"{name}.md").read_text("utf-8"))
    assert len(steps) >= 4
    for step in steps:
        assert step.agrees, f"{name}.md, block at line {step.line}, {step.what}\nprinted:\n{step.printed}"


@pytest.mark.parametrize("name", ["tutorial", "integrations"])
def test_links_lead_somewhere(name):
    text = (DOCS / f"{name}.md").read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (DOCS / target).exists() or target.startswith("https://"), target


def test_the_tutorial_takes_ten_minutes():
    """About 200 words a minute, code read at half that speed."""
    text = (DOCS / "tutorial.md").read_text("utf-8")
    code = sum(len(block.text.split()) for block in blocks(text))
    words = len(text.split()) - code
    assert words / 200 + code / 100 < 12


def test_a_page_that_is_wrong_is_found_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\n```console\n$ attn-dsl --version\nattn-dsl ...\n```\n"
    assert [step.agrees for step in run(page)] == [False, True]
