"""Instruction descriptors as CuTe DSL makes them. (No postponed annotations: the DSL reads them.)"""

import itertools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import Float16, Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

SOURCE, ONE = tcgen05.OperandSource.SMEM, tcgen05.CtaGroup.ONE
K, MN = OperandMajorMode.K, OperandMajorMode.MN
SHAPES = ((128, 128), (64, 192), (128, 256), (64, 8), (128, 16))
NARROW = (
    cutlass.Float8E4M3FN,
    cutlass.Float8E5M2,
    cutlass.Float6E2M3FN,
    cutlass.Float6E3M2FN,
    cutlass.Float4E2M1FN,
)


def operations():
    """Operations of every type, shape, direction and accumulator that the DSL has for one thread block."""
    found = []
    for shape, a, b in itertools.product(SHAPES, (K, MN), (K, MN)):
        wide = b is K or shape[1] % 16 == 0
        for element in (cutlass.Float16, cutlass.BFloat16):
            found.append(tcgen05.MmaF16BF16Op(element, Float32, (*shape, 16), ONE, SOURCE, a, b))
        found.append(tcgen05.MmaF16BF16Op(Float16, Float16, (*shape, 16), ONE, SOURCE, a, b))
        if wide:
            for element in (cutlass.Float8E4M3FN, cutlass.Float8E5M2):
                for accumulator in (Float16, Float32):
                    found.append(tcgen05.MmaFP8Op(element, accumulator, (*shape, 32), ONE, SOURCE, a, b))
        if a is K and b is K:
            found.append(tcgen05.MmaTF32Op((*shape, 8), ONE, SOURCE, a, b))
        if wide and not (shape[1] > 32 and shape[1] % 16):
            for element in (cutlass.Int8, cutlass.Uint8):
                found.append(tcgen05.MmaI8Op(element, (*shape, 32), ONE, SOURCE, a, b))
    for a, b in itertools.product(NARROW, NARROW):
        found.append(tcgen05.MmaF8F6F4Op(a, b, Float32, (128, 128, 32), ONE, SOURCE, K, K))
    return tuple(found)


def _bytes_of(operation):
    """An operation of the same directions on bytes: elements of 6 and 4 bits take one each in shared memory."""
    if min(operation.a_dtype.width, operation.b_dtype.width) >= 8:
        return operation
    shape = operation.shape_mnk
    return tcgen05.MmaF8F6F4Op(NARROW[0], NARROW[0], operation.acc_dtype, shape, ONE, SOURCE, K, K)


def _issue(operations, pool):
    """Plain Python: the DSL sees no loop."""
    for operation in operations:
        mma, stored = cute.make_tiled_mma(operation), cute.make_tiled_mma(_bytes_of(operation))
        a_type, b_type = _bytes_of(operation).a_dtype, _bytes_of(operation).b_dtype
        m, n, k = operation.shape_mnk
        a = blackwell.make_smem_layout_a(stored, (m, n, 4 * k), a_type, 1)
        b = blackwell.make_smem_layout_b(stored, (m, n, 4 * k), b_type, 1)
        a_part = stored.make_fragment_A(cute.make_tensor(cute.recast_ptr(pool, a.inner, dtype=a_type), a.outer))
        b_part = stored.make_fragment_B(cute.make_tensor(cute.recast_ptr(pool, b.inner, dtype=b_type), b.outer))
        layout = mma.make_fragment_C(mma.partition_shape_C((m, n))).layout
        pointer = cute.make_ptr(operation.acc_dtype, Int32(0), cute.AddressSpace.tmem, assumed_align=16)
        sums = cute.make_tensor(pointer, layout)
        cute.gemm(mma, sums, a_part[None, None, 0, 0], b_part[None, None, 0, 0], sums)


@cute.kernel
def _multiply(operations: cutlass.Constexpr):
    _issue(operations, cutlass.memory.SmemAllocator().allocate_array(cutlass.Int8, 128 * 1024, byte_alignment=1024))


@cute.jit
def multiply(operations: cutlass.Constexpr):
    """One instruction of each operation, in order."""
    _multiply(operations).launch(grid=[1, 1, 1], block=[32, 1, 1])
