"""docs/cli.md against the parser: commands, options, choices, exit codes and bounds are in both."""

import argparse
import re
from pathlib import Path

import pytest

from attn_dsl.cli import accuracy, console
from attn_dsl.cli.app import build_parser

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return found


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def test_every_command_has_a_section_and_a_row() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \|", TEXT, re.MULTILINE)
    assert listed == list(commands())
    for command in listed:
        assert section(command).lstrip().startswith(f"`attn-dsl {command}")


@pytest.mark.parametrize("command", list(commands()))
def test_options_are_the_documented_ones(command: str) -> None:
    parser = commands()[command]
    options = {name for action in parser._actions for name in action.option_strings} - {"-h", "--help"}
    rows = "".join(re.findall(r"^\| (`--.*?) \|", section(command), re.MULTILINE))
    assert set(re.findall(r"`(--[\w-]+)", rows)) == options


def test_shared_options_name_their_commands() -> None:
    rows = re.findall(
        r"^\| `(--\w+)[^|]*(?:\\\|[^|]*)?\| `([\w ]+)` \|", section("Options that several commands share"), re.M
    )
    assert len(rows) == 6
    for option, named in rows:
        have = {name for name, parser in commands().items() if option in parser._option_string_actions}
        assert set(named.split()) == have, option


def test_choices_are_the_documented_ones() -> None:
    checked = 0
    for command, parser in commands().items():
        text = section(command) + section("Options that several commands share")
        for action in parser._actions:
            if action.option_strings and action.choices:
                choices = "\\|".join(action.choices)
                assert f"`{action.option_strings[0]} {choices}`" in text, (command, action.option_strings[0])
                checked += 1
    assert checked >= 6


def test_exit_codes_are_the_documented_ones() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)}
    names = ("OK", "FINDINGS", "USAGE", "FILES", "INTERNAL", "INTERRUPTED", "READER_GONE")
    assert codes == {getattr(console, name) for name in names}


def test_roundoffs_are_the_documented_ones() -> None:
    listed = dict(re.findall(r"(\w+) 2\^-(\d+)", section("run")))
    assert {dtype.spelling: 2.0 ** -int(listed[dtype.spelling]) for dtype in accuracy.ROUNDOFF} == accuracy_by_name()
    assert len(listed) == len(accuracy.ROUNDOFF)


def accuracy_by_name() -> dict[str, float]:
    return {dtype.spelling: roundoff for dtype, roundoff in accuracy.ROUNDOFF.items()}
