"""The command as a whole: help, exit codes, interrupted and broken streams, bugs, start-up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import attn_dsl
from attn_dsl.cli import app

COMMANDS = ("check", "fmt", "show", "explain", "run", "capabilities")
CAUSAL = "mask = kv_idx <= q_pos\n"


def process(*arguments: str, code: str = "", **settings: object) -> subprocess.Popen[str]:
    command = [sys.executable, *(("-c", code) if code else ("-m", "attn_dsl")), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def test_version(run) -> None:
    outcome = run("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"attn-dsl {attn_dsl.__version__}\n", "")


def test_help_lists_commands_and_exit_codes(run) -> None:
    outcome = run("--help")
    assert outcome.code == 0
    assert all(command in outcome.out for command in COMMANDS)
    assert all(f"  {code}  " in outcome.out for code in (0, 1, 2, 3, 4))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples(run, command: str) -> None:
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert f"examples:\n  attn-dsl {command}" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["chek"], "invalid choice: 'chek'"),
        (["check"], "the following arguments are required: FILE"),
        (["check", "--formt", "json", "a"], "unrecognized arguments: --formt"),
        (["check", "--strict=1", "a"], "ignored explicit argument '1'"),
        (["explain", "a", "--seq-q", "x", "--seq-k", "3"], "argument --seq-q: 'x' is no integer of at least 0"),
        (["explain", "a", "--seq-q", "-1", "--seq-k", "3"], "argument --seq-q: '-1' is no integer of at least 0"),
        (["explain", "a", "--seq-q", "9" * 30, "--seq-k", "3"], "argument --seq-q"),
        (["run", "a", "--repeat", "0"], "argument --repeat: '0' is no integer of at least 1"),
        (["show", "a", "--color", "sometimes"], "argument --color: invalid choice"),
    ],
)
def test_a_wrong_command_line_is_one_error(run, arguments: list[str], message: str) -> None:
    outcome = run(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error[E283]: ")
    assert message in outcome.err
    assert outcome.err.count("error[") == 1


def test_errors_are_json_where_json_is_wanted(run, write) -> None:
    outcome = run("run", write("a.attn", "q: ["), "--format", "json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["ok"], report["version"]) == (1, False, 1)
    assert [item["code"] for item in report["diagnostics"]]
    outcome = run("run", "a.attn", "--shape", "x", "--format", "json")
    assert json.loads(outcome.out)["ok"] is False
    assert outcome.err == ""


def bug(*_arguments: object) -> int:
    raise RuntimeError("a bug")


def test_a_bug_is_reported_as_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(app.capabilities, "execute", bug)
    monkeypatch.delenv("ATTN_DSL_TRACEBACK", raising=False)
    assert app.main(["capabilities"]) == 4
    error = capsys.readouterr().err
    assert error.startswith("internal error: RuntimeError: a bug (test_app.py:")
    assert f"attn-dsl {attn_dsl.__version__}" in error
    assert "Traceback" not in error
    monkeypatch.setenv("ATTN_DSL_TRACEBACK", "1")
    assert app.main(["capabilities"]) == 4
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(("raised", "code", "text"), [(KeyboardInterrupt, 130, "interrupted\n"), (MemoryError, 3, "")])
def test_interruptions(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: type[BaseException],
    code: int,
    text: str,
) -> None:
    def stop(*_arguments: object) -> int:
        raise raised

    monkeypatch.setattr(app.capabilities, "execute", stop)
    assert app.main(["capabilities"]) == code
    assert capsys.readouterr().err.startswith(text or "error: out of memory")


def test_a_real_interrupt_ends_cleanly(write) -> None:
    write("a.attn", CAUSAL, operands=True)
    code = (
        "import os, signal, sys, threading\n"
        "from attn_dsl.cli import app\n"
        "app.check.files.examine = lambda *a: (threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start(), "
        "threading.Event().wait(20))\n"
        "sys.exit(app.main(['check', 'a.attn']))"
    )
    child = process(code=code)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (128 + signal.SIGINT, "", "interrupted\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["check", "a.attn"], ["capabilities", "--format", "json"]])
def test_a_reader_that_goes_away_is_no_error(write, arguments: list[str], unbuffered: str) -> None:
    write("a.attn", CAUSAL, operands=True)
    read, written = os.pipe()
    os.close(read)
    child = subprocess.run(
        [sys.executable, "-m", "attn_dsl", *arguments],
        stdout=written,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(written)
    assert (child.returncode, child.stderr) == (141, b"")


def test_module_and_script_are_the_same_command(write) -> None:
    write("a.attn", CAUSAL, operands=True)
    script = Path(sys.executable).with_name("attn-dsl")
    for command in ([sys.executable, "-m", "attn_dsl"], [str(script)]):
        done = subprocess.run([*command, "check", "a.attn"], capture_output=True, text=True, check=True)
        assert done.stdout == "1 file: 0 errors, 0 warnings, 0 notes\n"


def test_check_and_fmt_start_without_torch(write) -> None:
    write("a.attn", f"from std.window import window\n{CAUSAL.replace('kv_idx', 'window(3) and kv_idx')}", operands=True)
    code = (
        "import resource, sys\n"
        "from attn_dsl.cli import main\n"
        "codes = [main(['check', 'a.attn']), main(['fmt', '--check', 'a.attn']), main(['run', '--help'])]\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "heavy = sorted({'torch', 'numpy', 'PIL'} & set(sys.modules))\n"
        "print(codes, heavy, used.ru_utime + used.ru_stime < 1.0, file=sys.stderr)"
    )
    _, err = process(code=code).communicate(timeout=60)
    assert err.splitlines()[-1] == "[0, 0, 0] [] True"


def test_file_names_that_are_no_text_survive(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.attn"
    done = subprocess.run([sys.executable, "-m", "attn_dsl", "check", name], capture_output=True, check=False)
    assert done.returncode == 3
    assert b"no such file" in done.stdout
    assert b"Traceback" not in done.stderr
