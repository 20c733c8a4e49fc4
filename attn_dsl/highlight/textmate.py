"""The TextMate grammar of `.attn` files, as Visual Studio Code, Sublime Text and GitHub read them.

`python -m attn_dsl.highlight.textmate` writes `attn.tmLanguage.json` beside this file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from .words import operators, words

PATH = Path(__file__).with_name("attn.tmLanguage.json")
_NUMBER = r"\b(?:0[xX][0-9A-Fa-f_]+|0[bB][01_]+|[0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9]+)?)\b"


def textmate_grammar() -> dict[str, object]:
    """The grammar as the JSON object of a `.tmLanguage.json` file."""
    patterns: list[dict[str, object]] = [
        {"name": "comment.line.number-sign.attn", "match": "#.*$"},
        {"name": "constant.numeric.attn", "match": _NUMBER},
        {
            "match": r"\b(def)\s+([A-Za-z_][A-Za-z0-9_]*)",
            "captures": {"1": {"name": "keyword.control.attn"}, "2": {"name": "entity.name.function.attn"}},
        },
    ]
    for each in words():
        patterns.append({"name": f"{each.scope}.attn", "match": rf"\b(?:{'|'.join(each.words)})\b"})
    patterns.append({"name": "entity.name.function.attn", "match": r"\b[A-Za-z_][A-Za-z0-9_]*(?=\()"})
    symbols = [symbol for symbol in operators() if symbol not in "()[]{},:"]
    patterns.append({"name": "keyword.operator.attn", "match": "|".join(re.escape(symbol) for symbol in symbols)})
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "attn",
        "scopeName": "source.attn",
        "fileTypes": ["attn"],
        "patterns": patterns,
    }


def text() -> str:
    """The grammar as the text of its file."""
    return json.dumps(textmate_grammar(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
