"""Rules on one field of a plan: which values it may have, and the nearest of them.

What follows from fields, such as a map of shared memory, is only asked of a plan whose fields are legal (`in_stages`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from attn_dsl.diagnostics import Diagnostic
from attn_dsl.lowering.forward.plan import ForwardPlan

ORDERS = ("longest_first", "in_order")
LSE_BASES = ("e", "2")
OPERANDS = ("f16", "bf16")  # of matrix products, and of their result as it is stored
NARROW = {"sm90": ("e4m3", "e5m2"), "sm100": ("e4m3", "e5m2")}  # of keys and values that a target's template widens


def in_stages(*stages: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The problems of the first of `stages`, all lazy, that finds any."""
    return next((found for found in map(tuple, stages) if found), ())


def one_of(name: str, value: object, known: Sequence[object], says: str, code: str) -> Iterator[Diagnostic]:
    """`value` of field `name` is one of `known`."""
    if value not in known:
        names = ", ".join(map(str, known))
        yield Diagnostic(code, f"{name} is {value}; {says}", hint=f"it is one of {names}")


def number_of(name: str, value: int, known: Sequence[int], says: str, code: str) -> Iterator[Diagnostic]:
    """As `one_of`, of a number: the hint is the nearest one."""
    if value not in known:
        nearest = min(known, key=lambda number: abs(number - value))
        yield Diagnostic(code, f"{name} is {value}; {says}", hint=f"the nearest is {nearest}")


def between(
    name: str, value: float, low: float, high: float, says: str, code: str, whole: bool = True
) -> Iterator[Diagnostic]:
    """`value` of field `name` lies in low ..= high."""
    fits = low <= value <= high and (isinstance(value, int) or not whole)  # NaN lies nowhere
    if not fits:
        nearest = low if not value > low else min(value, high)
        yield Diagnostic(
            code, f"{name} is {value}; {says}", hint=f"the nearest is {round(nearest) if whole else nearest:g}"
        )


def choices(target: str) -> Callable[[ForwardPlan], Iterator[Diagnostic]]:
    """The rule of what every plan of `target` chooses by name (E297)."""

    def rule(plan: ForwardPlan) -> Iterator[Diagnostic]:
        yield from one_of("target", plan.target, (target,), "a plan belongs to one template", "E297")
        yield from one_of("dtype", plan.dtype, OPERANDS, "matrix products take 16 bits", "E297")
        kv_dtypes = (plan.dtype, *NARROW[target])
        yield from one_of("kv_dtype", plan.kv_dtype, kv_dtypes, "k and v are operands, or widened to them", "E297")
        yield from one_of("o_dtype", plan.o_dtype, OPERANDS, "o has 16 bits", "E297")
        yield from one_of("order", plan.order, ORDERS, "query tiles begin in one of two orders", "E297")
        yield from one_of("lse_base", plan.lse_base, LSE_BASES, "a logarithm is natural or binary", "E297")

    return rule
