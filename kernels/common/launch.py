"""What every template's entry does: tensors in the order a kernel takes them, tiles as TMA moves them, arguments."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum

from attn_dsl.kernels.common.leaves import Arguments
from attn_dsl.lowering.forward import ForwardPlan

ELEMENTS = {
    "f16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
}
# Several values as one argument. CuTe DSL would take a length from an annotation `tuple[Any, ...]`.
Values = Any


_NAMES = {"total_q": "seq_q", "total_k": "seq_k", "page_size": "seq_k", "pages": "batch"}
SPLIT = "split"  # the first axis of results that each belong to a part of the keys


def permuted(tensor: cute.Tensor, axes: tuple[str, ...], order: tuple[str, ...]) -> cute.Tensor:
    """`tensor`, whose axes are named `axes`, with its axes in `order`.

    A packed tensor is one sequence: its rows are those of all, and it gets a batch axis of extent 1. A page is a
    sequence likewise.
    """
    names = [_NAMES.get(name, name) for name in axes]
    layout = tensor.layout
    if "batch" not in names:
        layout = cute.append(layout, cute.make_layout(1, stride=0))
        names.append("batch")
    return cute.make_tensor(tensor.iterator, cute.select(layout, mode=[names.index(name) for name in order]))


def ordered(plan: ForwardPlan, q: Any, k: Any, v: Any, o: Any, lse: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The tensors of a launch as kernels index them.

    q, o ((heads, seq_q), dim, batch): rows are pairs of head and query row, of which a tile takes `plan.pack` heads;
    k, v (seq_k, dim, kv_heads, batch), or (page_size, dim, kv_heads, pages); lse (seq_q, heads, batch). Partial results
    have the parts of the keys as their last axis.
    """
    kv_heads = "kv_heads" if "kv_heads" in plan.k_axes else "heads"
    dim_v = "dim_v" if "dim_v" in plan.v_axes else "dim"
    first = (SPLIT,) if plan.partial else ()
    return (
        cute.group_modes(permuted(q, plan.q_axes, ("heads", "seq_q", "dim", "batch")), 0, 2),
        permuted(k, plan.k_axes, ("seq_k", "dim", kv_heads, "batch")),
        permuted(v, plan.v_axes, ("seq_k", dim_v, kv_heads, "batch")),
        cute.group_modes(permuted(o, (*first, *plan.o_axes), ("heads", "seq_q", dim_v, "batch", *first)), 0, 2),
        permuted(lse, (*first, *plan.lse_axes), ("seq_q", "heads", "batch", *first)),
    )


def tile_layout(element: Any, rows: int, columns: int, stages: int | None = None) -> Any:
    """The swizzled shared-memory layout of row-major tiles, as TMA writes and matrix products read it."""
    kind = hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, element, columns)
    shape = (rows, columns) if stages is None else (rows, columns, stages)
    return cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, element), shape, order=tuple(range(len(shape))))


def tma_copy(
    atom: cute.CopyAtom, global_tiles: cute.Tensor, shared_tiles: cute.Tensor
) -> tuple[cute.Tensor, cute.Tensor]:
    """(source, destination) of TMA copies, tiles in the last mode of both."""
    shared, source = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared_tiles, 0, 2), cute.group_modes(global_tiles, 0, 2)
    )
    return source, shared


def split_arguments(plan: ForwardPlan, values: tuple[Any, ...]) -> Arguments:
    """Captures, parameters, extents and lengths out of the one tuple in which a launch passes them."""
    groups = []
    for count in (len(plan.captures), len(plan.params), len(plan.sizes), len(plan.geometry)):
        groups.append(values[:count])
        values = values[count:]
    return Arguments(plan, *groups)
