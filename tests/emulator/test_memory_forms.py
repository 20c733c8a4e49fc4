"""Every form of ld, st, atom and red, and the instructions about addresses, against their definition."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from itertools import product as every

import pytest
import torch
from exact_floats import decode
from float_rules import FORMATS, Flags, read, samples, total, write
from ptx_lanes import module, run_lanes

from attn_dsl.emulator import KernelFinding, PtxError, ptx

TYPES = (
    "b8",
    "u8",
    "s8",
    "b16",
    "u16",
    "s16",
    "f16",
    "bf16",
    "b32",
    "u32",
    "s32",
    "f32",
    "b64",
    "u64",
    "s64",
    "f64",
    "b128",
)
SIZE = {8: 1, 16: 2, 32: 4, 64: 8, 128: 16}
LANE = "ld.param.b64 %d0, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 64; add.s64 %d2, %d0, %d1;"
LANE += ".reg .b128 %q<8>; mov.b32 %r9, smem; cvt.u32.u64 %r8, %d1; add.s32 %r9, %r9, %r8;"


def bytes_of(kind: str) -> int:
    return int(kind.lstrip("busf")) // 8


def registers(kind: str, count: int) -> str:
    prefix = {1: "%h", 2: "%h", 4: "%r", 8: "%d", 16: "%q"}[bytes_of(kind)]
    first = 0 if prefix == "%q" else 20
    names = [f"{prefix}{first + i}" for i in range(count)]
    return names[0] if count == 1 else f"{{{', '.join(names)}}}"


def run(body: str, data: bytes, *, shared: int = 2048) -> bytes:
    """Memory after one warp ran `body`; lane i owns 64 bytes at %d2, and 64 bytes of shared memory at %r9."""
    memory = torch.tensor(list(data), dtype=torch.uint8)  # aligned, which ctypes does not promise
    ptx.load(module(LANE + body, shared=shared)).launch((1, 1, 1), (32, 1, 1), [memory])
    return bytes(memory.tolist())


def copied(load: str, store: str, kind: str, count: int, *, hint: bool = False) -> None:
    """Each lane's first bytes, loaded and stored 32 bytes further on."""
    data = random.Random(5).randbytes(2048)
    size, names = count * bytes_of(kind), registers(kind, count)
    policy = "createpolicy.fractional.L2::evict_first.b64 %d9, 1.0;" if hint else ""
    last = ", %d9" if hint else ""
    got = run(f"{policy} {load} {names}, [%d2]{last}; {store} [%d2+32], {names}{last};", data)
    want = bytearray(data)
    for lane in range(32):
        want[64 * lane + 32 : 64 * lane + 32 + size] = data[64 * lane : 64 * lane + size]
    assert got == bytes(want)


@pytest.mark.parametrize(
    ("vector", "kind"), [*every(("", ".v2", ".v4"), TYPES), (".v8", "b32"), (".v8", "f32"), (".v8", "b16")]
)
def test_types_and_vectors(vector: str, kind: str) -> None:
    count = int(vector[2:] or 1)
    if count * bytes_of(kind) > 32:
        with pytest.raises(PtxError, match="at most 256"):
            copied(f"ld.global{vector}.{kind}", f"st.global{vector}.{kind}", kind, count)
        return
    copied(f"ld.global{vector}.{kind}", f"st.global{vector}.{kind}", kind, count)


SCOPES = ("cta", "cluster", "gpu", "sys")
ORDERS = [
    ("weak", "weak"),
    ("volatile", "volatile"),
    *((f"relaxed.{scope}", f"relaxed.{scope}") for scope in SCOPES),
    *((f"acquire.{scope}", f"release.{scope}") for scope in SCOPES),
]


@pytest.mark.parametrize(("load", "store"), ORDERS)
def test_memory_orders(load: str, store: str) -> None:
    copied(f"ld.{load}.global.b32", f"st.{store}.global.b32", "b32", 1)


HINTS = [
    *((f"ld.global.{cop}.b32", "st.global.b32") for cop in ("ca", "cg", "cs", "lu", "cv")),
    *(("ld.global.b32", f"st.global.{cop}.b32") for cop in ("wb", "cg", "cs", "wt")),
    ("ld.global.nc.b32", "st.global.b32"),
    ("ld.global.nc.L1::no_allocate.L2::evict_first.L2::256B.b32", "st.global.L1::evict_last.L2::evict_first.b32"),
]


@pytest.mark.parametrize(("load", "store"), HINTS)
def test_caching_changes_nothing(load: str, store: str) -> None:
    copied(load, store, "b32", 1)


def test_cache_policies_are_taken() -> None:
    copied("ld.global.L2::cache_hint.b32", "st.global.L2::cache_hint.b32", "b32", 1, hint=True)


@pytest.mark.parametrize("space", ["shared", "shared::cta", "shared::cluster"])
def test_shared_spaces(space: str) -> None:
    data = random.Random(6).randbytes(2048)
    got = run(
        (
            f"ld.global.b64 %d20, [%d2]; st.{space}.b64 [%r9], %d20; ld.{space}.b64 %d21, "
            f"[%r9]; st.global.b64 [%d2+8], %d21;"
        ),
        data,
    )
    assert [got[64 * i + 8 : 64 * i + 16] for i in range(32)] == [data[64 * i : 64 * i + 8] for i in range(32)]


@pytest.mark.parametrize("space", ["param", "param::entry"])
def test_parameter_spaces(space: str) -> None:
    text = module(f"ld.{space}.b64 %d0, [p0]; ld.{space}.b64 %d1, [p1]; st.global.b64 [%d0], %d1;", params=2)
    out = (ctypes.c_uint64 * 1)()
    ptx.load(text).launch((1, 1, 1), (1, 1, 1), [out, 0x123456789ABC])
    assert out[0] == 0x123456789ABC


def test_constant_memory_is_refused() -> None:
    with pytest.raises(KernelFinding, match="constant memory is not modelled") as caught:
        run("mov.b32 %r20, 0; ld.const.b32 %r21, [%r20];", bytes(2048))
    assert caught.value.findings[0].kind == "unsupported"


def test_constant_variables_are_read_through_generic_addresses() -> None:
    text = module(
        "ld.param.b64 %d0, [p0]; mov.b64 %d1, c; cvta.const.u64 %d2, %d1; ld.b32 "
        "%r1, [%d2+4]; st.global.b32 [%d0], %r1;"
    )
    out = (ctypes.c_uint32 * 1)()
    ptx.load(text.replace(".visible", ".const .align 4 .u32 c[2] = {7, 11};\n.visible")).launch(
        (1, 1, 1), (1, 1, 1), [out]
    )
    assert out[0] == 11


# atom and red

INTEGER_RULES: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": int.__and__,
    "or": int.__or__,
    "xor": int.__xor__,
    "exch": lambda _, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
INTEGER_ATOMS = [
    *every(("add",), ("u32", "s32", "u64")),
    *every(("min", "max"), ("u32", "s32", "u64", "s64")),
    *every(("and", "or", "xor"), ("b32", "b64")),
    *every(("inc", "dec"), ("u32",)),
    *every(("exch",), ("b32", "b64")),
]


def signed(v: int, bits: int) -> int:
    return v - (1 << bits) if v >> bits - 1 else v


@pytest.mark.parametrize("space", ["global", "shared", "shared::cta", "shared::cluster"])
@pytest.mark.parametrize(("op", "kind"), INTEGER_ATOMS)
def test_integer_atomics(op: str, kind: str, space: str) -> None:
    """The old value comes back, the new one is in memory; red does the same without the old value."""
    bits, rng = 8 * bytes_of(kind), random.Random(7)
    rows = [
        (rng.getrandbits(bits) >> rng.randrange(bits), rng.getrandbits(bits) >> rng.randrange(bits)) for _ in range(32)
    ]
    rows[0], rows[1] = (0, 5), (5, 5)
    data = bytearray(2048)
    for lane, row in enumerate(rows):
        struct.pack_into("<2Q", data, 64 * lane, *row)
    old, operand, at = registers(kind, 1), ("%r50", "%d50")[bits == 64], "%d2" if space == "global" else "%r9"
    body = f"ld.global.b{bits} {operand}, [%d2+8];"
    if space != "global":
        body += f"ld.global.b{bits} {old}, [%d2]; st.shared.b{bits} [%r9], {old};"
    body += f"atom.{space}.{op}.{kind} {old}, [{at}], {operand}; st.global.b{bits} [%d2+16], {old};"
    body += f"ld.{space}.b{bits} {old}, [{at}]; st.global.b{bits} [%d2+24], {old};"
    if op != "exch":
        body += (
            f"red.{space}.{op}.{kind} [{at}], {operand}; ld.{space}.b{bits} {old}, [{at}]; "
            f"st.global.b{bits} [%d2+32], {old};"
        )
    got = run(body, bytes(data))
    read_as = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    for lane, (start, given) in enumerate(rows):
        seen_old, once, twice = (
            int.from_bytes(got[64 * lane + o : 64 * lane + o + bits // 8], "little") for o in (16, 24, 32)
        )
        rule, mask = INTEGER_RULES[op], (1 << bits) - 1
        want = rule(read_as(start), read_as(given)) & mask
        assert (seen_old, once) == (start, want), (lane, start, given)
        assert op == "exch" or twice == rule(read_as(want), read_as(given)) & mask, (lane, start, given)


def float_atoms() -> list[tuple[str, str, int]]:
    """(operation, type, elements)"""
    found = [
        ("add", "f32", 1),
        ("add", "f64", 1),
        *(("add.noftz", kind, 1) for kind in ("f16", "bf16", "f16x2", "bf16x2")),
    ]
    found += [("add", "f32", n) for n in (2, 4)]
    found += [(f"{op}.noftz", kind, n) for op, kind, n in every(("add", "min", "max"), ("f16", "bf16"), (2, 4, 8))]
    found += [(f"{op}.noftz", kind, n) for op, kind, n in every(("add", "min", "max"), ("f16x2", "bf16x2"), (2, 4))]
    return found


@pytest.mark.parametrize(("op", "kind", "count"), float_atoms())
def test_float_atomics(op: str, kind: str, count: int) -> None:
    """Each element by itself; f32 in global memory flushes subnormals, f16 and bf16 do not."""
    fmt = FORMATS[kind.removesuffix("x2")]
    size = fmt.bits // 8 * (2 if kind.endswith("x2") else 1) * count
    per_lane = 8 * size // fmt.bits
    start, given = (samples(fmt, 20 + i, 32 * per_lane) for i in range(2))
    data = bytearray(2048)
    for lane in range(32):
        for at, codes in ((0, start), (32, given)):
            for i in range(per_lane):
                code = codes[lane * per_lane + i]
                data[64 * lane + at + i * fmt.bits // 8 : 64 * lane + at + (i + 1) * fmt.bits // 8] = code.to_bytes(
                    fmt.bits // 8, "little"
                )
    element = kind if kind in ("f16", "bf16", "f32", "f64") else "b32"
    vector = f".v{count}" if count > 1 else ""
    names = registers(element, count)
    prefix = names.strip("{").partition(",")[0][:2]
    other = names.replace(prefix + "2", prefix + "4")
    wide = 8 * size // count
    body = f"ld.global{vector}.b{wide} {names}, [%d2+32];"
    body += f"atom.global.{op}{vector}.{kind} {other}, [%d2], {names}; red.global.{op}{vector}.{kind} [%d2], {names};"
    body += f"st.global{vector}.b{wide} [%d2+32], {other};"
    got = run(body, bytes(data))
    ftz = kind == "f32"
    for lane in range(32):
        for i in range(per_lane):
            place = 64 * lane + i * fmt.bits // 8
            old, b = start[lane * per_lane + i], given[lane * per_lane + i]
            want = old
            for _ in range(2):
                want = combined(op.partition(".")[0], want, b, ftz=ftz, kind=kind)
            new, returned = (int.from_bytes(got[p : p + fmt.bits // 8], "little") for p in (place, place + 32))
            assert returned == old, (lane, i)
            assert new == want or (is_nan(new, kind) and is_nan(want, kind)), (
                lane,
                i,
                hex(old),
                hex(b),
                hex(new),
                hex(want),
            )


def is_nan(code: int, kind: str) -> bool:
    value = decode(code, FORMATS[kind.removesuffix("x2")])
    return isinstance(value, float) and value != value


def combined(op: str, a: int, b: int, *, ftz: bool, kind: str) -> int:
    fmt = FORMATS[kind.removesuffix("x2")]
    if op == "add":
        return write(total(read(a, fmt, ftz=ftz), read(b, fmt, ftz=ftz), "rn"), fmt, Flags(ftz=ftz))
    if is_nan(a, kind) or is_nan(b, kind):
        return b if is_nan(a, kind) else a
    order = lambda code: (decode(code, fmt), not code >> fmt.bits - 1)  # noqa: E731
    return (max if op == "max" else min)(a, b, key=order)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_compare_and_swap(bits: int, space: str) -> None:
    data = bytearray(2048)
    for lane in range(32):
        struct.pack_into("<3Q", data, 64 * lane, 70 + lane % 2, 70, 99)
    names = {16: "%h", 32: "%r", 64: "%d"}[bits]
    old, expected, new, at = f"{names}30", f"{names}31", f"{names}32", "%d2" if space == "global" else "%r9"
    body = f"ld.global.b{bits} {old}, [%d2]; ld.global.b{bits} {expected}, [%d2+8]; ld.global.b{bits} {new}, [%d2+16];"
    body += f"st.{space}.b{bits} [{at}], {old}; atom.{space}.cas.b{bits} {old}, [{at}], {expected}, {new};"
    body += f"st.global.b{bits} [%d2+24], {old}; ld.{space}.b{bits} {old}, [{at}]; st.global.b{bits} [%d2+32], {old};"
    got = run(body, bytes(data))
    for lane in range(32):
        returned, now = (int.from_bytes(got[64 * lane + o : 64 * lane + o + bits // 8], "little") for o in (24, 32))
        assert (returned, now) == (70 + lane % 2, 71 if lane % 2 else 99)


ATOM_ORDERS = ["", *(f".{sem}.{scope}" for sem in ("relaxed", "acquire", "release", "acq_rel") for scope in SCOPES)]


@pytest.mark.parametrize("order", ATOM_ORDERS)
def test_atomic_orders_and_policies(order: str) -> None:
    """All lanes add to one word; generic addresses name global and shared memory."""
    body = "createpolicy.fractional.L2::evict_first.b64 %d9, 1.0; setp.ne.s32 %p1, %r0, 0; mov.b32 %r7, smem;"
    body += "cvt.u64.u32 %d10, %r7; cvta.shared.u64 %d11, %d10; @!%p1 st.shared.b32 [%r7], 0; bar.warp.sync -1;"
    body += f"atom{order}.global.add.u32 %r20, [%d0], 1; atom{order}.add.u32 %r21, [%d0+4], 2;"
    body += f"atom{order}.add.u32 %r22, [%d11], 3; atom{order}.global.add.L2::cache_hint.u32 %r23, [%d0+8], 4, %d9;"
    if "acq" not in order:
        body += f"red{order}.global.add.u32 [%d0+12], 5; red{order}.global.add.L2::cache_hint.u32 [%d0+16], 6, %d9;"
        body += f"red{order}.add.u32 [%d0+20], 7;"
    body += "bar.warp.sync -1; ld.shared.b32 %r24, [%r7]; @!%p1 st.global.b32 [%d0+24], %r24;"
    got = struct.unpack_from("<7I", run(body, bytes(2048)))
    assert got[:3] == (32, 64, 128)
    assert got[3:6] == ((160, 192, 224) if "acq" not in order else (0, 0, 0))
    assert got[6] == 96


@pytest.mark.parametrize(
    "opcode",
    [
        "atom.global.and.f32",
        "atom.global.add.b32",
        "red.global.inc.s32",
        "atom.global.min.f32",
        "ld.global.wt.b32",
        "st.release.gpu.nc.b32",
    ],
)
def test_what_the_isa_does_not_have_is_refused(opcode: str) -> None:
    operands = "%r20, [%d2], %r21" if opcode.startswith("atom") else "[%d2], %r21"
    with pytest.raises(PtxError) as caught:
        run(f"{opcode} {operands};", bytes(2048))
    assert caught.value.code == "E301"


def test_wide_atomics_are_refused() -> None:
    with pytest.raises(PtxError, match="128-bit atomics are not modelled"):
        run("atom.global.exch.b128 %q0, [%d2], %q1;", bytes(2048))


# addresses and hints

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const")


def test_address_spaces() -> None:
    """cvta and its inverse agree, and isspacep tells the spaces apart."""
    body = (
        ".local .align 8 .b8 spill[8]; mov.b64 %d20, spill; cvta.local.u64 %d21, %d20; "
        "mov.b64 %d22, p0; cvta.param.u64 %d23, %d22;"
    )
    body += (
        "cvt.u64.u32 %d24, %r9; cvta.shared.u64 %d25, %d24; cvta.global.u64 %d26, %d2; cvta.shared::cta.u64 %d30, %d24;"
    )
    body += (
        "cvta.shared::cluster.u64 %d31, %d24; cvta.to.shared::cta.u64 %d32, %d30; "
        "cvta.to.shared::cluster.u64 %d33, %d31;"
    )
    body += "cvta.to.local.u64 %d34, %d21; cvta.to.global.u64 %d35, %d26; mov.b32 %r40, 0;"
    places = {"local": "%d21", "param": "%d23", "shared": "%d25", "global": "%d26"}
    for bit, (place, space) in enumerate(every(places.values(), SPACES)):
        body += f"isspacep.{space} %p2, {place}; selp.b32 %r41, {1 << bit}, 0, %p2; or.b32 %r40, %r40, %r41;"
    same = " ".join(
        f"setp.eq.u64 %p3, {a}, {b}; selp.b32 %r41, 1, 0, %p3; add.u32 %r42, %r42, %r41;"
        for a, b in (("%d32", "%d24"), ("%d33", "%d24"), ("%d34", "%d20"), ("%d35", "%d2"))
    )
    got = run(f"{body} mov.b32 %r42, 0; {same} st.global.b32 [%d2], %r40; st.global.b32 [%d2+4], %r42;", bytes(2048))
    # Parameters lie in the window of global memory, a CTA's memory in that of the cluster (PTX ISA, isspacep).
    want = {
        "local": {"local"},
        "param": {"param", "global"},
        "shared": {"shared", "shared::cta", "shared::cluster"},
        "global": {"global"},
    }
    bits = [space in want[place] for place, space in every(places, SPACES)]
    assert struct.unpack_from("<2I", got) == (sum(1 << i for i, true in enumerate(bits) if true), 4)


def test_ranks_in_addresses() -> None:
    a = list(range(0, 3200, 100))
    assert run_lanes("mapa.u64 <D>, <A>, 3;", [[0x00FF000000000000 | v for v in a]], "b64", "b64") == [
        0x00FF000000000000 | v | 3 << 24 for v in a
    ]
    assert run_lanes("mapa.shared::cluster.u64 <D>, <A>, 3;", [a], "b64", "b64") == [v | 3 << 24 for v in a]
    got = run_lanes("getctarank.u64 <D>, <A>;", [[0x00FF000000000000 | v | 2 << 24 for v in a]], "b64", "b32")
    assert got == [2] * 32
    assert run_lanes("getctarank.shared::cluster.u64 <D>, <A>;", [[v | 6 << 24 for v in a]], "b64", "b32") == [6] * 32


def test_hints_do_nothing() -> None:
    data = random.Random(8).randbytes(2048)
    body = "prefetch.global.L1 [%d2]; prefetch.global.L2 [%d2]; prefetchu.L1 [%d2]; discard.global.L2 [%d2], 128;"
    body += "applypriority.global.L2::evict_normal [%d2], 128; cp.async.bulk.prefetch.L2.global [%d2], 64;"
    body += "pmevent 3; pmevent.mask 3; nanosleep.u32 20;"
    assert run(body, data) == data
