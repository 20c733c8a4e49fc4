"""Binds compiled host code to the stand-in runtime, even where the real runtime is in the process already.

The dynamic linker looks a name up in the libraries of the process before those given to the JIT, and importing code may
have loaded the real runtime globally. So host code gets names that only the stand-in has.
"""

from __future__ import annotations

import struct

_PREFIXES = (b"_cuda", b"_cu", b"cuda_dialect_", b"CuteDSLRT_")
_OWN = b"attn_emu"
_SYMTAB = 2  # sh_type


def rename_runtime(image: bytes) -> bytes:
    """A relocatable object (System V ABI, ELF-64) with its undefined runtime symbols renamed to the stand-in's."""
    data = bytearray(image)
    table, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    for index in range(count):
        section = table + index * size
        kind, link = struct.unpack_from("<I", data, section + 4)[0], struct.unpack_from("<I", data, section + 40)[0]
        if kind == _SYMTAB:
            offset, length = struct.unpack_from("<QQ", data, section + 24)
            _rename(data, offset, length, table + link * size)
    return bytes(data)


def _rename(data: bytearray, offset: int, length: int, strings_header: int) -> None:
    start, size = struct.unpack_from("<QQ", data, strings_header + 24)
    strings = data[start : start + size]
    for symbol in range(offset, offset + length, 24):
        name_at, _, _, section = struct.unpack_from("<IBBH", data, symbol)
        name = bytes(strings[name_at : strings.index(0, name_at)])
        if section == 0 and name.startswith(_PREFIXES):
            struct.pack_into("<I", data, symbol, len(strings))
            strings += _OWN + name + b"\0"
    data += bytes(-len(data) % 8)
    struct.pack_into("<QQ", data, strings_header + 24, len(data), len(strings))
    data += strings


def runtime_names(image: bytes) -> list[str]:
    """The runtime functions a library defines, by their original names: those it also has under its own."""
    marker = b"\0" + _OWN
    found, at = [], image.find(marker)
    while at >= 0:
        end = image.index(0, at + 1)
        name = image[at + len(marker) : end]
        if name.startswith(_PREFIXES):
            found.append(name.decode())
        at = image.find(marker, end)
    return sorted(set(found))
