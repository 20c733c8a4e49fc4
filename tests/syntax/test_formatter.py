"""The one layout: the meaning stays, a second pass changes nothing, every comment stays, lines fold at 100 columns."""

import random
import re
from pathlib import Path

import pytest
from attn_strategies import expressions, files
from hypothesis import given, settings
from parsing import parse, value

from attn_dsl.diagnostics import AttnSyntaxError, Source
from attn_dsl.syntax import format_file, parse_source, read_source, tree
from attn_dsl.syntax.grammar import grammar
from attn_dsl.syntax.layout import WIDTH
from attn_dsl.syntax.scanner import scan

CHECKOUT = Path(__file__).resolve().parents[2]
CORPUS = sorted([*(CHECKOUT / "attn_dsl" / "std").glob("*.attn"), *(CHECKOUT / "examples").rglob("*.attn")])


def formatted(text: str) -> str:
    """`text` laid out, after checking what holds for every layout."""
    file = parse(text)
    result = format_file(file)
    again = parse(result)
    assert again == file
    assert format_file(again) == result
    assert sorted(comments(result)) == sorted(comments(text))
    assert result.endswith("\n")
    assert not re.search(r"[ \t]\n|\n\n\n|\A\n|\n\n\Z", result)
    return result


def comments(text: str) -> list[str]:
    return [text[span.start : span.end].rstrip() for span in scan(Source("", text), grammar()).comments]


def test_the_corpus_is_there():
    assert len(CORPUS) > 50


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_library_and_the_examples_are_in_the_one_layout(path):
    assert formatted(read_source(path).text) == path.read_text()


@settings(max_examples=400)
@given(files())
def test_any_tree_is_written_so_that_it_parses_to_itself(file):
    written = format_file(file)
    again = parse_source(Source("<written>", written))
    assert again == file
    assert format_file(again) == written


@settings(max_examples=300)
@given(expressions(max_leaves=40))
def test_any_expression_folds_without_a_change(expression):
    span = expression.span
    file = tree.File(span.source, (tree.Clause("score", expression, span=span),))
    written = format_file(file)
    assert parse_source(Source("<written>", written)) == file


LAYOUTS = [
    # spacing and parentheses: no more than the meaning needs
    ("mask=( a )and(b<c)or not(d)", "mask = a and b < c or not d"),
    ("score=((score+(a*b)))-((c-d))", "score = score + a * b - (c - d)"),
    ("let x=-( -a)*( - b )", "let x = --a * -b"),
    ("let x=(a<b)<c", "let x = (a < b) < c"),
    ("let x=(a<b)==(not c)", "let x = (a < b) == (not c)"),
    ("let x=(a if b else c)if d else(e if f else g)", "let x = (a if b else c) if d else e if f else g"),
    ("let x=(a if b else c)+1", "let x = (a if b else c) + 1"),
    ("let x=f ( a ,b=1, )", "let x = f(a, b = 1)"),
    ("let x=sum(i in 0 ..= n-1:t[ i,0 ])", "let x = sum(i in 0..=n - 1: t[i, 0])"),
    ("a , b :bf16 [ c,2*d , ]", "a, b: bf16[c, 2 * d]"),
    ("view v=k[ :,0 , 1..,..=2 ]", "view v = k[:, 0, 1.., ..=2]"),
    ("param a:float [ heads ]in 0.5 .. 1.5=1.0", "param a: float[heads] in 0.5..1.5 = 1.0"),
    ("from   std . window import a   as b,c as c", "from std.window import a as b, c"),
    ("from . x.y import a", "from .x.y import a"),
    ("def f ( )->int=3", "def f() -> int = 3"),
    ("def f(a:int,b:f32[_,_],)->int{let c=a,c+1}", "def f(a: int, b: f32[_, _]) -> int { let c = a, c + 1 }"),
    ("lengths q{used=a,}", "lengths q { used = a }"),
    ("paged{ }", "paged {}"),
    ("align  offset( a )", "align offset(a)"),
    # numbers keep their spelling
    ("let x=0x1F+1_000+0b1+1E3+(0x10)", "let x = 0x1F + 1_000 + 0b1 + 1E3 + 0x10"),
    # a block written on several lines stays on several
    ("schedule{\ntile_q=1,tile_k=2}", "schedule {\n    tile_q = 1\n    tile_k = 2\n}"),
    ("def f(a:int)->int{\nlet b=a\n\n\nb}", "def f(a: int) -> int {\n    let b = a\n\n    b\n}"),
    # blank lines: at most one, none at the ends
    ("\n\nlet a=1\n\n\n\nlet b=2\nlet c=3\n\n", "let a = 1\n\nlet b = 2\nlet c = 3"),
]


@pytest.mark.parametrize(("text", "expected"), LAYOUTS, ids=[text for text, _ in LAYOUTS])
def test_layout(text, expected):
    assert formatted(text) == expected + "\n"


def test_long_lines_fold_inside_their_brackets():
    long = "a_rather_long_name_for_a_value"
    assert formatted(f"mask = {long} and {long} < 3 or {long} == 4 and {long}") == (
        f"mask = (\n    {long} and {long} < 3\n    or {long} == 4 and {long}\n)\n"
    )
    assert formatted(f"let value_with_a_long_name = f({long}, {long} + 1, g = 3)") == (
        f"let value_with_a_long_name = f(\n    {long}, {long} + 1, g = 3\n)\n"
    )
    assert formatted(f"let x = f({long}, {long} + 1, g = {long}, {long})") == (
        f"let x = f(\n    {long},\n    {long} + 1,\n    g = {long},\n    {long}\n)\n"
    )
    assert formatted(f"let x = {long} if {long} else {long} if {long} else {long}") == (
        f"let x = (\n    {long} if {long}\n    else {long} if {long}\n    else {long}\n)\n"
    )
    assert formatted(f"def f({long}: int, b_{long}: int) -> int = {long} + 3") == (
        f"def f({long}: int, b_{long}: int) -> int = (\n    {long} + 3\n)\n"
    )
    assert formatted(f"def f({long}: int, b_{long}: int, c: int) -> bool = 3") == (
        f"def f(\n    {long}: int, b_{long}: int, c: int\n) -> bool = 3\n"
    )
    assert formatted(f"q: f32[{long}, {long}, {long}, {long}]") == (
        f"q: f32[\n    {long},\n    {long},\n    {long},\n    {long}\n]\n"
    )
    assert formatted(f"lengths k {{ used = {long}, left_pad = {long} + {long} }}") == (
        f"lengths k {{\n    used = {long}\n    left_pad = {long} + {long}\n}}\n"
    )


def test_lines_are_longer_than_the_width_only_without_a_bracket_to_fold():
    rng = random.Random(5)
    for _ in range(60):
        terms = [f"name_{rng.randrange(10 ** rng.randrange(1, 9))}" for _ in range(rng.randrange(2, 40))]
        text = f"let x = {terms[0]}" + "".join(f" {rng.choice('+-*')} {term}" for term in terms[1:])
        assert max(map(len, formatted(text).splitlines())) <= WIDTH
        assert max(map(len, formatted(f"let x = f({', '.join(terms)})").splitlines())) <= WIDTH


def test_comments_stay_where_they_belong():
    text = """
#   head

mask = ( # start
    causal   # no future
    # own line
    and window(3, # three
       tokens = 4)  # behind the call
    # end
)
schedule { # hints
   tile_q = 3 # a

   # own

   longer_key = 64 # b
   # last
}
def f(a: int, # first
   b: int # second
   ) -> int { let x = a # named
   # before the value
   x + 1 # value
   }
const one: int = 1 # x
const three: int = 3   # y
# tail"""
    assert (
        formatted(text)
        == """#   head

mask = (
    # start
    causal  # no future
    # own line
    and window(
        3,  # three
        tokens = 4
    )  # behind the call
    # end
)
schedule {
    # hints
    tile_q = 3  # a

    # own

    longer_key = 64  # b
    # last
}
def f(
    a: int,  # first
    b: int   # second
) -> int {
    let x = a  # named
    # before the value
    x + 1  # value
}
const one: int = 1    # x
const three: int = 3  # y
# tail
"""
    )


def test_a_comment_that_can_stand_nowhere_else_goes_above_its_statement():
    assert formatted("let a = 1\nscore = -( # lost\n  score)") == "let a = 1\n# lost\nscore = -score\n"
    assert formatted("let a = 1\n\nparam x: int[ # one\n heads # two\n] = 3 # kept") == (
        "let a = 1\n\n# one\n# two\nparam x: int[heads] = 3  # kept\n"
    )
    assert formatted("let x = f(-( # lost\n a), b)") == "# lost\nlet x = f(-a, b)\n"
    assert formatted("paged { # empty\n}") == "# empty\npaged {}\n"


def test_comments_anywhere_in_the_corpus_survive():
    rng = random.Random(11)
    breaks = re.compile(r"(?<=[(\[,])|\n")
    for path in CORPUS:
        text = read_source(path).text
        for _ in range(2):
            changed = text
            for number in range(rng.randint(1, 5)):
                places = [match.start() for match in breaks.finditer(changed) if _is_code(changed, match.start())]
                place = rng.choice(places)
                here = rng.choice((f" # note {number}\n", f"\n# note {number}\n", f"\n\n\n  # note {number}\n\n"))
                candidate = changed[:place] + here + changed[place:]
                if _parses(candidate):
                    changed = candidate
            formatted(changed)


def _is_code(text: str, place: int) -> bool:
    return not any(span.start < place < span.end for span in scan(Source("", text), grammar()).comments)


def _parses(text: str) -> bool:
    try:
        return bool(parse(text).statements)
    except AttnSyntaxError:
        return False


def test_a_number_that_was_written_by_hand_is_kept_and_a_made_one_is_spelled():
    span = value("1").span
    made = tree.File(Source("", ""), (tree.Let(tree.Name("x", span=span), tree.Literal(1e-06, span=span), span=span),))
    assert format_file(made) == "let x = 1e-06\n"
    assert parse(format_file(made)) == made
