"""The exception family. Every exception carries its diagnostics; `str()` is what the CLI prints."""

from __future__ import annotations

from collections.abc import Iterable

from .core import Diagnostic, Span
from .render import render


class AttnDslError(Exception):
    """Base of everything this package raises on purpose. `diagnostics` is never empty."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(render(item) for item in self.diagnostics))

    @classmethod
    def of(cls, code: str, message: str, *, span: Span | None = None, hint: str | None = None) -> AttnDslError:
        """One error with one diagnostic."""
        return cls((Diagnostic(code, message, span, hint),))

    @property
    def code(self) -> str:
        """The code of the first diagnostic."""
        return self.diagnostics[0].code


class AttnSyntaxError(AttnDslError):
    """The text is no `.attn` file (E20x) or an import cannot be followed (E21x)."""


class SpecError(AttnDslError):
    """The text parses, and its meaning breaks a rule of the language (E22x to E26x)."""


class UnsupportedError(AttnDslError):
    """A valid spec asks a target for something it cannot do (E28x)."""


class PlanError(AttnDslError):
    """A plan breaks one of its own rules (E29x)."""


class CallError(AttnDslError):
    """The tensors or values of a call do not fit the spec (E27x)."""


class ConversionError(AttnDslError):
    """Something of another tool cannot be said in the language, or not used in its place (E40x, E41x)."""
