"""docs/errors.md is held to the code: each rule is there in its words, each example gives its code and its text."""

from pathlib import Path

import pytest
from errors_doc import codes, read, run

from attn_dsl.diagnostics import RULES

PATH = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
PAGE = read(PATH)
# listed in a table; docs/emulator.md explains them
EMULATOR = {code for code in RULES if code.startswith(("E30", "E31"))}


def test_every_code_is_documented_in_order_and_no_other():
    assert list(PAGE.sentences) == sorted(set(RULES) - EMULATOR, key=lambda code: code[1:])


@pytest.mark.parametrize("code", PAGE.sentences)
def test_the_page_states_the_rule_as_the_code_does(code):
    assert PAGE.sentences[code] == RULES[code].sentence
    assert any(example.code == code for example in PAGE.examples), "a code without an example"


def test_the_codes_of_the_emulator_are_in_the_table():
    text = PATH.read_text("utf-8")
    for code in EMULATOR:
        assert f"| {code} | {RULES[code].sentence} |" in text


@pytest.mark.parametrize("example", PAGE.examples, ids=lambda example: f"{example.code}-line{example.line}")
def test_an_example_gives_exactly_its_code_and_the_printed_text(example, tmp_path):
    printed = run(example, tmp_path)
    assert codes(printed) == {example.code}
    assert example.matches(printed), printed
