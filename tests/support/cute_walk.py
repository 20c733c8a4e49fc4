"""A kernel that scores and masks every tile of a plan as a template does, without matrix products.

A block of 128 threads stands for one consumer warpgroup: 64 rows in the accumulator layout of wgmma. (No postponed
annotations: the DSL reads them.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32
from cutlass.cute.runtime import from_dlpack
from torch import Tensor

from attn_dsl import emulator
from attn_dsl.expr import INT
from attn_dsl.kernels.common.fragment import Fragment
from attn_dsl.kernels.common.leaves import Arguments, Scope
from attn_dsl.kernels.common.masks import mask_scores
from attn_dsl.kernels.common.scores import score_scores
from attn_dsl.kernels.common.tiles import tile_bounds
from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, ShapeClass, select
from attn_dsl.spec.model import AttentionSpec

ROWS = 64  # of a block
THREADS = 128
PARTIAL, FULL = 1, 2  # visits
DTYPES = {torch.int32: "i32", torch.int64: "i64", torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16"}


def read_scores(fragment: Fragment, scores: cute.Tensor, source: cute.Tensor, entry: Int32, head: Int32, start: Int32):
    """The thread's part of a tile that begins at key `start`, from global memory."""
    for place, row in enumerate(fragment.rows):
        for j in range(fragment.count):
            scores[place, j] = source[entry, head, row, start + fragment.base + fragment.offset(j)]


def write_scores(fragment: Fragment, scores: cute.Tensor, target: cute.Tensor, entry: Int32, head: Int32, start: Int32):
    """The reverse."""
    for place, row in enumerate(fragment.rows):
        for j in range(fragment.count):
            target[entry, head, row, start + fragment.base + fragment.offset(j)] = scores[place, j]


class Walk:
    """The kernel of a plan. `numbers` are seq_q, seq_k, heads per K/V head, then what the plan's expressions read."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.plan = plan

    @cute.jit
    def __call__(self, dots: cute.Tensor, logits: cute.Tensor, visits: cute.Tensor, numbers: tuple):
        self.kernel(dots, logits, visits, numbers).launch(
            grid=(visits.shape[2], visits.shape[1], visits.shape[0]), block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(self, dots: cute.Tensor, logits: cute.Tensor, visits: cute.Tensor, numbers: tuple):
        plan = self.plan
        thread, _, _ = cute.arch.thread_idx()
        tile, head, entry = cute.arch.block_idx()
        seq_q, seq_k, group = numbers[:3]
        captures = len(plan.captures) + 3
        params = len(plan.params) + captures
        arguments = Arguments(plan, numbers[3:captures], numbers[captures:params], numbers[params:])
        scope = Scope(plan, arguments, entry, head, head // group, seq_q, seq_k)
        lane = thread % 32
        first = tile * ROWS
        row = first + thread // 32 * 16 + lane // 4
        fragment = Fragment((row, row + 8), 2, 8, plan.tile_k // 4, lane % 4 * 2)
        bounds = tile_bounds(plan, scope, first, cutlass.min(first + ROWS, seq_q) - 1)
        n = bounds.first
        while n >= 0:
            scores = cute.make_rmem_tensor((2, fragment.count), Float32)
            read_scores(fragment, scores, dots, entry, head, n * plan.tile_k)
            score_scores(plan, scope.fresh(), fragment, scores, n)
            if bounds.is_full(n):
                visits[entry, head, tile, n] = Int32(FULL)
            else:
                visits[entry, head, tile, n] = Int32(PARTIAL)
                mask_scores(plan, scope.fresh(), fragment, scores, n)
            write_scores(fragment, scores, logits, entry, head, n * plan.tile_k)
            n = bounds.last_visited(n - 1)


@dataclass(frozen=True)
class Walked:
    """What the kernel did. Rows are padded to blocks, keys to tiles."""

    dots: Tensor  # f32[batch, heads, rows, keys]
    logits: Tensor  # f32, likewise; base 2; NaN where no tile was visited
    visits: Tensor  # i32[batch, heads, query tiles, key tiles]: 0, PARTIAL or FULL


class Walker:
    """A spec's walk, compiled once for its plan with tiles of `tile_k` keys."""

    def __init__(self, spec: AttentionSpec, values: Mapping[str, Tensor | int | float], tile_k: int = 32, **changes):
        params = tuple(_argument(param, values[param.name]) for param in spec.params)
        self.plan = replace(select(spec, ShapeClass(64, 64, params)), tile_k=tile_k, **changes)
        self._compiled = None

    def run(self, extents: Mapping[str, int], values: Mapping[str, Tensor | int | float], seed: int = 0) -> Walked:
        """The walk over a call with these extents, captures and parameters. Needs an open virtual device."""
        blocks = -(-extents["seq_q"] // ROWS)
        tiles = max(1, -(-extents["seq_k"] // self.plan.tile_k))
        shape = (extents["batch"], extents["heads"], blocks * ROWS, tiles * self.plan.tile_k)
        dots = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 8
        logits = torch.full(shape, math.nan)
        visits = torch.zeros(*shape[:2], blocks, tiles, dtype=torch.int32)
        numbers = [
            Int32(extents["seq_q"]),
            Int32(extents["seq_k"]),
            Int32(extents["heads"] // extents["kv_heads"]),
            *(_tensor(values[capture.name]) for capture in self.plan.captures),
            *(_number(argument, values[argument.name]) for argument in self.plan.params),
            *(Int32(extents[axis]) for axis in self.plan.sizes),
        ]
        arguments = (*(_tensor(t) for t in (dots, logits, visits)), tuple(numbers))
        if self._compiled is None:
            self._compiled = cute.compile(Walk(self.plan), *arguments)
        self._compiled(*arguments)
        return Walked(dots, logits, visits)


def walk(
    spec: AttentionSpec, extents: Mapping[str, int], values: Mapping[str, Tensor | int | float], **changes
) -> tuple[ForwardPlan, Walked]:
    """One walk on a virtual device of its own; `changes` are fields of the plan."""
    walker = Walker(spec, values, **changes)
    with emulator.device("sm_90a"):
        return walker.plan, walker.run(extents, values)


def _argument(param, value: Tensor | int | float) -> ParamArgument:
    is_int = param.type is INT
    if isinstance(value, Tensor):
        form, dtype = "axis_tensor" if value.dim() else "scalar_tensor", DTYPES[value.dtype]
    else:
        form, dtype = "number", "i32" if is_int else "f32"
    return ParamArgument(param.name, is_int, param.per, form, dtype, param.low, param.high)


def _number(argument: ParamArgument, value: Tensor | int | float):
    if isinstance(value, Tensor):
        return _tensor(value.reshape(1) if value.dim() == 0 else value)
    return Int32(value) if argument.is_int else Float32(value)


def _tensor(value: Tensor):
    value = value.view(torch.uint8) if value.dtype is torch.bool else value
    return from_dlpack(value.contiguous()).mark_layout_dynamic(leading_dim=value.dim() - 1)
