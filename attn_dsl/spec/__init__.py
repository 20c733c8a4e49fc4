"""The typed spec, and the checker that makes one from a syntax tree."""

from .keys import interface_key, meaning_key, plan_key
from .model import AttentionSpec, DType, Role
from .resolve import Checked, check, resolve

__all__ = ["AttentionSpec", "Checked", "DType", "Role", "check", "interface_key", "meaning_key", "plan_key", "resolve"]
