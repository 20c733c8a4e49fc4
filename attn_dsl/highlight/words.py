"""The words and tokens of the language by what they are, read from the grammar and the lists of names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..spec.names import (
    DTYPES,
    FUNCTIONS,
    INDEX_NAMES,
    OPERANDS,
    OUTPUTS,
    PACK_MODES,
    REDUCTIONS,
    STANDARD_AXES,
    VALUE_TYPES,
)
from ..syntax.grammar import grammar

_LITERALS = ("true", "false", "unbounded")
_LOGIC = ("and", "or", "not", "if", "else", "in")  # operators that are words
_ALIGN_KINDS = ("bottom_right", "top_left", "offset")  # kinds of `align`: no reserved words, but always named so


@dataclass(frozen=True)
class WordClass:
    """Words that look alike in an editor."""

    name: str
    words: tuple[str, ...]
    pygments: str  # token type, dotted, below `Token`
    scope: str  # of a TextMate grammar, without the language's suffix


@cache
def words() -> tuple[WordClass, ...]:
    """Every word with a meaning of its own, each in one class; longer words of a class stand first."""
    reserved = set(grammar().words)
    statements = reserved - set(_LITERALS) - set(_LOGIC) - set(INDEX_NAMES)
    rows = (
        ("statement", statements, "Keyword", "keyword.control"),
        ("logic", _LOGIC, "Operator.Word", "keyword.operator.word"),
        ("literal", _LITERALS, "Keyword.Constant", "constant.language"),
        ("type", (*DTYPES, *VALUE_TYPES, "dtype"), "Keyword.Type", "storage.type"),
        ("index", INDEX_NAMES, "Name.Variable.Magic", "variable.language"),
        ("function", (*FUNCTIONS, *REDUCTIONS), "Name.Builtin", "support.function"),
        ("tensor", (*OPERANDS, *OUTPUTS), "Name.Variable.Global", "variable.parameter"),
        ("axis", STANDARD_AXES, "Name.Constant", "variable.other.constant"),
        ("mode", (*PACK_MODES, *_ALIGN_KINDS), "Name.Attribute", "entity.other.attribute-name"),
    )
    seen: set[str] = set()
    classes = []
    for name, found, pygments, scope in rows:
        fresh = sorted({word for word in found if word not in seen}, key=lambda word: (-len(word), word))
        seen.update(fresh)
        classes.append(WordClass(name, tuple(fresh), pygments, scope))
    return tuple(classes)


def operators() -> tuple[str, ...]:
    """Every operator and mark of punctuation, longer ones first."""
    return tuple(sorted(grammar().symbols, key=lambda text: (-len(text), text)))
