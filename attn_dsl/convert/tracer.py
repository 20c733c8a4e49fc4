"""Running a mask or score function on symbols: torch.fx records every operation, and each gets its meaning at once.

The user's function is called, never its text executed. Numbers and tensors that it finds in its closure or its module
are handed to it as symbols with their names; where Python itself needs such a number (`range(n)`, `if flag`), the
function is run again with that number as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from ..expr import FLOAT, Expr, children_first
from ..runtime.dtypes import SPELLINGS
from ..spec.model import DType
from .arithmetic import Arithmetic, plain
from .refusal import Refusal
from .sheet import Capture, Sheet
from .torch_functions import GETITEM, meanings, name_of

_NARROWED = {torch.int64: torch.int32, torch.int16: torch.int32, torch.float64: torch.float32}
_DTYPES = {spelling: dtype for dtype in DType for spelling in [dtype.spelling]}
PYTHON = "write it with torch functions: torch.where, &, |, ~, torch.maximum, torch.clamp"


@dataclass(frozen=True)
class Partial:
    """A captured tensor with its first indices."""

    capture: Capture
    indices: tuple[Expr, ...] = ()

    @property
    def rank(self) -> int:
        assert self.capture.tensor is not None
        return self.capture.tensor.dim()


class NeedsValue(Exception):
    """Python asked for the value of a symbol made of named numbers alone."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


class Symbol(fx.Proxy):
    """A traced value. Python may not look at it; shapes and dtypes are known."""

    @property
    def meaning(self) -> Any:
        return self.node.meta["meaning"]

    @property
    def dtype(self) -> torch.dtype:
        if isinstance(self.meaning, Partial):
            assert self.meaning.capture.tensor is not None
            return self.meaning.capture.tensor.dtype
        return {"bool": torch.bool, "int": torch.int64, "float": torch.float32}[self.meaning.type.value]

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def shape(self) -> torch.Size:
        if not isinstance(self.meaning, Partial):
            return torch.Size(())
        assert self.meaning.capture.tensor is not None
        return self.meaning.capture.tensor.shape[len(self.meaning.indices) :]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.shape.numel()

    def __len__(self) -> int:
        if not self.shape:
            self._look("len()")
        return self.shape[0]

    def __float__(self) -> float:
        return self._look("float()")

    def __int__(self) -> int:
        return self._look("int()")

    def __index__(self) -> int:
        return self._look("an index of Python's")

    def __iter__(self) -> Any:
        if not self.shape:
            self._look("a loop")
        return iter([self.__getitem__(place) for place in range(self.shape[0])])

    def __contains__(self, item: Any) -> bool:
        return self._look("`in`")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise Refusal("a mask or score changes no tensor")

    def item(self) -> Any:
        return self._look("item()")

    tolist = item

    def _look(self, what: str) -> NoReturn:
        look(self.meaning, what)


def look(meaning: Any, what: str, hint: str = PYTHON) -> NoReturn:
    """Refuses to tell Python a value, or asks for another run if the value is one of named numbers."""
    leaves = [] if isinstance(meaning, Partial) else [n for n in children_first([meaning]) if not n.args]
    names = {str(leaf.attr) for leaf in leaves if leaf.op == "param"}
    if names and all(leaf.op in ("param", "const") for leaf in leaves):
        raise NeedsValue(names)
    raise Refusal(f"{what} needs the value of what differs from pair to pair", hint)


class Tracer(fx.Tracer):
    """Records one function's operations and gives each its meaning in `sheet`."""

    def __init__(self, sheet: Sheet, concrete: set[str], params: set[str]) -> None:
        super().__init__()
        self.sheet = sheet
        self.arithmetic = Arithmetic(sheet.build, sheet.leaf_interval)
        self.meanings = meanings(self.arithmetic)
        self.graph = fx.Graph(tracer_cls=Tracer)
        self.root = torch.nn.Module()
        self.concrete = concrete
        self.params = params
        self.origins: dict[str, str] = {}  # name of a scalar in the sheet -> the Python name it came from
        self.names: dict[int, str] = {}  # id of a tensor in a container -> the container's name
        self._symbols: dict[int, Symbol] = {}  # id of a captured tensor -> its symbol
        self._kept: list[Tensor] = []  # keeps those ids from being reused

    # -- torch.fx's hooks -------------------------------------------------------------------------------------------

    def proxy(self, node: fx.Node) -> Symbol:
        return Symbol(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        look(obj.node.meta["meaning"], "`if`, `and`, `or`, `not`, a chained comparison, `min` or `max`")

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor):
            return a if a.dim() == 0 else self.tensor(a).node
        return super().create_arg(plain(a))

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Symbol:
        if kind in ("call_function", "call_method"):
            if target is getattr:
                raise Refusal(f"a mask or score does not read '.{args[1]}' of what differs from pair to pair", PYTHON)
            meaning = self._meaning(target, args, kwargs)
        symbol = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        assert isinstance(symbol, Symbol)
        if kind in ("call_function", "call_method"):
            symbol.node.meta["meaning"] = meaning
        return symbol

    # -- leaves -----------------------------------------------------------------------------------------------------

    def leaf(self, name: str, meaning: Any) -> Symbol:
        symbol = super().create_proxy("placeholder", name, (), {})
        assert isinstance(symbol, Symbol)
        symbol.node.meta["meaning"] = meaning
        return symbol

    def tensor(self, value: Tensor, name: str | None = None) -> Symbol:
        """The symbol of a captured tensor."""
        known = self._symbols.get(id(value))
        if known is None:
            capture = capture_of(self.sheet, value, name or self.names.get(id(value), "table"))
            known = self._symbols[id(value)] = self.leaf(capture.name, Partial(capture))
            self._kept.append(value)
        return known

    def number(self, value: int | float, name: str, *, tensor: Tensor | None = None) -> Symbol | int | float:
        """The symbol of a named number; the number itself where Python has asked for it, or if it has no literal."""
        if name in self.concrete or not math.isfinite(value):
            return value
        is_param = tensor is not None or name in self.params
        leaf = self.sheet.scalar(name, value, is_param=is_param, tensor=tensor)
        self.origins[str(leaf.attr)] = name
        return self.leaf(name, leaf)

    # -- operations -------------------------------------------------------------------------------------------------

    def _meaning(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        values = [self._value(arg) for arg in args]
        named = {key: self._value(arg) for key, arg in kwargs.items() if key != "out"}
        if target in GETITEM:
            return self._read(values[0], values[1])
        name = name_of(target)
        function = self.meanings.get(name)
        if function is None:
            raise Refusal(f"'{name}' has no spelling in the language", "docs/language.md lists its functions")
        values = [self._whole(value) for value in values]
        named = {key: self._whole(value) for key, value in named.items()}
        try:
            return function(*values, **named)
        except TypeError as error:  # arguments that the table's function does not take
            raise Refusal(f"'{name}' is called with arguments that have no meaning here") from error

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, Symbol):
            return arg.meaning
        if isinstance(arg, Tensor):
            return self._one_element(arg) if arg.dim() == 0 else self.tensor(arg).meaning
        if isinstance(arg, tuple | list):
            return tuple(self._value(item) for item in arg)
        return arg

    def _one_element(self, value: Tensor) -> Any:
        """A tensor of one element that no variable of the function holds: the attribute of an object, or a result."""
        name = self.names.get(id(value))
        number = value.item()
        if (name is not None or value.requires_grad) and not isinstance(number, bool):
            found = self.number(number, name or "value", tensor=narrowed(value))
            return found.meaning if isinstance(found, Symbol) else self.arithmetic.node(found)
        self.sheet.notes[f"a tensor of one element is used as the constant {number}"] = None
        return self.arithmetic.node(number)

    def _whole(self, value: Any) -> Any:
        if isinstance(value, Partial):
            left = value.rank - len(value.indices)
            message = f"'{value.capture.name}' is used with {left} of its {value.rank} axes unread"
            raise Refusal(message, "read one element: give an index to each axis")
        return value

    def _read(self, base: Any, key: Any) -> Any:
        if not isinstance(base, Partial):
            if key in ((), Ellipsis):
                return base
            raise Refusal("a single number has no elements to read")
        indices = base.indices
        for index in key if isinstance(key, tuple) else (key,):
            indices = (*indices, self._index(base.capture, len(indices), index))
        if len(indices) > base.rank:
            raise Refusal(f"'{base.capture.name}' has {base.rank} axes; given {len(indices)} indices")
        if len(indices) < base.rank:
            return Partial(base.capture, indices)
        return self.sheet.build.read(base.capture.name, indices, base.capture.dtype.value_type)

    def _index(self, capture: Capture, place: int, index: Any) -> Expr:
        if index is None or isinstance(index, slice) or index is Ellipsis:
            raise Refusal(f"'{capture.name}' is read one element at a time", "give an index to each axis")
        node = self.arithmetic.node(self._whole(index))
        if node.type is FLOAT or node.type.value == "bool":
            raise Refusal(f"an index of '{capture.name}' is {node.type}, not int", "convert it: .to(torch.int32)")
        assert capture.tensor is not None
        if node.is_const and isinstance(node.attr, int) and node.attr < 0 and place < capture.tensor.dim():
            return self.sheet.build.const(node.attr + capture.tensor.shape[place])
        if not self.arithmetic.never_negative(node):
            note = f"an index of {capture.name} may be negative: attn reads element 0 there, torch counts from the end"
            self.sheet.notes[note] = None
        return node


def capture_of(sheet: Sheet, value: Tensor, name: str) -> Capture:
    """Registers a captured tensor, in a dtype that the language has. Raises Refusal if there is none."""
    name = sheet.free_name(name)
    narrow = _NARROWED.get(value.dtype, value.dtype)
    if narrow not in SPELLINGS:
        raise Refusal(f"'{name}' has dtype {value.dtype}, and no dtype of the language holds its elements")
    if narrow is not value.dtype:
        if narrow is torch.int32 and value.numel() and value.abs().max().item() > 2**31 - 1:
            raise Refusal(f"'{name}' holds {value.dtype} elements that do not fit i32")
        sheet.notes[f"{name} was {value.dtype}; it is handed over as {SPELLINGS[narrow]}"] = None
    axes = [sheet.free_name(f"{name}_{place}") for place in range(value.dim())]
    capture = Capture(name, _DTYPES[SPELLINGS[narrow]], narrowed(value), axes)
    sheet.captures[name] = capture
    return capture


def narrowed(value: Tensor) -> Tensor:
    """A tensor in a dtype of the language: 64-bit elements become 32-bit ones."""
    return value.to(_NARROWED.get(value.dtype, value.dtype))
