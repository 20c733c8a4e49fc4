"""The syntax tree: what the text says, before any name has a meaning. Frozen, every node with its span.

Spans do not take part in equality, so two texts that differ in layout only give equal trees.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Source, Span


@dataclass(frozen=True)
class Node:
    """Base of every tree node."""

    span: Span = field(compare=False, repr=False, kw_only=True)


# -- expressions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Literal(Node):
    """`4096`, `0.5`, `true`. Python takes 1, 1.0 and True for equal; as literals they differ."""

    value: bool | int | float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and (type(self.value), self.value) == (type(other.value), other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True)
class Name(Node):
    """A use of a name, `unbounded` included."""

    name: str


@dataclass(frozen=True)
class Unary(Node):
    """`operator` is one of `- ~ not`."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary(Node):
    """`operator` is one of `or and | ^ & << >> + - * / // %`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Comparison(Node):
    """A chain: `operands[i] operators[i] operands[i + 1]` for every i; operators `< <= > >= == !=`."""

    operators: tuple[str, ...]
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Conditional(Node):
    """`yes if condition else no`."""

    yes: Expression
    condition: Expression
    no: Expression


@dataclass(frozen=True)
class Argument(Node):
    """One argument of a call; `name` is None for a positional one."""

    name: str | None
    value: Expression


@dataclass(frozen=True)
class Call(Node):
    """`function(arguments)`, `function` a builtin, a `def` or a definition imported from a library."""

    function: Name
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Read(Node):
    """`tensor[indices]`."""

    tensor: Name
    indices: tuple[Expression, ...]


@dataclass(frozen=True)
class Reduction(Node):
    """`kind(variable in range: body)`; `kind` is one of `sum any all min max`."""

    kind: str
    variable: Name
    range: Range
    body: Expression


Expression = Literal | Name | Unary | Binary | Comparison | Conditional | Call | Read | Reduction


@dataclass(frozen=True)
class Range(Node):
    """`start..stop`, `inclusive` for `..=`; an absent end is None."""

    start: Expression | None
    stop: Expression | None
    inclusive: bool


# -- statements -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImportedName(Node):
    """`name as alias`; alias is `name` when there is no `as`."""

    name: str
    alias: str


@dataclass(frozen=True)
class Import(Node):
    """`from std.window import a, b as c`: `path` is ("std", "window"); `relative` for a leading dot."""

    relative: bool
    path: tuple[str, ...]
    names: tuple[ImportedName, ...]


@dataclass(frozen=True)
class Const(Node):
    """`const name: type = value`; a dtype value is a `Name`."""

    name: Name
    type: Name
    value: Expression


@dataclass(frozen=True)
class FixAxis(Node):
    """`axis name = value`."""

    name: Name
    value: Expression


@dataclass(frozen=True)
class TensorType(Node):
    """`dtype[axes]`; in a function's parameter the axes are the name `_`."""

    dtype: Name
    axes: tuple[Expression, ...]


@dataclass(frozen=True)
class TensorDecl(Node):
    """`a, b: bf16[batch, heads]`."""

    names: tuple[Name, ...]
    type: TensorType


@dataclass(frozen=True)
class WholeAxis(Node):
    """`:` in a view."""


@dataclass(frozen=True)
class ViewDecl(Node):
    """`view name = base[slices]`: each slice `:`, an integer expression, or a range."""

    name: Name
    base: Name
    slices: tuple[WholeAxis | Range | Expression, ...]


@dataclass(frozen=True)
class Param(Node):
    """`param name: type[per] in range = default`."""

    name: Name
    type: Name
    per: Name | None
    range: Range | None
    default: Expression | None


@dataclass(frozen=True)
class Let(Node):
    """`let name = value`, at the top level or in a function's body."""

    name: Name
    value: Expression


@dataclass(frozen=True)
class FunctionParam(Node):
    """`name: int` or `name: f32[_, _]`."""

    name: Name
    type: Name | TensorType


@dataclass(frozen=True)
class Function(Node):
    """`def name(params) -> result = value`, or with a body of lets and a last expression in braces."""

    name: Name
    params: tuple[FunctionParam, ...]
    result: Name
    lets: tuple[Let, ...]
    value: Expression
    braces: bool


@dataclass(frozen=True)
class AlignDecl(Node):
    """`align bottom_right`, `align top_left`, `align offset(value)`."""

    kind: Name
    offset: Expression | None


@dataclass(frozen=True)
class Setting(Node):
    """`key = value` in a block."""

    key: Name
    value: Expression


@dataclass(frozen=True)
class LengthsDecl(Node):
    """`lengths side { settings }`."""

    side: Name
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class PagedDecl(Node):
    """`paged { settings }`."""

    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class ScheduleDecl(Node):
    """`schedule { settings }`."""

    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class PackDecl(Node):
    """`pack gqa mode`."""

    what: Name
    mode: Name


@dataclass(frozen=True)
class Clause(Node):
    """`kind = value` for kind in `mask score scale sink`."""

    kind: str
    value: Expression


@dataclass(frozen=True)
class Descale(Node):
    """`descale tensor = value`."""

    tensor: Name
    value: Expression


@dataclass(frozen=True)
class LseBase(Node):
    """`lse_base = e` or `lse_base = 2`."""

    value: Expression


Statement = (
    Import
    | Const
    | FixAxis
    | TensorDecl
    | ViewDecl
    | Param
    | Let
    | Function
    | AlignDecl
    | LengthsDecl
    | PagedDecl
    | ScheduleDecl
    | PackDecl
    | Clause
    | Descale
    | LseBase
)


@dataclass(frozen=True)
class File:
    """A parsed file: its statements in order. Comments stay in `source`; the formatter reads them from there."""

    source: Source = field(compare=False, repr=False)
    statements: tuple[Statement, ...]
