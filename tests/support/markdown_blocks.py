"""A page of documentation as something that can be run: its files, its shell commands and its Python."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    options: str
    text: str
    line: int

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.options)
        return found and found[1]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page in order."""
    return [
        Block(found[1], found[2] or "", found[3], page.count("\n", 0, found.start()) + 1)
        for found in _FENCE.finditer(page)
    ]


@dataclass(frozen=True)
class Step:
    """Something that was run: what was printed, and what the page shows."""

    line: int
    what: str
    printed: str
    shown: str

    @property
    def agrees(self) -> bool:
        """Whether both are the same; `...` stands for anything, line breaks at the end for nothing."""
        shown, printed = (text.rstrip("\n") + "\n" for text in (self.shown, self.printed))
        return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


def run(page: str) -> list[Step]:
    """Runs a page in the current folder: a block with a title is a file, `console` blocks are commands and what they
    print, `python` blocks run one after the other, and a `text` block behind one is what it prints."""
    names: dict[str, Any] = {}
    steps: list[Step] = []
    found = blocks(page)
    for place, block in enumerate(found):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            steps += _commands(block)
        elif block.language == "python":
            after = found[place + 1] if place + 1 < len(found) else None
            shown = after.text if after is not None and after.language == "text" else ""
            steps.append(Step(block.line, block.text, _python(block, names), shown))
        elif block.language not in ("text", "attn", "json"):
            raise ValueError(f"line {block.line}: a block of {block.language} cannot be run")
    return steps


def _commands(block: Block) -> list[Step]:
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"line {block.line}: a console block starts with a command"
    return [Step(block.line, parts[i], _command(parts[i]), parts[i + 1]) for i in range(1, len(parts), 2)]


def _command(text: str) -> str:
    from attn_dsl.cli import main

    program, *arguments = shlex.split(text)
    assert program == "attn-dsl", text
    raw = io.BytesIO()
    said = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # what a terminal says it can show
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main(arguments)
    return raw.getvalue().decode()


def _python(block: Block, names: dict[str, Any]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(block.text, f"<line {block.line}>", "exec"), names)
    return said.getvalue()
