"""The lexer and the TextMate grammar know the words of the language, all of them and no others."""

import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from attn_dsl.highlight import words
from attn_dsl.highlight.textmate import PATH, text, textmate_grammar
from attn_dsl.spec import names
from attn_dsl.syntax.grammar import grammar

pygments = pytest.importorskip("pygments")
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Token  # noqa: E402

from attn_dsl.highlight.lexer import AttnLexer  # noqa: E402

CHECKOUT = Path(__file__).parents[2]
SPECS = sorted([*(CHECKOUT / "examples").glob("*.attn"), *(CHECKOUT / "attn_dsl" / "std").glob("*.attn")])
SPEC = """# causal
from std.window import window
q: bf16[batch, seq_q, heads, dim]
param tokens: int in 1.. = 4_096
align bottom_right
mask = window(tokens) and not kv_idx == 0x1f
score = score * 1.5e-3 if h < 2 else max(score, 0.0)
"""


def test_every_word_is_in_one_class():
    found = [word for each in words() for word in each.words]
    assert len(found) == len(set(found))
    assert set(grammar().words) <= set(found)
    assert {*names.INDEX_NAMES, *names.STANDARD_AXES, *names.FUNCTIONS, *names.REDUCTIONS, *names.DTYPES} <= set(found)


def test_the_page_of_the_language_lists_the_reserved_words():
    page = (CHECKOUT / "docs" / "language.md").read_text("utf-8")
    listed = re.search(r"Reserved words: `([^`]*)`", page)[1].split()
    statements = {each.name: set(each.words) for each in words()}
    reserved = statements["statement"] | statements["logic"] | statements["literal"] | {"score"}
    assert set(listed) == reserved == set(grammar().words)


def test_the_entry_point_names_the_lexer():
    (entry,) = [each for each in entry_points(group="pygments.lexers") if each.name == "attn"]
    assert entry.load() is AttnLexer
    assert isinstance(pygments.lexers.get_lexer_for_filename("window.attn"), AttnLexer)


def test_tokens():
    found = [(kind, value) for kind, value in AttnLexer().get_tokens(SPEC) if value.strip()]
    expected = [
        (Comment.Single, "# causal"),
        (Keyword, "from"),
        (Keyword.Type, "bf16"),
        (Name.Variable.Global, "q"),
        (Name.Constant, "heads"),
        (Keyword, "param"),
        (Name, "tokens"),
        (Operator.Word, "in"),
        (Number.Integer, "4_096"),
        (Name.Attribute, "bottom_right"),
        (Name.Function, "window"),
        (Operator.Word, "not"),
        (Name.Variable.Magic, "kv_idx"),
        (Number.Integer, "0x1f"),
        (Number.Float, "1.5e-3"),
        (Name.Builtin, "max"),
        (Name.Variable.Magic, "score"),
    ]
    assert set(expected) <= set(found)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_whole_files_and_nothing_lost(path):
    source = path.read_text("utf-8")
    tokens = list(AttnLexer(stripnl=False, ensurenl=False).get_tokens(source))
    assert "".join(value for _, value in tokens) == source
    assert all(kind is not Error and kind is not Token.Text for kind, _ in tokens)


def test_what_is_no_token_is_an_error():
    assert (Error, "$") in list(AttnLexer().get_tokens("mask = $"))


def test_the_textmate_grammar_is_current():
    assert PATH.read_text("utf-8") == text(), "run `python -m attn_dsl.highlight.textmate`"
    assert json.loads(text())["scopeName"] == "source.attn"


def scope(source, place):
    """The scope that the first matching pattern gives to the character at `place`."""
    position = 0
    while position < len(source):
        matches = [
            (found.start(), number, found, pattern)
            for number, pattern in enumerate(textmate_grammar()["patterns"])
            if (found := re.compile(pattern["match"], re.MULTILINE).search(source, position)) and found.end() > position
        ]
        if not matches:
            return None
        _, _, found, pattern = min(matches, key=lambda row: row[:2])
        if found.start() <= place < found.end():
            for group, capture in pattern.get("captures", {}).items():
                if found.start(int(group)) <= place < found.end(int(group)):
                    return capture["name"]
            return pattern.get("name")
        position = found.end()
    return None


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("# causal", "comment.line.number-sign.attn"),
        ("from", "keyword.control.attn"),
        ("bf16", "storage.type.attn"),
        ("heads", "variable.other.constant.attn"),
        ("4_096", "constant.numeric.attn"),
        ("1.5e-3", "constant.numeric.attn"),
        ("kv_idx", "variable.language.attn"),
        ("window(", "entity.name.function.attn"),
        ("max(", "support.function.attn"),
        ("==", "keyword.operator.attn"),
        ("not", "keyword.operator.word.attn"),
    ],
)
def test_scopes_of_the_textmate_grammar(word, expected):
    assert scope(SPEC, SPEC.index(word)) == expected
    assert scope("def near(n: int) -> bool = true", 4) == "entity.name.function.attn"
