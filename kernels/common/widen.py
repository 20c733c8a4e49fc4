"""Keys and values of 8 bits, widened to 16 in shared memory: one matrix product takes operands of one width.

Both 8-bit formats are subsets of f16, and their values are values of bf16 too: widening is exact. What a stored value
was divided by is a factor of scores or outputs and no matter of this file.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr
from cutlass._mlir.dialects import llvm

from attn_dsl.kernels.named_barrier import WARP
from attn_dsl.kernels.paged_kv import PagedRows

WIDE = 8  # elements of 16 bits in 16 bytes
HALF = {"low": "mov.b32 {h, _}, $1;", "high": "mov.b32 {_, h}, $1;"}  # two of the four bytes of a word


def widened(word: Int32, half: str, kind: str, element: type) -> Int32:
    """Two elements of `kind` ("e4m3", "e5m2") in half a word, as a pair of f16 or bf16 (PTX ISA, cvt)."""
    text = f"{{ .reg .b16 h; {HALF[half]} cvt.rn.f16x2.{kind}x2 $0, h; }}"
    if element is cutlass.BFloat16:
        text = (
            f"{{ .reg .b16 h, a, b; .reg .b32 w; .reg .f32 x, y; {HALF[half]} cvt.rn.f16x2.{kind}x2 w, h; "
            "mov.b32 {a, b}, w; cvt.f32.f16 x, a; cvt.f32.f16 y, b; cvt.rn.bf16x2.f32 $0, y, x; }"
        )
    return Int32(llvm.inline_asm(Int32.mlir_type, [word.ir_value()], text, "=r,r", has_side_effects=False))


def _sixteen_bytes(tensor: cute.Tensor, width: int, row: Any, column: Any) -> cute.Tensor:
    """Elements `column * width` and the following of a row: 16 bytes."""
    return cute.make_tensor(cute.local_tile(tensor, (1, width), (row, column)).iterator, cute.make_layout(width))


def _chunk_of(plan: PagedRows, lane: Int32, step: int, beside: int) -> tuple[Any, Any, Any]:
    """(row of the warp, 16-byte column, whether there are such) that a lane copies in a step, as in `copy_rows`."""
    place, column = step * plan.rows_per_step + lane // plan.lanes, beside * plan.lanes + lane % plan.lanes
    chunks = plan.columns // plan.chunk
    inside = Boolean(True)
    if (step + 1) * plan.rows_per_step > plan.rows_per_warp:
        inside = inside & (place < plan.rows_per_warp)
    if (beside + 1) * plan.lanes > chunks:
        inside = inside & (column < chunks)
    return place, column, inside


@cute.jit
def widen_rows(
    plan: cutlass.Constexpr[PagedRows],
    kind: cutlass.Constexpr[str],
    source: cute.Tensor,
    target: cute.Tensor,
    thread: Int32,
) -> None:
    """Widens a tile. Every lane takes what it copied itself with `copy_rows` and has waited for.

    Args:
        plan: as of `copy_rows`, of 8-bit elements.
        source: (plan.rows, plan.columns) of 8 bits in shared memory, rows without gaps.
        target: likewise of 16 bits, whatever its swizzle.
    """
    passes = -(-plan.columns // (plan.chunk * plan.lanes))
    lane = thread % WARP
    first = thread // WARP * plan.rows_per_warp
    # eight lanes side by side write two swizzled rows of 128 bytes: half of them begin with the other 16 bytes of
    # their 32, or two of them would share each bank
    other = lane // 4 % 2 if const_expr(plan.lanes == 8) else Int32(0)
    steps = -(-plan.rows_per_warp // plan.rows_per_step)
    narrow = cute.make_rmem_tensor((plan.chunk, passes, steps), source.element_type)
    wide = cute.make_rmem_tensor((WIDE, 2), target.element_type)
    pairs = cute.recast_tensor(wide, Int32)
    # all reads before the first write, for which they would have to wait
    for step in cutlass.range_constexpr(steps):
        for beside in cutlass.range_constexpr(passes):
            place, column, inside = _chunk_of(plan, lane, step, beside)
            if inside:
                here = _sixteen_bytes(source, plan.chunk, first + place, column)
                cute.autovec_copy(here, narrow[None, beside, step])
    for step in cutlass.range_constexpr(steps):
        for beside in cutlass.range_constexpr(passes):
            place, column, inside = _chunk_of(plan, lane, step, beside)
            words = cute.recast_tensor(narrow[None, beside, step], Int32)
            for half in cutlass.range_constexpr(2):
                for word in cutlass.range_constexpr(2):
                    this = words[2 * half + word]
                    if const_expr(plan.lanes == 8):
                        this = cutlass.select_(other == 0, this, words[2 - 2 * half + word])
                    pairs[2 * word, half] = widened(this, "low", kind, target.element_type)
                    pairs[2 * word + 1, half] = widened(this, "high", kind, target.element_type)
            if inside:
                for half in cutlass.range_constexpr(2):
                    where = 2 * column + (half if const_expr(plan.lanes < 8) else other ^ half)
                    cute.autovec_copy(wide[None, half], _sixteen_bytes(target, WIDE, first + place, where))
