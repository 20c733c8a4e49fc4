"""Every way a text can be wrong: the code, the place, the words, the hint; and one mistake gives one message."""

import pytest
from parsing import parse, problem, problems, under

from attn_dsl.diagnostics import AttnSyntaxError, render
from attn_dsl.syntax.grammar import grammar
from attn_dsl.syntax.messages import FORMS

# text, code, what the caret is under, message, hint (or a part of it; None: no hint)
CASES = [
    # misspelt and foreign statements
    ("parm x: int", "E204", "parm", "no statement starts with 'parm'", "did you mean 'param'?"),
    ("masks = a", "E204", "masks", "no statement starts with 'masks'", "did you mean 'mask'?"),
    ("align_ top_left", "E204", "align_", "no statement starts with 'align_'", "did you mean 'align'?"),
    ("distance = a - b", "E204", "distance", "no statement starts with 'distance'", "'let distance = ...'"),
    ("foo", "E204", "foo", "no statement starts with 'foo'", "declared as 'name: bf16[axis, axis]'"),
    ("import std.window", "E204", "import", "expected a statement", "from std.window import window"),
    ("(a) = 3", "E204", "(", "expected a statement, found '('", None),
    ("  and a", "E204", "and", "no statement starts with 'and'", "goes on in the next line only inside ( )"),
    ("fn f(x) = 3", "E204", "fn", "'fn' is not part of the language", "def name"),
    # definitions
    ("mask == a < b", "E204", "==", "expected '=', found '=='", "'=' defines, '==' compares"),
    ("mask: a < b", "E204", ":", "expected '=', found ':'", "mask = expression"),
    ("mask := a", "E204", ":=", "':=' is not part of the language", "write '='"),
    ("let a: int = 3", "E204", ":", "expected '=', found ':'", "let name = expression"),
    ("let score = 3", "E204", "score", "expected a name, found the reserved word 'score'", "is a reserved word"),
    ("const n = 3", "E204", "=", "expected ':', found '='", "const name: int = 32"),
    ("param x = 3", "E204", "=", "expected ':', found '='", "param name: int in 1.. = 64"),
    ("param x: int in [1, 3]", "E204", "[", "expected an expression, '..' or '..='", "a range is 'a..b'"),
    ("x: int", "E204", "", "expected '[', found the end of the line", "'param x: int'"),
    ("x: int = 4", "E204", "=", "expected '[', found '='", "'param x: int'"),
    ("q: f32[]", "E204", "]", "expected an expression, found ']'", None),
    ("q: f32[a]  k: f32[a]", "E204", "k", "expected the end of the line, found the name 'k'", None),
    ("view v = k[]", "E204", "]", "expected an expression, '..', '..=' or ':', found ']'", "a range is"),
    ("from std.x import *", "E204", "*", "expected a name, found '*'", "from std.window import"),
    ("from . import x", "E204", "import", "expected a name, found the reserved word 'import'", "from std.window"),
    ("from ..up import x", "E204", "..", "expected a name or '.', found '..'", "from std.window import"),
    ("from std.x import a as", "E204", "", "expected a name, found the end of the line", "the form is"),
    ("pack gqa", "E204", "", "expected a name", "pack gqa auto"),
    ("schedule tile_q = 3", "E204", "tile_q", "expected '{', found the name 'tile_q'", "schedule { tile_q = 128"),
    ("schedule { tile_q: 3 }", "E204", ":", "expected '=', found ':'", "schedule { tile_q = 128"),
    ("lengths q { a = 1 b = 2 }", "E204", "b", "expected an operator, ',', '}' or a line break", None),
    # functions
    ("def f(x: int) = x", "E204", "=", "expected '->', found '='", "say the type of the result"),
    ("def f(x: int) -> int: x", "E204", ":", "expected '=' or '{', found ':'", "without ':'"),
    ("def f(x) -> int = x", "E204", ")", "expected ':', found ')'", "def name(x: int)"),
    ("def f() -> int { return 3 }", "E204", "return", "'return' is not part", "a body ends with its value"),
    ("def f() -> int { }", "E204", "}", "expected an expression or 'let', found '}'", None),
    ("let f = lambda x: x", "E204", "lambda", "'lambda' is not part of the language", "a function is 'def"),
    # expressions
    ("mask = a && b", "E204", "&&", "'&&' is not part of the language", "write 'and'"),
    ("mask = a || b", "E204", "||", "'||' is not part of the language", "write 'or'"),
    ("mask = !a", "E203", "!", "'!' means nothing here", "write 'not x'"),
    ("let a = b ** 2", "E204", "**", "'**' is not part of the language", "no power operator"),
    ("let a = b <> c", "E204", "<>", "'<>' is not part of the language", "write '!='"),
    ("let a = b === c", "E204", "===", "'===' is not part of the language", "write '=='"),
    ("let a = b if c", "E204", "", "expected an operator or 'else', found the end of the line", None),
    ("let a = b ? c : d", "E203", "?", "'?' means nothing here", "x if condition else y"),
    ("mask = a = b", "E204", "=", "expected an operator or the end of the line", "'=' defines, '==' compares"),
    ("mask = a b", "E204", "b", "expected an operator or the end of the line, found the name 'b'", None),
    ("mask = a and and b", "E204", "and", "expected an expression, found the reserved word 'and'", None),
    ("mask = a + not b", "E204", "not", "'not' binds looser than '+' before it", "write '(not ...)'"),
    ("mask = - not b", "E204", "not", "'not' binds looser than '-' before it", "write '(not ...)'"),
    ("mask =", "E204", "", "expected an expression, found the end of the line", "inside ( ) it may go on"),
    ("mask = (a, b)", "E204", ",", "expected an operator or ')', found ','", None),
    ("mask = a[1:3]", "E204", ":", "expected an operator, ',' or ']', found ':'", "a range is 'a..b'"),
    ("mask = a.b", "E204", ".", "expected an operator or the end of the line, found '.'", None),
    ("mask = sum(i in 8: i)", "E204", ":", "expected an operator, '..' or '..='", "a range is 'a..b'"),
    ("mask = sum(i in 0..: i)", "E204", ":", "expected an expression, found ':'", None),
    ("let s = sum(i in 0..8, i)", "E204", ",", "expected an operator or ':', found ','", None),
    ("mask = any(i for i in 0..8)", "E204", "for", "'for' is not part of the language", "repetition is"),
    ("mask = a ≤ b", "E203", "≤", "'≤' means nothing here", "write '<='"),
    ("let a = 3;", "E203", ";", "';' means nothing here", "end of their line"),
    ('let a = "x"', "E203", '"', "means nothing here", "no strings"),
    ("let a = \x00", "E203", "\x00", "'\\u0000' means nothing here", None),
    # numbers
    ("let a = 1.", "E204", ".", "expected an operator or the end of the line, found '.'", "1.0"),
    ("let a = .5", "E204", ".", "expected an expression, found '.'", "0.5"),
    ("let a = 0.5f", "E203", "0.5f", "'0.5f' is no number", "numbers look like"),
    ("let a = 12px", "E203", "12px", "'12px' is no number", "numbers look like"),
    ("let a = 1__0", "E203", "1__0", "'1__0' is no number", "numbers look like"),
    ("let a = 0b12", "E203", "0b12", "'0b12' is no number", "numbers look like"),
    ("let a = 1.2.3", "E203", "1.2.3", "'1.2.3' is no number", "numbers look like"),
    ("let a = 9223372036854775808", "E207", "9223372036854775808", "does not fit 64 bits", "unbounded"),
    ("let a = 0xffff_ffff_ffff_ffff", "E207", "0xffff_ffff_ffff_ffff", "does not fit 64 bits", "unbounded"),
    ("let a = 1e999", "E207", "1e999", "'1e999' is too large for a float", None),
    # brackets
    ("mask = f(a", "E205", "(", "'(' is not closed", "add ')'"),
    ("q: f32[a", "E205", "[", "'[' is not closed", "add ']'"),
    ("paged {\n table = a\n", "E205", "{", "'{' is not closed", "add '}'"),
    ("mask = f(a]", "E205", "(", "'(' is not closed: ']' in line 2 is no partner of it", "add ')'"),
    ("mask = f(a[b)", "E205", "[", "'[' is not closed before ')' in line 2", "add ']'"),
    ("mask = a)", "E204", ")", "')' closes nothing: no '(' is open", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "caret", "message", "hint"), CASES, ids=[case[0] for case in CASES])
def test_a_mistake_gives_one_message_with_its_place_and_a_way_out(text, code, caret, message, hint):
    found = problem(f"let before = 1\n{text}\nlet after = 2\n" if code != "E205" else f"let before = 1\n{text}")
    assert found.code == code
    assert under(found) == caret
    assert found.span.line == 2
    assert message in found.message
    assert (hint is None) == (found.hint is None), found.hint
    assert hint is None or hint in found.hint
    assert "__" not in found.message.replace("1__0", ""), "names of the grammar's own do not reach the user"


def test_every_statement_word_has_a_form_that_parses():
    assert set(FORMS) == set(grammar().statement_words)
    for word, form in FORMS.items():
        first = form.split(", align")[0] if word == "align" else form
        assert parse(first.replace("expression", "x")), word


def found_at(text):
    return [(found.code, found.span.line, found.span.column) for found in problems(text)]


def test_all_problems_of_a_file_come_in_one_run_in_their_order():
    text = "let a = \nparm x: int\nq: f32[b]\nmask = $\nscore = f(a]\nlet ok = 1\nlet b = 99999999999999999999\n"
    assert found_at(text) == [
        ("E204", 1, 8), ("E204", 2, 1), ("E203", 4, 8), ("E205", 5, 10), ("E207", 7, 9),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # an open bracket ends where only a new statement can start
        ("mask = f(a,\nparam b: int\nlet c = ", [("E205", 1, 9), ("E204", 3, 8)]),
        ("mask = f(a,\nscore = score\n", [("E205", 1, 9)]),
        ("mask = f(a,\nscore = b\nq f", [("E205", 1, 9), ("E204", 3, 1)]),
        ("mask = f(a,\nscore == b)\n", []),
        ("mask = " + "(" * 101 + "a" + ")" * 101 + "\nq f", [("E206", 1, 108), ("E204", 2, 1)]),
        ("paged { table = t\nmask = a", [("E205", 1, 7)]),
        ("def f() -> int {\n let a = (1\n let b = 2\n b }\nlet ok = 1", [("E205", 2, 10)]),
        # a statement cut short is told once, not again for what follows it
        ("mask =\n  a and b\nlet c =", [("E204", 1, 7), ("E204", 3, 8)]),
        ("let x = a +\n b\n + c\nq f", [("E204", 1, 12), ("E204", 4, 1)]),
        ("let x = a +\nq: f32[", [("E204", 1, 12), ("E205", 2, 7)]),
        # the entries of a block are looked at one by one
        ("lengths q { used = , left = , c = 3 }", [("E204", 1, 20), ("E204", 1, 28)]),
        ("schedule {\n a = 1 1\n b = 2\n c 3\n d = \n 4\n}", [("E204", 2, 8), ("E204", 4, 4), ("E204", 5, 5)]),
        ("def f() -> int {\n let a = 1e999\n let b = 3 3\n a a\n}", [("E207", 2, 10), ("E204", 3, 12), ("E204", 4, 4)]),
        ("def f() -> int {\n let a =\n 3\n a }", [("E204", 2, 9)]),
        # several open brackets are all named; a stray one hides nothing before it
        ("mask = f(a[b\n", [("E205", 1, 9), ("E205", 1, 11)]),
        ("let a = )\nlet b = 1 1", [("E204", 1, 9), ("E204", 2, 11)]),
        ("let a = $ $ $ )", [("E203", 1, 9)]),
    ],
)  # fmt: skip
def test_one_mistake_does_not_cause_a_second_message(text, expected):
    if not expected:
        parse(text)
        return
    assert found_at(text) == expected


def test_a_file_full_of_problems_stops_at_a_hundred_and_says_so():
    found = problems("let a = \n" * 500)
    assert len(found) == 100
    assert found[-1].message == "too many errors: only the first 99 are told"
    assert found[-1].span.line == 100


def test_the_message_shows_the_line_and_a_caret():
    with pytest.raises(AttnSyntaxError) as caught:
        parse("let a = 1\nmask = a && b")
    assert str(caught.value) == (
        "test.attn:2:10: error[E204]: '&&' is not part of the language\n"
        "  2 | mask = a && b\n"
        "    |          ^^\n"
        "  hint: write 'and'"
    )


def test_long_text_is_quoted_short():
    found = problem(f"let a = {'9' * 5000}")
    assert found.code == "E207"
    assert len(found.message) < 120
    assert len(render(found)) < 500
    assert len(problem("x" * 5000).message) < 120
    assert len(render(problem(f"{'x' * 5000} = 3"))) < 500
