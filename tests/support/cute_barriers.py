"""A kernel that goes through named barriers one by one. (No postponed annotations: the DSL reads them.)"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32


@cute.kernel
def _phases(out: cute.Tensor, barriers: cutlass.Constexpr, threads: cutlass.Constexpr[int]):
    thread, _, _ = cute.arch.thread_idx()
    pool = cutlass.memory.SmemAllocator().allocate_array(Int32, threads)
    said = cute.make_tensor(pool, cute.make_layout(threads))
    for place in cutlass.range_constexpr(len(barriers)):
        barrier = barriers[place]
        waiting = sum([count for _, count in barrier.waits])
        everyone = waiting + sum([count for _, count in barrier.arrives])
        if thread < everyone:
            said[thread] = Int32(place + 1)
        # roles stand one after the other, those that wait first
        if thread < waiting:
            cute.arch.barrier(barrier_id=barrier.id, number_of_threads=barrier.threads)
            total = Int32(0)
            for other in cutlass.range(everyone):
                total += said[other]
            out[place, thread] = total
        elif thread < everyone:
            cute.arch.barrier_arrive(barrier_id=barrier.id, number_of_threads=barrier.threads)
        cute.arch.sync_threads()


@cute.jit
def phases(out: cute.Tensor, barriers: cutlass.Constexpr, threads: cutlass.Constexpr[int]):
    """out[i, t] = the sum of what everyone at barrier i wrote before it, (i + 1) each, for those who wait there."""
    _phases(out, barriers, threads).launch(grid=[1, 1, 1], block=[threads, 1, 1])
