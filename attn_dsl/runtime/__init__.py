"""From a typed spec to something that can be called: targets, call-time checks, the compiled object, inputs to try."""

from .binding import Call, bind
from .bundle import load_bundle, write_bundle
from .capabilities import capabilities
from .compiled import CompiledAttention
from .inputs import Inputs, random_inputs
from .targets import compile_for

__all__ = [
    "Call",
    "CompiledAttention",
    "Inputs",
    "bind",
    "capabilities",
    "compile_for",
    "load_bundle",
    "random_inputs",
    "write_bundle",
]
