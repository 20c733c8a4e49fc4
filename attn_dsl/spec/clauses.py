"""The clauses `mask`, `score`, `scale`, `sink` and `descale`: their types, and what each may depend on."""

from __future__ import annotations

from collections.abc import Mapping

from ..diagnostics import Diagnostics, Span
from ..expr import BOOL, FLOAT, Expr, children_first
from ..syntax import tree
from .model import Param, Tensor
from .names import OPERANDS
from .statements import Statements
from .typer import Typer

# what the expression of each clause may depend on, besides constants, scalar parameters and extents
_CLAUSE_LEAVES: dict[str, frozenset[str]] = {
    "mask": frozenset({"b", "h", "kv_h", "q_idx", "kv_idx", "q_pos", "seq_q", "seq_k"}),
    "score": frozenset({"b", "h", "kv_h", "q_idx", "kv_idx", "q_pos", "seq_q", "seq_k", "score"}),
    "scale": frozenset(),
    "sink": frozenset({"b", "h", "kv_h"}),
    "descale": frozenset({"b", "h", "kv_h"}),
    "align": frozenset({"b"}),
}
_SECOND_CLAUSE = {
    "mask": "join the masks with 'and' or 'or'",
    "score": "put one after the other with 'let'; an attention with two softmaxes is two specs",
    "scale": "multiply the scales",
    "sink": "a row has one sink: add the logits with log(exp(a) + exp(b))",
}
_PER_LEAF = {"heads": "h", "kv_heads": "kv_h", "batch": "b"}


class ClauseReader:
    """Types the clauses of a spec file."""

    def __init__(
        self,
        report: Diagnostics,
        typer: Typer,
        statements: Statements,
        params: Mapping[str, Param],
        tensors: Mapping[str, Tensor],
    ) -> None:
        self._report = report
        self._typer = typer
        self._statements = statements
        self._params = params
        self._tensors = tensors

    def read(self) -> dict[str, Expr | None]:
        """The value of each clause; None where there is none, or where it was reported."""
        values: dict[str, Expr | None] = dict.fromkeys(("mask", "score", "scale", "sink"))
        first: dict[str, tree.Clause] = {}
        for node in self._statements.of(tree.Clause):
            if node.kind in first:
                hint = _SECOND_CLAUSE[node.kind]
                line = first[node.kind].span.line
                self._report.error("E250", f"a second '{node.kind}'; the first is on line {line}", node.span, hint)
                continue
            first[node.kind] = node
            values[node.kind] = self._value(node.kind, node.value)
        return values

    def descales(self) -> dict[str, Expr]:
        """What the elements of q, k and v are multiplied with, of those that have such a factor."""
        values: dict[str, Expr] = {}
        first: dict[str, tree.Descale] = {}
        for node in self._statements.of(tree.Descale):
            name = node.tensor.name
            if name not in OPERANDS:
                hint = f"there is a 'descale' of {', '.join(OPERANDS)}"
                self._report.error("E252", f"'descale {name}' is not known", node.tensor.span, hint)
            elif name in first:
                message = f"a second 'descale {name}'; the first is on line {first[name].span.line}"
                self._report.error("E250", message, node.span, "multiply the factors")
            else:
                first[name] = node
                value = self._value("descale", node.value)
                if value is not None:
                    values[name] = value
        return values

    def _value(self, clause: str, written: tree.Expression) -> Expr | None:
        """The value of a clause; None where it was reported."""
        value = self._typer.expression(written, self._typer.root)
        if value is None:
            return None
        if clause != "mask":
            value = self._typer.build.as_float(value)
        wanted = BOOL if clause == "mask" else FLOAT
        if value.type is not wanted:
            advice = "compare it with something, as in 'x != 0'" if wanted is BOOL else None
            self._report.error("E233", f"{clause} is {wanted}; given {value.type}", written.span, advice)
            return None
        self.check_leaves(clause, value, written.span)
        return value

    def check_leaves(self, clause: str, value: Expr, span: Span) -> None:
        """Reports leaves that have no value where `clause` is evaluated."""
        allowed = _CLAUSE_LEAVES[clause]
        packed = self._packed_read(value) if clause in ("sink", "descale", "align") else None
        if packed is not None:
            message = f"'{packed}' is packed, and '{clause}' has no row or key to read it at"
            self._report.error("E224", message, span)
            return
        for node in children_first([value]):
            name: str | None = None
            if node.op == "var" and node.attr not in allowed:
                name = str(node.attr)
            elif node.op == "param":
                per = self._params[str(node.attr)].per
                if per is not None and _PER_LEAF[per] not in allowed:
                    name = f"{node.attr}, which varies with {per},"
            if name is not None:
                may = ", ".join(sorted(allowed)) if allowed else "constants, parameters and extents only"
                self._report.error("E224", f"{name} has no value in '{clause}'", span, f"'{clause}' may use {may}")

    def _packed_read(self, value: Expr) -> str | None:
        """A capture in `value` that lies along a packed axis."""
        for node in children_first([value]):
            if node.op == "read":
                name = str(node.attr)
                if any(axis.name in ("total_q", "total_k") for axis in self._tensors[name].axes):
                    return name
        return None

    def default_scale(self) -> Expr:
        """1 / sqrt(dim)."""
        root = self._typer.build.op("sqrt", self._typer.build.as_float(self._typer.axis("dim")))
        return self._typer.build.op("div", self._typer.build.const(1.0), root)

    def span(self, kind: str) -> Span:
        """Where a clause is written; the start of the file if it is not."""
        return next((c.value.span for c in self._statements.of(tree.Clause) if c.kind == kind), self._statements.start)
