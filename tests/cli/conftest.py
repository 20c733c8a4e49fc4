"""Spec files and a way to run a command inside this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from attn_dsl.cli import main

QKV = """\
q: bf16[batch, seq_q, heads, dim]
k, v: bf16[batch, seq_k, kv_heads, dim]
"""


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert "internal error" not in captured.err
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a file into the folder that is the working directory of the test; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, content: str | bytes, *, operands: bool = False) -> str:
        if isinstance(content, str):
            content = (QKV * operands + content).encode()
        Path(name).write_bytes(content)
        return name

    return write_file
