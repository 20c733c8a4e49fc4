"""Small CuTe DSL functions for the tests of the emulated device. (No postponed annotations: the DSL reads them.)"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def _add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, n: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * 128 + thread
    if index < n:
        c[index] = a[index] + b[index]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, n: cutlass.Int32):
    """c = a + b, 128 elements a block."""
    _add(a, b, c, n).launch(grid=[(n + 127) // 128, 1, 1], block=[128, 1, 1])


@cute.jit
def add_on_stream(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, n: cutlass.Int32, stream: cuda.CUstream):
    """`add` on a given stream."""
    _add(a, b, c, n).launch(grid=[(n + 127) // 128, 1, 1], block=[128, 1, 1], stream=stream)


@cute.jit
def add_twice(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, n: cutlass.Int32):
    """c = a + 2 b: two launches in one host call, the second reads what the first wrote."""
    _add(a, b, c, n).launch(grid=[(n + 127) // 128, 1, 1], block=[128, 1, 1])
    _add(c, b, c, n).launch(grid=[(n + 127) // 128, 1, 1], block=[128, 1, 1], use_pdl=True)


@cute.kernel
def _ranks(out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if thread == 0:
        out[block] = cute.arch.block_idx_in_cluster()


@cute.jit
def ranks(out: cute.Tensor):
    """out[block] = rank of the block in its cluster of two."""
    _ranks(out).launch(grid=[8, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1])


@cute.kernel
def _reverse(a: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    memory = cutlass.utils.SmemAllocator()
    staged = memory.allocate_tensor(cutlass.Float32, cute.make_layout(128), byte_alignment=16)
    staged[thread] = a[thread]
    cute.arch.sync_threads()
    out[thread] = staged[127 - thread]


@cute.jit
def reverse(a: cute.Tensor, out: cute.Tensor, smem: cutlass.Constexpr):
    """out = a reversed, through `smem` bytes of dynamic shared memory."""
    _reverse(a, out).launch(grid=[1, 1, 1], block=[128, 1, 1], smem=smem)


@cute.kernel
def _store_far(out: cute.Tensor, index: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        out[index] = cutlass.Float32(1.0)


@cute.jit
def store_far(out: cute.Tensor, index: cutlass.Int32):
    """out[index] = 1, without a check."""
    _store_far(out, index).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def store_at(pointer: cute.Pointer, index: cutlass.Int32):
    """`store_far` through a raw pointer."""
    _store_far(cute.make_tensor(pointer, cute.make_layout(1024)), index).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.kernel
def _say(value: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    if thread == 3:
        cute.printf("thread %d has %d\n", thread, value)


@cute.jit
def say(value: cutlass.Int32):
    """One thread prints."""
    _say(value).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.kernel
def _forever(value: cutlass.Int32):
    count = value
    while count > 0:
        count = count ^ 2
        cute.arch.sync_threads()


@cute.jit
def forever(value: cutlass.Int32):
    """A loop that never ends for value = 1."""
    _forever(value).launch(grid=[1, 1, 1], block=[32, 1, 1])
