"""What the emulator raises: `AttnDslError` with codes E30x (PTX text) and E31x (the device)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..diagnostics import AttnDslError, Diagnostic, Source, Span

if TYPE_CHECKING:
    from .report import Finding


class EmulatorError(AttnDslError):
    """The virtual device cannot do what it was asked (E31x)."""

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel between processes with everything they know."""
        return type(self), (self.diagnostics,), dict(self.__dict__)


class PtxError(EmulatorError):
    """The PTX text is malformed, or uses something that is not modelled (E30x)."""

    @classmethod
    def at(cls, code: str, message: str, source: Source, start: int, end: int, hint: str | None = None) -> PtxError:
        """An error about characters [start, end) of the PTX text."""
        return cls((Diagnostic(code, message, Span(source, start, end), hint),))


class KernelFinding(EmulatorError):
    """A kernel did something wrong (E319); `findings` lists everything that was found up to the stop."""

    findings: tuple[Finding, ...] = ()
