"""The score expression as a kernel computes it: from the dot product of q and k to a logit in base 2.

A float that changes from key to key is kept as a sum of products, `sum of factor * atom + offset`, whose factors and
offset are *steady*: the same for all keys. So constants meet constants, one steady factor is left of a chain of
products and quotients, and each term is one fused multiply-add. With y = 2 x log2(e),

    tanh(x) = 1 - 2 / (1 + exp2(y))          right at both ends: exp2 overflows to inf, and 1 / inf is 0

and the factor of the last product goes into the two constants. Distances, `float(kv_idx - q_pos)`, become
`float(kv_base - q_pos) + kv_step`: `kv_base` is a thread's first column of a tile, `kv_step` a constant of the trace.

Only scores are rewritten, which changes how they are rounded; the proofs about a mask hold for it as written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from attn_dsl.expr import FLOAT, Expr, ExprBuilder, children_first
from attn_dsl.lowering.tiles.dependence import rewrite
from attn_dsl.lowering.tiles.polynomial import combined, expression, polynomial

STEPS = ("floor", "lt", "le", "eq", "ne")  # what is not continuous: the last bit of an operand may decide
LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
REFERENCE = "reference"  # leaf: what the weights of a row are taken against, in base 2
BASE, STEP = "kv_base", "kv_step"  # leaves with kv_idx = kv_base + kv_step, 0 <= kv_step < keys of a tile


def logit(build: ExprBuilder, score: Expr, scale: Expr) -> Expr:
    """score * log2(e) over the leaf `score` as the plain dot product, which `scale` is put before."""
    return _Rewriter(build, scale).logit(score)


@cache
def above_reference(logit: Expr) -> Expr:
    """logit - reference, where the difference costs least.

    That is in the steady offset, which a row computes once for all keys of a tile, or else in the product that the
    logit's sum begins with, which becomes a fused multiply-add.
    """
    build = ExprBuilder()
    reference = build.var(REFERENCE)
    terms = []
    while logit.op == "add" and logit.type is FLOAT:
        term, logit = logit.args
        terms.append(term)
    changes = any(node.op == "var" and node.attr in ("kv_idx", "score", STEP) for node in children_first([logit]))
    result = build.op("add", logit, build.op("neg", reference)) if changes else build.op("sub", logit, reference)
    for term in reversed(terms):
        result = build.op("add", term, result)
    return result


def exact_divisions(nodes: Iterable[Expr]) -> frozenset[Expr]:
    """The float divisions below a step among `nodes`, to be rounded as IEEE 754 has it; others may be an ulp off."""
    below = children_first(operand for node in nodes if node.op in STEPS for operand in node.args)
    return frozenset(node for node in below if node.op == "div")


@dataclass(frozen=True)
class _Sum:
    """sum of factor * atom + offset; factors and offset are steady, atoms are not."""

    terms: Mapping[Expr, Expr]  # atom -> factor
    offset: Expr | None = None  # None: 0


class _Rewriter:
    def __init__(self, build: ExprBuilder, scale: Expr) -> None:
        self.build, self.scale = build, scale
        self._steady: dict[Expr, bool] = {}
        self._sums: dict[Expr, _Sum] = {}
        self._nodes: dict[Expr, Expr] = {}

    def logit(self, score: Expr) -> Expr:
        for node in children_first([score]):
            self._note(node)
        return self._value(self._times(self._sum_of(score), self._const(LOG2_E)))

    def _note(self, node: Expr) -> None:
        """Whether a node is steady, and its form; operands come first."""
        changes = node.op == "var" and node.attr in ("kv_idx", "score")
        self._steady[node] = not changes and all(self._steady[argument] for argument in node.args)
        if self._steady[node]:
            self._nodes[node] = node
        elif node.type is FLOAT:
            self._sums[node] = self._sum(node)
        elif node.op in STEPS:
            # a step of what is rounded otherwise would be another step: what is below stays as it is written
            plain = self.build.var("score")
            (self._nodes[node],) = rewrite(self.build, [node], {plain: self.build.op("mul", plain, self.scale)})
        else:
            self._nodes[node] = self._rebuilt(node)

    # --- sums

    def _const(self, value: float) -> Expr:
        return self.build.const(value)

    def _sum_of(self, node: Expr) -> _Sum:
        """The sum of a float node."""
        return _Sum({}, node) if self._steady[node] else self._sums[node]

    def _atom(self, atom: Expr) -> _Sum:
        return _Sum({atom: self._const(1.0)})

    def _product(self, x: Expr, y: Expr) -> Expr:
        for this, other in ((x, y), (y, x)):
            if this.is_const and this.attr == 1.0:
                return other
        return self.build.op("mul", x, y)

    def _times(self, form: _Sum, factor: Expr) -> _Sum:
        terms = {atom: self._product(known, factor) for atom, known in form.terms.items()}
        return _Sum(terms, None if form.offset is None else self._product(form.offset, factor))

    def _plus(self, x: _Sum, y: _Sum) -> _Sum:
        add = self.build.op
        terms = dict(x.terms)
        for atom, factor in y.terms.items():
            terms[atom] = factor if atom not in terms else add("add", terms[atom], factor)
        offsets = [form.offset for form in (x, y) if form.offset is not None]
        return _Sum(terms, add("add", *offsets) if len(offsets) == 2 else offsets[0] if offsets else None)

    def _value(self, form: _Sum) -> Expr:
        """The expression of a sum; each term but the first is a product added to what came before."""
        result = form.offset
        for atom, factor in form.terms.items():
            term = self._product(atom, factor)
            result = term if result is None else self.build.op("add", term, result)
        return self._const(0.0) if result is None else result

    # --- operators

    def _sum(self, node: Expr) -> _Sum:
        if node.op == "var":
            return _Sum({node: self.scale})
        if node.op == "to_float":
            return self._from_int(node.args[0])
        if node.op == "select" or node.op == "read" or any(argument.type is not FLOAT for argument in node.args):
            return self._atom(self._rebuilt(node))
        forms = [self._sum_of(argument) for argument in node.args]
        minus = self._const(-1.0)
        if node.op in ("add", "sub"):
            return self._plus(forms[0], forms[1] if node.op == "add" else self._times(forms[1], minus))
        if node.op == "neg":
            return self._times(forms[0], minus)
        if node.op == "mul":
            for factor, other in ((0, 1), (1, 0)):
                if self._steady[node.args[factor]]:
                    return self._times(forms[other], node.args[factor])
        if node.op == "div" and self._steady[node.args[1]]:
            return self._times(forms[0], self.build.op("div", self._const(1.0), node.args[1]))
        function = {"tanh": self._tanh, "sigmoid": self._sigmoid, "exp": self._exp, "log": self._log}.get(node.op)
        return self._atom(self._rebuilt(node)) if function is None else function(forms[0])

    def _rebuilt(self, node: Expr) -> Expr:
        operands = tuple(self._nodes[a] if a in self._nodes else self._value(self._sums[a]) for a in node.args)
        if node.op == "read":
            return self.build.read(str(node.attr), operands, node.type)
        return self.build.op(node.op, *operands) if node.args else node

    def _from_int(self, value: Expr) -> _Sum:
        """float(value), exact up to 2^24 and right to one rounding beyond."""
        build = self.build
        if value.op == "abs":
            return self._atom(build.op("abs", self._value(self._from_int(value.args[0]))))
        terms = dict(polynomial(value))
        step = (build.var("kv_idx"),)
        factor = terms.pop(step, 0)
        if factor and all(self._is_steady(atom) for monomial in terms for atom in monomial):
            rest = expression(build, combined(terms, {(build.var(BASE),): factor}))
            return _Sum({build.op("to_float", build.var(STEP)): self._const(float(factor))}, build.op("to_float", rest))
        return self._atom(build.op("to_float", self._nodes[value]))

    def _is_steady(self, node: Expr) -> bool:
        """As `_steady`, of a node that may be new."""
        for part in children_first([node]):
            if part not in self._steady:
                self._note(part)
        return self._steady[node]

    def _reciprocal(self, x: Expr) -> Expr:
        one = self._const(1.0)
        return self.build.op("div", one, self.build.op("add", x, one))

    def _tanh(self, x: _Sum) -> _Sum:
        exponential = self.build.op("exp2", self._value(self._times(x, self._const(2.0 * LOG2_E))))
        return _Sum({self._reciprocal(exponential): self._const(-2.0)}, self._const(1.0))

    def _sigmoid(self, x: _Sum) -> _Sum:
        return self._atom(self._reciprocal(self.build.op("exp2", self._value(self._times(x, self._const(-LOG2_E))))))

    def _exp(self, x: _Sum) -> _Sum:
        return self._atom(self.build.op("exp2", self._value(self._times(x, self._const(LOG2_E)))))

    def _log(self, x: _Sum) -> _Sum:
        return _Sum({self.build.op("log2", self._value(x)): self._const(LN_2)})
