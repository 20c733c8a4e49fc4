"""`attn-dsl new`: a spec to start from, and a test that holds it to plain PyTorch."""

from __future__ import annotations

import argparse
import keyword
from pathlib import Path

from .console import OK, FileError, UsageError, write_whole
from .templates import TEMPLATES

_EPILOG = """\
examples:
  attn-dsl new my_attention
  attn-dsl new local --like window --folder specs

kinds:
""" + "\n".join(f"  {name:<9}{template.what}" for name, template in TEMPLATES.items())


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "new",
        help="write a spec to start from, and its test",
        description="Writes NAME.attn and test_NAME.py, which holds the spec to the same attention in plain PyTorch.",
        epilog=_EPILOG,
    )
    parser.add_argument("name", metavar="NAME", help="of the spec: letters, digits and _")
    parser.add_argument("--like", choices=tuple(TEMPLATES), default="causal", help="kind of spec (default causal)")
    parser.add_argument("--folder", default=".", metavar="DIR", help="where to write (default: here); made if missing")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Writes the two files; the exit code. Nothing is overwritten."""
    name = options.name
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        raise UsageError.say(f"NAME '{name}': a name has letters, digits and _", "leave out folders and .attn")
    folder = Path(options.folder)
    template = TEMPLATES[options.like]
    texts = {folder / f"{name}.attn": template.spec(), folder / f"test_{name}.py": template.test(name)}
    taken = [str(path) for path in texts if path.exists()]
    if taken:
        raise FileError.say(f"{taken[0]} exists", "choose another name or folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError.say(f"cannot make folder {folder}: {error.strerror or error}") from error
    for path, text in texts.items():
        write_whole(path, text.encode())
        print(path)
    return OK
