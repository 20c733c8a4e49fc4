"""What a command may do to the terminal and to files: text out, progress, whole files or none."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from ..diagnostics import AttnDslError, CallError, Diagnostic
from ..show.terminal import TerminalStyle

OK, FINDINGS, USAGE, FILES, INTERNAL = 0, 1, 2, 3, 4  # exit codes; docs/cli.md says when each is given
INTERRUPTED, READER_GONE = 130, 141  # 128 + SIGINT, 128 + SIGPIPE: what a shell reports for any other program

_PATIENCE = 2.0  # seconds a command may be silent
_TICK = 0.25  # seconds between two redraws of the progress line


class UsageError(AttnDslError):
    """The command line itself is wrong (E283)."""

    @classmethod
    def say(cls, message: str, hint: str | None = None) -> UsageError:
        return cls((Diagnostic("E283", message, hint=hint),))


class FileError(AttnDslError):
    """A file besides specs cannot be read or written (E284)."""

    @classmethod
    def say(cls, message: str, hint: str | None = None) -> FileError:
        return cls((Diagnostic("E284", message, hint=hint),))


def exit_code(error: AttnDslError) -> int:
    """The exit code that fits an error: whose fault is it, the command line's, a file's or the spec's?"""
    if isinstance(error, UsageError | CallError) or error.code == "E280":
        return USAGE  # every value of a call comes from an option
    if isinstance(error, FileError) or isinstance(error.__cause__, OSError):
        return FILES
    return FINDINGS


def terminal_style(colour: str) -> TerminalStyle:
    """What standard output can show; `colour` is `auto`, `always` or `never`, and NO_COLOR (no-color.org) counts."""
    size = shutil.get_terminal_size((100, 50))
    stream = sys.stdout
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    able = stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return TerminalStyle(
        columns=max(20, size.columns),
        lines=max(12, size.lines if stream.isatty() else 50),
        unicode=encoding.startswith("utf"),
        colour=colour == "always" or (colour == "auto" and able),
    )


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Standard output and error write what their encoding lacks as escapes instead of failing."""
    changed: list[tuple[io.TextIOWrapper, str]] = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors is not None:
            changed.append((stream, stream.errors))
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in changed:
            stream.reconfigure(errors=errors)


class Progress:
    """A line on standard error for work that takes over two seconds; nothing at all where no one looks at it.

    Use as a context manager; `step` may say what is being done, the line adds the seconds since the start.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self) -> None:
        shown = 0
        wait = _PATIENCE
        while not self._done.wait(wait):
            line = f"{self._label} ... {time.monotonic() - self._started:.0f} s"
            sys.stderr.write("\r" + line.ljust(shown))
            sys.stderr.flush()
            shown, wait = len(line), _TICK
        if shown:
            sys.stderr.write("\r" + " " * shown + "\r")
            sys.stderr.flush()


def write_whole(path: str | Path, content: bytes) -> None:
    """Puts `content` at `path`, all of it or nothing: a temporary file beside it takes its place at once.

    An existing file keeps its permissions, a link stays a link. Raises FileError.
    """
    target = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except OSError as error:
        raise FileError.say(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # gone already when the replacement succeeded
                os.unlink(temporary)


def _mode(path: Path) -> int:
    """The permissions of an existing file, or those a new file gets here."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def plural(count: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def print_json(value: dict[str, object]) -> None:
    """One JSON object on standard output, `version` first; the number changes when a shape of docs/cli.md breaks."""
    print(json.dumps({"version": 1, **value}, indent=2, allow_nan=False))
