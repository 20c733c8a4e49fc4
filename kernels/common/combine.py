"""Results of one problem whose keys were split, joined by their LSE (FlashAttention, Dao et al., arXiv 2205.14135).

    a warp, or the four of a block, works on one row: weights of all splits, then the weighted sum of their outputs

Splits are added in a fixed order, so the result is the same in every run. A split that saw no key has an LSE of -inf;
what its output holds is not read. A sink belongs to the denominator of one split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from attn_dsl.kernels.common.build import OPTIONS, operand, tensor
from attn_dsl.kernels.common.launch import SPLIT, permuted
from attn_dsl.kernels.common.softmax import LN_2, exp2
from attn_dsl.kernels.named_barrier import WARP

MAX_SPLITS = 256
WARPS = 4  # of a thread block
VECTOR = 4  # f32 values of one access
UNROLLED = 4  # splits whose outputs are under way at once


@dataclass(frozen=True)
class CombinePlan:
    """The kernel that joins the splits of one forward kernel."""

    target: str  # "sm90" | "sm100"
    o_dtype: str  # "f16" | "bf16" | "f32"
    dim_v: int  # elements of a row, a multiple of 8
    o_axes: tuple[str, ...]  # of the result; partial outputs have the axis of splits before them
    lse_axes: tuple[str, ...]  # likewise
    lse_base: str  # of the result: "e" | "2"; partial ones are in base 2
    most: int = MAX_SPLITS  # splits, a multiple of 32: up to 32 a warp does a row, above a whole block does

    @property
    def warps(self) -> int:
        """Warps that share the splits of a row."""
        return 1 if self.most <= WARP else WARPS

    @property
    def rows(self) -> int:
        """Rows of a thread block."""
        return WARPS // self.warps

    @property
    def entries(self) -> int:
        """Splits whose weights one lane works out."""
        return self.most // WARP

    @property
    def passes(self) -> int:
        """Vectors of a row that one lane adds up."""
        return -(-self.dim_v // (WARP * VECTOR))

    @property
    def inner(self) -> str:
        return "dim_v" if "dim_v" in self.o_axes else "dim"


class Combine:
    """The kernel of one plan. Calling it is what CuTe DSL compiles."""

    def __init__(self, plan: CombinePlan) -> None:
        self.plan = plan

    @cute.jit
    def __call__(
        self, mParts: cute.Tensor, mLogs: cute.Tensor, mO: cute.Tensor, mLSE: cute.Tensor, stream: Any
    ) -> None:
        """Launches the kernel.

        Args:
            mParts: f32, outputs of the splits, each normalised by its own denominator; at most `plan.most` splits.
            mLogs: f32, logarithms of their denominators in base 2.
            mO, mLSE: written.
        """
        plan = self.plan
        rows = ("heads", "seq_q", "batch")
        parts = permuted(mParts, (SPLIT, *plan.o_axes), (*rows, plan.inner, SPLIT))
        logs = permuted(mLogs, (SPLIT, *plan.lse_axes), (*rows, SPLIT))
        o = cute.group_modes(permuted(mO, plan.o_axes, (*rows, plan.inner)), 0, 3)
        lse = cute.group_modes(permuted(mLSE, plan.lse_axes, rows), 0, 3)
        self.kernel(cute.group_modes(parts, 0, 3), cute.group_modes(logs, 0, 3), o, lse).launch(
            grid=(cute.ceil_div(cute.size(lse), plan.rows), 1, 1), block=(WARPS * WARP, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, mParts: cute.Tensor, mLogs: cute.Tensor, mO: cute.Tensor, mLSE: cute.Tensor) -> None:
        """`plan.rows` rows: (rows, dim_v, splits), (rows, splits), (rows, dim_v), (rows)."""
        plan = self.plan
        memory = cutlass.memory.SmemAllocator()
        weights = memory.allocate_tensor(Float32, cute.make_layout((plan.most, WARPS)), byte_alignment=16)
        sums = memory.allocate_tensor(
            Float32, cute.make_layout((VECTOR, WARP, plan.passes, WARPS)), byte_alignment=VECTOR * 4
        )
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
        row = block * plan.rows + warp // plan.warps
        if row < cute.size(mLSE):
            splits = cute.size(mLogs, mode=[1])
            logarithm = weigh(plan, mLogs[row, None], splits, weights[None, warp], lane)
            cute.arch.sync_warp()
            total = add_up(plan, mParts[row, None, None], splits, weights[None, warp], warp % plan.warps, lane)
            if const_expr(plan.warps > 1):  # then all warps have the same row
                for place in cutlass.range_constexpr(plan.passes):
                    cute.autovec_copy(total[None, place], sums[None, lane, place, warp])
                cute.arch.sync_threads()
                total = over_warps(plan, sums, lane)
            if warp % plan.warps == 0:
                for place in cutlass.range_constexpr(plan.passes):
                    vector = lane + place * WARP
                    if vector * VECTOR < plan.dim_v:
                        rounded = cute.make_rmem_tensor(VECTOR, mO.element_type)
                        rounded.store(total[None, place].load().to(mO.element_type))
                        cute.autovec_copy(rounded, cute.flat_divide(mO[row, None], (VECTOR,))[None, vector])
                if lane == 0:
                    mLSE[row] = logarithm if const_expr(plan.lse_base == "2") else logarithm * LN_2


@cute.jit
def weigh(
    plan: cutlass.Constexpr[CombinePlan], logs: cute.Tensor, splits: Int32, weights: cute.Tensor, lane: Int32
) -> Float32:
    """Writes the weights of all splits, and returns the logarithm of the whole denominator in base 2. For a warp."""
    own = cute.make_rmem_tensor(plan.entries, Float32)
    own.fill(-Float32.inf)
    top = -Float32.inf
    for entry in cutlass.range_constexpr(plan.entries):
        split = lane + entry * WARP
        if split < splits:
            own[entry] = logs[split]
        top = cute.arch.fmax(top, own[entry])
    top = cute.arch.warp_reduction(top, cute.arch.fmax)
    # a row that no split saw has -inf here; any finite number makes its weights 0
    base = cutlass.select_(top == -Float32.inf, Float32(0.0), top)
    total = Float32(0.0)
    for entry in cutlass.range_constexpr(plan.entries):
        own[entry] = exp2(own[entry] - base)
        total += own[entry]
    total = cute.arch.warp_reduction(total, lambda x, y: x + y)
    empty = total == 0.0
    factor = cutlass.select_(empty, Float32(0.0), Float32(1.0) / total)
    for entry in cutlass.range_constexpr(plan.entries):
        weights[lane + entry * WARP] = own[entry] * factor
    return cutlass.select_(empty, -Float32.inf, base + cute.math.log2(total, fastmath=True))


@cute.jit
def add_up(
    plan: cutlass.Constexpr[CombinePlan],
    parts: cute.Tensor,
    splits: Int32,
    weights: cute.Tensor,
    first: Int32,
    lane: Int32,
) -> cute.Tensor:
    """This lane's part of the weighted sum over splits first, first + plan.warps, ...: (VECTOR, passes) in f32.

    `parts` is (dim_v, splits).
    """
    total = cute.make_rmem_tensor((VECTOR, plan.passes), Float32)
    read = cute.make_rmem_tensor((VECTOR, plan.passes, UNROLLED), Float32)
    factors = cute.make_rmem_tensor(UNROLLED, Float32)
    total.fill(0.0)
    split = first
    while split < splits:
        for step in cutlass.range_constexpr(UNROLLED):
            this = split + step * plan.warps
            factors[step] = Float32(0.0)
            if this < splits:
                factors[step] = weights[this]
            for place in cutlass.range_constexpr(plan.passes):
                vector = lane + place * WARP
                read[None, place, step].fill(0.0)
                if (factors[step] != 0.0) & (vector * VECTOR < plan.dim_v):
                    source = cute.flat_divide(parts[None, this], (VECTOR,))
                    cute.autovec_copy(source[None, vector], read[None, place, step])
        for step in cutlass.range_constexpr(UNROLLED):
            for place in cutlass.range_constexpr(plan.passes):
                for element in cutlass.range_constexpr(VECTOR):
                    total[element, place] = cute.math.fma(
                        read[element, place, step], factors[step], total[element, place]
                    )
        split += UNROLLED * plan.warps
    return total


def over_warps(plan: CombinePlan, sums: cute.Tensor, lane: Int32) -> cute.Tensor:
    """The sum over the warps of a block, in their order."""
    total = cute.make_rmem_tensor((VECTOR, plan.passes), Float32)
    for place in range(plan.passes):
        for element in range(VECTOR):
            first, second, *others = [sums[element, lane, place, warp] for warp in range(WARPS)]
            total[element, place] = sum(others, first + second)
    return total


def compile_combine(plan: CombinePlan, arch: str, options: str = "") -> Callable[..., None]:
    """The compiled kernel of `plan` for `arch` ("sm_90a"): a function of the tensors of `Combine.__call__`."""
    parts = operand("f32", (SPLIT, *plan.o_axes), plan.inner, plan.dim_v)
    logs = tensor("f32", len(plan.lse_axes) + 1)
    return cute.compile(
        Combine(plan),
        parts,
        logs,
        operand(plan.o_dtype, plan.o_axes, plan.inner, plan.dim_v),
        tensor("f32", len(plan.lse_axes)),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        options=f"{OPTIONS} --gpu-arch {arch} {options}".strip(),
    )
