"""Specs and other frozen values of this package as JSON, and back: what a bundle says about its kernels.

A dataclass is an object with its class under `"is"`; an expression is a number, its place in a table of nodes in which
operands come before their users, so shared parts are written once. Nothing but the classes named here is ever made.
"""

from __future__ import annotations

import dataclasses
import math
from enum import Enum
from typing import Any

from attn_dsl.lowering.forward import ParamArgument, ShapeClass

from ..expr import Expr, ValueType
from ..expr.node import children_first
from ..spec import model

_CLASSES = {
    kind.__name__: kind
    for kind in (
        *(model.Align, model.AttentionSpec, model.Axis, model.Lengths, model.Output, model.Paging, model.Param),
        *(model.Slice, model.Tensor, model.View, ParamArgument, ShapeClass),
    )
}
_ENUMS = {kind.__name__: kind for kind in (model.AlignKind, model.DType, model.Role, ValueType)}
_LEFT_OUT = ("origin",)  # the text a spec came from
Plain = dict[str, Any]


def to_plain(value: Any) -> Plain:
    """`value` as dictionaries, lists, strings and numbers. Raises TypeError for what is not of this package."""
    roots: list[Expr] = []
    _collect(value, roots)
    nodes = list(children_first(roots))
    places = {node: place for place, node in enumerate(nodes)}
    table = [[n.op, [places[a] for a in n.args], _scalar(n.attr), n.type.name] for n in nodes]
    return {"nodes": table, "value": _encode(value, places)}


def from_plain(plain: Plain) -> Any:
    """The value. Raises KeyError, TypeError, ValueError or IndexError if `plain` is not what `to_plain` gives."""
    nodes: list[Expr] = []
    for op, arguments, attr, kind in plain["nodes"]:
        nodes.append(Expr(op, tuple(nodes[place] for place in arguments), _unscalar(attr), ValueType[kind]))
    return _decode(plain["value"], nodes)


def _collect(value: Any, roots: list[Expr]) -> None:
    if isinstance(value, Expr):
        roots.append(value)
    elif isinstance(value, tuple | frozenset):
        for item in value:
            _collect(item, roots)
    elif dataclasses.is_dataclass(value):
        for name in _fields(value):
            _collect(getattr(value, name), roots)


def _fields(value: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(value) if field.name not in _LEFT_OUT]


def _scalar(value: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _unscalar(value: Any) -> Any:
    return float(value["float"]) if isinstance(value, dict) else value


def _encode(value: Any, places: dict[Expr, int]) -> Any:
    if isinstance(value, Expr):
        return {"node": places[value]}
    if isinstance(value, Enum):
        return {"one of": type(value).__name__, "name": value.name}
    if isinstance(value, tuple):
        return [_encode(item, places) for item in value]
    if isinstance(value, frozenset):
        return {"nodes": sorted(places[item] for item in value)}
    if value is None or isinstance(value, bool | int | float | str):
        return _scalar(value)
    if type(value).__name__ not in _CLASSES:
        raise TypeError(f"{type(value).__name__} has no plain form")
    return {"is": type(value).__name__, **{name: _encode(getattr(value, name), places) for name in _fields(value)}}


def _decode(plain: Any, nodes: list[Expr]) -> Any:
    if isinstance(plain, list):
        return tuple(_decode(item, nodes) for item in plain)
    if not isinstance(plain, dict):
        return plain
    if "float" in plain:
        return _unscalar(plain)
    if "node" in plain:
        return nodes[plain["node"]]
    if "nodes" in plain:
        return frozenset(nodes[place] for place in plain["nodes"])
    if "one of" in plain:
        return _ENUMS[plain["one of"]][plain["name"]]
    values = {name: _decode(item, nodes) for name, item in plain.items() if name != "is"}
    return _CLASSES[plain["is"]](**values)
