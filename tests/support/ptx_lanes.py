"""Runs a few PTX instructions in one warp: each lane gets its own operands and stores its own result."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from attn_dsl.emulator import ptx

_BITS = {"b16": 16, "b32": 32, "b64": 64}
_REGISTER = {16: "%h", 32: "%r", 64: "%d"}

HEADER = ".version 8.8\n.target {target}\n.address_size 64\n"


def module(body: str, *, params: int = 1, target: str = "sm_100a", shared: int = 0) -> str:
    """A kernel `k` with `params` 64-bit parameters p0, p1, ... and `shared` bytes of shared memory `smem`."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(params))
    static = f".shared .align 1024 .b8 smem[{shared}];\n" if shared else ""
    return (
        HEADER.format(target=target)
        + f".visible .entry k({declared})\n{{\n"
        + ".reg .pred %p<32>;\n.reg .b16 %h<64>;\n.reg .b32 %r<256>;\n.reg .b64 %d<128>;\n.reg .f32 %f<256>;\n"
        + static
        + body
        + "\nret;\n}\n"
    )


def run_lanes(
    instructions: str, inputs: Sequence[Sequence[int]], widths: str, out: str, *, target: str = "sm_100a"
) -> list[int]:
    """Result bits of 32 lanes.

    `widths` names the widths of the inputs, space-separated ("b32 b32"); the instruction text calls the inputs `<A>`,
    `<B>`, `<C>`, ... and the result, of width `out`, `<D>`.
    """
    kinds = widths.split()
    text = ["ld.param.b64 %d0, [p0];", "mov.u32 %r0, %tid.x;", "mul.wide.u32 %d1, %r0, 8;"]
    names: dict[str, str] = {}
    buffers = []
    for i, (kind, values) in enumerate(zip(kinds, inputs, strict=True)):
        bits = _BITS[kind]
        register = f"{_REGISTER[bits]}{10 + i}"
        names["ABCEFG"[i]] = register
        text += [f"ld.param.b64 %d2, [p{i + 1}];", "add.s64 %d3, %d2, %d1;", f"ld.global.{kind} {register}, [%d3];"]
        mask = (1 << bits) - 1
        buffers.append((ctypes.c_uint64 * 32)(*(v & mask for v in values)))
    names["D"] = f"{_REGISTER[_BITS[out]]}20"
    body = instructions
    for name, register in names.items():
        body = body.replace(f"<{name}>", register)
    text += [body, "add.s64 %d4, %d0, %d1;", f"st.global.{out} [%d4], {names['D']};"]
    result = (ctypes.c_uint64 * 32)()
    kernel = ptx.load(module("\n".join(text), params=1 + len(buffers), target=target))
    kernel.launch((1, 1, 1), (32, 1, 1), [result, *buffers])
    mask = (1 << _BITS[out]) - 1
    return [v & mask for v in result]
