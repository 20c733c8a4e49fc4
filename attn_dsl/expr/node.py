"""Typed expression nodes: immutable, shared, equal when their content is equal.

A node is a leaf or an application of one operator of `OPERATORS`. Leaves:

| op      | attr                | value                                                            |
|---------|---------------------|------------------------------------------------------------------|
| `const` | bool, int or float  | itself                                                           |
| `var`   | name of an index    | `b h kv_h q_idx kv_idx q_pos seq_q seq_k` (int), `score` (float) |
| `size`  | name of an axis     | the extent of that axis in this call (int)                       |
| `param` | name of a parameter | its value, at this head or batch if it is declared per head or batch |
| `read`  | name of a tensor    | the element at `args`, integer indices already inside the axes   |
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator

from .operators import I64_MAX, I64_MIN, OPERATORS
from .types import BOOL, FLOAT, INT, ValueType

Constant = bool | int | float
_FLOATS = ("score", "reference")  # the latter in kernels alone: `lowering.forward.logits`
LEAVES = ("const", "var", "size", "param", "read")


class Expr:
    """One node. `digest` identifies its content; equality and hashing use it, so sharing is never lost."""

    __slots__ = ("args", "attr", "digest", "op", "type")

    op: str
    args: tuple[Expr, ...]
    attr: Constant | str | None
    type: ValueType
    digest: bytes

    def __init__(self, op: str, args: tuple[Expr, ...], attr: Constant | str | None, type: ValueType) -> None:
        content = hashlib.blake2b(f"{op}|{type.value}|{attr!r}|{len(args)}|".encode(), digest_size=16)
        for argument in args:
            content.update(argument.digest)
        for name, value in (("op", op), ("args", args), ("attr", attr), ("type", type), ("digest", content.digest())):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"expressions are immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[object, ...]:
        return Expr, (self.op, self.args, self.attr, self.type)

    def __repr__(self) -> str:
        from .text import to_text  # the printer is an algebra over nodes

        return f"Expr({to_text(self)})"

    @property
    def is_const(self) -> bool:
        return self.op == "const"


def children_first(roots: Iterable[Expr], known: Container[Expr] = ()) -> Iterator[Expr]:
    """Every distinct node below `roots` once, operands before their users, without recursion.

    Nodes of `known` are taken for leaves.
    """
    done: set[Expr] = set()
    for root in roots:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in done:
                continue
            if ready:
                done.add(node)
                yield node
            else:
                stack.append((node, True))
                if node not in known:
                    stack.extend((argument, False) for argument in reversed(node.args))


class ExprBuilder:
    """Makes nodes, folds constants, drops what has no effect, and keeps equal nodes one object."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Expr] = {}

    @property
    def count(self) -> int:
        """How many distinct nodes this builder made."""
        return len(self._nodes)

    def _make(self, op: str, args: tuple[Expr, ...], attr: Constant | str | None, type: ValueType) -> Expr:
        node = Expr(op, args, attr, type)
        return self._nodes.setdefault(node.digest, node)

    def const(self, value: Constant) -> Expr:
        kind = BOOL if isinstance(value, bool) else INT if isinstance(value, int) else FLOAT
        return self._make("const", (), value, kind)

    def var(self, name: str) -> Expr:
        return self._make("var", (), name, FLOAT if name in _FLOATS else INT)

    def size(self, axis: str) -> Expr:
        return self._make("size", (), axis, INT)

    def param(self, name: str, type: ValueType) -> Expr:
        return self._make("param", (), name, type)

    def read(self, tensor: str, indices: tuple[Expr, ...], type: ValueType) -> Expr:
        return self._make("read", indices, tensor, type)

    def op(self, name: str, *args: Expr) -> Expr:
        """Operator `name` on operands of exactly one of its signatures; TypeError otherwise."""
        operator = OPERATORS[name]
        result = operator.result(tuple(argument.type for argument in args))
        if result is None:
            raise TypeError(f"{name} has no signature for ({', '.join(str(a.type) for a in args)})")
        simpler = self._fold(name, args) or self._simplify(name, args)
        return simpler if simpler is not None else self._make(name, args, None, result)

    def as_float(self, value: Expr) -> Expr:
        """`value` promoted from int to float; a float is returned as it is."""
        return self.op("to_float", value) if value.type is INT else value

    def clamp(self, value: Expr, low: Expr, high: Expr) -> Expr:
        """max(low, min(value, high)): `low` wins where the bounds cross."""
        return self.op("max", self.op("min", value, high), low)

    def all_of(self, conditions: Iterable[Expr]) -> Expr:
        result = self.const(True)
        for condition in conditions:
            result = self.op("and", result, condition)
        return result

    def _fold(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        if not all(argument.is_const for argument in args):
            return None
        values = [argument.attr for argument in args]
        if name in ("floordiv", "mod") and values[1] == 0:
            return None  # no value: the resolver refuses it with its place in the source
        if name in ("shl", "shr") and not 0 <= int(values[1] or 0) < 64:
            return None
        value = OPERATORS[name].define(*values)
        if isinstance(value, int) and not I64_MIN <= value <= I64_MAX:
            return None  # kept as a node, so that the width check names it
        return self.const(value)

    def _simplify(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        """Rewrites that are exact for every value, NaN included."""
        if name in ("and", "or"):
            neutral = name == "and"
            for this, other in (args, args[::-1]):
                if this.is_const:
                    return other if this.attr is neutral else this
            if args[0] == args[1]:
                return args[0]
        if name == "not" and args[0].op == "not":
            return args[0].args[0]
        if name == "select":
            condition, yes, no = args
            if condition.is_const:
                return yes if condition.attr else no
            if yes == no:
                return yes
        if name in ("min", "max") and args[0] == args[1]:
            return args[0]
        if args and args[0].type is INT:
            return self._simplify_int(name, args)
        return None

    def _simplify_int(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        right = args[1].attr if len(args) == 2 and args[1].is_const else None
        left = args[0].attr if args[0].is_const else None
        if name in ("add", "sub", "shl", "shr", "bitor", "bitxor") and right == 0:
            return args[0]
        if name in ("add", "bitor", "bitxor") and left == 0:
            return args[1]
        if name in ("mul", "floordiv") and right == 1:
            return args[0]
        if name == "mul" and left == 1:
            return args[1]
        if name == "mod" and right == 1:
            return self.const(0)
        return None
