"""Copies of a user's functions that find symbols where their closures and globals hold numbers and tensors."""

from __future__ import annotations

import functools
import linecache
import types
from typing import Any

from torch import Tensor, nn

from ..diagnostics import Source, Span
from .arithmetic import plain
from .tracer import Tracer, narrowed

_LIBRARIES = ("torch", "math", "builtins", "functools", "operator")  # whose globals stay as they are


class Rebinder:
    """Rebinds functions for one tracer, each once; knows their code, so that errors can be placed in it."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._made: dict[int, Any] = {}
        self._codes: set[types.CodeType] = set()

    def value(self, value: Any, name: str) -> Any:
        """What a variable called `name` holds, with symbols for numbers and tensors."""
        value = plain(value)
        call = type(value).forward if isinstance(value, nn.Module) else vars(type(value)).get("__call__")
        if isinstance(call, types.FunctionType):  # an object that is called
            return _Members(value, self, self._rebound(call))
        if isinstance(value, types.FunctionType):
            return self._rebound(value)
        if isinstance(value, types.MethodType) and isinstance(value.__func__, types.FunctionType):
            return functools.partial(self._rebound(value.__func__), _Members(value.__self__, self))
        if isinstance(value, functools.partial):
            code = getattr(value.func, "__code__", None)
            names = (*(code.co_varnames if code is not None else ()), *[name] * len(value.args))
            args = [self.value(arg, names[place]) for place, arg in enumerate(value.args)]
            named = {key: self.value(arg, key) for key, arg in value.keywords.items()}
            return functools.partial(self.value(value.func, name), *args, **named)
        if isinstance(value, Tensor):
            if value.dim() > 0:
                return self._tracer.tensor(value, name)
            number = value.item()  # a tensor of one element may change from call to call
            return number if isinstance(number, bool) else self._tracer.number(number, name, tensor=narrowed(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._tracer.number(value, name)
        self._name_members(value)
        if type(value) in (tuple, list):
            return type(value)(self._item(item, name) for item in value)
        if type(value) is dict:
            return {key: self._item(item, str(key)) for key, item in value.items()}
        return value

    def _item(self, value: Any, name: str) -> Any:
        """An element of a container: Python may have any use for its numbers, and few of its tensors may be used."""
        if isinstance(value, Tensor):
            self._tracer.names[id(value)] = name
        is_leaf = isinstance(value, Tensor | int | float)
        return value if is_leaf else self.value(value, name)

    def _name_members(self, value: Any) -> None:
        """Remembers what an object calls its tensors, for functions that read them as attributes."""
        members = [*value.named_parameters(), *value.named_buffers()] if isinstance(value, nn.Module) else []
        if not isinstance(value, type | types.ModuleType):
            members += list(getattr(value, "__dict__", {}).items())
        for label, tensor in members:
            if isinstance(tensor, Tensor):
                self._tracer.names.setdefault(id(tensor), label)

    def _rebound(self, function: types.FunctionType) -> Any:
        made = self._made.get(id(function))
        if made is not None:
            return made
        is_library = (function.__module__ or "").partition(".")[0] in _LIBRARIES
        if is_library and not function.__closure__:
            return function
        self._codes |= _codes(function.__code__)
        cells = tuple(types.CellType() for _ in function.__code__.co_freevars)
        bound = types.FunctionType(
            function.__code__, dict(function.__globals__), function.__name__, function.__defaults__, cells
        )
        bound.__kwdefaults__ = function.__kwdefaults__
        self._made[id(function)] = bound  # before its names: functions may call each other
        if not is_library:
            for name in sorted({name for code in _codes(function.__code__) for name in code.co_names}):
                if name in function.__globals__:
                    bound.__globals__[name] = self.value(function.__globals__[name], name)
        for name, old, new in zip(function.__code__.co_freevars, function.__closure__ or (), cells, strict=True):
            if not _is_empty(old):
                new.cell_contents = self.value(old.cell_contents, name)
        return bound

    def place(self, error: BaseException) -> Span | None:
        """The line of the user's functions that an exception went through last."""
        found = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in self._codes:
                found = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        return None if found is None else _line(*found)


class _Members:
    """An object as functions see it: attributes that are numbers and tensors are symbols. `call` calls it."""

    def __init__(self, target: Any, rebinder: Rebinder, call: Any = None) -> None:
        self._target, self._rebinder, self._call = target, rebinder, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._rebinder.value(getattr(self._target, name), name)


def _is_empty(cell: types.CellType) -> bool:
    """Whether a closure's variable has no value yet."""
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def _codes(code: types.CodeType) -> set[types.CodeType]:
    """A code object and those of the functions and lambdas written inside it."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return {code}.union(*(_codes(const) for const in inner))


def _line(filename: str, number: int) -> Span | None:
    """A line of a source file, without its indentation; None where the file cannot be read."""
    lines = linecache.getlines(filename)
    if not 0 < number <= len(lines):
        return None
    line = lines[number - 1].rstrip()
    start = sum(len(before) for before in lines[: number - 1]) + len(line) - len(line.lstrip())
    return Span(Source(filename, "".join(lines)), start, start + len(line.lstrip()))
