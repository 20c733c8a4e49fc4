"""Values on the command line: NAME=VALUE pairs, shapes, numbers. Everything malformed is one E283."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable

from ..diagnostics import did_you_mean
from ..expr import INT
from ..spec.model import UNBOUNDED, AttentionSpec, Param
from .console import UsageError

Number = int | float
_I64 = 2**63
_TENSOR_PARAM = re.compile(r"(\w+)(?:\[(\w+)\])?(?::(\w+))?")


def add_constants(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--const",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="replace a compile-time constant of the spec, or fix the extent of an axis; repeatable",
    )


def add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a run-time parameter: a number, 'unbounded', or one value for each element of a declared axis "
        "separated by commas; repeatable",
    )


def add_tensors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tensor",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a tensor from a .npy or .pt file instead of a generated one; repeatable",
    )


def add_tensor_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tensor-param",
        action="append",
        default=[],
        metavar="NAME[AXIS]:DTYPE",
        help="also compile for calls in which a parameter is a tensor: of one element (NAME), or along its axis "
        "(NAME[AXIS]), of i32 or f32 unless DTYPE says i64, f64, f16 or bf16; repeatable",
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="AXIS=EXTENT,...",
        help="extents of axes, such as heads=8,kv_heads=2,dim=64; repeatable",
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="of generated tensors (default 0)")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """What a call is made of: extents, parameters, tensors, constants, and a seed for the rest."""
    add_shape(parser)
    add_params(parser)
    add_tensors(parser)
    add_constants(parser)
    add_seed(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for people (default) or one JSON object"
    )


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    value = _integer(text)
    if value is None or value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no integer of at least 1")
    return value


def natural(text: str) -> int:
    """An argparse type: an integer of at least 0."""
    value = _integer(text)
    if value is None or value < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no integer of at least 0")
    return value


def pairs(option: str, items: Iterable[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """`NAME=VALUE` arguments as a dict; a name given twice is an error, not a choice."""
    found: dict[str, str] = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name.isidentifier() or not value:
            raise UsageError.say(f"{option} {item}: not of the form {form}")
        if name in found:
            raise UsageError.say(f"{option}: '{name}' is given twice ({found[name]} and {value})")
        found[name] = value
    return found


def extents(text: Iterable[str]) -> dict[str, int]:
    """`batch=2,seq_q=64` as axis extents, whole numbers of at least 0; the option may be repeated."""
    items = [item.strip() for part in text for item in part.split(",") if item.strip()]
    found = {}
    for name, value in pairs("--shape", items, "AXIS=EXTENT,...").items():
        extent = _integer(value)
        if extent is None or extent < 0:
            raise UsageError.say(f"--shape {name}={value}: '{value}' is no whole number of at least 0")
        found[name] = extent
    return found


def tensor_params(spec: AttentionSpec, items: Iterable[str]) -> list[tuple[Param, str | None, str | None]]:
    """`--tensor-param` of this spec: the parameter, the axis and the dtype that are named."""
    known = {param.name: param for param in spec.params}
    found = []
    for item in items:
        written = _TENSOR_PARAM.fullmatch(item.strip())
        if written is None:
            raise UsageError.say(f"--tensor-param {item}: expected NAME, NAME[AXIS] or one of them with :DTYPE")
        name, axis, dtype = written.groups()
        if name not in known:
            raise UsageError.say(
                f"--tensor-param {item}: '{spec.name}' has no parameter '{name}'", did_you_mean(name, known)
            )
        found.append((known[name], axis, dtype))
    return found


def constants(items: Iterable[str]) -> dict[str, bool | int | float | str]:
    """`--const` values: an integer, a float, true, false, or the name of a dtype."""
    found: dict[str, bool | int | float | str] = {}
    for name, text in pairs("--const", items).items():
        value: bool | int | float | str | None = {"true": True, "false": False}.get(text)
        if value is None:
            value = _number(text)
        found[name] = text if value is None else value
    return found


def params(spec: AttentionSpec, items: Iterable[str]) -> dict[str, Number | list[Number]]:
    """`--param` values of this spec's parameters, of their declared type; a list where commas separate several."""
    known = {param.name: param for param in spec.params}
    found: dict[str, Number | list[Number]] = {}
    for name, text in pairs("--param", items).items():
        if name not in known:
            hint = did_you_mean(name, known)
            if name in dict(spec.constants):
                hint = f"'{name}' is a compile-time constant: --const {name}={text}"
            raise UsageError.say(f"--param {name}={text}: the spec has no parameter '{name}'", hint)
        parts = [_param_number(known[name], part.strip()) for part in text.split(",")]
        if len(parts) > 1 and known[name].per is None:
            raise UsageError.say(f"--param {name}={text}: '{name}' takes one value, not {len(parts)}")
        found[name] = parts if len(parts) > 1 else parts[0]
    return found


def _param_number(param: Param, text: str) -> Number:
    if text == "unbounded" and param.type is INT:
        value: Number | None = UNBOUNDED
    else:
        value = _integer(text) if param.type is INT else _number(text)
    if value is None:
        kind = "an integer or 'unbounded'" if param.type is INT else "a number"
        raise UsageError.say(f"--param {param.name}={text}: '{text}' is not {kind}")
    if param.type is not INT:
        value = float(value)
    if (param.low is not None and value < param.low) or (param.high is not None and value > param.high):
        low = "" if param.low is None else param.low
        high = "" if param.high is None else f"={param.high}"
        raise UsageError.say(f"--param {param.name}={text}: outside the declared range {low}..{high}")
    return value


def _integer(text: str) -> int | None:
    """A 64-bit integer as the language spells it (`4096`, `0x1f`, `1_000`), with a sign; else None."""
    try:
        value = int(text, 0) if len(text) <= 80 else None
    except ValueError:
        return None
    return value if value is not None and -_I64 <= value < _I64 else None


def _number(text: str) -> Number | None:
    """An integer or a finite float; else None."""
    whole = _integer(text)
    if whole is not None:
        return whole
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
