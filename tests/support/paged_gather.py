"""A kernel that gathers pages into tiles and writes the tiles out. (No postponed annotations: the DSL reads them.)"""

from dataclasses import dataclass
from functools import cache

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int32, Int64, const_expr
from cutlass.cute.nvgpu import cpasync
from torch import Tensor

from attn_dsl import emulator
from attn_dsl.kernels.common.launch import tile_layout, tma_copy
from attn_dsl.kernels.named_barrier import WARP
from attn_dsl.kernels.paged_kv import (
    PagedBoxes,
    PagedRows,
    copy_boxes,
    copy_rows,
    empty_entries,
    find_boxes,
    find_rows,
    page_boxes,
)

ELEMENTS = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16, torch.uint8: cutlass.Uint8}


@dataclass(frozen=True)
class Gather:
    """One thread block per tile, K/V head and sequence: K and V of the tile to shared memory, and from there by TMA."""

    k: PagedRows
    v: PagedRows
    boxes: PagedBoxes | None = None  # for the tiles that are full; None: rows for all

    @cute.jit
    def __call__(
        self,
        k_pool: cute.Tensor,  # (page_size, dim, kv_heads, pages)
        v_pool: cute.Tensor,
        pages: cute.Tensor,  # i32 (entries): the pages of all sequences
        starts: cute.Tensor,  # i32 (batch): where a sequence's pages begin
        lengths: cute.Tensor,  # i32 (batch)
        left_pad: cute.Tensor,  # i32 (batch)
        k_out: cute.Tensor,  # (tiles * rows, columns, kv_heads, batch)
        v_out: cute.Tensor,
        page_size: Int32,
    ):
        element = k_pool.element_type
        k_layout = tile_layout(element, self.k.rows, self.k.columns)
        v_layout = tile_layout(element, self.v.rows, self.v.columns)
        store = cpasync.CopyBulkTensorTileS2GOp()
        outs = [
            cpasync.make_tiled_tma_atom(store, out, layout, (plan.rows, plan.columns))
            for out, layout, plan in ((k_out, k_layout, self.k), (v_out, v_layout, self.v))
        ]
        loads = outs
        if const_expr(self.boxes is not None):
            loads = [
                page_boxes(self.boxes, pool, plan.columns, tile_layout(element, self.boxes.box, plan.columns))
                for pool, plan in ((k_pool, self.k), (v_pool, self.v))
            ]

        @cute.struct
        class Shared:
            full: Int64
            k: cute.struct.Align[cute.struct.MemRange[element, self.k.rows * self.k.columns], 1024]
            v: cute.struct.Align[cute.struct.MemRange[element, self.v.rows * self.v.columns], 1024]

        tiles = cute.ceil_div(k_out.shape[0], self.k.rows)
        self.kernel(
            (k_pool, v_pool),
            [load[0] for load in loads],
            [load[1] for load in loads],
            [out[0] for out in outs],
            [out[1] for out in outs],
            (k_layout, v_layout),
            pages,
            starts,
            lengths,
            left_pad,
            cute.fast_divmod_create_divisor_v2(page_size),
            Shared,
        ).launch(grid=(tiles, k_out.shape[2], k_out.shape[3]), block=(self.k.threads, 1, 1))

    @cute.kernel
    def kernel(
        self,
        pools,
        load_atoms,
        loads,
        out_atoms,
        outs,
        layouts,
        pages: cute.Tensor,
        starts: cute.Tensor,
        lengths: cute.Tensor,
        left_pad: cute.Tensor,
        page_size: cute.FastDivmodDivisorV2,
        Shared: cutlass.Constexpr,
    ):
        thread, _, _ = cute.arch.thread_idx()
        tile, head, entry = cute.arch.block_idx()
        storage = cutlass.memory.SmemAllocator().allocate(Shared)
        full = storage.full.ptr
        shared = [
            region.get_tensor(layout.outer, swizzle=layout.inner)
            for region, layout in ((storage.k, layouts[0]), (storage.v, layouts[1]))
        ]
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        own = cute.domain_offset(starts[entry], pages)
        first_slot = left_pad[entry] + tile * self.k.rows
        count = lengths[entry] - tile * self.k.rows
        by_boxes = False
        if const_expr(self.boxes is not None):
            by_boxes = count >= self.k.rows
        if by_boxes:
            if const_expr(self.boxes is not None):
                if thread < WARP:
                    with cute.arch.elect_one():
                        size = self.k.rows * (self.k.columns + self.v.columns) * self.k.bits // 8
                        cute.arch.mbarrier_arrive_and_expect_tx(full, size)
                    entries = empty_entries(1)
                    find_boxes(self.boxes, own, first_slot, thread, entries)
                    for place in cutlass.range_constexpr(2):
                        pool = loads[place][None, None, head, None]
                        copy_boxes(self.boxes, load_atoms[place], pool, shared[place], entries, full)
                cute.arch.mbarrier_wait(full, 0)
        else:
            entries = empty_entries(self.k.entries)
            find_rows(self.k, own, page_size, first_slot, count, thread, entries)
            copy_rows(self.k, pools[0][None, None, head, None], shared[0], entries, thread)
            copy_rows(self.v, pools[1][None, None, head, None], shared[1], entries, thread)
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()
        if thread < WARP:
            for place, plan in enumerate((self.k, self.v)):
                out = cute.local_tile(outs[place][None, None, head, entry], (plan.rows, plan.columns), (None, 0))
                target, source = tma_copy(out_atoms[place], out, cute.append_ones(shared[place], up_to_rank=3))
                cute.copy(out_atoms[place], source[None, 0], target[None, tile])
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0)


def gathered(
    gather: Gather,
    arch: str,
    k_pool: Tensor,  # [pages, page_size, kv_heads, dim], any strides
    v_pool: Tensor,
    pages: Tensor,
    starts: Tensor,
    lengths: Tensor,
    left_pad: Tensor,
    longest: int,
    late: int = 0,
) -> tuple[Tensor, Tensor, emulator.Device]:
    """K and V as [batch, kv_heads, tiles * rows, columns], of a virtual device, and that device."""
    batch, kv_heads = lengths.numel(), k_pool.shape[2]
    rows = -(-max(longest, 1) // gather.k.rows) * gather.k.rows
    outs = [k_pool.new_full((batch, kv_heads, rows, plan.columns), 77) for plan in (gather.k, gather.v)]
    with emulator.device(arch, late=late) as gpu:
        _compiled(gather, k_pool.dtype, arch)(
            *(pool.permute(1, 3, 2, 0) for pool in (k_pool, v_pool)),
            *(pages, starts, lengths, left_pad),
            *(out.permute(2, 3, 1, 0) for out in outs),
            k_pool.shape[1],
        )
    return (*outs, gpu)


@cache
def _compiled(gather: Gather, dtype: torch.dtype, arch: str):
    """One kernel for all sizes, page sizes and strides."""
    element = ELEMENTS[dtype]
    step = 128 // element.width

    def fake(extent: int):
        shape = [extent if mode == 1 else cute.sym_int() for mode in range(4)]
        stride = [1 if mode == 1 else cute.sym_int64(divisibility=step) for mode in range(4)]
        return cute.runtime.make_fake_tensor(element, shape, stride=stride, assumed_align=16)

    def ints():
        return cute.runtime.make_fake_tensor(Int32, (cute.sym_int(),), stride=(1,), assumed_align=4)

    pools = [fake(plan.dim) for plan in (gather.k, gather.v)]
    outs = [fake(plan.columns) for plan in (gather.k, gather.v)]
    lists = [ints() for _ in range(4)]
    return cute.compile(gather, *pools, *lists, *outs, Int32(1), options=f"--enable-tvm-ffi --gpu-arch {arch}")
