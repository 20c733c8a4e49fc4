"""`attn-dsl check`: every finding of every file."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..diagnostics import RULES, AttnDslError, Diagnostic, Severity, render
from . import files, values
from .console import FINDINGS, OK, exit_code, plural, print_json
from .fitting import target_problems

_EPILOG = """\
examples:
  attn-dsl check window.attn
  attn-dsl check examples --strict
  attn-dsl check window.attn --target reference
  attn-dsl check window.attn --format json

Errors make the exit code 1; with --strict warnings do so too. Notes never do.
A file without q, k and v is checked as a library of definitions."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help="report everything that is wrong with files",
        description="Reports every error, warning and note of every file.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help=".attn files, folders of them, or - for standard input"
    )
    parser.add_argument("--strict", action="store_true", help="let warnings fail the check as errors do")
    parser.add_argument("--target", metavar="NAME", help="check also that this target can run the specs")
    values.add_constants(parser)
    values.add_format(parser)
    parser.set_defaults(execute=execute)


@dataclass(frozen=True)
class _Report:
    """What there is to say about one file."""

    name: str  # as on the command line
    kind: str | None  # "spec" or "library"; None where an error hides it
    diagnostics: tuple[Diagnostic, ...]
    code: int  # exit code this file asks for


def execute(options: argparse.Namespace) -> int:
    """Checks the files named in `options`; the exit code."""
    constants = values.constants(options.const)
    reports = [_report(name, constants, options) for name in files.expand(options.files)]
    count = Counter(item.severity for report in reports for item in report.diagnostics)
    if options.format == "json":
        _print_json(reports, count)
    else:
        for report in reports:
            for item in report.diagnostics:
                place = f"{report.name}: " if item.span is None else ""
                print(f"{place}{render(item)}", end="\n\n")
        found = [plural(count[severity], severity.value) for severity in Severity]
        print(f"{plural(len(reports), 'file')}: {', '.join(found)}")
    return max(report.code for report in reports)


def _report(name: str, constants: Mapping[str, bool | int | float | str], options: argparse.Namespace) -> _Report:
    try:
        checked = files.examine(name, constants)
    except AttnDslError as error:
        return _Report(name, None, error.diagnostics, exit_code(error))
    found = checked.diagnostics
    if checked.spec is not None and options.target is not None:
        found += target_problems(checked.spec, options.target)
    failing = {Severity.ERROR, Severity.WARNING} if options.strict else {Severity.ERROR}
    code = FINDINGS if any(item.severity in failing for item in found) else OK
    kind = None if checked.errors else "library" if checked.spec is None else "spec"
    return _Report(name, kind, found, code)


def _print_json(reports: list[_Report], count: Counter[Severity]) -> None:
    entries = [
        {
            "file": report.name,
            "kind": report.kind,
            "ok": report.code == OK,
            "diagnostics": [{**item.as_dict(), "rule": RULES[item.code].sentence} for item in report.diagnostics],
        }
        for report in reports
    ]
    summary = {"files": len(reports), **{f"{severity.value}s": count[severity] for severity in Severity}}
    print_json({"ok": all(report.code == OK for report in reports), "files": entries, "summary": summary})
