"""Every construct of the grammar gives the tree it should, with exact spans."""

import itertools
import threading

import pytest
from parsing import parse, problem, statement, under, value

from attn_dsl.diagnostics import Source, Span
from attn_dsl.expr import operators as table
from attn_dsl.syntax import parse_source, tree
from attn_dsl.syntax.grammar import grammar
from attn_dsl.syntax.precedence import COMPARISONS, INFIX, PREFIX

AT = Span(Source("", ""), 0, 0)  # spans take no part in equality


def name(text):
    return tree.Name(text, span=AT)


def number(written):
    return tree.Literal(written, span=AT)


def binary(left, operator, right):
    return tree.Binary(operator, left, right, span=AT)


A, B, C = name("a"), name("b"), name("c")


def ranged(start, stop, inclusive=False):
    return tree.Range(start, stop, inclusive, span=AT)


STATEMENTS = [
    (
        "from std.window import window, lookback as back",
        tree.Import(
            False,
            ("std", "window"),
            (tree.ImportedName("window", "window", span=AT), tree.ImportedName("lookback", "back", span=AT)),
            span=AT,
        ),
    ),
    ("from .near import a", tree.Import(True, ("near",), (tree.ImportedName("a", "a", span=AT),), span=AT)),
    ("from .sub.near import a", tree.Import(True, ("sub", "near"), (tree.ImportedName("a", "a", span=AT),), span=AT)),
    ("const n: int = 32", tree.Const(name("n"), name("int"), number(32), span=AT)),
    ("const elem: dtype = bf16", tree.Const(name("elem"), name("dtype"), name("bf16"), span=AT)),
    ("axis dim = 128", tree.FixAxis(name("dim"), number(128), span=AT)),
    ("let a = b", tree.Let(A, B, span=AT)),
    (
        "a, b: bf16[batch, 2 * c]",
        tree.TensorDecl(
            (A, B), tree.TensorType(name("bf16"), (name("batch"), binary(number(2), "*", C)), span=AT), span=AT
        ),
    ),
    (
        "view v = k[:, 0, 1..2, ..b,]",
        tree.ViewDecl(
            name("v"),
            name("k"),
            (tree.WholeAxis(span=AT), number(0), ranged(number(1), number(2)), ranged(None, B)),
            span=AT,
        ),
    ),
    ("param a: int", tree.Param(A, name("int"), None, None, None, span=AT)),
    ("param a: int[heads]", tree.Param(A, name("int"), name("heads"), None, None, span=AT)),
    ("param a: int in 1.. = 3", tree.Param(A, name("int"), None, ranged(number(1), None), number(3), span=AT)),
    (
        "param a: float[batch] in 0.5..=1.5",
        tree.Param(A, name("float"), name("batch"), ranged(number(0.5), number(1.5), True), None, span=AT),
    ),
    ("param a: int = 3", tree.Param(A, name("int"), None, None, number(3), span=AT)),
    ("def a() -> int = b", tree.Function(A, (), name("int"), (), B, False, span=AT)),
    (
        "def a(b: int, c: f32[_, _],) -> bool = true",
        tree.Function(
            A,
            (
                tree.FunctionParam(B, name("int"), span=AT),
                tree.FunctionParam(C, tree.TensorType(name("f32"), (name("_"), name("_")), span=AT), span=AT),
            ),
            name("bool"),
            (),
            number(True),
            False,
            span=AT,
        ),
    ),
    (
        "def a() -> int { let b = 1, b }",
        tree.Function(A, (), name("int"), (tree.Let(B, number(1), span=AT),), B, True, span=AT),
    ),
    ("align bottom_right", tree.AlignDecl(name("bottom_right"), None, span=AT)),
    ("align offset(a)", tree.AlignDecl(name("offset"), A, span=AT)),
    ("lengths k { used = a }", tree.LengthsDecl(name("k"), (tree.Setting(name("used"), A, span=AT),), span=AT)),
    ("lengths q { }", tree.LengthsDecl(name("q"), (), span=AT)),
    (
        "paged { indptr = a, indices = b, }",
        tree.PagedDecl((tree.Setting(name("indptr"), A, span=AT), tree.Setting(name("indices"), B, span=AT)), span=AT),
    ),
    ("schedule { tile_q = 64 }", tree.ScheduleDecl((tree.Setting(name("tile_q"), number(64), span=AT),), span=AT)),
    ("pack gqa auto", tree.PackDecl(name("gqa"), name("auto"), span=AT)),
    ("mask = a", tree.Clause("mask", A, span=AT)),
    ("score = score", tree.Clause("score", name("score"), span=AT)),
    ("scale = 0.5", tree.Clause("scale", number(0.5), span=AT)),
    ("sink = a", tree.Clause("sink", A, span=AT)),
    ("descale v = a", tree.Descale(name("v"), A, span=AT)),
    ("lse_base = e", tree.LseBase(name("e"), span=AT)),
]


@pytest.mark.parametrize(("text", "expected"), STATEMENTS)
def test_a_statement_gives_its_tree_and_spans_all_of_its_text(text, expected):
    found = parse(f"\n # before\n  {text}   # behind\n").statements
    assert found == (expected,)
    assert under(found[0]) == text


EXPRESSIONS = [
    ("4_096", number(4096)),
    ("0x1F", number(31)),
    ("0b1_01", number(5)),
    ("007", number(7)),
    ("9223372036854775807", number(2**63 - 1)),
    ("1e-6", number(1e-6)),
    ("1_0.2_5", number(10.25)),
    ("true", number(True)),
    ("unbounded", name("unbounded")),
    ("-a", tree.Unary("-", A, span=AT)),
    ("not ~-a", tree.Unary("not", tree.Unary("~", tree.Unary("-", A, span=AT), span=AT), span=AT)),
    ("not a == b", tree.Unary("not", tree.Comparison(("==",), (A, B), span=AT), span=AT)),
    ("a <= b < c", tree.Comparison(("<=", "<"), (A, B, C), span=AT)),
    ("(a <= b) < c", tree.Comparison(("<",), (tree.Comparison(("<=",), (A, B), span=AT), C), span=AT)),
    ("a if b else c", tree.Conditional(A, B, C, span=AT)),
    ("a if b else b if c else a", tree.Conditional(A, B, tree.Conditional(B, C, A, span=AT), span=AT)),
    ("a - b - c", binary(binary(A, "-", B), "-", C)),
    ("a - (b - c)", binary(A, "-", binary(B, "-", C))),
    ("a * -b", binary(A, "*", tree.Unary("-", B, span=AT))),
    ("-a * b", binary(tree.Unary("-", A, span=AT), "*", B)),
    ("a and not b or c", binary(binary(A, "and", tree.Unary("not", B, span=AT)), "or", C)),
    ("a[b, c]", tree.Read(A, (B, C), span=AT)),
    ("a()", tree.Call(A, (), span=AT)),
    ("a(b, c = 1,)", tree.Call(A, (tree.Argument(None, B, span=AT), tree.Argument("c", number(1), span=AT)), span=AT)),
    ("a(b == c)", tree.Call(A, (tree.Argument(None, tree.Comparison(("==",), (B, C), span=AT), span=AT),), span=AT)),
    ("sum(b in 0..8: c)", tree.Reduction("sum", B, ranged(number(0), number(8)), C, span=AT)),
    ("any(b in 0..=a: c)", tree.Reduction("any", B, ranged(number(0), A, True), C, span=AT)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), EXPRESSIONS)
def test_an_expression_gives_its_tree(text, expected):
    assert value(text) == expected


def test_literals_of_different_types_differ():
    assert value("1") == number(1)
    assert len({value("1"), value("1.0"), value("true"), value("0x1")}) == 3


STRENGTHS = {
    "or": table.OR, "and": table.AND, "<": table.COMPARE, ">=": table.COMPARE, "|": table.BIT_OR, "^": table.BIT_XOR,
    "&": table.BIT_AND, "<<": table.SHIFT, ">>": table.SHIFT, "+": table.SUM, "-": table.SUM, "*": table.PRODUCT,
    "/": table.PRODUCT, "//": table.PRODUCT, "%": table.PRODUCT,
}  # fmt: skip


@pytest.mark.parametrize(("first", "second"), itertools.product(STRENGTHS, STRENGTHS))
def test_two_operators_group_as_the_table_of_the_language_says(first, second):
    whole = value(f"a {first} b {second} c")
    if first in COMPARISONS and second in COMPARISONS:
        assert whole.operators == (first, second)
        return
    left_first = STRENGTHS[first] >= STRENGTHS[second]
    explicit = f"(a {first} b) {second} c" if left_first else f"a {first} (b {second} c)"
    assert whole == value(explicit)


def test_the_grammar_and_the_operator_table_have_the_same_operators():
    words_and_signs = set(grammar().words) | set(grammar().symbols)
    assert set(INFIX) | set(PREFIX) <= words_and_signs
    others = words_and_signs - set(INFIX) - set(PREFIX)
    assert not [text for text in others if text in {"!", "**", "&&"}]
    for text in INFIX:
        assert value(f"a {text} b")
    for text in PREFIX:
        assert value(f"{text} a")


def test_reserved_words_are_those_of_the_reference():
    listed = (
        "align and as axis const def descale else false from if import in let lengths lse_base mask not or pack paged"
    )
    listed += " param schedule scale score sink true unbounded view"
    assert set(grammar().words) == set(listed.split())


@pytest.mark.parametrize(
    "word", ["offset", "gqa", "used", "e", "batch", "heads", "q_idx", "auto", "on", "std", "sum", "bf16", "int"]
)
def test_words_with_a_meaning_in_one_place_are_names(word):
    assert statement(f"let {word} = 3").name.name == word
    assert value(word) == name(word)


def test_line_breaks_are_white_space_in_round_and_square_brackets_and_commas_in_braces():
    assert value("(\n a\n +\n\n b # note\n)") == value("a + b")
    assert value("f(\na,\n\nb\n)") == value("f(a, b)")
    assert value("a[\nb\n]") == value("a[b]")
    one_line = statement("schedule { tile_q = 1, tile_k = 2 }")
    assert statement("schedule {\n\n tile_q = 1 # note\n\n tile_k = 2\n\n}") == one_line
    assert statement("schedule {tile_q = 1,\n tile_k = 2,\n}") == one_line
    assert statement("schedule {tile_q = 1\n, tile_k = 2}") == one_line
    assert statement("schedule {tile_q = (\n1\n), tile_k = 2\n}") == one_line
    assert statement("def a() -> int {\nlet b = 1\nb\n}") == statement("def a() -> int { let b = 1, b }")
    assert statement("def a() -> int {\n b +\n (\n1)\n}".replace("+\n", "+")) == statement("def a() -> int { b + 1 }")


def test_line_ends_tabs_and_a_byte_order_mark_do_not_matter():
    plain = "q: f32[a]\nmask = (b\n  < c)\n"
    for other in (plain.replace("\n", "\r\n"), "\ufeff" + plain, plain.replace(" ", "\t"), plain.rstrip()):
        assert parse(other) == parse(plain)
    assert problem("\ufeffmask = \r\n").span.column == 8


def test_every_node_spans_its_text():
    text = "score = ((a + b) * f(c, d = 2)[0]) if x < y <= 3 else sum(i in 0..4: t[i])".replace("[0]", "")
    clause = statement(text)
    whole = clause.value
    assert under(whole) == text[8:]
    assert under(whole.yes) == "((a + b) * f(c, d = 2))"
    assert under(whole.yes.left) == "(a + b)"
    assert under(whole.yes.left.right) == "b"
    assert under(whole.yes.right) == "f(c, d = 2)"
    assert under(whole.yes.right.function) == "f"
    assert [under(argument) for argument in whole.yes.right.arguments] == ["c", "d = 2"]
    assert under(whole.condition) == "x < y <= 3"
    assert under(whole.no) == "sum(i in 0..4: t[i])"
    assert under(whole.no.range) == "0..4"
    assert under(whole.no.variable) == "i"
    assert under(whole.no.body.tensor) == "t"
    function = statement("def f(n: int, t: f32[_]) -> bool { let a = n, a < 2 }")
    assert [under(p) for p in function.params] == ["n: int", "t: f32[_]"]
    assert under(function.params[1].type) == "f32[_]"
    assert under(function.lets[0]) == "let a = n"
    block = statement("lengths k { used = a,\n left_pad = b }")
    assert [under(setting) for setting in block.settings] == ["used = a", "left_pad = b"]


def test_threads_share_one_parser():
    grammar.__globals__["_build"].cache_clear()
    results = []

    def work(index):
        results.append(parse_source(Source("t", f"let x{index} = a + {index}\n" * 50)))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(f.statements[49].value.right.value for f in results) == list(range(8))
