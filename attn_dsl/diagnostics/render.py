"""Diagnostics as text: `file:line:column: error[CODE]: message`, the source line, a caret, a hint."""

from __future__ import annotations

from .core import Diagnostic

_MAX_LINE = 120  # characters of a source line that are shown


def render(diagnostic: Diagnostic) -> str:
    """The diagnostic as the lines a terminal shows, without a trailing newline."""
    head = f"{diagnostic.severity.value}[{diagnostic.code}]: {diagnostic.message}"
    lines: list[str] = []
    span = diagnostic.span
    if span is None:
        lines.append(head)
    else:
        lines.append(f"{span.source.name}:{span.line}:{span.column}: {head}")
        text, caret_at, width = _window(span.source.line_text(span.line), span.column - 1, span.end - span.start)
        number = str(span.line)
        lines.append(f"  {number} | {text}")
        lines.append(f"  {' ' * len(number)} | {' ' * caret_at}{'^' * width}")
    if diagnostic.hint:
        lines.append(f"  hint: {diagnostic.hint}")
    return "\n".join(lines)


def _window(line: str, column: int, width: int) -> tuple[str, int, int]:
    """A part of `line` around `column` that fits a terminal, the caret's place in it, the caret's width."""
    start = 0
    if len(line) > _MAX_LINE:
        start = max(0, min(column - _MAX_LINE // 2, len(line) - _MAX_LINE))
        line = line[start : start + _MAX_LINE]
    line = "".join(character if character.isprintable() else " " for character in line)
    caret_at = min(column - start, len(line))
    return line, caret_at, max(1, min(width, len(line) - caret_at))
