"""A kernel that copies packed rows through shared memory. (No postponed annotations: the DSL reads them.)"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from attn_dsl.kernels.common.launch import tile_layout
from attn_dsl.kernels.pack_gqa import Packing, load_rows, row_of, store_lse, store_rows


@cute.kernel
def _copy(
    mQ: cute.Tensor,
    mO: cute.Tensor,
    mS: cute.Tensor,
    mLSE: cute.Tensor,
    layout: cute.ComposedLayout,
    heads: cutlass.Constexpr[int],
    rows: cutlass.Constexpr[int],
    threads: cutlass.Constexpr[int],
):
    packing = Packing(heads, rows)
    thread, _, _ = cute.arch.thread_idx()
    tile, group, batch = cute.arch.block_idx()
    pool = cutlass.memory.SmemAllocator().allocate_array(
        mQ.element_type, cute.cosize(layout.outer), byte_alignment=1024
    )
    shared = cute.make_tensor(cute.recast_ptr(pool, layout.inner, dtype=mQ.element_type), layout.outer)
    first, head = tile * rows, group * heads
    load_rows(packing.view(mQ[None, None, batch], head), shared, first, thread, threads)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    store_rows(packing.view(mO[None, None, batch], head), shared, first, thread, threads)
    columns = cute.size(shared, mode=[1])
    for row in cutlass.range_constexpr(0, rows, threads):
        for column in cutlass.range(columns):
            if row + thread < rows:
                mS[first + row + thread, column, group, batch] = shared[row + thread, column]
        if row + thread < rows:
            q_idx, offset = row_of(first + row + thread, heads)
            value = Float32(q_idx * 1000 + head + offset)
            store_lse(mLSE[None, None, batch], q_idx, head + offset, mLSE.shape[0], value)


@cute.jit
def copy(
    mQ: cute.Tensor,
    mO: cute.Tensor,
    mS: cute.Tensor,
    mLSE: cute.Tensor,
    heads: cutlass.Constexpr[int],
    rows: cutlass.Constexpr[int],
    threads: cutlass.Constexpr[int],
    padded: cutlass.Constexpr[int],
):
    """o = q by packed rows; s holds the tiles as they lie in shared memory, lse = 1000 q_idx + head.

    q, o (batch, seq_q, heads, dim); s (packed rows, padded dim, groups, batch); lse (batch, heads, seq_q).
    """
    order = [2, 1, 3, 0]
    mQ = cute.group_modes(cute.make_tensor(mQ.iterator, cute.select(mQ.layout, mode=order)), 0, 2)
    mO = cute.group_modes(cute.make_tensor(mO.iterator, cute.select(mO.layout, mode=order)), 0, 2)
    mLSE = cute.make_tensor(mLSE.iterator, cute.select(mLSE.layout, mode=[2, 1, 0]))
    tiles = cute.ceil_div(heads * mQ.shape[0][1], rows)
    _copy(mQ, mO, mS, mLSE, tile_layout(mQ.element_type, rows, padded), heads, rows, threads).launch(
        grid=[tiles, mQ.shape[0][0] // heads, mQ.shape[2]], block=[threads, 1, 1]
    )


def compiled(arch, heads, rows, threads, dim, padded):
    """`copy` for tensors of any extents and strides but for the head dimension."""
    sym, sym64 = cute.sym_int, cute.sym_int64

    def tensor(element, shape, stride):
        align = 16 if element is cutlass.BFloat16 else 4
        return cute.runtime.make_fake_tensor(element, shape, stride, assumed_align=align)

    def rows_of_heads():
        shape = (sym(), sym(), sym(), dim)
        return tensor(cutlass.BFloat16, shape, (*(sym64(divisibility=8) for _ in range(3)), 1))

    shared = tensor(cutlass.BFloat16, (sym(), sym(), sym(), sym()), tuple(sym64() for _ in range(4)))
    lse = tensor(cutlass.Float32, (sym(), sym(), sym()), tuple(sym64() for _ in range(3)))
    return cute.compile(
        copy,
        rows_of_heads(),
        rows_of_heads(),
        shared,
        lse,
        heads,
        rows,
        threads,
        padded,
        options=f"--enable-tvm-ffi --gpu-arch {arch}",
    )
