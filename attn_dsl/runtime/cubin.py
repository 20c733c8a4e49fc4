"""What a cubin says of the resources of its kernel: what `cuobjdump -res-usage` prints, read from the ELF file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# attributes of the section .nv.info: pairs of (symbol, value)
_REGISTERS, _FRAME = 0x2F, 0x11
_WITH_SIZE = 4  # form of an attribute whose payload follows its header


@dataclass(frozen=True)
class Resources:
    """Of the kernel of a cubin and the functions that ptxas puts beside it: the largest."""

    registers: int  # per thread at launch
    stack: int  # bytes of local memory per thread, spilled registers included


def resources(cubin: bytes) -> Resources:
    """Raises ValueError if the cubin has no kernel."""
    found: dict[int, int] = {}
    for attribute, value in _attributes(_section(cubin, ".nv.info")):
        found[attribute] = max(value, found.get(attribute, 0))
    return Resources(found[_REGISTERS], found[_FRAME])


def _section(elf: bytes, wanted: str) -> bytes:
    """ELF-64: header at 0x28 (offset of sections) and 0x3c (their number, and which holds the names)."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + 64 * place) for place in range(count)]
    for name, _, _, _, offset, size in headers:
        begin = headers[names][4] + name
        if elf[begin : elf.index(b"\0", begin)].decode() == wanted:
            return elf[offset : offset + size]
    raise ValueError(f"no section {wanted}")


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    place = 0
    while place < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, place)
        place += 4
        if form == _WITH_SIZE:
            yield attribute, struct.unpack_from("<II", info, place)[1]
            place += size
