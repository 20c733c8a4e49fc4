"""A kernel that evaluates expressions, one thread per row. (No postponed annotations: the DSL reads them.)"""

from collections.abc import Mapping, Sequence

import cutlass.cute as cute
import torch
from cutlass import Int32, Int64
from cutlass.cute.runtime import from_dlpack
from torch import Tensor

from attn_dsl import emulator
from attn_dsl.expr import FLOAT, Expr
from attn_dsl.kernels.common.leaves import Arguments, Place, Scope
from attn_dsl.lowering.forward import ForwardPlan

THREADS = 128


class Evaluate:
    """Writes roots[k] at row t to ints[k, t] or floats[k, t]."""

    def __init__(self, plan: ForwardPlan, roots: Sequence[Expr]) -> None:
        self.plan, self.roots = plan, tuple(roots)

    @cute.jit
    def __call__(self, captures: tuple, ints: cute.Tensor, floats: cute.Tensor, rows: Int32):
        self.kernel(captures, ints, floats, rows).launch(
            grid=(cute.ceil_div(rows, THREADS), 1, 1), block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(self, captures: tuple, ints: cute.Tensor, floats: cute.Tensor, rows: Int32):
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * THREADS + thread
        if row < rows:
            zero = Int32(0)
            scope = Scope(self.plan, Arguments(self.plan, captures, (), ()), zero, zero, zero, rows, rows)
            store(self.roots, scope.evaluate(self.roots, row=Place(row)), ints, floats, row)


def store(roots: Sequence[Expr], values: list, ints: cute.Tensor, floats: cute.Tensor, row: Int32):
    for place, (root, value) in enumerate(zip(roots, values, strict=True)):
        if root.type is FLOAT:
            floats[place, row] = value
        else:
            ints[place, row] = Int64(value)


def evaluated(plan: ForwardPlan, roots: Sequence[Expr], captures: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(ints i64, floats f32), each [roots, rows], of a virtual device; an element of the other kind is 0 or NaN."""
    rows = next(iter(captures.values())).numel()
    ints = torch.zeros(len(roots), rows, dtype=torch.int64)
    floats = torch.full((len(roots), rows), torch.nan)
    arguments = tuple(_tensor(captures[capture.name]) for capture in plan.captures)
    with emulator.device("sm_90a"):
        Evaluate(plan, roots)(arguments, _tensor(ints), _tensor(floats), rows)
    return ints, floats


def _tensor(value: Tensor):
    value = value.view(torch.uint8) if value.dtype is torch.bool else value
    return from_dlpack(value).mark_layout_dynamic(leading_dim=value.dim() - 1)
