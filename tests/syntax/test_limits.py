"""Deep and large texts: a clear error or a tree, never a RecursionError, and never more than a second."""

import time

import pytest
from parsing import parse, problem, problems, value

from attn_dsl.diagnostics import AttnSyntaxError, Source
from attn_dsl.syntax import format_file, parse_source
from attn_dsl.syntax.source import MAX_BYTES

NEST = {  # one level more of each way to nest, around "a"
    "parentheses": ("(", ")", "brackets"),
    "calls": ("f(", ")", "brackets"),
    "reads": ("t[", "]", "brackets"),
    "parenthesised sums": ("(1 + ", ")", "brackets"),
    "reductions": ("sum(i in 0..2: ", ")", "brackets"),
    "conditions": ("a if a else ", "", "operators"),
    "negations": ("-", "", "operators"),
    "nots": ("not ", "", "operators"),
}


@pytest.mark.parametrize("kind", NEST)
def test_a_hundred_levels_are_fine_and_one_more_is_e206(kind):
    before, after, what = NEST[kind]
    text = f"let x = {before * 100}a{after * 100}"
    file = parse(text)
    assert parse(format_file(file)) == file
    found = problem(f"let x = {before * 101}a{after * 101}\n")
    assert found.code == "E206"
    assert what in found.message
    assert found.hint


@pytest.mark.parametrize("operator", ["+", "*", "//", "and", "or", "&", "<<", "<"])
def test_a_flat_chain_of_operators_is_as_deep_as_it_is_long(operator):
    file = parse("let x = a" + f" {operator} a" * 100)
    assert parse(format_file(file)) == file
    found = problem("let x = a" + f" {operator} a" * 101)
    assert found.code == "E206"
    assert "sum(i in 0..n: ...)" in found.hint


def test_depth_adds_up_through_calls_ranges_and_named_arguments():
    deep = "a" + " + a" * 60  # 60 levels
    assert value(f"f({deep})")
    for text in (
        f"f(n = f({deep}))",
        f"t[b, f({deep})]",
        f"sum(i in 0..{deep}: i)",
        f"sum(i in 0..2: {deep})",
        f"(a if {deep} else b)",
    ):
        assert value(text + " + a" * 30)
        assert problem(f"let x = {text}" + " + a" * 40).code == "E206"


def filled(unit: str, before: str = "", after: str = "") -> str:
    return before + unit * ((MAX_BYTES - len(before) - len(after)) // len(unit)) + after


LARGEST = {
    "a flat chain": (filled("+1", "let x = 1"), "E206"),
    "a chain of comparisons": (filled("<1", "let x = 1"), "E206"),
    "open brackets": (filled("(", "let x = "), "E206"),
    "nested brackets": (filled("(", "let x = ")[: MAX_BYTES // 2] + ")" * (MAX_BYTES // 2), "E206"),
    "brackets that do not match": (filled("(", "let x = ")[: MAX_BYTES // 2] + "]" * (MAX_BYTES // 2), "E206"),
    "lets in brackets": (
        "(" * (MAX_BYTES // 4) + "{" + filled("\nlet", "x" * (MAX_BYTES // 4 + 1))[MAX_BYTES // 4 + 1 :],
        "E206",
    ),
    "minus signs": (filled("-", "let x = ", "1"), "E206"),
    "a number": (filled("9", "let x = "), "E207"),
    "a name": (filled("x", "let x = "), None),
    "a comment": ("let x = a\n" + filled("#", after="\n")[10:], None),
    "blank lines": (filled("\n", "let x = a\n"), None),
    "arguments": (filled("a,", "let x = f(", ")"), None),
    "declarations": (filled("a:b[c]\n"), "E208"),
    "broken statements": (filled("mask=(\n"), "E205"),
    "settings": (filled("a=b\n", "schedule {\n", "}\n"), None),
    "names without a statement": (filled("a\n"), "E204"),
    "names in one line": (filled("a "), "E204"),
    "foreign characters": (filled("$"), "E203"),
    "foreign lines": (filled("$\n"), "E203"),
    "closing brackets": (filled(")"), "E204"),
    "bad entries": (filled("a b\n", "schedule {\n", "}\n"), "E204"),
    "unclosed statements": (filled("mask=(\n"), "E205"),
}


@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_texts_take_less_than_a_second(kind):
    text, code = LARGEST[kind]
    assert len(text) <= MAX_BYTES
    assert len(text) > MAX_BYTES - 10
    parse("let x = 1")  # the grammar is built
    started = time.process_time()
    if code is None:
        assert parse_source(Source("large", text)).statements
    else:
        with pytest.raises(AttnSyntaxError) as caught:
            parse_source(Source("large", text))
        assert caught.value.code == code
        assert len(caught.value.diagnostics) <= 101
    assert time.process_time() - started < 2.0, "a second is meant; a busy machine counts one twice"


def test_a_thousand_statements_are_fine_and_one_more_is_e208():
    assert len(parse("let a = 1\n" * 1000 + "\n# end\n").statements) == 1000
    found = problem("let a = 1\n" * 1001 + "let b = = 3\n")
    assert found.code == "E208"
    assert found.span.line == 1001
    assert "1,001st" in found.message
    assert [p.code for p in problems("let a =\n" + "let a = 1\n" * 1000)] == ["E204", "E208"]
