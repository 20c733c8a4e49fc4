"""The SM100 forward kernel of a plan: what a launch prepares, and who does what inside a thread block.

    softmax      a warpgroup per query tile; a thread holds a row
    correction   a warpgroup: rescales outputs in tensor memory, and finishes them
    mma          a warp: owns tensor memory, issues all matrix products
    load         a warp: Q once, then K and V into one ring of `stages` parts
    epilogue     a warp: O

One thread block works on one or two tiles of 128 queries of one head; their rows are pairs of query and head where
heads are packed. Shared memory: barriers, statistics of rows, Q (later O), the ring. Tensor memory: two slots of
scores, in whose upper halves weights lie, and the outputs.
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
from attn_dsl.kernels.sm100.forward.correction import correct_tiles
from attn_dsl.kernels.sm100.forward.epilogue import store_tiles
from attn_dsl.kernels.sm100.forward.load import load_tiles
from attn_dsl.kernels.sm100.forward.mma import multiply_ahead, multiply_in_turns
from attn_dsl.kernels.sm100.forward.softmax import softmax_tiles
from attn_dsl.kernels.sm100.operands import operands
from attn_dsl.kernels.sm100.pages import boxes_of_pools, load_boxes, load_rows
from attn_dsl.kernels.sm100.widen import load_widened, narrow_tiles
from attn_dsl.lowering.forward.plan import SHARED_ALIGNMENT
from attn_dsl.lowering.forward.sm100_plan import COLUMNS, ROWS, SLOTS, STATISTICS, WARP, Sm100Plan


def shared_storage(plan: Sm100Plan, element: Any) -> Any:
    """The shared memory of a thread block."""

    def region(size: int) -> Any:
        return cute.struct.Align[cute.struct.MemRange[element, size], SHARED_ALIGNMENT]

    # O takes the place of Q
    q_region: Any = region(plan.query_tiles * plan.query_elements)
    ring_region: Any = region(plan.stages * plan.part_elements)

    @cute.struct
    class Shared:
        barriers: cute.struct.MemRange[Int64, plan.barriers]
        tensor_memory: Int32
        statistics: cute.struct.Align[cute.struct.MemRange[Float32, STATISTICS * SLOTS * ROWS], 16]
        q: q_region
        ring: ring_region

    return Shared


def ring_tensor(plan: Sm100Plan, ring: Any, layout: Any, element: Any) -> Any:
    """The ring as (rows, columns, slots) of parts of K or of V; a slot has room for either."""
    slots = cute.append(layout.outer, cute.make_layout(plan.stages, stride=plan.part_elements))
    return cute.make_tensor(cute.recast_ptr(ring, layout.inner, dtype=element), slots)


def retrieve(where: Any) -> Any:
    """The start of tensor memory, read anew by each role: no register holds it for all of them."""
    return cute.arch.retrieve_tmem_ptr(Float32, 16, where)


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
            arguments: the extent of the keys' row axis, which may be 0 where K and V have a row; the number of (head,
                batch) pairs whose K and V share the L2 cache, at least 1; then captures, parameters, extents and
                lengths as in the plan.
        """
        plan = self.plan
        element, o_element = ELEMENTS[plan.dtype], ELEMENTS[plan.o_dtype]
        mQ, mK, mV, mO, mLSE = ordered(plan, mQ, mK, mV, mO, mLSE)
        q_layout = tile_layout(element, ROWS, plan.dim_padded)
        k_layout = tile_layout(element, plan.tile_k, plan.k_part)
        v_layout = tile_layout(element, plan.tile_k, plan.v_part)
        o_layout = tile_layout(o_element, ROWS, plan.dim_v_padded)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        kv_atoms, kv_tensors = (None, None), (None, None)
        pools: Values = ()
        if const_expr(plan.paging is not None):
            pools = (mK, mV, cute.fast_divmod_create_divisor_v2(mK.shape[0]))
        elif const_expr(plan.widens):
            pools = (mK, mV)
        if const_expr(plan.page_size > 0):
            kv_atoms, kv_tensors = boxes_of_pools(plan, mK, mV)
        elif const_expr(not plan.loads_rows):
            k_atom, k_tensor = cpasync.make_tiled_tma_atom(load, mK, k_layout, (plan.tile_k, plan.k_part))
            v_atom, v_tensor = cpasync.make_tiled_tma_atom(load, mV, v_layout, (plan.tile_k, plan.v_part))
            kv_atoms, kv_tensors = (k_atom, v_atom), (k_tensor, v_tensor)
        q_atom, q_tensor, o_atom, o_tensor = None, None, None, None
        if const_expr(plan.by_tma):
            box = (Packing(plan.pack, ROWS).box, plan.dim_padded)
            q_atom, q_tensor = cpasync.make_tiled_tma_atom(load, mQ, q_layout, box)
        if const_expr(plan.stages_output and plan.stores_boxes):
            box = (Packing(plan.pack, ROWS).box, plan.dim_v_padded)
            o_atom, o_tensor = cpasync.make_tiled_tma_atom(store, mO, o_layout, box)
        heads, slots_q = mQ.shape[0]
        batch = sequences(plan, split_arguments(plan, arguments[2:]), mQ.shape[2])
        splits = mLSE.shape[3] if const_expr(plan.partial) else 1
        self.kernel(
            (q_atom, *kv_atoms, o_atom),
            (q_tensor, *kv_tensors, o_tensor),
            (q_layout, k_layout, v_layout, o_layout),
            (mQ, mO, mLSE),
            pools,
            arguments,
            batch,
            heads // mK.shape[2],
            operands(plan, element, q_layout, k_layout, v_layout),
            shared_storage(plan, element),
        ).launch(
            grid=(blocks(plan, heads, batch, slots_q), splits, 1),
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
        plain: Values,
        pools: Values,
        arguments: Values,
        batch: Int32,
        group: Int32,
        products: cutlass.Constexpr,
        Shared: cutlass.Constexpr,
    ) -> None:
        """The query tiles of one thread block."""
        plan = self.plan
        element, o_element = ELEMENTS[plan.dtype], ELEMENTS[plan.o_dtype]
        q_layout, k_layout, v_layout, o_layout = layouts
        mma, load = plan.role("mma").first, plan.role("load").first
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        allocator = cutlass.memory.SmemAllocator()
        storage = allocator.allocate(Shared)
        narrow = narrow_tiles(plan, allocator)
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
        cute.arch.sync_threads()

        q_tiles, o_tiles = [], []
        for place in cutlass.range_constexpr(plan.query_tiles):
            region = storage.q.data_ptr() + place * plan.query_elements
            q_pointer = cute.recast_ptr(region, q_layout.inner, dtype=element)
            o_pointer = cute.recast_ptr(region, o_layout.inner, dtype=o_element)
            q_tiles.append(cute.make_tensor(q_pointer, q_layout.outer))
            o_tiles.append(cute.make_tensor(o_pointer, o_layout.outer))
        sK = ring_tensor(plan, storage.ring.data_ptr(), k_layout, element)
        sV = ring_tensor(plan, storage.ring.data_ptr(), v_layout, element)
        statistics = storage.statistics.get_tensor(cute.make_layout((ROWS, SLOTS, STATISTICS)))

        slots_k, pairs_per_section = arguments[:2]
        known = split_arguments(plan, arguments[2:])
        mQ, mO, mLSE = plain
        heads, slots_q = mQ.shape[0]
        order = order_of(plan, heads, batch, slots_q, pairs_per_section)
        splits = None
        if const_expr(plan.partial):
            splits, part = mLSE.shape[3], cute.arch.block_idx()[1]
            mO, mLSE = mO[None, None, None, part], mLSE[None, None, None, part]
        work = work_of_block(plan, known, order, batch, slots_q, slots_k, splits)
        kv_head = work.head // group
        pages = None
        if const_expr(plan.paging is not None):
            assert plan.paging is not None
            pages = pages_of(plan, known, work.b, pools[2], slots_k)
            if const_expr(plan.paging.indptr is not None):  # a row of a table has room for all keys of a sequence
                work = replace(work, k=replace(work.k, count=cutlass.min(work.k.count, pages.slots - work.k.first)))
        scope = Scope(plan, known, work.b, work.head, kv_head, work.q.count, work.k.count, work.q.packed, work.k.packed)
        boxes = tuple(
            None if tensor is None else of_queries(plan, tensor, work.q, work.b) for tensor in (tensors[0], tensors[3])
        )
        keys = (None, None)
        if const_expr(plan.page_size > 0):
            keys = tuple(tensor[None, None, kv_head, None] for tensor in tensors[1:3])
        elif const_expr(not plan.loads_rows):
            keys = tuple(of_keys(plan, tensor, work.k, kv_head, work.b) for tensor in tensors[1:3])
        own = tuple(of_queries(plan, tensor, work.q, work.b) for tensor in (mQ, mO))
        own = (*own, of_lse(plan, mLSE, work.q, work.b))
        starts = (
            [start_address(pointer.toint()) for pointer in [tensor.iterator for tensor in q_tiles]],
            start_address(storage.ring.data_ptr().toint()),
        )
        shared = (q_tiles, o_tiles, sK, sV, statistics, storage.tensor_memory.ptr, starts)
        paged = (pages, kv_head, pools[:2], narrow)
        fixed = (work, scope, barriers, products, paged, atoms, (boxes[0], *keys, boxes[1]), own, shared, warp)
        if const_expr(not plan.q_ends_early):
            self.attend(*fixed)
        elif (work.first_row >= 0) & (work.first_row < work.q.slots):
            self.attend(*fixed)
        cute.arch.sync_threads()
        if warp == mma:
            cute.arch.dealloc_tmem(retrieve(storage.tensor_memory.ptr), COLUMNS)

    @cute.jit
    def attend(
        self,
        work: cutlass.Constexpr,
        scope: cutlass.Constexpr,
        barriers: cutlass.Constexpr,
        products: cutlass.Constexpr,
        paged: cutlass.Constexpr,
        atoms: Values,
        boxes: Values,
        plain: Values,
        shared: Values,
        warp: Int32,
    ) -> None:
        """What each warp does for the query tiles of `work`. `boxes` and `plain` are the rows of its sequence: of Q, K,
        V and O as TMA takes them, of Q, O and LSE as threads do; `paged` are its pages, its K/V head, K and V as
        tensors, and shared memory for their bytes where they are widened."""
        plan = self.plan
        q_tiles, o_tiles, sK, sV, statistics, where, starts = shared
        first = {name: plan.role(name).first for name in ("correction", "mma", "load", "epilogue")}
        thread = cute.arch.thread_idx()[0] % ROWS
        if warp < first["correction"]:
            cute.arch.setmaxregister_increase(plan.registers_consumer)
            place, element = warp // (ROWS // WARP), ELEMENTS[plan.dtype]
            softmax_tiles(work, scope, barriers, retrieve(where), statistics, element, place, thread)
        elif warp < first["mma"]:
            cute.arch.setmaxregister_decrease(plan.registers_correction)
            correct_tiles(work, scope, barriers, retrieve(where), statistics, plain, (q_tiles, o_tiles), thread)
        else:
            cute.arch.setmaxregister_decrease(plan.registers_producer)
            if warp == first["mma"]:
                multiply = multiply_ahead if const_expr(plan.keys_ahead) else multiply_in_turns
                multiply(work, scope, barriers, products, retrieve(where).toint(), starts)
            elif self.loads(warp):
                # registers of all roles would hold the pools of the head if they were found before
                pages, kv_head, pools, narrow = paged
                queries, loader = (atoms[0], boxes[0], q_tiles), cute.arch.thread_idx()[0] - first["load"] * WARP
                if const_expr(plan.paging is not None):
                    pools = [pool[None, None, kv_head, None] for pool in pools]
                elif const_expr(plan.widens):
                    rows = [of_keys(plan, tensor, work.k, kv_head, work.b) for tensor in pools]
                    pools = [cute.append_ones(one, up_to_rank=3) for one in rows]
                if const_expr(plan.widens):
                    load_widened(work, scope, barriers, pages, pools, narrow, (sK, sV), queries, loader)
                elif const_expr(plan.paging is None):
                    load_tiles(work, scope, barriers, atoms[:3], boxes[:3], (q_tiles, sK, sV))
                elif const_expr(plan.loads_rows):
                    load_rows(work, scope, barriers, pages, pools, (sK, sV), queries, loader)
                else:
                    load_boxes(work, scope, barriers, pages, atoms[1:3], boxes[1:3], pools, (sK, sV), queries)
            elif warp == first["epilogue"]:
                if const_expr(plan.stages_output and plan.stores_boxes):
                    store_tiles(work, barriers, atoms[3], boxes[3], o_tiles)

    def loads(self, warp: Int32) -> Any:
        """Whether a warp is one of those that load (Boolean)."""
        role = self.plan.role("load")
        if role.warps == 1:
            return warp == role.first
        return (warp >= role.first) & (warp < role.first + role.warps)
