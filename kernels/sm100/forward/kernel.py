"""The SM100 forward kernel of a plan: what a launch prepares, and who does what inside a thread block.

    warps 0-3, 4-7   softmax of query tile 0 and 1; a thread holds a row
    warps 8-11       correction: rescales both outputs in tensor memory, and finishes them
    warp 12          MMA: owns tensor memory, issues all matrix products
    warp 13          load: TMA of Q once, of K and V into rings of `stages` tiles each
    warp 14          epilogue: TMA of O

One thread block works on two tiles of 128 queries of one head. Shared memory: barriers, statistics of rows, Q (later
O), K ring, V ring. Tensor memory: two tiles of scores, in whose upper halves weights lie, and two outputs.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.nvgpu import cpasync

from attn_dsl.kernels.common.launch import ELEMENTS, Values, permuted, split_arguments, tile_layout
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.scheduler import tile_of_block
from attn_dsl.kernels.mma_sm100_desc import start_address
from attn_dsl.kernels.sm100.forward.barriers import Barriers
from attn_dsl.kernels.sm100.forward.correction import correct_tiles
from attn_dsl.kernels.sm100.forward.epilogue import store_tiles
from attn_dsl.kernels.sm100.forward.load import load_tiles
from attn_dsl.kernels.sm100.forward.mma import multiply_tiles
from attn_dsl.kernels.sm100.forward.softmax import softmax_tiles
from attn_dsl.kernels.sm100.operands import operands
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before
from attn_dsl.lowering.forward.plan import SHARED_ALIGNMENT
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, QUERY_TILES, ROWS, STATISTICS, Sm100Plan


def shared_storage(plan: Sm100Plan, element: Any) -> Any:
    """The shared memory of a thread block."""

    def region(size: int) -> Any:
        return cute.struct.Align[cute.struct.MemRange[element, size], SHARED_ALIGNMENT]

    # O takes the place of Q
    q_region: Any = region(QUERY_TILES * plan.query_elements)
    k_region: Any = region(plan.stages * plan.tile_k * plan.dim_padded)
    v_region: Any = region(plan.stages * plan.tile_k * plan.dim_v_padded)

    @cute.struct
    class Shared:
        barriers: cute.struct.MemRange[Int64, plan.barriers]
        tensor_memory: Int32
        statistics: cute.struct.Align[cute.struct.MemRange[Float32, STATISTICS * QUERY_TILES * ROWS], 16]
        q: q_region
        k: k_region
        v: v_region

    return Shared


class Forward:
    """The kernel of one plan. Calling it is what CuTe DSL compiles."""

    def __init__(self, plan: Sm100Plan) -> None:
        self.plan = plan

    @cute.jit
    def __call__(
        self,
        mQ: cute.Tensor,
        mK: cute.Tensor,
        mV: cute.Tensor,
        mO: cute.Tensor,
        mLSE: cute.Tensor,
        arguments: Values,
        stream: Any,
    ) -> None:
        """Launches the kernel.

        Args:
            mQ, mK, mV, mO, mLSE: in the axis orders of the plan; the inner axis of the first four has stride 1, their
                other strides are multiples of 16 bytes.
            arguments: the number of keys, which may be 0 where K and V have a row; the number of (head, batch) pairs
                whose K and V share the L2 cache, at least 1; then captures, parameters and extents as in the plan.
        """
        plan = self.plan
        element, o_element = ELEMENTS[plan.dtype], ELEMENTS[plan.o_dtype]
        mQ = permuted(mQ, plan.q_axes, ("seq_q", "dim", "heads", "batch"))
        kv_heads = "kv_heads" if const_expr("kv_heads" in plan.k_axes) else "heads"
        dim_v = "dim_v" if const_expr("dim_v" in plan.v_axes) else "dim"
        mK = permuted(mK, plan.k_axes, ("seq_k", "dim", kv_heads, "batch"))
        mV = permuted(mV, plan.v_axes, ("seq_k", dim_v, kv_heads, "batch"))
        mO = permuted(mO, plan.o_axes, ("seq_q", dim_v, "heads", "batch"))
        mLSE = permuted(mLSE, plan.lse_axes, ("seq_q", "heads", "batch"))

        q_layout = tile_layout(element, ROWS, plan.dim_padded)
        k_layout = tile_layout(element, plan.tile_k, plan.dim_padded)
        v_layout = tile_layout(element, plan.tile_k, plan.dim_v_padded)
        o_layout = tile_layout(o_element, ROWS, plan.dim_v_padded)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        q_atom, q_tensor = cpasync.make_tiled_tma_atom(load, mQ, q_layout, (ROWS, plan.dim_padded))
        k_atom, k_tensor = cpasync.make_tiled_tma_atom(load, mK, k_layout, (plan.tile_k, plan.dim_padded))
        v_atom, v_tensor = cpasync.make_tiled_tma_atom(load, mV, v_layout, (plan.tile_k, plan.dim_v_padded))
        o_atom, o_tensor = cpasync.make_tiled_tma_atom(store, mO, o_layout, (ROWS, plan.dim_v_padded))
        tiles = cute.ceil_div(mQ.shape[0], plan.tile_q)
        self.kernel(
            (q_atom, k_atom, v_atom, o_atom),
            (q_tensor, k_tensor, v_tensor, o_tensor),
            (
                q_layout,
                tile_layout(element, plan.tile_k, plan.dim_padded, plan.stages),
                tile_layout(element, plan.tile_k, plan.dim_v_padded, plan.stages),
                o_layout,
            ),
            mLSE,
            arguments,
            mQ.shape[0],
            mQ.shape[2] // mK.shape[2],
            operands(plan, element, q_layout, k_layout, v_layout),
            shared_storage(plan, element),
        ).launch(
            grid=(tiles * mQ.shape[2] * mQ.shape[3], 1, 1),
            block=(plan.threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        atoms: Values,
        tensors: Values,
        layouts: Values,
        mLSE: cute.Tensor,
        arguments: Values,
        seq_q: Int32,
        group: Int32,
        products: cutlass.Constexpr,
        Shared: cutlass.Constexpr,
    ) -> None:
        """Two tiles of queries of one head."""
        plan = self.plan
        element, o_element = ELEMENTS[plan.dtype], ELEMENTS[plan.o_dtype]
        q_atom, k_atom, v_atom, o_atom = atoms
        mQ, mK, mV, mO = tensors
        q_layout, k_layout, v_layout, o_layout = layouts
        mma, load, epilogue = (plan.role(name).first for name in ("mma", "load", "epilogue"))
        correction = plan.role("correction").first
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        storage = cutlass.memory.SmemAllocator().allocate(Shared)
        barriers = Barriers(plan, storage.barriers.data_ptr())
        if warp == mma:
            with cute.arch.elect_one():
                barriers.init()
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(COLUMNS, storage.tensor_memory.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        if warp == load:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)
        fence_before()
        cute.arch.sync_threads()
        fence_after()
        memory = cute.arch.retrieve_tmem_ptr(Float32, 16, storage.tensor_memory.ptr)

        q_tiles, o_tiles = [], []
        for place in cutlass.range_constexpr(QUERY_TILES):
            region = storage.q.data_ptr() + place * plan.query_elements
            q_pointer = cute.recast_ptr(region, q_layout.inner, dtype=element)
            o_pointer = cute.recast_ptr(region, o_layout.inner, dtype=o_element)
            q_tiles.append(cute.make_tensor(q_pointer, q_layout.outer))
            o_tiles.append(cute.make_tensor(o_pointer, o_layout.outer))
        sK = storage.k.get_tensor(k_layout.outer, swizzle=k_layout.inner)
        sV = storage.v.get_tensor(v_layout.outer, swizzle=v_layout.inner)
        statistics = storage.statistics.get_tensor(cute.make_layout((ROWS, QUERY_TILES, STATISTICS)))

        seq_k, pairs_per_section = arguments[:2]
        tiles = cute.ceil_div(seq_q, plan.tile_q)
        heads, batch = mQ.shape[2], mQ.shape[3]
        tile, head, entry = tile_of_block(tiles, heads, batch, pairs_per_section, plan.order == "longest_first")
        scope = Scope(plan, split_arguments(plan, arguments[2:]), entry, head, head // group, seq_q, seq_k)
        first_row = tile * plan.tile_q
        last_row = cutlass.min(first_row + plan.tile_q, seq_q) - 1
        thread = cute.arch.thread_idx()[0] % ROWS
        if warp < correction:
            cute.arch.setmaxregister_increase(plan.registers_consumer)
            place = warp // (ROWS // 32)
            softmax_tiles(plan, scope, barriers, memory, statistics, element, first_row, last_row, place, thread)
        elif warp < mma:
            cute.arch.setmaxregister_decrease(plan.registers_correction)
            correct_tiles(plan, scope, barriers, memory, statistics, o_tiles, mLSE, first_row, last_row, thread)
        else:
            cute.arch.setmaxregister_decrease(plan.registers_producer)
            if warp == mma:
                starts = (
                    [start_address(pointer.toint()) for pointer in [tensor.iterator for tensor in q_tiles]],
                    start_address(storage.k.data_ptr().toint()),
                    start_address(storage.v.data_ptr().toint()),
                )
                multiply_tiles(plan, scope, barriers, products, memory.toint(), starts, first_row, last_row)
            elif warp == load:
                load_tiles(
                    plan,
                    scope,
                    barriers,
                    (q_atom, k_atom, v_atom),
                    (mQ, mK, mV),
                    (q_tiles, sK, sV),
                    tile,
                    first_row,
                    last_row,
                )
            elif warp == epilogue:
                store_tiles(plan, scope, barriers, o_atom, mO, o_tiles, tile, first_row)
        fence_before()
        cute.arch.sync_threads()
        if warp == mma:
            fence_after()
            cute.arch.dealloc_tmem(memory, COLUMNS)
