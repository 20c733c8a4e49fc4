"""Operands of the matrix products of a forward kernel: descriptors of what TMA wrote into shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attn_dsl.kernels.mma_sm100_desc import (
    LayoutType,
    Major,
    Swizzle,
    Tile,
    k_steps,
    layout_type,
    make_instr_desc,
    make_smem_desc_base,
)
from attn_dsl.kernels.sm100.tcgen05 import SharedOperand
from attn_dsl.lowering.forward.sm100_plan import ROWS, Sm100Plan

UNIT = 16  # bytes


@dataclass(frozen=True, eq=False)
class Operands:
    """What both products of a plan are made of."""

    q: SharedOperand
    k: SharedOperand
    v: SharedOperand
    qk: int  # instruction descriptors
    pv: int
    k_stage: int  # 16-byte units from one stage of a ring to the next
    v_stage: int


def operands(plan: Sm100Plan, element: Any, q_layout: Any, k_layout: Any, v_layout: Any) -> Operands:
    """From the layouts of a query tile, of a tile of keys and of one of values, all row-major (rows, columns)."""
    size = element.width // 8
    return Operands(
        _operand(q_layout, element, Major.K),
        _operand(k_layout, element, Major.K),
        _operand(v_layout, element, Major.MN),
        make_instr_desc(element, element, "Float32", ROWS, plan.tile_k),
        make_instr_desc(element, element, "Float32", ROWS, plan.dim_v_padded, b_major=Major.MN),
        plan.tile_k * plan.dim_padded * size // UNIT,
        plan.tile_k * plan.dim_v_padded * size // UNIT,
    )


def _operand(layout: Any, element: Any, major: Major) -> SharedOperand:
    """`layout` has (rows, columns); of the values, rows are the k of the product."""
    shape, stride = layout.outer.shape, layout.outer.stride
    mn, k = (0, 1) if major is Major.K else (1, 0)
    tile = Tile(shape[mn], stride[mn], shape[k], stride[k], element.width)
    base = make_smem_desc_base(tile, _kind(layout.inner), major)
    return SharedOperand(base, k_steps(tile))


def _kind(swizzle: Any) -> LayoutType:
    return layout_type(Swizzle(swizzle.num_bits, swizzle.num_base, swizzle.num_shift))
