"""The SM100 kernel of absorbed latent attention: what a launch prepares, and who does what inside a thread block.

    softmax      a warpgroup: two threads hold a row
    correction   a warpgroup: rescales the output in tensor memory, and finishes it
    mma          a warp: owns tensor memory, issues all matrix products
    load         a warp: Q once, then K into a ring of two tiles, from which both products read
    epilogue     a warp: O

One thread block works on 64 rows, pairs of query and head. Where a query has 128 heads, two thread blocks form a
cluster, and each loads half of every tile of keys for both. Shared memory: barriers, statistics of rows, Q, the ring;
O, at the end, from where Q begins. Tensor memory: two slots of scores, two of weights, and the output, folded to half
its columns.
"""

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.nvgpu import cpasync

from attn_dsl.kernels.common.launch import ELEMENTS, Values, ordered, split_arguments, tile_layout
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.lengths import blocks, of_keys, of_lse, of_queries, order_of, sequences, work_of_block
from attn_dsl.kernels.mma_sm100_desc import start_address
from attn_dsl.kernels.pack_gqa import Packing
from attn_dsl.kernels.paged_kv import pages_of
from attn_dsl.kernels.sm100.forward.barriers import Barriers
from attn_dsl.kernels.sm100.mla.correction import correct_tiles, store_tile
from attn_dsl.kernels.sm100.mla.load import load_tiles
from attn_dsl.kernels.sm100.mla.mma import multiply_tiles, operands
from attn_dsl.kernels.sm100.mla.softmax import softmax_tiles
from attn_dsl.kernels.sm100.tcgen05 import fence_after, fence_before
from attn_dsl.lowering.forward.plan import SHARED_ALIGNMENT
from attn_dsl.lowering.forward.sm100_mla_plan import PART, ROWS, THREADS, MlaPlan
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, SLOTS, STATISTICS


def shared_storage(plan: MlaPlan, element: Any) -> Any:
    """The shared memory of a thread block. O, which may be longer than Q, lies over Q and the ring behind it."""
    elements = ROWS * plan.dim_padded + plan.stages * plan.key_parts * plan.part_elements
    tiles_region: Any = cute.struct.Align[cute.struct.MemRange[element, elements], SHARED_ALIGNMENT]

    @cute.struct
    class Shared:
        barriers: cute.struct.MemRange[Int64, plan.barriers]
        tensor_memory: Int32
        statistics: cute.struct.Align[cute.struct.MemRange[Float32, STATISTICS * SLOTS * THREADS], 16]
        tiles: tiles_region

    return Shared


class MlaForward:
    """The kernel of one plan. Calling it is what CuTe DSL compiles."""

    def __init__(self, plan: MlaPlan) -> None:
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
                other strides are multiples of 16 bytes. `mV` is the first part of `mK` and is not read.
            arguments: the extent of the keys' row axis, which may be 0 where K has a row; the number of (head, batch)
                pairs whose K shares the L2 cache, at least 1; then captures, parameters, extents and lengths as in
                the plan.
        """
        plan = self.plan
        element = ELEMENTS[plan.dtype]
        o_element = Float32 if const_expr(plan.partial) else ELEMENTS[plan.o_dtype]
        mQ, mK, mV, mO, mLSE = ordered(plan, mQ, mK, mV, mO, mLSE)
        q_layout = tile_layout(element, ROWS, plan.dim_padded)
        k_layout = tile_layout(element, plan.tile_k, plan.dim_padded)
        v_layout = tile_layout(element, plan.tile_k, plan.half_columns)
        box_layout = tile_layout(element, plan.key_box, PART)
        o_layout = tile_layout(o_element, ROWS, plan.dim_v_padded)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        share = cpasync.CopyBulkTensorTileG2SMulticastOp() if const_expr(plan.cluster > 1) else load
        rows = Packing(plan.box_heads, ROWS).box
        q_atom, q_tensor = cpasync.make_tiled_tma_atom(load, mQ, q_layout, (rows, plan.dim_padded))
        k_atom, k_tensor = cpasync.make_tiled_tma_atom(share, mK, box_layout, (plan.key_box, PART))
        o_atom, o_tensor = None, None
        if const_expr(plan.stores_boxes):
            o_atom, o_tensor = cpasync.make_tiled_tma_atom(store, mO, o_layout, (rows, plan.dim_v_padded))
        heads, slots_q = mQ.shape[0]
        batch = sequences(plan, split_arguments(plan, arguments[2:]), mQ.shape[2])
        splits = mLSE.shape[3] if const_expr(plan.partial) else 1
        page = cute.fast_divmod_create_divisor_v2(mK.shape[0]) if const_expr(plan.paging is not None) else None
        self.kernel(
            (q_atom, k_atom, o_atom),
            (q_tensor, k_tensor, o_tensor),
            (q_layout, box_layout, o_layout),
            (mQ, mO, mLSE),
            arguments,
            page,
            batch,
            heads // mK.shape[2],
            operands(plan, element, q_layout, k_layout, v_layout),
            shared_storage(plan, element),
        ).launch(
            grid=(blocks(plan, heads, batch, slots_q), splits, plan.cluster),
            block=(plan.threads, 1, 1),
            cluster=(1, 1, plan.cluster),
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        atoms: Values,
        tensors: Values,
        layouts: Values,
        plain: Values,
        arguments: Values,
        page: Any,
        batch: Int32,
        group: Int32,
        products: cutlass.Constexpr,
        Shared: cutlass.Constexpr,
    ) -> None:
        """The rows of one thread block."""
        plan = self.plan
        mQ, mO, mLSE = plain
        mma, load = plan.role("mma").first, plan.role("load").first
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
                if const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
        fence_before()
        self.meet()
        fence_after()
        memory = cute.arch.retrieve_tmem_ptr(Float32, 16, storage.tensor_memory.ptr)
        shared = tiles_of(plan, storage.tiles.data_ptr(), layouts, mO.element_type)
        statistics = storage.statistics.get_tensor(cute.make_layout((THREADS, SLOTS, STATISTICS)))

        slots_k, pairs_per_section = arguments[:2]
        known = split_arguments(plan, arguments[2:])
        heads, slots_q = mQ.shape[0]
        order = order_of(plan, heads, batch, slots_q, pairs_per_section)
        splits = mLSE.shape[3] if const_expr(plan.partial) else None
        work = work_of_block(plan, known, order, batch, slots_q, slots_k, splits)
        o_tensor = tensors[2]
        if const_expr(plan.partial):
            assert work.split is not None
            part, _ = work.split
            mO, mLSE = mO[None, None, None, part], mLSE[None, None, None, part]
            if const_expr(o_tensor is not None):
                o_tensor = o_tensor[None, None, None, part]
        kv_head, pages = work.head // group, None
        if const_expr(plan.paging is not None):
            pages = pages_of(plan, known, work.b, page, slots_k)
            work = replace(work, k=replace(work.k, count=cutlass.min(work.k.count, pages.slots - work.k.first)))
            keys = tensors[1][None, None, kv_head, None]
        else:
            keys = of_keys(plan, tensors[1], work.k, kv_head, work.b)
        scope = Scope(plan, known, work.b, work.head, kv_head, work.q.count, work.k.count, work.q.packed, work.k.packed)
        boxes = (
            of_queries(plan, tensors[0], work.q, work.b),
            keys,
            None if const_expr(o_tensor is None) else of_queries(plan, o_tensor, work.q, work.b),
        )
        own = (of_queries(plan, mO, work.q, work.b), of_lse(plan, mLSE, work.q, work.b))
        rank = cute.arch.block_idx()[2] if const_expr(plan.cluster > 1) else Int32(0)
        fixed = (work, scope, barriers, pages, rank, products, atoms, boxes, own, (*shared, statistics, memory), warp)
        if const_expr(not plan.q_ends_early):
            self.attend(*fixed)
        elif (work.first_row >= 0) & (work.first_row < work.q.slots):
            self.attend(*fixed)
        fence_before()
        cute.arch.sync_threads()
        if warp == mma:
            fence_after()
            cute.arch.dealloc_tmem(memory, COLUMNS)

    @cute.jit
    def meet(self) -> None:
        """Waits until barriers are set and tensor memory is there, in all thread blocks of the cluster."""
        if const_expr(self.plan.cluster > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def attend(
        self,
        work: cutlass.Constexpr,
        scope: cutlass.Constexpr,
        barriers: cutlass.Constexpr,
        pages: cutlass.Constexpr,
        rank: Int32,
        products: cutlass.Constexpr,
        atoms: Values,
        boxes: Values,
        plain: Values,
        shared: Values,
        warp: Int32,
    ) -> None:
        """What each warp does for the rows of `work`. `boxes` and `plain` are the rows of its sequence: of Q, K and O
        as TMA takes them, of O and LSE as threads do."""
        plan = self.plan
        q_tile, ring, sK, sO, statistics, memory = shared
        first = {name: plan.role(name).first for name in ("correction", "mma", "load", "epilogue")}
        thread = cute.arch.thread_idx()[0] % THREADS
        if warp < first["correction"]:
            cute.arch.setmaxregister_increase(plan.registers_consumer)
            softmax_tiles(work, scope, barriers, rank, memory, statistics, ELEMENTS[plan.dtype], thread)
        elif warp < first["mma"]:
            cute.arch.setmaxregister_decrease(plan.registers_correction)
            correct_tiles(work, scope, barriers, rank, memory, statistics, plain, sO, thread)
        else:
            cute.arch.setmaxregister_decrease(plan.registers_producer)
            if warp == first["mma"]:
                starts = (start_address(q_tile.iterator.toint()), start_address(sK.iterator.toint()))
                multiply_tiles(work, scope, barriers, products, rank, memory.toint(), starts)
            elif warp == first["load"]:
                load_tiles(work, scope, barriers, pages, rank, atoms[:2], boxes[:2], (q_tile, ring, sK))
            elif warp == first["epilogue"]:
                if const_expr(plan.stores_boxes):
                    store_tile(work, barriers, rank, atoms[2], boxes[2], sO)


def tiles_of(plan: MlaPlan, tiles: Any, layouts: Any, o_element: Any) -> tuple[Any, Any, Any, Any]:
    """Q, the ring in boxes (rows, columns, boxes, parts) and in parts (rows, columns, parts), and O."""
    element = ELEMENTS[plan.dtype]
    q_layout, box_layout, o_layout = layouts
    start = tiles + ROWS * plan.dim_padded
    parts = cute.make_layout(plan.stages * plan.key_parts, stride=plan.part_elements)
    each = cute.make_layout(plan.tile_k // plan.key_box, stride=plan.key_box * PART)
    boxes = cute.append(cute.append(box_layout.outer, each), parts)
    part_layout = tile_layout(element, plan.tile_k, PART)
    whole = cute.append(part_layout.outer, parts)
    return (
        cute.make_tensor(cute.recast_ptr(tiles, q_layout.inner, dtype=element), q_layout.outer),
        cute.make_tensor(cute.recast_ptr(start, box_layout.inner, dtype=element), boxes),
        cute.make_tensor(cute.recast_ptr(start, part_layout.inner, dtype=element), whole),
        cute.make_tensor(cute.recast_ptr(tiles, o_layout.inner, dtype=o_element), o_layout.outer),
    )
