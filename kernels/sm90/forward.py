"""The SM90 forward kernel of a plan: what a launch prepares, and who does what inside a thread block.

    warp 0          producer: TMA of Q once, of K and V into a ring of `stages` tiles each; out of pages, warps 0 to 3
    warpgroups 1..  consumers: 64 rows each; S = Q K^T, softmax in registers, O += P V; O by TMA, LSE by stores

One thread block works on one tile of queries of one head, and on all its keys or a part of them: then it writes O in
f32 from registers, and a second kernel joins the parts. Shared memory: Q (later O), K ring, V ring, their barriers.
"""

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32, Int64, const_expr, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup

from attn_dsl.kernels.common.launch import ELEMENTS, Values, ordered, split_arguments, tile_layout
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.lengths import (
    blocks,
    of_keys,
    of_lse,
    of_queries,
    order_of,
    sequences,
    work_of_block,
)
from attn_dsl.kernels.common.scheduler import Order
from attn_dsl.kernels.named_barrier import WARP, WARPGROUP, forward_barriers
from attn_dsl.kernels.paged_kv import pages_of
from attn_dsl.kernels.sm90.clear import clear_outputs
from attn_dsl.kernels.sm90.consume import consume_tiles
from attn_dsl.kernels.sm90.epilogue import (
    is_box,
    stage_output,
    store_box,
    store_by_rows,
    store_logarithms,
    store_partial,
)
from attn_dsl.kernels.sm90.load import LOADERS, load_queries, load_tiles, packing
from attn_dsl.kernels.sm90.pages import RowsRing, boxes_of_pools, by_rows, load_boxes, load_rows
from attn_dsl.kernels.sm90.widen import WidenedRing, load_widened, narrow_tiles
from attn_dsl.lowering.forward import ForwardPlan, Lengths
from attn_dsl.lowering.forward.rules import ROWS

ALIGNMENT = 1024  # bytes: the period of the 128-byte swizzle


def shared_storage(plan: ForwardPlan, element: Any, k_layout: Any, v_layout: Any) -> Any:
    """The shared memory of a thread block."""

    def region(size: int) -> Any:
        return cute.struct.Align[cute.struct.MemRange[element, size], ALIGNMENT]

    # O takes the place of Q
    q_region: Any = region(plan.tile_q * max(plan.dim_padded, plan.dim_v_padded))
    k_region: Any = region(cute.cosize(k_layout))
    v_region: Any = region(cute.cosize(v_layout))

    @cute.struct
    class Shared:
        q_barriers: cute.struct.MemRange[Int64, 2]
        k_barriers: cute.struct.MemRange[Int64, 2 * plan.stages]
        v_barriers: cute.struct.MemRange[Int64, 2 * plan.stages]
        q: q_region
        k: k_region
        v: v_region

    return Shared


class Forward:
    """The kernel of one plan. Calling it is what CuTe DSL compiles."""

    def __init__(self, plan: ForwardPlan) -> None:
        self.plan = plan
        self.barriers = forward_barriers(plan.consumers, 0 if packing(plan).by_tma else LOADERS)

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
            arguments: the extent of the keys' row axis, which may be 0 where K and V have a row, or the slots of a row
                of the page table or of all page lists; the number of (head, batch) pairs whose K and V share the L2
                cache, at least 1; then captures, parameters, extents, lengths and pages as in the plan.
        """
        plan = self.plan
        element, o_element = ELEMENTS[plan.dtype], ELEMENTS[plan.o_dtype]
        mQ, mK, mV, mO, mLSE = ordered(plan, mQ, mK, mV, mO, mLSE)
        q_layout = tile_layout(element, plan.tile_q, plan.dim_padded)
        k_layout = tile_layout(element, plan.tile_k, plan.dim_padded, plan.stages)
        v_layout = tile_layout(element, plan.tile_k, plan.dim_v_padded, plan.stages)
        o_layout = tile_layout(o_element, plan.tile_q, plan.dim_v_padded)
        o_rows_layout = tile_layout(o_element, ROWS, plan.dim_v_padded)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        atoms, tensors = boxes_of_pools(plan, mK, mV)
        if const_expr(plan.paging is None and not plan.widens):
            for keys, layout, columns in ((mK, k_layout, plan.dim_padded), (mV, v_layout, plan.dim_v_padded)):
                atom, tensor = cpasync.make_tiled_tma_atom(
                    load, keys, cute.select(layout, mode=[0, 1]), (plan.tile_k, columns)
                )
                atoms, tensors = (*atoms, atom), (*tensors, tensor)
        if const_expr(packing(plan).by_tma):
            box = (plan.pack, plan.tile_q // plan.pack)
            q_atom, q_tensor = cpasync.make_tiled_tma_atom(load, mQ, q_layout, (box, plan.dim_padded))
            atoms, tensors = (*atoms, q_atom), (*tensors, q_tensor)
        if const_expr(is_box(plan)):
            box = packing(plan).box
            o_atom, o_tensor = cpasync.make_tiled_tma_atom(store, mO, o_rows_layout, (box, plan.dim_v_padded))
            atoms, tensors = (*atoms, o_atom), (*tensors, o_tensor)

        major = cute.nvgpu.OperandMajorMode
        groups = (plan.consumers, 1, 1)
        qk = hopper.make_trivial_tiled_mma(element, element, major.K, major.K, Float32, groups, (ROWS, plan.tile_k))
        pv = hopper.make_trivial_tiled_mma(
            element,
            element,
            major.K,
            major.MN,
            Float32,
            groups,
            (ROWS, plan.dim_v_padded),
            a_source=warpgroup.OperandSource.RMEM,
        )
        heads, slots_q = mQ.shape[0]
        batch = sequences(plan, split_arguments(plan, arguments[2:]), mQ.shape[2])
        pools: Values = ()
        if const_expr(plan.paging is not None):
            pools = (mK, mV, cute.fast_divmod_create_divisor_v2(mK.shape[0]))
        elif const_expr(plan.widens):
            pools = (mK, mV)
        splits = mLSE.shape[3] if const_expr(plan.partial) else 1
        divisor = cute.fast_divmod_create_divisor
        self.kernel(
            atoms,
            tensors,
            (q_layout, k_layout, v_layout, o_layout),
            (qk, pv),
            (mQ, mO, mLSE),
            pools,
            arguments,
            batch,
            order_of(plan, heads, batch, slots_q, arguments[1], divisor),
            divisor(heads // mK.shape[2]),
            shared_storage(plan, element, k_layout, v_layout),
        ).launch(
            grid=(blocks(plan, heads, batch, slots_q), splits, 1),
            block=(WARPGROUP * (plan.consumers + 1), 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.blocks,
            preferred_smem_carveout=100,  # percent: with several blocks CuTe DSL would ask a device for its limits
        )

    @cute.kernel
    def kernel(
        self,
        atoms: Values,
        tensors: Values,
        layouts: Values,
        products: Values,
        plain: Values,
        pools: Values,
        arguments: Values,
        batch: Int32,
        order: Order,
        by_group: Any,
        Shared: cutlass.Constexpr,
    ) -> None:
        """One tile of queries of one head."""
        plan = self.plan
        mQ, mO, mLSE = plain
        q_layout, k_layout, v_layout, o_layout = layouts
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)
        memory = cutlass.memory.SmemAllocator()
        storage = memory.allocate(Shared)
        narrow = narrow_tiles(plan, memory)
        sQ = storage.q.get_tensor(q_layout.outer, swizzle=q_layout.inner)
        sK = storage.k.get_tensor(k_layout.outer, swizzle=k_layout.inner)
        sV = storage.v.get_tensor(v_layout.outer, swizzle=v_layout.inner)
        sO = storage.q.get_tensor(o_layout.outer, swizzle=o_layout.inner, dtype=ELEMENTS[plan.o_dtype])
        threads = plan.consumers * WARPGROUP
        producer = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
        consumers = pipeline.CooperativeGroup(pipeline.Agent.Thread, threads // WARP)

        def ring(barriers: Any, stages: int, layout: Any) -> Any:
            return pipeline.PipelineTmaAsync.create(
                barrier_storage=barriers.data_ptr(),
                num_stages=stages,
                producer_group=producer,
                consumer_group=consumers,
                tx_count=cute.size_in_bytes(ELEMENTS[plan.dtype], cute.select(layout, mode=[0, 1])),
                defer_sync=True,
            )

        pipes = [ring(storage.q_barriers, 1, q_layout)]
        for barriers, layout in ((storage.k_barriers, k_layout), (storage.v_barriers, v_layout)):
            if const_expr(plan.widens):
                pipes.append(WidenedRing.make(barriers.data_ptr(), plan.stages, threads))
            elif const_expr(by_rows(plan)):
                pipes.append(RowsRing.make(barriers.data_ptr(), plan.stages, threads))
            else:
                pipes.append(ring(barriers, plan.stages, layout))
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        slots_k = arguments[0]
        known = split_arguments(plan, arguments[2:])
        slots_q = mQ.shape[0][1]
        splits = None
        if const_expr(plan.partial):
            splits = mLSE.shape[3]
            part = cute.arch.block_idx()[1]
            mO, mLSE = mO[None, None, None, part], mLSE[None, None, None, part]
        work = work_of_block(plan, known, order, batch, slots_q, slots_k, splits)
        kv_head = work.head // by_group
        pages = None
        if const_expr(plan.paging is not None):
            pages = pages_of(plan, known, work.b, pools[2], slots_k)
            work = replace(work, k=replace(work.k, count=cutlass.min(work.k.count, pages.slots - work.k.first)))
            pools = tuple(pool[None, None, kv_head, None] for pool in pools[:2])
        elif const_expr(plan.widens):
            rows = (of_keys(plan, tensor, work.k, kv_head, work.b) for tensor in pools)
            pools = tuple(cute.append_ones(one, up_to_rank=3) for one in rows)
        # in the order of the atoms: keys and values, then queries and outputs, where they are boxes
        count = 0 if const_expr(by_rows(plan)) else 2
        if const_expr(plan.paging is None):
            boxes = tuple(of_keys(plan, tensor, work.k, kv_head, work.b) for tensor in tensors[:count])
        else:
            boxes = tuple(tensor[None, None, kv_head, None] for tensor in tensors[:count])
        boxes += tuple(of_queries(plan, tensor, work.q, work.b) for tensor in tensors[count:])
        scope = Scope(plan, known, work.b, work.head, kv_head, work.q.count, work.k.count, work.q.packed, work.k.packed)
        own = tuple(of_queries(plan, tensor, work.q, work.b) for tensor in (mQ, mO))
        lse = of_lse(plan, mLSE, work.q, work.b)
        plain, shared = (*own, lse), (sQ, sK, sV, sO)
        fixed = (work, scope, pages, atoms, boxes, plain, pools, narrow, shared, products, pipes, warp)
        if const_expr(plan.lengths_q == Lengths()):
            self.attend(*fixed)
        elif (work.first_row >= 0) & (work.first_row < work.q.slots):
            if work.first_row < work.q.count:
                self.attend(*fixed)
            elif warp >= WARPGROUP // WARP:
                clear_outputs(work, own[1], lse, cute.arch.thread_idx()[0] - WARPGROUP)

    @cute.jit
    def attend(
        self,
        work: cutlass.Constexpr,
        scope: cutlass.Constexpr,
        pages: cutlass.Constexpr,
        atoms: Values,
        boxes: Values,
        plain: Values,
        pools: Values,
        narrow: Values,
        shared: Values,
        products: Values,
        pipes: Values,
        warp: Int32,
    ) -> None:
        """The tile of `work`, whose first row there is. `boxes` and `plain` are the rows of its sequence."""
        plan, barriers = self.plan, self.barriers
        mQ, mO, mLSE = plain
        sQ, sK, sV, sO = shared
        if warp < WARPGROUP // WARP:
            if const_expr(barriers.queries):
                first = WARPGROUP // WARP - LOADERS
                if warp >= first:
                    thread = cute.arch.thread_idx()[0] - first * WARP
                    load_queries(work, barriers.queries[0], mQ, sQ, thread)
            cute.arch.setmaxregister_decrease(plan.registers_producer)
            first_box = 0 if const_expr(by_rows(plan)) else 2
            queries = (atoms[first_box], boxes[first_box], sQ) if const_expr(packing(plan).by_tma) else ()
            thread = cute.arch.thread_idx()[0]
            if const_expr(plan.widens):
                load_widened(plan, scope, work, pages, pools, narrow, (sK, sV), pipes, queries, thread)
            elif const_expr(by_rows(plan)):
                load_rows(plan, scope, work, pages, pools, (sK, sV), pipes, queries, thread)
            elif warp == 0:
                if const_expr(plan.paging is None):
                    load_tiles(plan, scope, work, atoms[:2], boxes[:2], (sK, sV), pipes, queries)
                else:
                    load_boxes(plan, scope, work, pages, atoms[:2], boxes[:2], pools, (sK, sV), pipes, queries)
        else:
            cute.arch.setmaxregister_increase(plan.registers_consumer)
            thread = cute.arch.thread_idx()[0] - WARPGROUP
            output, lse, fragment = consume_tiles(plan, barriers, work, scope, products, (sQ, sK, sV), pipes, thread)
            store_logarithms(work, mLSE, fragment, lse, thread)
            if const_expr(plan.partial):
                store_partial(work, mO, fragment, output, thread)
            else:
                stage_output(plan, barriers, products[1], sO, output, thread)
                if const_expr(is_box(plan)):
                    store_box(work, atoms[-1], boxes[-1], sO, thread)
                else:
                    store_by_rows(work, mO, sO, thread)
