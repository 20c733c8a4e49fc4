"""Why something of another tool cannot be written in the language, before the place is known."""

from __future__ import annotations

from ..diagnostics import ConversionError, Diagnostic, Span


class Refusal(Exception):
    """What has no spelling in the language. A front end turns it into a `ConversionError` with a place."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def at(self, span: Span | None) -> ConversionError:
        """The error a user sees (E400)."""
        return ConversionError((Diagnostic("E400", self.message, span, self.hint),))
