"""The cascade example: a shared prompt read once gives what reading it for every request gives."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "cascade.py"


def test_both_ways_agree():
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert 0.0 < float(re.search(r"outputs and LSE: +(\S+)", done.stdout)[1]) < 2**-8
    assert "one call over everything:  4256" in done.stdout
    assert "prompt once, then merge:   672" in done.stdout


def test_exit_code_says_that_they_differ(monkeypatch, capsys):
    main = runpy.run_path(str(EXAMPLE))["main"]
    monkeypatch.setitem(main.__globals__, "BOUND", 0.0)
    monkeypatch.setitem(main.__globals__, "STEPS", 2)
    assert main() == 1
    assert "BOTH WAYS DIFFER" in capsys.readouterr().out
