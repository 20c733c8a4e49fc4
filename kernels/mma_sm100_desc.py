"""Descriptors of Blackwell's `tcgen05.mma`: the 32-bit instruction descriptor and the 64-bit shared-memory descriptor.

Plain integers made on the host; nothing here needs a GPU or a trace. Bit fields: PTX ISA, "Instruction descriptor" and
"Matrix descriptor" of the tcgen05 instructions; addresses: "Canonical layouts".
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import Any

UNIT = 16  # bytes: addresses and strides are counted in them
K_BYTES = 32  # of one row of A or B in one dense instruction
MAX_COLUMNS = 256  # n of one instruction
ADDRESS_BITS = 14  # of an address or stride in units
CORE_ROWS = 8  # rows of a core matrix
ATOM_ROWS_32B = 4  # rows after which the 128-byte swizzle of 32-byte atoms repeats
FIXED_BITS = 1 << 46  # of every shared-memory descriptor of this generation


class DescriptorError(ValueError):
    """An instruction or an operand that no descriptor describes."""


class Major(enum.IntEnum):
    """The direction of an operand in which neighbours are neighbours in memory; the values are the transpose bits."""

    K = 0
    MN = 1


class MaxShift(enum.IntEnum):
    """The largest shift of rows in `.ws` instructions."""

    NONE = 0
    SHIFT_8 = 1
    SHIFT_16 = 2
    SHIFT_32 = 3


class F16F32Format(enum.IntEnum):
    """Operands of `.kind::f16` and `.kind::tf32`."""

    F16 = 0
    BF16 = 1
    TF32 = 2


class S8Format(enum.IntEnum):
    """Operands of `.kind::i8`."""

    UINT8 = 0
    INT8 = 1


class MXF8F6F4Format(enum.IntEnum):
    """Operands of `.kind::f8f6f4`."""

    E4M3 = 0
    E5M2 = 1
    E2M3 = 3
    E3M2 = 4
    E2M1 = 5


class CFormat(enum.IntEnum):
    """Accumulators."""

    F16 = 0
    F32 = 1
    S32 = 2


class LayoutType(enum.IntEnum):
    """Swizzles, as bits 61 to 63 of a shared-memory descriptor."""

    SWIZZLE_NONE = 0
    SWIZZLE_128B_BASE32B = 1
    SWIZZLE_128B = 2
    SWIZZLE_64B = 4
    SWIZZLE_32B = 6


@dataclass(frozen=True)
class OperandType:
    """How an element type of A or B is encoded."""

    kind: str  # of the instruction: "f16" | "tf32" | "f8f6f4" | "i8"
    code: int  # bits 7 to 9 and 10 to 12 of the instruction descriptor
    bits: int  # of an element in shared memory; types under 8 bits take a byte each in the padded form


_F16, _TF32, _F8F6F4, _I8 = "f16", "tf32", "f8f6f4", "i8"
OPERANDS = {
    "Float16": OperandType(_F16, F16F32Format.F16, 16),
    "BFloat16": OperandType(_F16, F16F32Format.BF16, 16),
    "TFloat32": OperandType(_TF32, F16F32Format.TF32, 32),
    "Uint8": OperandType(_I8, S8Format.UINT8, 8),
    "Int8": OperandType(_I8, S8Format.INT8, 8),
    "Float8E4M3FN": OperandType(_F8F6F4, MXF8F6F4Format.E4M3, 8),
    "Float8E4M3": OperandType(_F8F6F4, MXF8F6F4Format.E4M3, 8),
    "Float8E5M2": OperandType(_F8F6F4, MXF8F6F4Format.E5M2, 8),
    "Float6E2M3FN": OperandType(_F8F6F4, MXF8F6F4Format.E2M3, 8),
    "Float6E3M2FN": OperandType(_F8F6F4, MXF8F6F4Format.E3M2, 8),
    "Float4E2M1FN": OperandType(_F8F6F4, MXF8F6F4Format.E2M1, 8),
}  # names of CuTe DSL's numeric types
ACCUMULATORS = {"Float16": CFormat.F16, "Float32": CFormat.F32, "Int32": CFormat.S32}
_LEGAL_ACCUMULATORS = {
    _F16: (CFormat.F16, CFormat.F32),  # f16 only of two f16 operands
    _TF32: (CFormat.F32,),
    _F8F6F4: (CFormat.F16, CFormat.F32),
    _I8: (CFormat.S32,),
}


def operand_type(element: Any) -> OperandType:
    """The encoding of an element type of A or B, given as CuTe DSL's type or its name."""
    name = getattr(element, "__name__", element)
    if name not in OPERANDS:
        raise DescriptorError(f"tcgen05.mma has no operands of {name}; it has {', '.join(OPERANDS)}")
    return OPERANDS[name]


def accumulator_format(element: Any) -> CFormat:
    """The encoding of an accumulator type."""
    name = getattr(element, "__name__", element)
    if name not in ACCUMULATORS:
        raise DescriptorError(f"tcgen05.mma has no accumulator of {name}; it has {', '.join(ACCUMULATORS)}")
    return ACCUMULATORS[name]


def make_instr_desc(
    a: Any,
    b: Any,
    accumulator: Any,
    m: int,
    n: int,
    a_major: Major = Major.K,
    b_major: Major = Major.K,
    *,
    pair: bool = False,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    sparse: bool = False,
    sparsity_selector: int = 0,
    stationary: bool = False,
    max_shift: MaxShift = MaxShift.NONE,
) -> int:
    """The instruction descriptor of D = A B (+ D), with A of m rows and B of n columns.

    Args:
        a, b, accumulator: element types, as in CuTe DSL, or their names.
        m: 64 or 128; of a pair 128 or 256; of a stationary B 32, 64 or 128.
        n: see `columns`.
        pair: two thread blocks multiply together (`.cta_group::2`); m and n are those of both.
        negate_a, negate_b: floats only.
        saturate: integers only.
        sparsity_selector: 0 to 3, with `sparse` only.
        stationary: B stays in its buffer (`.ws`), by one thread block.
        max_shift: with `stationary` only.

    Raises:
        DescriptorError: a combination that no instruction has (PTX ISA, "Matrix and data movement shape").
    """
    kind_a, kind_b, c = operand_type(a), operand_type(b), accumulator_format(accumulator)
    if kind_a.kind != kind_b.kind:
        raise DescriptorError(f"operands of .kind::{kind_a.kind} and .kind::{kind_b.kind} do not multiply")
    if c not in _LEGAL_ACCUMULATORS[kind_a.kind]:
        raise DescriptorError(f".kind::{kind_a.kind} has no accumulator of {c.name.lower()}")
    if kind_a.kind == _F16 and c is CFormat.F16 and {kind_a.code, kind_b.code} != {F16F32Format.F16}:
        raise DescriptorError("an accumulator of f16 takes operands of f16 only, not of bf16")
    if stationary and pair:
        raise DescriptorError("a stationary B is not shared by a pair of thread blocks")
    rows = (32, 64, 128) if stationary else (128, 256) if pair else (64, 128)
    if m not in rows:
        raise DescriptorError(f"m is {m}; it is {', '.join(map(str, rows[:-1]))} or {rows[-1]}")
    legal = columns(kind_a, kind_b, b_major, pair=pair, stationary=stationary)
    if n not in legal:
        nearest = min(legal, key=lambda value: abs(value - n))
        raise DescriptorError(f"n is {n}; with m {m} and .kind::{kind_a.kind} the nearest is {nearest}")
    integers = kind_a.kind == _I8
    if integers and (negate_a or negate_b):
        raise DescriptorError("integer operands are not negated")
    if saturate and not integers:
        raise DescriptorError("only integer accumulators saturate")
    if sparsity_selector not in range(4) or (sparsity_selector and not sparse):
        raise DescriptorError(f"sparsity selector {sparsity_selector}; it is 0 to 3, and 0 for dense operands")
    if max_shift is not MaxShift.NONE and not stationary:
        raise DescriptorError("rows are shifted only where B is stationary (.ws)")
    fields = (
        (0, sparsity_selector),
        (2, sparse),
        (3, saturate),
        (4, c),
        (7, kind_a.code),
        (10, kind_b.code),
        (13, negate_a),
        (14, negate_b),
        (15, a_major),
        (16, b_major),
        (17, n >> 3),
        (24, m >> 4),
        (30, max_shift),
    )
    return sum(int(value) << bit for bit, value in fields)


def columns(
    a: OperandType, b: OperandType, b_major: Major, *, pair: bool = False, stationary: bool = False
) -> tuple[int, ...]:
    """The legal n of a dense product, in steps of 8, of a pair of thread blocks of 16.

    Steps double where B has 8 bits and is contiguous along n, and where operands are integers and n is more than 32.
    """
    if stationary:
        return 64, 128, 256
    step = 16 if pair else 8
    if b.bits == 8 and b_major is Major.MN:
        step *= 2
    coarse = step if a.kind != _I8 else max(step, 32 if pair else 16)
    return tuple(n for n in range(step, MAX_COLUMNS + 1, step) if n <= 32 or n % coarse == 0)


def mma_op_to_idesc(op: Any) -> int:
    """The instruction descriptor of a dense MMA operation of `cutlass.cute.nvgpu.tcgen05`."""
    m, n = op.shape_mnk[:2]
    pair = str(op.cta_group).endswith("TWO")
    majors = [Major.MN if str(major).endswith("MN") else Major.K for major in (op.a_major_mode, op.b_major_mode)]
    saturate = operand_type(op.a_dtype).kind == _I8  # CuTe DSL's integer operation always saturates
    return make_instr_desc(op.a_dtype, op.b_dtype, op.acc_dtype, m, n, *majors, pair=pair, saturate=saturate)


# Shared memory


@dataclass(frozen=True)
class Swizzle:
    """Address bits [base, base + bits) of a byte address are combined with those `shift` higher by exclusive or."""

    bits: int
    base: int
    shift: int


_LAYOUT_TYPES = {
    Swizzle(0, 4, 3): LayoutType.SWIZZLE_NONE,
    Swizzle(1, 4, 3): LayoutType.SWIZZLE_32B,
    Swizzle(2, 4, 3): LayoutType.SWIZZLE_64B,
    Swizzle(3, 4, 3): LayoutType.SWIZZLE_128B,
    Swizzle(2, 5, 2): LayoutType.SWIZZLE_128B_BASE32B,
}
# 16-byte units of one row of the swizzle pattern
SPANS = {
    LayoutType.SWIZZLE_NONE: 1,
    LayoutType.SWIZZLE_32B: 2,
    LayoutType.SWIZZLE_64B: 4,
    LayoutType.SWIZZLE_128B: 8,
    LayoutType.SWIZZLE_128B_BASE32B: 8,
}


def layout_type(swizzle: Swizzle) -> LayoutType:
    """The descriptor's code of a swizzle of byte addresses."""
    if swizzle not in _LAYOUT_TYPES:
        known = ", ".join(f"S<{s.bits},{s.base},{s.shift}>" for s in _LAYOUT_TYPES)
        raise DescriptorError(f"no swizzle S<{swizzle.bits},{swizzle.base},{swizzle.shift}>; there are {known}")
    return _LAYOUT_TYPES[swizzle]


@dataclass(frozen=True)
class Tile:
    """An operand in shared memory before its swizzle: CuTe's nested shapes and strides of M or N, and of K."""

    mn_shape: Any
    mn_stride: Any  # elements
    k_shape: Any
    k_stride: Any  # elements
    bits: int  # of an element

    def extent(self, mode: str) -> int:
        """Elements along "mn" or "k"."""
        product = 1
        for part in _flat(getattr(self, f"{mode}_shape")):
            product *= part
        return product

    def offset(self, mn: int, k: int) -> int:
        """Bytes from the first element to element (mn, k)."""
        elements = _index(mn, self.mn_shape, self.mn_stride) + _index(k, self.k_shape, self.k_stride)
        return elements * self.bits // 8


def _flat(tree: Any) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for branch in tree for leaf in _flat(branch)]


def _index(coordinate: int, shape: Any, stride: Any) -> int:
    result = 0
    for extent, step in zip(_flat(shape), _flat(stride), strict=True):
        coordinate, place = divmod(coordinate, extent)
        result += place * step
    return result


def make_smem_desc_base(tile: Tile, kind: LayoutType, major: Major) -> int:
    """The shared-memory descriptor of the first instruction's part of `tile`, with a start address of 0.

    The part is all of M or N and 32 bytes of every row along K. Its elements must lie where the hardware looks for
    them, which is checked for each.

    Raises:
        DescriptorError: the layout is not canonical for this swizzle and direction.
    """
    if kind is LayoutType.SWIZZLE_128B_BASE32B and (major is Major.K or tile.bits != 32):
        raise DescriptorError("the swizzle of 32-byte atoms is for 32-bit operands that are contiguous along M or N")
    if tile.bits == 32 and major is Major.MN and kind is not LayoutType.SWIZZLE_128B_BASE32B:
        raise DescriptorError(
            f"32-bit operands that are contiguous along M or N have no {kind.name}, only 32-byte atoms"
        )
    rows, depth = tile.extent("mn"), K_BYTES * 8 // tile.bits
    if tile.extent("k") < depth:
        raise DescriptorError(f"the operand has {tile.extent('k')} elements along k; one instruction takes {depth}")
    per_unit = UNIT * 8 // tile.bits
    span = SPANS[kind] * per_unit  # elements of a row of the pattern
    group = ATOM_ROWS_32B if kind is LayoutType.SWIZZLE_128B_BASE32B else CORE_ROWS
    if major is Major.K:
        leading, stride = (0, per_unit), (group, 0)
        fixed_leading = 1 if kind is not LayoutType.SWIZZLE_NONE else None  # ignored by the hardware
    else:
        across, along = (span, 0), (0, group)
        leading, stride = (along, across) if kind is LayoutType.SWIZZLE_NONE else (across, along)
        fixed_leading = None
    lbo, sbo = (_bytes_to(tile, rows, depth, point) for point in (leading, stride))
    for mn, k in itertools.product(range(rows), range(depth)):
        wanted = _canonical(mn, k, major, kind, per_unit, lbo, sbo) + _rest(mn, k, major, per_unit) * tile.bits // 8
        if tile.offset(mn, k) != wanted:
            message = (
                f"element ({mn}, {k}) lies {tile.offset(mn, k)} bytes from the first, the hardware expects {wanted}"
            )
            raise DescriptorError(f"not a canonical {major.name}-major layout of {kind.name}: {message}")
    lbo_units = lbo // UNIT if fixed_leading is None else fixed_leading
    return _field(lbo_units, "leading") << 16 | _field(sbo // UNIT, "stride") << 32 | FIXED_BITS | int(kind) << 61


def _bytes_to(tile: Tile, rows: int, depth: int, point: tuple[int, int]) -> int:
    """Bytes to element `point`, 0 if the operand ends before it: then nothing is repeated in that direction."""
    mn, k = point
    return tile.offset(mn, k) if mn < rows and k < depth else 0


def _canonical(mn: int, k: int, major: Major, kind: LayoutType, per_unit: int, lbo: int, sbo: int) -> int:
    """Bytes to the 16-byte unit of element (mn, k), by the canonical layouts."""
    units = SPANS[kind]
    if major is Major.K:
        along = k // per_unit * (lbo if kind is LayoutType.SWIZZLE_NONE else UNIT)
        return mn % CORE_ROWS * UNIT * units + mn // CORE_ROWS * sbo + along
    unit = mn // per_unit
    if kind is LayoutType.SWIZZLE_NONE:
        return unit * sbo + k % CORE_ROWS * UNIT + k // CORE_ROWS * lbo
    group = ATOM_ROWS_32B if kind is LayoutType.SWIZZLE_128B_BASE32B else CORE_ROWS
    return unit % units * UNIT + unit // units * lbo + k % group * UNIT * units + k // group * sbo


def _rest(mn: int, k: int, major: Major, per_unit: int) -> int:
    return (k if major is Major.K else mn) % per_unit


def _field(units: int, name: str) -> int:
    if not 0 <= units < 1 << ADDRESS_BITS:
        raise DescriptorError(f"the {name} offset is {units} units of 16 bytes; a descriptor holds {ADDRESS_BITS} bits")
    return units


def start_address(address: Any) -> Any:
    """The start address field of a byte address in shared memory, an int or a CuTe integer."""
    return (address >> 4) & ((1 << ADDRESS_BITS) - 1)


def k_steps(tile: Tile) -> tuple[int, ...]:
    """For each instruction along k, what is added to the start address field of the first."""
    depth = K_BYTES * 8 // tile.bits
    return tuple(tile.offset(0, k) // UNIT for k in range(0, tile.extent("k"), depth))
