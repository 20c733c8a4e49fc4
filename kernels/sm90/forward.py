"""The SM90 forward kernel of a plan: what a launch prepares, and who does what inside a thread block.

    warp 0          producer: TMA of Q once, of K and V into a ring of `stages` tiles each
    warpgroups 1..  consumers: 64 rows each; S = Q K^T, softmax in registers, O += P V; O by TMA, LSE by stores

One thread block works on one tile of queries of one head. Shared memory: Q (later O), K ring, V ring, their barriers.
"""

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import cpasync, warpgroup

from attn_dsl.kernels.common.launch import ELEMENTS, Values, ordered, split_arguments, tile_layout
from attn_dsl.kernels.common.leaves import Scope
from attn_dsl.kernels.common.scheduler import tile_of_block
from attn_dsl.kernels.named_barrier import WARP, WARPGROUP, forward_barriers
from attn_dsl.kernels.sm90.consume import consume_tiles
from attn_dsl.kernels.sm90.epilogue import store_lse, store_output
from attn_dsl.kernels.sm90.load import load_tiles
from attn_dsl.lowering.forward import ForwardPlan

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
            arguments: the number of keys, which may be 0 where K and V have a row; the number of (head, batch) pairs
                whose K and V share the L2 cache, at least 1; then captures, parameters and extents as in the plan.
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
        heads, seq_q = mQ.shape[0]
        tiles = cute.ceil_div(seq_q, rows[1])
        self.kernel(
            (q_atom, k_atom, v_atom, o_atom),
            (q_tensor, k_tensor, v_tensor, o_tensor),
            (q_layout, k_layout, v_layout, o_layout),
            (qk, pv),
            mLSE,
            arguments,
            seq_q,
            heads // mK.shape[2],
            shared_storage(plan, element, k_layout, v_layout),
        ).launch(
            grid=(tiles * (heads // plan.pack) * mQ.shape[2], 1, 1),
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
        mLSE: cute.Tensor,
        arguments: Values,
        seq_q: Int32,
        group: Int32,
        Shared: cutlass.Constexpr,
    ) -> None:
        """One tile of queries of one head."""
        plan = self.plan
        q_atom, k_atom, v_atom, o_atom = atoms
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
        # the second product reads V as (dim_v, keys)
        sVt = cute.composition(
            sV,
            cute.make_ordered_layout((plan.dim_v_padded, plan.tile_k, plan.stages), order=(1, 0, 2)),
        )

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

        seq_k, pairs_per_section = arguments[:2]
        rows = plan.tile_q // plan.pack
        tiles = cute.ceil_div(seq_q, rows)
        heads, batch = mQ.shape[0][0] // plan.pack, mQ.shape[2]
        tile, place, entry = tile_of_block(tiles, heads, batch, pairs_per_section, plan.order == "longest_first")
        head = place * plan.pack
        scope = Scope(plan, split_arguments(plan, arguments[2:]), entry, head, head // group, seq_q, seq_k)
        first_row = tile * rows
        last_row = cutlass.min(first_row + rows, seq_q) - 1
        if warp < WARPGROUP // WARP:
            cute.arch.setmaxregister_decrease(plan.registers_producer)
            if warp == 0:
                load_tiles(
                    plan, scope, (q_atom, k_atom, v_atom), (mQ, mK, mV), (sQ, sK, sV), pipes, tile, first_row, last_row
                )
        else:
            cute.arch.setmaxregister_increase(plan.registers_consumer)
            thread = cute.arch.thread_idx()[0] - WARPGROUP
            output, lse, fragment = consume_tiles(
                plan, self.barriers, scope, products, (sQ, sK, sVt), pipes, thread, first_row, last_row
            )
            store_lse(plan, mLSE, scope, fragment, lse, thread)
            store_output(plan, self.barriers, scope, products[1], o_atom, mO, sO, output, tile, thread)
