"""Int expressions as polynomials over what is not a sum or product: the normal form of column bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attn_dsl.expr import Expr, ExprBuilder, children_first

Monomial = tuple[Expr, ...]  # factors in the order of their digests; () is the constant
Polynomial = Mapping[Monomial, int]

MAX_MONOMIALS = 32  # of one polynomial; a larger one is kept as a single factor
MAX_DEGREE = 4


def polynomial(root: Expr) -> Polynomial:
    """`root`, an int, multiplied out. Factors are leaves and operators other than + - * and negation."""
    known: dict[Expr, Polynomial] = {}
    for node in children_first([root]):
        operands = [known[argument] for argument in node.args]
        result: Polynomial | None = None
        if node.op == "const" and isinstance(node.attr, int):
            result = {(): int(node.attr)} if node.attr else {}
        elif node.op == "add":
            result = combined(operands[0], operands[1])
        elif node.op == "sub":
            result = combined(operands[0], operands[1], -1)
        elif node.op == "neg":
            result = combined({}, operands[0], -1)
        elif node.op == "mul":
            result = _product(operands[0], operands[1])
        small = result is not None and len(result) <= MAX_MONOMIALS and all(len(m) <= MAX_DEGREE for m in result)
        known[node] = result if small and result is not None else {(node,): 1}
    return known[root]


def combined(x: Polynomial, y: Polynomial, factor: int = 1) -> Polynomial:
    """x + factor * y."""
    result = dict(x)
    for monomial, k in y.items():
        result[monomial] = result.get(monomial, 0) + factor * k
    return {monomial: k for monomial, k in result.items() if k}


def _product(x: Polynomial, y: Polynomial) -> Polynomial:
    result: dict[Monomial, int] = {}
    for m, j in x.items():
        for n, k in y.items():
            monomial = tuple(sorted((*m, *n), key=lambda factor: factor.digest))
            result[monomial] = result.get(monomial, 0) + j * k
    return {monomial: k for monomial, k in result.items() if k}


def expression(build: ExprBuilder, terms: Polynomial) -> Expr:
    """The polynomial as an expression: rows first, then what is added, then what is subtracted, the constant last."""
    if not terms:
        return build.const(0)
    parts = sorted((m for m in terms if m), key=lambda m: (terms[m] < 0, not _has_row(m), [str(f.attr) for f in m]))
    constant = terms.get((), 0)
    result: Expr | None = None
    for monomial in parts:
        value = _monomial(build, monomial, abs(terms[monomial]))
        if result is None:
            result = build.op("neg", value) if terms[monomial] < 0 else value
        else:
            result = build.op("sub" if terms[monomial] < 0 else "add", result, value)
    if result is None:
        return build.const(constant)
    if constant == 0:
        return result
    return build.op("sub" if constant < 0 else "add", result, build.const(abs(constant)))


def normal(build: ExprBuilder, value: Expr) -> Expr:
    """`value` multiplied out and put in order."""
    return expression(build, polynomial(value))


def without_quotients(build: ExprBuilder, terms: Polynomial) -> Polynomial:
    """`terms` with every (x // d) * d written as x - x % d, so that x cancels."""
    result: Polynomial = {}
    for monomial, k in terms.items():
        result = combined(result, _without_quotient(build, monomial, k))
    return result


def _without_quotient(build: ExprBuilder, monomial: Monomial, k: int) -> Polynomial:
    for factor in monomial:
        if factor.op != "floordiv":
            continue
        x, divisor = factor.args
        rest = list(monomial)
        rest.remove(factor)
        if divisor.is_const and isinstance(divisor.attr, int) and divisor.attr and k % divisor.attr == 0:
            k //= divisor.attr
        elif divisor in rest:
            rest.remove(divisor)
        else:
            continue
        difference = combined(polynomial(x), polynomial(build.op("mod", x, divisor)), -1)
        return _product({tuple(rest): k}, difference)
    return {monomial: k}


def _has_row(monomial: Iterable[Expr]) -> bool:
    return any(node.op == "var" and node.attr in ("q_idx", "q_pos") for node in children_first(monomial))


def _monomial(build: ExprBuilder, monomial: Monomial, k: int) -> Expr:
    factors = [*monomial] if k == 1 else [build.const(k), *monomial]
    result = factors[0]
    for factor in factors[1:]:
        result = build.op("mul", result, factor)
    return result
