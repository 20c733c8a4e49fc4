"""attn-dsl: a small declarative language for attention variants, and its compiler."""

from attn_dsl._version import __version__

__all__ = ["__version__"]
