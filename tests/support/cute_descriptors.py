"""Shared-memory descriptors as CuTe DSL makes them. (No postponed annotations: the DSL reads them.)"""

import itertools

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05

from attn_dsl.kernels.mma_sm100_desc import Tile

K_BYTES = 128
ROWS = (8, 64, 128, 192, 256)
TYPES = {
    cutlass.Float8E4M3FN: 8,
    cutlass.Int8: 8,
    cutlass.Float16: 16,
    cutlass.BFloat16: 16,
    cutlass.TFloat32: 32,
}
# bytes of an atom along the direction in which neighbours are neighbours in memory
SPANS = {"INTER": 16, "SW32": 32, "SW64": 64, "SW128": 128, "SW128_32B": 128}


def _cases():
    for kind, element, rows in itertools.product(SPANS, TYPES, ROWS):
        bits = TYPES[element]
        if kind != "SW128_32B":
            yield f"K_{kind}", element, rows
        # of 32-bit elements, the DSL makes others too, which the hardware does not have
        if (kind == "SW128_32B") == (bits == 32) and rows % (SPANS[kind] * 8 // bits) == 0:
            yield f"MN_{kind}", element, rows


CASES = list(_cases())


def layout_of(name, element, rows):
    """The layout of an operand of `rows` rows by 128 bytes of k, made of atoms."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind[name], element)
    return cute.tile_to_shape(atom, (rows, K_BYTES * 8 // TYPES[element]), order=(0, 1))


_tiles: list[Tile] = []


def tiles():
    """The layouts of all cases, as the last `describe` saw them."""
    return list(_tiles)


def _write(out, pool):
    """Plain Python: the DSL sees no loop."""
    for place, (name, element, rows) in enumerate(CASES):
        bits = TYPES[element]
        layout = layout_of(name, element, rows)
        pointer = cute.recast_ptr(pool, layout.inner, dtype=element)
        shape, stride = layout.outer.shape, layout.outer.stride
        _tiles.append(Tile(shape[0], stride[0], shape[1], stride[1], bits))
        depth = 256 // bits
        first = cute.local_tile(cute.make_tensor(pointer, layout.outer), (rows, depth), (0, 0))
        major = "k" if name[0] == "K" else "mn"
        made = tcgen05.make_umma_smem_desc(
            pointer, cute.append_ones(cute.group_modes(first.layout, 0, 2), up_to_rank=3), major
        )
        out[place, 0] = cutlass.Int64(pool.toint())
        out[place, 1] = tcgen05.smem_descriptor_to_int(made)


@cute.kernel
def _describe(out: cute.Tensor):
    memory = cutlass.memory.SmemAllocator()
    _write(out, memory.allocate_array(cutlass.Int8, max(ROWS) * K_BYTES, byte_alignment=1024))


@cute.jit
def describe(out: cute.Tensor):
    """out[i] = address and descriptor of case i."""
    _tiles.clear()
    _describe(out).launch(grid=[1, 1, 1], block=[32, 1, 1])
