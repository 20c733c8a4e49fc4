"""What an inference engine does around compiled calls: joining results that saw different keys, filling pages."""

from .append import append_kv
from .join import merge

__all__ = ["append_kv", "merge"]
