"""docs/errors.md as data: what it says of each code, its examples, and what each example prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_blocks import Block

from attn_dsl.diagnostics import AttnDslError, Diagnostic, Source, render
from attn_dsl.spec import check
from attn_dsl.syntax import parse_source

DECLARATIONS = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
_FENCE = re.compile(r"^```(\w+)(?: (.*))?$")
_CODE = re.compile(r"error\[([EW]\d+)\]|(?:warning|note)\[([EW]\d+)\]")


@dataclass
class Example:
    """Files and the thing that goes wrong, with what the page says is printed."""

    code: str
    blocks: list[Block]
    printed: str
    varies: bool  # what follows the `...` at the end depends on the machine
    line: int

    def matches(self, printed: str) -> bool:
        return printed.startswith(self.printed.removesuffix("...")) if self.varies else printed == self.printed


@dataclass
class Page:
    sentences: dict[str, str] = field(default_factory=dict)  # code -> the first paragraph below its heading
    examples: list[Example] = field(default_factory=list)


def read(path: Path) -> Page:
    """The page. Blocks between a `##` heading and its first `###` heading belong to every example of that part."""
    page = Page()
    code: str | None = None
    shared: list[Block] = []
    blocks: list[Block] = []
    lines = iter(enumerate(path.read_text("utf-8").split("\n"), 1))
    for number, line in lines:
        if line.startswith("## "):
            code, shared, blocks = None, [], []
        elif line.startswith("### "):
            code, blocks = line[4:], []
        elif fence := _FENCE.match(line):
            body = []
            for _, inner in lines:
                if inner == "```":
                    break
                body.append(inner)
            block = Block(fence[1], fence[2] or "", "\n".join(body), number)
            if code is None:
                shared.append(block)
            elif block.language == "text":
                varies = block.options == "varies"
                page.examples.append(Example(code, shared + blocks, block.text, varies, blocks[-1].line))
                blocks = []
            else:
                blocks.append(block)
        elif line and code and code not in page.sentences:
            page.sentences[code] = line
    return page


def run(example: Example, folder: Path) -> str:
    """What the example prints, run in an empty folder; its path is left out of the text."""
    names: dict[str, Any] = {}
    printed = ""
    with contextlib.chdir(folder):
        for block in example.blocks:
            if block.title:
                Path(block.title).parent.mkdir(parents=True, exist_ok=True)
                Path(block.title).write_text(block.text + "\n")
            elif block.language == "attn":
                printed = _checked(block, folder)
            elif block.language == "python":
                printed = _executed(block.text, names)
            else:
                printed = _command(block.text)
    return printed.replace(f"{folder}{os.sep}", "")


def codes(printed: str) -> set[str]:
    """The codes of the findings in a text."""
    return {first or second for first, second in _CODE.findall(printed)}


def _checked(block: Block, folder: Path) -> str:
    """What `check` says of a text; declarations of q, k and v stand behind it unless it has its own or is whole."""
    needs = "whole" not in block.options and not block.text.startswith("q:") and "\nq:" not in block.text
    text = block.text + "\n" + (DECLARATIONS if needs else "")
    try:
        found: tuple[Diagnostic, ...] = check(
            parse_source(Source("spec.attn", text)), name="spec", folder=folder
        ).diagnostics
    except AttnDslError as error:
        found = error.diagnostics
    return "\n\n".join(render(item) for item in found)


def _executed(text: str, names: dict[str, Any]) -> str:
    try:
        exec(text, names)
    except AttnDslError as error:
        return str(error)
    return ""


def _command(text: str) -> str:
    from attn_dsl.cli import main

    _, *arguments = shlex.split(text.removeprefix("$ "))
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        main(arguments)
    return said.getvalue().rstrip("\n")
