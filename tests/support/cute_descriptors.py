"""Shared-memory descriptors as CuTe DSL makes them. (No postponed annotations: the DSL reads them.)"""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05

from attn_dsl.kernels.mma_sm100_desc import Tile

K_BYTES, ROWS = 128, 128
TYPES = {8: cutlass.Float8E4M3FN, 16: cutlass.BFloat16, 32: cutlass.TFloat32}
NAMES = [f"{major}_{kind}" for major in ("K", "MN") for kind in ("INTER", "SW32", "SW64", "SW128")]
CASES = [(name, bits) for name in NAMES for bits in TYPES if (name[0], bits) != ("M", 32)] + [("MN_SW128_32B", 32)]


def layout_of(name, bits):
    """The layout of an operand of 128 rows by 128 bytes of k, made of atoms."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind[name], TYPES[bits])
    return cute.tile_to_shape(atom, (ROWS, K_BYTES * 8 // bits), order=(0, 1))


_tiles: list[Tile] = []


def tiles():
    """The layouts of all cases, as the last `describe` saw them."""
    return list(_tiles)


@cute.kernel
def _describe(out: cute.Tensor):
    memory = cutlass.memory.SmemAllocator()
    pool = memory.allocate_array(cutlass.Int8, ROWS * K_BYTES, byte_alignment=1024)
    for place in cutlass.range_constexpr(len(CASES)):
        name, bits = CASES[place]
        layout = layout_of(name, bits)
        pointer = cute.recast_ptr(pool, layout.inner, dtype=TYPES[bits])
        shape, stride = layout.outer.shape, layout.outer.stride
        _tiles.append(Tile(shape[0], stride[0], shape[1], stride[1], bits))
        depth = 256 // bits
        first = cute.local_tile(cute.make_tensor(pointer, layout.outer), (ROWS, depth), (0, 0))
        major = "k" if name[0] == "K" else "mn"
        made = tcgen05.make_umma_smem_desc(
            pointer, cute.append_ones(cute.group_modes(first.layout, 0, 2), up_to_rank=3), major
        )
        out[place, 0] = cutlass.Int64(pool.toint())
        out[place, 1] = tcgen05.smem_descriptor_to_int(made)


@cute.jit
def describe(out: cute.Tensor):
    """out[i] = address and descriptor of case i."""
    _tiles.clear()
    _describe(out).launch(grid=[1, 1, 1], block=[32, 1, 1])
