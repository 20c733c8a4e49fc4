"""What the statements of a spec reach: a name that none of them needs would be dropped silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ..syntax import tree
from .modules import Module

_DEFINITIONS = tree.Import | tree.Const | tree.Let | tree.Function


def reached_names(module: Module) -> set[str]:
    """Names of `module`'s file that its declarations and clauses need, directly or through its definitions.

    By spelling: a local name that hides a definition counts as a use of it.
    """
    found: set[str] = set()
    waiting = [name for s in module.file.statements if not isinstance(s, _DEFINITIONS) for name in _needs(s)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            definition = module.own.get(name)
            waiting.extend(() if definition is None else _needs(definition))
    return found


def _needs(statement: tree.Statement) -> Iterator[str]:
    """The names in a statement, without those it declares."""
    declared: set[int] = set()
    if isinstance(statement, tree.TensorDecl):
        declared = {id(name) for name in statement.names}
    elif isinstance(statement, tree.Param | tree.Let | tree.Const | tree.Function | tree.ViewDecl):
        declared = {id(statement.name)}
    return (name.name for name in _names(statement) if id(name) not in declared)


def _names(node: object) -> Iterator[tree.Name]:
    if isinstance(node, tree.Name):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from _names(part)
    elif isinstance(node, tree.Node):
        for field in fields(node):
            if field.name != "span":
                yield from _names(getattr(node, field.name))
