"""The load warp: the queries once, then keys and values of every visited tile, from right to left.

Rows of K and V come in parts, through one ring: all parts of a tile of keys, then all of a tile of values.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from attn_dsl.kernels.common.launch import Values, tma_copy
from attn_dsl.kernels.pack_gqa import Packing, load_rows
from attn_dsl.kernels.sm100.forward.clear import clear_values
from attn_dsl.kernels.sm100.forward.turns import next_part, parts
from attn_dsl.kernels.sm100.forward.visits import visits
from attn_dsl.lowering.forward.sm100_plan import ROWS


@cute.jit
def fetch(
    barriers: cutlass.Constexpr,
    name: cutlass.Constexpr[str],
    slot: Int32,
    bytes_: cutlass.Constexpr[int],
    atom: cute.CopyAtom,
    source: cute.Tensor,
    target: cute.Tensor,
) -> None:
    """Copies one tile and completes a phase of `name` when it has landed."""
    full = barriers.at(name, slot)
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(full, bytes_)
    cute.copy(atom, source, target, tma_bar_ptr=full)


@cute.jit
def fetch_parts(
    barriers: cutlass.Constexpr,
    count: cutlass.Constexpr[int],
    atom: cute.CopyAtom,
    source: cute.Tensor,
    target: cute.Tensor,
    n: Int32,
    slot: Int32,
    parity: Int32,
    fresh: cutlass.Constexpr[bool] = False,
) -> tuple[Int32, Int32]:
    """Copies the `count` parts of key tile `n` into the ring at (slot, parity); returns the place after them.

    `fresh`: nothing has lain there yet.
    """
    element_bytes = target.element_type.width // 8
    bytes_ = cute.size(target, mode=[0]) * element_bytes
    for part in cutlass.range_constexpr(count):
        if const_expr(not fresh):
            barriers.wait("kv_empty", slot, parity ^ 1)
        fetch(barriers, "kv_full", slot, bytes_, atom, source[None, n, part], target[None, slot])
        slot, parity = next_part(barriers.plan, slot, parity)
    return slot, parity


@cute.jit
def fetch_values(
    scope: cutlass.Constexpr,
    values: Values,
    sV: cute.Tensor,
    n: Int32,
    slot: Int32,
    parity: Int32,
    fresh: cutlass.Constexpr[bool] = False,
) -> tuple[Int32, Int32]:
    """As `fetch_parts`, of a tile of values in which the sequence may end."""
    barriers = values[0]
    plan = barriers.plan
    places, _, _ = parts(plan, slot, parity, plan.v_parts)
    slot, parity = fetch_parts(*values, n, slot, parity, fresh)
    if const_expr(plan.clears):
        keys = scope.seq_k - n * plan.tile_k
        if keys < plan.tile_k:
            clear_values(plan, barriers, sV, places, keys)
    return slot, parity


@cute.jit
def fetch_queries(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    atom: cute.CopyAtom,
    mQ: cute.Tensor,
    q_tile: cute.Tensor,
    place: cutlass.Constexpr[int],
) -> None:
    """Copies query tile `place`, a box of heads and queries, out of ((heads, rows), dim)."""
    plan = work.plan
    packing = Packing(plan.pack, ROWS)
    gQ = cute.local_tile(mQ, (packing.box, plan.dim_padded), (None, 0))
    source, target = tma_copy(atom, gQ, cute.append_ones(q_tile, up_to_rank=3))
    bytes_ = ROWS * plan.dim_padded * q_tile.element_type.width // 8
    box = packing.place(work.head, work.tile * plan.query_tiles + place)
    fetch(barriers, "q_full", Int32(place), bytes_, atom, source[None, box], target[None, 0])


@cute.jit
def gather_queries(
    work: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    mQ: cute.Tensor,
    q_tiles: Values,
    seen: cutlass.Constexpr,
    thread: Int32,
) -> None:
    """Copies query tiles row by row. Run by the correction warpgroup, which has nothing to correct yet."""
    plan = work.plan
    rows = rows_from(work, mQ)
    for place in cutlass.range_constexpr(plan.query_tiles):
        if seen.tiles[place].first >= 0:
            load_rows(rows, q_tiles[place], work.skipped + place * ROWS, thread, ROWS)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    # threads wrote them, matrix products read them through the async proxy
    cute.arch.fence_view_async_shared()
    for place in cutlass.range_constexpr(plan.query_tiles):
        if seen.tiles[place].first >= 0:
            barriers.arrive("q_full", place)


def rows_from(work: Any, tensor: cute.Tensor) -> cute.Tensor:
    """The packed rows from the first query of the thread block on, of a tensor ((heads, rows), dim)."""
    own = cute.domain_offset(((0, work.first_row), 0), tensor)
    return Packing(work.plan.pack, ROWS).view(own, work.head, work.q.slots - work.first_row)


@cute.jit
def load_tiles(
    work: cutlass.Constexpr,
    scope: cutlass.Constexpr,
    barriers: cutlass.Constexpr,
    atoms: Values,
    tensors: Values,
    shared: Values,
) -> None:
    """Fills shared memory for one thread block, from the rows of its sequence and head. Run by one warp."""
    plan = work.plan
    q_atom, k_atom, v_atom = atoms
    mQ, mK, mV = tensors
    q_tiles, sK, sV = shared
    gK = cute.local_tile(mK, (plan.tile_k, plan.k_part), (None, None))
    gV = cute.local_tile(mV, (plan.tile_k, plan.v_part), (None, None))
    k_source, k_target = tma_copy(k_atom, gK, sK)
    v_source, v_target = tma_copy(v_atom, gV, sV)
    keys = (barriers, plan.k_parts, k_atom, k_source, k_target)
    values = (barriers, plan.v_parts, v_atom, v_source, v_target)

    seen = visits(work, scope.fresh())
    following, n = seen.following, seen.first  # an object whose methods are called would be carried by the loop below
    if n >= 0:
        slot, parity = fetch_parts(*keys, n, Int32(0), Int32(0), True)
        if const_expr(plan.by_tma):
            for place in cutlass.range_constexpr(plan.query_tiles):
                if seen.tiles[place].first >= 0:
                    fetch_queries(work, barriers, q_atom, mQ, q_tiles[place], place)
        if const_expr(not plan.keys_ahead):
            slot, parity = fetch_values(scope, values, sV, n, slot, parity, True)
        before = n
        n = following(n)
        while n >= 0:
            slot, parity = fetch_parts(*keys, n, slot, parity)
            if const_expr(plan.keys_ahead):
                slot, parity = fetch_values(scope, values, sV, before, slot, parity)
            else:
                slot, parity = fetch_parts(*values, n, slot, parity)
            before = n
            n = following(n)
        if const_expr(plan.keys_ahead):
            fetch_values(scope, values, sV, before, slot, parity)
