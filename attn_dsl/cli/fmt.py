"""`attn-dsl fmt`: files in the one layout."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator

from ..diagnostics import AttnDslError, Source
from ..syntax import format_file, parse_source
from . import files
from .console import FINDINGS, OK, exit_code, plural, write_whole

_EPILOG = """\
examples:
  attn-dsl fmt window.attn
  attn-dsl fmt --check examples
  attn-dsl fmt --diff window.attn
  attn-dsl fmt - < window.attn

A file is rewritten whole or not at all, and only if its layout differs. Comments stay. A file that does not
parse is reported and left alone; the others are still laid out."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "fmt",
        help="rewrite files in the one layout",
        description="Rewrites .attn files in place in the one layout; the text of - goes to standard output.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help=".attn files, folders of them, or - for standard input"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a layout differs")
    parser.add_argument(
        "--diff", action="store_true", help="write nothing, print what would change; exit codes as --check"
    )
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Lays out the files named in `options`; the exit code."""
    worst = OK
    changed = same = broken = 0
    for name in files.expand(options.files):
        try:
            source = files.source(name)
            laid_out = format_file(parse_source(source))
        except AttnDslError as error:
            print(error, file=sys.stderr)
            broken += 1
            worst = max(worst, exit_code(error))
            continue
        if laid_out == source.text:
            same += 1
        else:
            changed += 1
            if options.check or options.diff:
                worst = max(worst, FINDINGS)
        _deliver(name, source, laid_out, check=options.check, diff=options.diff)
    print(_summary(changed, same, broken, dry=options.check or options.diff), file=sys.stderr)
    return worst


def _deliver(name: str, source: Source, laid_out: str, *, check: bool, diff: bool) -> None:
    if diff:
        sys.stdout.writelines(_difference(source, laid_out))
    elif check:
        if laid_out != source.text:
            print(f"{source.name}: layout differs")
    elif name == files.STDIN:
        sys.stdout.write(laid_out)
    elif laid_out != source.text:
        write_whole(name, laid_out.encode("utf-8"))


def _difference(source: Source, laid_out: str) -> Iterator[str]:
    before, after = source.text.splitlines(keepends=True), laid_out.splitlines(keepends=True)
    for line in difflib.unified_diff(before, after, source.name, f"{source.name} (laid out)"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _summary(changed: int, same: int, broken: int, *, dry: bool) -> str:
    parts = [f"{plural(changed, 'file')} {'would be ' if dry else ''}laid out", f"{same:,} as they should be"]
    if broken:
        parts.append(f"{broken:,} with errors")
    return ", ".join(parts)
