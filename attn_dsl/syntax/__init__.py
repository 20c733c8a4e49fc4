"""Text to syntax tree and back: the grammar, the parser with its messages, the formatter."""

from .formatter import format_file
from .parser import parse_source
from .source import read_source

__all__ = ["format_file", "parse_source", "read_source"]
