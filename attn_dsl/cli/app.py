"""The command line as a whole: the parser, and what becomes of everything a command can raise."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from .._version import __version__
from ..diagnostics import AttnDslError
from . import bench, cache, capabilities, check, compile, explain, fmt, new, run, show
from .console import (
    FILES,
    INTERNAL,
    INTERRUPTED,
    OK,
    READER_GONE,
    UsageError,
    exit_code,
    print_json,
    tolerant_streams,
)

_DESCRIPTION = """\
A small declarative language for attention variants, and its compiler.

An .attn file declares tensors, run-time parameters, a mask and a score; these commands check it, lay it out,
draw its mask, say what it costs, and run it."""

_EPILOG = """\
examples:
  attn-dsl check window.attn
  attn-dsl show window.attn --seq-q 64 --seq-k 64
  attn-dsl run window.attn --shape batch=1,heads=8,kv_heads=2,seq_q=128,seq_k=128,dim=64 --check

exit codes:
  0  nothing to complain about
  1  findings: an error in a spec, a file not laid out, a result outside its bound, a spec its target cannot run
  2  the command line itself is wrong
  3  a file cannot be read or written, or memory ran out
  4  internal error: a bug in attn-dsl

`attn-dsl COMMAND --help` explains one command."""


class _Parser(argparse.ArgumentParser):
    """argparse with one kind of error: a diagnostic, like every other of this package."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError.say(message, hint=f"'{self.prog} --help' lists what there is")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `attn-dsl` with every command."""
    parser = _Parser(prog="attn-dsl", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"attn-dsl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for module in (new, check, fmt, show, explain, run, bench, compile, cache, capabilities):
        module.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; `argv` defaults to the process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with tolerant_streams():
        try:
            code = _dispatch(arguments)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            _silence_stdout()
            return READER_GONE
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    json_wanted = False
    try:
        options = build_parser().parse_args(arguments)
        json_wanted = getattr(options, "format", "text") == "json"
        return int(options.execute(options))
    except SystemExit as finished:  # --help and --version
        return finished.code if isinstance(finished.code, int) else OK
    except AttnDslError as error:
        if json_wanted:
            print_json({"ok": False, "diagnostics": [item.as_dict() for item in error.diagnostics]})
        else:
            print(error, file=sys.stderr)
        return exit_code(error)
    except MemoryError:
        print("error: out of memory\n  hint: smaller extents need less", file=sys.stderr)
        return FILES
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:
        print(_internal(error), file=sys.stderr)
        return INTERNAL


def _internal(error: Exception) -> str:
    trace = traceback.format_exc() if os.environ.get("ATTN_DSL_TRACEBACK") else ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{trace}internal error: {type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})\n"
        f"  This is a bug in attn-dsl {__version__}, not in your file. Please report it with the file, the command\n"
        f"  line and what the same command prints with ATTN_DSL_TRACEBACK=1 in its environment."
    )


def _silence_stdout() -> None:
    """Points standard output nowhere, so that the interpreter's own flush at exit does not fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:  # a standard output without a file descriptor has nothing to flush to
        return
