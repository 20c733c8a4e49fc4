"""Operands of the matrix products of a forward kernel: descriptors of what lies in shared memory."""

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

    q: tuple[SharedOperand, ...]  # the part of a query tile for each part of K
    k: SharedOperand  # a part
    v: SharedOperand  # a part
    qk: int  # instruction descriptors
    pv: int  # of one part of V
    part: int  # 16-byte units from one part of K or V to the next


def operands(plan: Sm100Plan, element: Any, q_layout: Any, k_layout: Any, v_layout: Any) -> Operands:
    """From the layouts of a query tile, of a part of keys and of one of values, all row-major (rows, columns)."""
    queries = operand(q_layout, element, Major.K)
    steps = len(queries.steps) // plan.k_parts
    return Operands(
        tuple(
            SharedOperand(queries.base, queries.steps[part * steps : (part + 1) * steps])
            for part in range(plan.k_parts)
        ),
        operand(k_layout, element, Major.K),
        operand(v_layout, element, Major.MN),
        make_instr_desc(element, element, "Float32", ROWS, plan.tile_k),
        make_instr_desc(element, element, "Float32", ROWS, plan.v_part, b_major=Major.MN),
        plan.part_elements * element.width // 8 // UNIT,
    )


def operand(layout: Any, element: Any, major: Major) -> SharedOperand:
    """The descriptor of a tile of (rows, columns); of the values, rows are the k of the product."""
    shape, stride = layout.outer.shape, layout.outer.stride
    mn, k = (0, 1) if major is Major.K else (1, 0)
    tile = Tile(shape[mn], stride[mn], shape[k], stride[k], element.width)
    base = make_smem_desc_base(tile, _kind(layout.inner), major)
    return SharedOperand(base, k_steps(tile))


def _kind(swizzle: Any) -> LayoutType:
    return layout_type(Swizzle(swizzle.num_bits, swizzle.num_base, swizzle.num_shift))
