"""The SM90 forward kernel of a plan: what a launch prepares, and who does what inside a thread block.

    warp 0          producer: TMA of Q once, of K and V into a ring of `stages` tiles each
    warpgroups 1..  consumers: 64 rows each; S = Q K^T, softmax in registers, O += P V; O by TMA, LSE by stores

One thread block works on one tile of queries of one head. Shared memory: Q (later O), K ring, V ring, their barriers.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32, Int64, const_expr, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup

from attn_dsl.kernels.common.launch import ELEMENTS, Values, ordered, split_arguments, tile_layout
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.lengths import blocks, of_keys, of_lse, of_queries, sequences, work_of_block
from attn_dsl.kernels.named_barrier import WARP, WARPGROUP, forward_barriers
from attn_dsl.kernels.sm90.clear import clear_outputs
from attn_dsl.kernels.sm90.consume import consume_tiles
from attn_dsl.kernels.sm90.epilogue import stage_output, store_lse, store_rows, store_tile
from attn_dsl.kernels.sm90.load import load_tiles
from attn_dsl.lowering.forward import ForwardPlan, Lengths

ROWS = 64  # of one wgmma
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
        self.barriers = forward_barriers(plan.consumers)

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
        q_layout = tile_layout(element, plan.tile_q, plan.dim_padded)
        k_layout = tile_layout(element, plan.tile_k, plan.dim_padded, plan.stages)
        v_layout = tile_layout(element, plan.tile_k, plan.dim_v_padded, plan.stages)
        o_layout = tile_layout(o_element, plan.tile_q, plan.dim_v_padded)
        o_rows_layout = tile_layout(o_element, ROWS, plan.dim_v_padded)
        rows, o_rows = (plan.pack, plan.tile_q // plan.pack), (plan.pack, ROWS // plan.pack)
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        q_atom, q_tensor = cpasync.make_tiled_tma_atom(load, mQ, q_layout, (rows, plan.dim_padded))
        k_atom, k_tensor = cpasync.make_tiled_tma_atom(
            load, mK, cute.select(k_layout, mode=[0, 1]), (plan.tile_k, plan.dim_padded)
        )
        v_atom, v_tensor = cpasync.make_tiled_tma_atom(
            load, mV, cute.select(v_layout, mode=[0, 1]), (plan.tile_k, plan.dim_v_padded)
        )
        o_atom, o_tensor = cpasync.make_tiled_tma_atom(store, mO, o_rows_layout, (o_rows, plan.dim_v_padded))

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
        self.kernel(
            (q_atom, k_atom, v_atom, o_atom),
            (q_tensor, k_tensor, v_tensor, o_tensor),
            (q_layout, k_layout, v_layout, o_layout),
            (qk, pv),
            (mO, mLSE),
            arguments,
            batch,
            heads // mK.shape[2],
            shared_storage(plan, element, k_layout, v_layout),
        ).launch(
            grid=(blocks(plan, heads, batch, slots_q), 1, 1),
            block=(WARPGROUP * (plan.consumers + 1), 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(
        self,
        atoms: Values,
        tensors: Values,
        layouts: Values,
        products: Values,
        outputs: Values,
        arguments: Values,
        batch: Int32,
        group: Int32,
        Shared: cutlass.Constexpr,
    ) -> None:
        """One tile of queries of one head."""
        plan = self.plan
        mQ, mK, mV, mO = tensors
        q_layout, k_layout, v_layout, o_layout = layouts
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            for atom in atoms:
                cpasync.prefetch_descriptor(atom)
        storage = cutlass.memory.SmemAllocator().allocate(Shared)
        sQ = storage.q.get_tensor(q_layout.outer, swizzle=q_layout.inner)
        sK = storage.k.get_tensor(k_layout.outer, swizzle=k_layout.inner)
        sV = storage.v.get_tensor(v_layout.outer, swizzle=v_layout.inner)
        sO = storage.q.get_tensor(o_layout.outer, swizzle=o_layout.inner, dtype=ELEMENTS[plan.o_dtype])
        producer = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
        consumers = pipeline.CooperativeGroup(pipeline.Agent.Thread, plan.consumers * WARPGROUP // WARP)

        def ring(barriers: Any, stages: int, layout: Any) -> Any:
            return pipeline.PipelineTmaAsync.create(
                barrier_storage=barriers.data_ptr(),
                num_stages=stages,
                producer_group=producer,
                consumer_group=consumers,
                tx_count=cute.size_in_bytes(ELEMENTS[plan.dtype], cute.select(layout, mode=[0, 1])),
                defer_sync=True,
            )

        pipes = (
            ring(storage.q_barriers, 1, q_layout),
            ring(storage.k_barriers, plan.stages, k_layout),
            ring(storage.v_barriers, plan.stages, v_layout),
        )
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        slots_k, pairs_per_section = arguments[:2]
        known = split_arguments(plan, arguments[2:])
        heads, slots_q = mQ.shape[0]
        work = work_of_block(plan, known, heads, batch, slots_q, slots_k, pairs_per_section)
        kv_head = work.head // group
        scope = Scope(plan, known, work.b, work.head, kv_head, work.q.count, work.k.count, work.q.packed, work.k.packed)
        queries, o_tiles, out = (of_queries(plan, tensor, work.q, work.b) for tensor in (mQ, mO, outputs[0]))
        keys, values = (of_keys(plan, tensor, work.k, kv_head, work.b) for tensor in (mK, mV))
        lse = of_lse(plan, outputs[1], work.q, work.b)
        fixed = (
            work,
            scope,
            atoms,
            (queries, keys, values, o_tiles, out, lse),
            (sQ, sK, sV, sO),
            products,
            pipes,
            warp,
        )
        if const_expr(plan.lengths_q == Lengths()):
            self.attend(*fixed)
        else:
            first = work.tile * (plan.tile_q // plan.pack)
            if (first >= 0) & (first < work.q.slots):
                if first < work.q.count:
                    self.attend(*fixed)
                elif warp >= WARPGROUP // WARP:
                    thread = cute.arch.thread_idx()[0] - WARPGROUP
                    clear_outputs(plan, out, lse, work.head, first, work.q.slots, thread)

    @cute.jit
    def attend(
        self,
        work: cutlass.Constexpr,
        scope: cutlass.Constexpr,
        atoms: Values,
        tensors: Values,
        shared: Values,
        products: Values,
        pipes: Values,
        warp: Int32,
    ) -> None:
        """The tile of `work`, whose first row there is. `tensors` are the rows of its sequence."""
        plan = self.plan
        queries, keys, values, o_tiles, out, lse = tensors
        sQ, sK, sV, sO = shared
        rows = plan.tile_q // plan.pack
        first_row = work.tile * rows
        last_row = cutlass.min(first_row + rows, scope.seq_q) - 1
        if warp < WARPGROUP // WARP:
            cute.arch.setmaxregister_decrease(plan.registers_producer)
            if warp == 0:
                tiles = (queries, keys, values)
                load_tiles(plan, scope, atoms[:3], tiles, (sQ, sK, sV), pipes, work.tile, first_row, last_row)
        else:
            cute.arch.setmaxregister_increase(plan.registers_consumer)
            thread = cute.arch.thread_idx()[0] - WARPGROUP
            output, logarithms, fragment = consume_tiles(
                plan, self.barriers, scope, products, (sQ, sK, sV), pipes, thread, first_row, last_row
            )
            store_lse(plan, lse, fragment, logarithms, work.q.slots, thread)
            stage_output(plan, self.barriers, products[1], sO, output, thread)
            if const_expr(plan.lengths_q.cu_seqlens is None):
                store_tile(plan, atoms[3], o_tiles, sO, work.head, work.tile, thread)
            else:
                store_rows(plan, out, sO, work.head, first_row, work.q.slots, thread)
