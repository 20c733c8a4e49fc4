"""Colours for `.attn` text: a Pygments lexer and a TextMate grammar, both made from the language's own words."""

from .words import WordClass, words

__all__ = ["WordClass", "words"]
