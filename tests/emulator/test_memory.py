"""ld, st, atom and red of every width and state space, addresses and their conversion."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable

import pytest
from ptx_lanes import module, run_lanes

from attn_dsl.emulator import KernelFinding, ptx

LANE_ADDRESS = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 16; add.s64 %d2, %d0, %d1;"


def per_lane(body: str, data: bytes, *, shared: int = 0) -> bytes:
    """Memory after one warp ran `body`; lane i has 16 bytes at %d2, 512 bytes are for the lanes in all."""
    buffer = ctypes.create_string_buffer(data, max(512, len(data)))
    memory = (ctypes.c_uint8 * len(buffer)).from_buffer(buffer)
    ptx.load(module(LANE_ADDRESS + body, shared=shared)).launch((1, 1, 1), (32, 1, 1), [memory])
    return bytes(buffer)


def test_signs_are_extended_and_zeros_filled() -> None:
    data = random.Random(1).randbytes(512)
    body = """
    ld.global.s8 %r1, [%d2+3]; ld.global.u8 %r2, [%d2+3]; ld.global.s16 %r3, [%d2+6]; ld.global.u16 %r4, [%d2+6];
    st.global.b32 [%d2], %r1; st.global.b32 [%d2+4], %r2; st.global.b32 [%d2+8], %r3; st.global.b32 [%d2+12], %r4;
    """
    got = per_lane(body, data)
    for lane in range(32):
        octet = data[16 * lane + 3 : 16 * lane + 4]
        half = data[16 * lane + 6 : 16 * lane + 8]
        want = (
            *struct.unpack("<b", octet),
            *struct.unpack("<B", octet),
            *struct.unpack("<h", half),
            *struct.unpack("<H", half),
        )
        assert struct.unpack_from("<iIiI", got, 16 * lane) == want


@pytest.mark.parametrize(
    ("vector", "registers"),
    [
        ("v4.b32", "{%r1, %r2, %r3, %r4}"),
        ("v2.b64", "{%d5, %d6}"),
        ("v2.b32", "{%r1, %r2}"),
        ("v4.b16", "{%h1, %h2, %h3, %h4}"),
        ("b64", "%d5"),
        ("b16", "%h1"),
        ("b8", "%h1"),
    ],
)
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_a_value_survives_a_round_trip(vector: str, registers: str, space: str) -> None:
    width = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}[vector.rpartition(".")[2]] * int(
        vector[1] if vector[0] == "v" else 1
    )
    data = random.Random(2).randbytes(512)
    if space == "global":
        body = (
            f"ld.global.{vector} {registers}, [%d2]; st.global.b64 [%d2+8], 0; st.global.{vector} [%d2], {registers};"
        )
        got = per_lane(body, data)
        for lane in range(32):
            assert got[16 * lane : 16 * lane + min(width, 8)] == data[16 * lane : 16 * lane + min(width, 8)]
        return
    body = f"ld.global.{vector} {registers}, [%d2]; mov.b32 %r9, smem; shl.b32 %r8, %r0, 4; add.s32 %r9, %r9, %r8;"
    if space == "shared":
        body += f"st.shared.{vector} [%r9], {registers}; ld.shared.{vector} {registers}, [%r9];"
    else:
        body += "cvt.u64.u32 %d20, %r9; cvta.shared.u64 %d20, %d20;"
        body += f"st.{vector} [%d20], {registers}; ld.{vector} {registers}, [%d20];"
    got = per_lane(body + f"st.global.{vector} [%d2], {registers};", data, shared=512)
    assert got == data


def test_local_memory_is_private_to_a_thread() -> None:
    body = """
    .local .align 8 .b8 spill[32];
    mov.b64 %d10, spill; cvta.local.u64 %d11, %d10;
    st.local.b32 [spill], %r0; mul.lo.s32 %r1, %r0, 3; st.local.b32 [spill+4], %r1;
    bar.warp.sync -1;
    ld.local.v2.b32 {%r2, %r3}, [spill]; ld.b32 %r4, [%d11+4];
    st.global.b32 [%d2], %r2; st.global.b32 [%d2+4], %r3; st.global.b32 [%d2+8], %r4;
    """
    got = per_lane(body, bytes(512))
    assert [struct.unpack_from("<3I", got, 16 * i) for i in range(32)] == [(i, 3 * i, 3 * i) for i in range(32)]


def test_parameters_by_value() -> None:
    class Struct(ctypes.Structure):
        _fields_ = [("a", ctypes.c_uint32), ("b", ctypes.c_uint8), ("c", ctypes.c_uint8), ("d", ctypes.c_uint16)]

    text = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .align 4 .b8 s[8], .param .f32 f)
{
.reg .b64 %d<4>; .reg .b32 %r<4>; .reg .b16 %h<4>; .reg .f32 %f<2>;
ld.param.b64 %d0, [out]; ld.param.b32 %r0, [s]; ld.param.v2.b8 {%h0, %h1}, [s+4]; ld.param.u16 %h2, [s+6];
ld.param.f32 %f0, [f]; cvt.u32.u16 %r1, %h1; cvt.u32.u16 %r2, %h2;
st.global.v4.b32 [%d0], {%r0, %r1, %r2, %f0};
ret;
}
"""
    out = (ctypes.c_uint32 * 4)()
    ptx.load(text).launch((1, 1, 1), (1, 1, 1), [out, Struct(70000, 5, 6, 7), 1.5])
    assert list(out) == [70000, 6, 7, 0x3FC00000]


ATOMS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda old, b: (old + b) & 0xFFFFFFFF,
    "min.s32": lambda old, b: min(old, b),
    "max.u32": lambda old, b: max(old, b),
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b32": lambda old, b: old ^ b,
    "exch.b32": lambda _, b: b,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
}


@pytest.mark.parametrize("op", ATOMS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_return_the_old_value(op: str, space: str) -> None:
    data = bytearray(512)
    for lane in range(32):
        struct.pack_into("<II", data, 16 * lane, 5 + lane, 40 - lane)
    body = "ld.global.v2.b32 {%r1, %r2}, [%d2];"
    if space == "shared":
        body += "mov.b32 %r9, smem; shl.b32 %r8, %r0, 4; add.s32 %r9, %r9, %r8; st.shared.b32 [%r9], %r1;"
        body += f"atom.shared.{op} %r3, [%r9], %r2; ld.shared.b32 %r4, [%r9]; st.global.b32 [%d2], %r4;"
    else:
        body += f"atom.global.{op} %r3, [%d2], %r2;"
    got = per_lane(body + "st.global.b32 [%d2+8], %r3;", bytes(data), shared=512)
    for lane in range(32):
        new, _, old = struct.unpack_from("<3I", got, 16 * lane)
        assert (new, old) == (ATOMS[op](5 + lane, 40 - lane), 5 + lane)


def test_compare_and_swap() -> None:
    data = bytearray(512)
    for lane in range(32):
        struct.pack_into("<I", data, 16 * lane, lane % 2)
    body = "atom.global.cas.b32 %r3, [%d2], 1, 77; st.global.b32 [%d2+4], %r3;"
    got = per_lane(body, bytes(data))
    assert [struct.unpack_from("<2I", got, 16 * i) for i in range(32)] == [
        (77 if i % 2 else 0, i % 2) for i in range(32)
    ]


def test_float_and_wide_atomics_add_up() -> None:
    body = """
    red.global.add.f32 [%d0+256], 0f3F800000; red.global.add.u64 [%d0+264], 5000000000;
    mov.b32 %r1, {%h1, %h2}; red.global.add.noftz.bf16x2 [%d0+272], %r1;
    """
    buffer = (ctypes.c_uint32 * 128)()
    text = module(LANE_ADDRESS + "mov.b16 %h1, 0x3F80; mov.b16 %h2, 0x4000;" + body)
    ptx.load(text).launch((2, 1, 1), (64, 1, 1), [buffer])
    assert buffer[64] == 0x43000000  # 128.0
    assert buffer[66] | buffer[67] << 32 == 128 * 5000000000
    assert buffer[68] == 0x43804300  # 256.0, 128.0


def test_addresses() -> None:
    a = list(range(0, 3200, 100))
    assert run_lanes("mapa.shared::cluster.u32 <D>, <A>, 3;", [a], "b32", "b32") == [v | 3 << 24 for v in a]
    assert run_lanes("getctarank.shared::cluster.u32 <D>, <A>;", [[v | 5 << 24 for v in a]], "b32", "b32") == [5] * 32
    generic = "cvt.u64.u32 %d30, <A>; cvta.shared.u64 %d31, %d30;"
    assert run_lanes(f"{generic} cvta.to.shared.u64 <D>, %d31;", [a], "b32", "b64") == a
    for space, want in (("shared", 1), ("global", 0), ("local", 0)):
        text = f"{generic} isspacep.{space} %p1, %d31; selp.b32 <D>, 1, 0, %p1;"
        assert set(run_lanes(text, [a], "b32", "b32")) == {want}


def test_read_only_parameters_cannot_be_written() -> None:
    text = module("mov.b64 %d5, p0; cvta.param.u64 %d6, %d5; st.global.b32 [%d6], 1;")
    with pytest.raises(KernelFinding) as caught:
        ptx.load(text).launch((1, 1, 1), (1, 1, 1), [(ctypes.c_uint32 * 4)()])
    assert caught.value.findings[0].kind == "oob"


@pytest.mark.parametrize("call", ["call.uni", "call"])
def test_printf(call: str) -> None:
    text = """.version 8.8
.target sm_90a
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 text[16] = {120, 61, 37, 100, 32, 121, 61, 37, 46, 50, 102, 32, 37, 37, 10, 0};
.visible .entry k()
{
.local .align 8 .b8 depot[16];
.reg .b64 %d<8>; .reg .b32 %r<4>;
mov.u32 %r0, %tid.x; st.local.b32 [depot], %r0; mov.b64 %d0, 0d3FF8000000000000; st.local.b64 [depot+8], %d0;
mov.b64 %d1, depot; cvta.local.u64 %d2, %d1; mov.b64 %d3, text; cvta.global.u64 %d4, %d3;
{ .param .b64 a; .param .b64 b; .param .b32 r; st.param.b64 [a], %d4; st.param.b64 [b], %d2;
call.uni (r), vprintf, (a, b); ld.param.b32 %r1, [r]; }
ret;
}
"""
    report = ptx.load(text.replace("call.uni", call)).launch((1, 1, 1), (2, 1, 1), [])
    assert report.printed == "x=0 y=1.50 %\nx=1 y=1.50 %\n"
