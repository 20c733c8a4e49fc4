"""attn-dsl: a small declarative language for attention variants, and its compiler.

    import attn_dsl

    attention = attn_dsl.compile("examples/mistral_window.attn")
    o, lse = attention(q, k, v, window_tokens=1024, return_lse=True)

Parsing and checking do not import torch; compiling does.
"""

from ._version import __version__
from .api import capabilities, compile, load, parse
from .diagnostics import (
    AttnDslError,
    AttnSyntaxError,
    CallError,
    Diagnostic,
    PlanError,
    SpecError,
    UnsupportedError,
)
from .spec import AttentionSpec
from .spec.model import UNBOUNDED

__all__ = [
    "UNBOUNDED",
    "AttentionSpec",
    "AttnDslError",
    "AttnSyntaxError",
    "CallError",
    "Diagnostic",
    "PlanError",
    "SpecError",
    "UnsupportedError",
    "__version__",
    "capabilities",
    "compile",
    "load",
    "parse",
]
