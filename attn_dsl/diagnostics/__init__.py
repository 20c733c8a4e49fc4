"""What can go wrong and how it is said: sources, spans, diagnostics, rules and codes, the exception family."""

from .core import MAX_FINDINGS, Diagnostic, Diagnostics, Severity, Source, Span, TooManyFindings
from .errors import AttnDslError, AttnSyntaxError, CallError, ConversionError, PlanError, SpecError, UnsupportedError
from .render import render
from .rules import RULES, Rule
from .suggest import did_you_mean

__all__ = [
    "MAX_FINDINGS",
    "RULES",
    "AttnDslError",
    "AttnSyntaxError",
    "CallError",
    "ConversionError",
    "Diagnostic",
    "Diagnostics",
    "PlanError",
    "Rule",
    "Severity",
    "Source",
    "Span",
    "SpecError",
    "TooManyFindings",
    "UnsupportedError",
    "did_you_mean",
    "render",
]
