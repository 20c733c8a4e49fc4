"""No input makes the front end raise anything but its own errors, or take a second."""

import json
import time
from pathlib import Path

import pytest
from attn_fuzz import one_input
from attn_strategies import files
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_dsl.cli import main
from attn_dsl.diagnostics import RULES, AttnDslError, Severity, Source, render
from attn_dsl.spec import check
from attn_dsl.syntax import format_file, parse_source, read_source
from attn_dsl.syntax.source import decode_source

CHECKOUT = Path(__file__).resolve().parents[2]
CORPUS = [
    read_source(path).text
    for path in sorted([*(CHECKOUT / "attn_dsl" / "std").glob("*.attn"), *(CHECKOUT / "examples").glob("*.attn")])
]
LONGEST = 1.0  # seconds of CPU time


def front_end(data: bytes) -> str:
    """All of the front end over the bytes of a file: read, parse, lay out and parse again, check, report.

    Returns what became of the input: "refused", "wrong" or "right".
    """
    try:
        file = parse_source(decode_source("fuzz.attn", data))
    except AttnDslError as error:
        problems = error.diagnostics
    else:
        problems = ()
    if problems:
        _reported(problems)
        assert all(found.severity is Severity.ERROR for found in problems)
        return "refused"
    written = format_file(file)
    assert parse_source(Source("fuzz.attn", written)) == file
    checked = check(file, name="fuzz")
    _reported(checked.diagnostics)
    assert checked.spec is None or not checked.errors
    return "wrong" if checked.errors else "right"


def _reported(diagnostics):
    for found in diagnostics:
        assert found.code in RULES
        assert found.message
        assert render(found)
        assert found.as_dict()
        if found.span is not None:
            assert 0 <= found.span.start <= found.span.end <= len(found.span.source.text)


def sweep(seeds) -> dict[str, int]:
    """How often each outcome came up; fails at the first input that breaks a rule, naming its seed."""
    outcomes: dict[str, int] = {}
    for seed in seeds:
        data = one_input(seed, CORPUS)
        started = time.process_time()
        try:
            outcome = front_end(data)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{data!r}") from error
        assert time.process_time() - started < LONGEST, f"seed {seed} takes too long:\n{data!r}"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


BATCHES, BATCH = 8, 2500  # 20,000 inputs in pieces that test processes can share


@pytest.mark.parametrize("batch", range(BATCHES))
def test_twenty_thousand_inputs(batch):
    parse_source(Source("warm", "let a = 1"))
    outcomes = sweep(range(batch * BATCH, (batch + 1) * BATCH))
    assert outcomes["refused"] > BATCH // 10, "inputs that do not parse are a fair share"
    assert outcomes["wrong"] > BATCH // 10, "and so are those that break a rule of the language"
    assert outcomes["right"] > BATCH // 50, "and those that mean something"


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
def test_a_million_inputs(batch):
    """Other seeds than the sample's."""
    sweep(range(1_000_000 + batch * 25_000, 1_000_000 + (batch + 1) * 25_000))


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_any_bytes(data):
    front_end(data)


@settings(max_examples=300)
@given(st.text(max_size=200))
def test_any_text(text):
    front_end(text.encode("utf-8", "surrogatepass"))


@settings(max_examples=200)
@given(files())
def test_any_tree_can_be_checked(file):
    front_end(format_file(file).encode())


def test_the_command_line_survives_too(tmp_path, capsys):
    path = tmp_path / "fuzz.attn"
    codes = set()
    for seed in range(50_000, 50_300):
        data = one_input(seed, CORPUS)
        path.write_bytes(data)
        codes.add(checked := main(["check", "--format", "json", str(path)]))
        json.loads(capsys.readouterr().out)
        laid_out = main(["fmt", "--check", str(path)])
        assert (checked, laid_out) in ((0, 0), (0, 1), (1, 0), (1, 1)), seed
        assert "Traceback" not in capsys.readouterr().err
        assert path.read_bytes() == data
    assert codes == {0, 1}


def test_the_sweep_notices_an_exception(monkeypatch):
    def broken(_file):
        raise RecursionError("too deep")

    monkeypatch.setitem(globals(), "format_file", broken)
    with pytest.raises(AssertionError, match=r"seed .*RecursionError"):
        sweep(range(50))
