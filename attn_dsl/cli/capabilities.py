"""`attn-dsl capabilities`: which target can do what."""

from __future__ import annotations

import argparse

from . import values
from .console import OK, print_json


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "capabilities",
        help="list targets and what each can do",
        description="Lists the targets of this installation and what each can do.",
        epilog="examples:\n  attn-dsl capabilities\n  attn-dsl capabilities --format json",
    )
    values.add_format(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Prints the table; the exit code."""
    from ..runtime import capabilities

    table = capabilities()
    if options.format == "json":
        print_json({"ok": True, "features": table})
        return OK
    targets = list(dict.fromkeys(target for row in table.values() for target in row))
    reasons: dict[str, int] = {}  # why not -> number of its footnote
    rows = [["", *targets]]
    for feature, row in table.items():
        rows.append([feature, *(_cell(row[target], reasons) for target in targets)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row_cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row_cells, widths, strict=True)).rstrip())
    for reason, number in reasons.items():
        print(f"[{number}] {reason}")
    return OK


def _cell(value: str, reasons: dict[str, int]) -> str:
    return value if value == "yes" else f"no [{reasons.setdefault(value, len(reasons) + 1)}]"
