"""Every row of the opcode table, with every modifier, is executed by a test that knows what must come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ptx_coverage
import pytest

HERE = Path(__file__).parent
# Whole kernels, and tests of the machinery around the instructions: what they execute shows nothing of one instruction.
OTHERS = {"test_fa4.py", "test_quack_gemm.py", "test_device.py", "test_worker.py", "test_build.py", Path(__file__).name}


def test_every_handler_is_asked_for():
    """The list itself: a row of each handler, and the modifiers of one of them."""
    wanted = ptx_coverage.required()
    assert {
        "setp_f16: cmp=leu",
        "setp_f16: ftz=ftz",
        "cvt: bf16 s64",
        "atom: max s64",
        "bulk_reduce: inc u32",
    } <= wanted
    assert not {"atom: and f32", "setp_s32: ftz=ftz", "wgmma: s32 e4m3 e4m3"} & wanted


@pytest.mark.slow
def test_every_row_and_modifier_is_executed(tmp_path: Path):
    record = tmp_path / "executed.json"
    files = [str(path) for path in sorted(HERE.glob("test_*.py")) if path.name not in OTHERS]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "ptx_coverage", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command,
        env={**os.environ, ptx_coverage.OUTPUT: str(record)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    executed = json.loads(record.read_text())
    missing = sorted(ptx_coverage.required() - executed.keys())
    assert not missing, "\n".join(missing)
