"""Files are written whole or not at all; streams and progress behave on odd terminals."""

import io
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from attn_dsl.cli import console
from attn_dsl.cli.console import FileError, Progress, plural, terminal_style, tolerant_streams, write_whole


def test_write_whole_makes_a_file_with_the_usual_permissions(tmp_path: Path) -> None:
    target = tmp_path / "new.txt"
    write_whole(target, b"text")
    (tmp_path / "other").write_bytes(b"")
    assert target.read_bytes() == b"text"
    assert target.stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["new.txt", "other"]


def test_write_whole_keeps_permissions_and_links(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device", *paths)

    monkeypatch.setattr(console.os, "replace", full)
    with pytest.raises(FileError, match=r"E284.*cannot write .*file: No space left on device"):
        write_whole(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_writing_into_a_missing_folder_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file or directory"):
        write_whole(tmp_path / "no" / "file", b"")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slow_work(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float) -> str:
    monkeypatch.setattr(console, "_PATIENCE", 0.05)
    monkeypatch.setattr(console, "_TICK", 0.01)
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("first") as progress:
        time.sleep(seconds)
        progress.step("second")
        time.sleep(seconds)
    return stream.getvalue()


def test_progress_appears_on_a_terminal_and_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = slow_work(monkeypatch, Terminal(), 0.15)
    assert "\rfirst ... 0 s" in shown
    assert "\rsecond ... 0 s" in shown
    assert shown.endswith("\r")
    assert shown.rsplit("\r", 2)[1].strip() == "", "the line is overwritten with blanks"


def test_quick_work_and_other_streams_show_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slow_work(monkeypatch, Terminal(), 0.0) == ""
    assert slow_work(monkeypatch, io.StringIO(), 0.1) == ""


def stdout(monkeypatch: pytest.MonkeyPatch, encoding: str, *, terminal: bool) -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


@pytest.mark.parametrize(
    ("colour", "terminal", "environment", "expected"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {}, False),
    ],
)
def test_colour(
    monkeypatch: pytest.MonkeyPatch, colour: str, terminal: bool, environment: dict[str, str], expected: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stdout(monkeypatch, "utf-8", terminal=terminal)
    assert terminal_style(colour).colour is expected


@pytest.mark.parametrize(("encoding", "unicode"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_unicode_follows_the_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, unicode: bool) -> None:
    stdout(monkeypatch, encoding, terminal=False)
    assert terminal_style("auto").unicode is unicode


def test_streams_escape_what_they_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stdout(monkeypatch, "ascii", terminal=False)
    with tolerant_streams():
        sys.stdout.write("größe \udcff")
    stream.flush()
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfe \\udcff"
    assert stream.errors == "strict"


def test_plural() -> None:
    assert [plural(count, "error") for count in (0, 1, 2, 1234)] == ["0 errors", "1 error", "2 errors", "1,234 errors"]
