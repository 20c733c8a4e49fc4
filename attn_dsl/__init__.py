"""attn-dsl: a small declarative language for attention variants, and its compiler.

    import attn_dsl

    attention = attn_dsl.compile("examples/mistral_window.attn")
    o, lse = attention(q, k, v, window_tokens=1024, return_lse=True)

Parsing and checking do not import torch; compiling does.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .api import capabilities, compile, load, load_bundle, parse
from .diagnostics import (
    AttnDslError,
    AttnSyntaxError,
    CallError,
    ConversionError,
    Diagnostic,
    PlanError,
    SpecError,
    UnsupportedError,
)
from .spec import AttentionSpec
from .spec.display import DISPLAY
from .spec.model import UNBOUNDED

if TYPE_CHECKING:
    from .convert import block_lists, from_flex, from_triton
    from .serving import append_kv, merge

__all__ = [
    "UNBOUNDED",
    "AttentionSpec",
    "AttnDslError",
    "AttnSyntaxError",
    "CallError",
    "ConversionError",
    "Diagnostic",
    "PlanError",
    "SpecError",
    "UnsupportedError",
    "__version__",
    "append_kv",
    "block_lists",
    "capabilities",
    "compile",
    "from_flex",
    "from_triton",
    "load",
    "load_bundle",
    "merge",
    "parse",
]


_WITH_TORCH = {
    "append_kv": "serving",
    "block_lists": "convert",
    "from_flex": "convert",
    "from_triton": "convert",
    "merge": "serving",
}


def __getattr__(name: str) -> Any:
    """Functions on tensors, imported when they are first used because they import torch."""
    if name in _WITH_TORCH:
        from importlib import import_module

        return getattr(import_module(f".{_WITH_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _html(spec: AttentionSpec) -> str:
    from .notebook import html

    return html(spec)


DISPLAY.html = _html
