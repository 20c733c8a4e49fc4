"""Matrix products through tcgen05.mma and wgmma: TMA puts the operands in place, descriptors name them."""

from __future__ import annotations

import torch
from engine_kernels import (
    BASE,
    DATA,
    Operand,
    alloc,
    dealloc,
    descriptor,
    entry,
    expect,
    init_barriers,
    instruction_descriptor,
    launch,
    tensor_map,
    tma_load,
    tmem_dump,
    tmem_fill,
    wait,
)

KINDS = {  # kind, A/B code, D code, K per instruction
    torch.bfloat16: ("f16", 1, 1, 16),
    torch.float16: ("f16", 0, 1, 16),
    torch.float32: ("tf32", 2, 1, 8),
    torch.float8_e4m3fn: ("f8f6f4", 0, 1, 32),
    torch.float8_e5m2: ("f8f6f4", 1, 1, 32),
    torch.int8: ("i8", 1, 2, 32),
    torch.uint8: ("i8", 0, 2, 32),
}


def integers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small integers: every product and sum is exact, so the result is the same in any order."""
    low = 0 if dtype == torch.uint8 else -4
    return torch.randint(low, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operand_map(op: Operand, values: torch.Tensor) -> tuple[torch.Tensor, bytes]:
    """The tensor as it lies in global memory, and its tensor map."""
    stored = values.t().contiguous() if op.mn_major else values.contiguous()
    return stored, tensor_map(stored, op.box, swizzle=op.span, atom=op.atom)


def load_operand(op: Operand, offset: int, tmap: int) -> str:
    size = op.box[0] * op.box[1] * op.eb
    return "\n".join(tma_load(2, offset + at, tmap, coords, 0) for coords, at in op.loads() if size)


def mma_chain(
    a: Operand,
    b: Operand,
    kind: str,
    step: int,
    idesc: int,
    a_at: int,
    b_at: int,
    group: int = 1,
    a_tmem: int | None = None,
) -> str:
    """Thread 0 (of rank 0) multiplies step by step along K into TMEM at %r60, then commits to mbarrier 1.

    `a_tmem`: A is in TMEM from that column on instead of shared memory.
    """
    lines = []
    p = "%p1" if group == 2 else "%p0"
    for k in range(0, a.k, step):
        left = "%d10" if a_tmem is None else f"[%r60+{a_tmem + k * a.eb // 4}]"
        lines += [
            f"mov.b64 %d10, {descriptor(a, BASE + a_at + a.advance(k))};",
            f"mov.b64 %d11, {descriptor(b, BASE + b_at + b.advance(k))};",
            f"mov.b32 %r70, {idesc};",
            f"setp.ne.u32 %p3, {int(k > 0)}, 0;",
            f"@{p} tcgen05.mma.cta_group::{group}.kind::{kind} [%r60], {left}, %d11, %r70, %p3;",
        ]
    lines.append("add.u32 %r71, %r1, 8;")
    if group == 2:
        lines.append("mov.b16 %h0, 3;")
        multicast = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        lines.append(f"@{p} {multicast} [%r71], %h0;")
    else:
        lines.append(f"@{p} tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r71];")
    return "\n".join(lines)


def gemm(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    a_mn: bool,
    b_mn: bool,
    span: int,
    *,
    values=integers,
    change=None,
    at: int = DATA,
    **options,
):
    """(D, A, B, report) of a tcgen05 product of one CTA. `change` edits the PTX before it runs; A is `at` bytes
    behind the start of shared memory."""
    kind, code, d_code, step = KINDS[dtype]
    eb = torch.empty(0, dtype=dtype).element_size()
    atom = {True: 1, False: 0}
    a = Operand(m, k, a_mn, span, eb, atom[a_mn and eb == 4])
    b = Operand(n, k, b_mn, span, eb, atom[b_mn and eb == 4])
    a_values, b_values = values((m, k), dtype, 0), values((n, k), dtype, 1)
    (a_tensor, a_map), (b_tensor, b_map) = operand_map(a, a_values), operand_map(b, b_values)
    b_at = at + (a.bytes + 1023) // 1024 * 1024
    out = torch.zeros(128, n, dtype=torch.int32)
    text = entry(
        "\n".join(
            [
                init_barriers(1, 1),
                alloc(256),
                tmem_fill(n, 7 if m == 64 else 0),
                expect(0, a.bytes + b.bytes),
                load_operand(a, at, 0),
                load_operand(b, b_at, 1),
                wait(0),
                mma_chain(a, b, kind, step, instruction_descriptor(code, code, d_code, m, n, a_mn, b_mn), at, b_at),
                wait(1),
                tmem_dump(n, 0),
                dealloc(256),
            ]
        ),
        pointers=3,
        maps=2,
    )
    report = launch(change(text) if change else text, [out, a_tensor, b_tensor, a_map, b_map], **options)
    got = out if d_code == 2 else out.view(torch.float32)
    if m == 64:
        assert (out.reshape(4, 2, 16, n)[:, 1] == 7).all()  # the other lanes are left alone
        got = torch.cat([got[32 * i : 32 * i + 16] for i in range(4)])
    return got.double(), a_values, b_values, report


def pair_gemm(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    a_mn: bool,
    b_mn: bool,
    span: int,
    *,
    a_tmem: bool = False,
    change=None,
    **options,
):
    """(D, what it must be) of a product of a CTA pair: each holds half the rows of A and of B and gets its part of D.

    `a_tmem`: A is in TMEM from column 256 on. With M = 128 the second half of the columns of D has its own copy of the
    rows of A, 64 lanes further on; here the copies differ, and so do the halves of what D must be.
    """
    kind, code, d_code, step = KINDS[dtype]
    eb, half_rows = dtype.itemsize, m // 2
    a, b = Operand(half_rows, k, a_mn, span, eb), Operand(n // 2, k, b_mn, span, eb)
    a_values, b_values = integers((m, k), dtype, 5), integers((n, k), dtype, 6)
    second = integers((m, k), dtype, 7) if a_tmem and m == 128 else a_values
    stored, maps = [], []
    for op, values in ((a, a_values), (b, b_values)):
        for half in values.chunk(2):
            tensor, tmap = operand_map(op, half)
            stored.append(tensor)
            maps.append(tmap)
    words = k * eb // 4
    image = torch.stack(
        [
            torch.cat([part.view(torch.int32) for part in ((first, other) if m == 128 else (first,))])
            for first, other in zip(a_values.chunk(2), second.chunk(2), strict=True)
        ]
    )
    b_at = DATA + (a.bytes + 1023) // 1024 * 1024
    loads = []
    for rank in (0, 1):
        pick = f"setp.eq.s32 %p4, %r3, {rank};\nand.pred %p0, %p6, %p4;"
        loads += [pick, "" if a_tmem else load_operand(a, DATA, rank), load_operand(b, b_at, 2 + rank)]
    fill = []
    if a_tmem:
        fill = [
            f"mul.lo.s32 %r80, %r3, 128;\nadd.u32 %r80, %r80, %r0;\nmul.wide.u32 %d42, %r80, {4 * words};",
            "add.s64 %d43, %d1, %d42;\nshl.b32 %r61, %r2, 21;\nadd.u32 %r62, %r61, %r60;",
        ]
        for i in range(words):
            fill += [
                f"ld.global.b32 %r82, [%d43+{4 * i}];",
                f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r62+{256 + i}], {{%r82}};",
            ]
        fill.append("tcgen05.wait::st.sync.aligned;\ntcgen05.fence::before_thread_sync;")
    sync = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\ntcgen05.fence::after_thread_sync;"
    columns = n // 2 if m == 128 else n
    idesc = instruction_descriptor(code, code, d_code, m, n, a_mn, b_mn)
    text = entry(
        "\n".join(
            [
                init_barriers(1, 1),
                sync,
                "setp.eq.s32 %p6, %r0, 0;",
                alloc(512, group=2),
                expect(0, b.bytes if a_tmem else a.bytes + b.bytes),
                *loads,
                "setp.eq.s32 %p0, %r0, 0;",
                *fill,
                wait(0),
                sync,
                mma_chain(a, b, kind, step, idesc, DATA, b_at, group=2, a_tmem=256 if a_tmem else None),
                wait(1),
                f"mul.lo.s32 %r40, %r3, {4 * 128 * columns};\ncvt.u64.u32 %d44, %r40;\nadd.s64 %d0, %d0, %d44;",
                tmem_dump(columns, 0),
                dealloc(512, group=2),
            ]
        ),
        pointers=6,
        maps=4,
    )
    out = torch.zeros(2, 128, columns, dtype=torch.int32)
    launch(change(text) if change else text, [out, image, *stored, *maps], cluster=2, **options)
    d = (out if d_code == 2 else out.view(torch.float32)).double()
    if m == 256:
        return d.reshape(256, n), a_values.double() @ b_values.double().T
    # 64 rows per CTA; the second half of the columns is 64 lanes further on.
    got = torch.cat([torch.cat([half[:64], half[64:]], dim=1) for half in d])
    left, right = b_values.double().T.chunk(2, dim=1)
    return got, torch.cat([a_values.double() @ left, second.double() @ right], dim=1)


K_STEP = {
    torch.bfloat16: 16,
    torch.float16: 16,
    torch.float32: 8,
    torch.float8_e4m3fn: 32,
    torch.float8_e5m2: 32,
    torch.int8: 32,
    torch.uint8: 32,
}
NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "tf32",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int8: "s8",
    torch.uint8: "u8",
}


def d_positions(registers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns, [128 threads, registers], of 32-bit D (PTX ISA, figure of the accumulator fragment)."""
    thread, reg = torch.arange(128)[:, None], torch.arange(registers)[None]
    group, quad = thread % 32 // 4, thread % 4
    return 16 * (thread // 32) + group + 8 * (reg // 2 % 2), 8 * (reg // 4) + 2 * quad + reg % 2


def store_d(registers: int) -> str:
    """Thread t stores its D registers (from %r200) to row t of pointer parameter 0."""
    lines = [f"mul.lo.s32 %r80, %r0, {4 * registers};", "cvt.u64.u32 %d40, %r80;", "add.s64 %d41, %d0, %d40;"]
    return "\n".join([*lines, *(f"st.global.b32 [%d41+{4 * r}], %r{200 + r};" for r in range(registers))])


def unscatter(out: torch.Tensor, n: int) -> torch.Tensor:
    """[128 threads, registers] of 32-bit D to [64, n]."""
    d = torch.zeros(64, n, dtype=out.dtype)
    d[d_positions(out.shape[1])] = out
    return d


def load_a_fragments(words: int) -> str:
    """Thread t loads its A registers, row t of pointer parameter 3, to %r120..."""
    lines = [f"mul.lo.s32 %r81, %r0, {4 * words};", "cvt.u64.u32 %d42, %r81;", "add.s64 %d43, %d3, %d42;"]
    return "\n".join([*lines, *(f"ld.global.b32 %r{120 + r}, [%d43+{4 * r}];" for r in range(words))])


def a_fragments(a: torch.Tensor, step: int) -> torch.Tensor:
    """[128 threads, 4 registers x K steps] of int32: the A fragments of a [64, K] operand."""
    eb = a.element_size()
    per = 4 // eb
    raw = a.contiguous().view(torch.uint8).reshape(64, -1)
    thread, reg = torch.arange(128)[:, None, None], torch.arange(4 * (a.shape[1] // step))[None, :, None]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (reg % 2)
    k = step * (reg // 4) + per * (thread % 4) + 4 * per * (reg % 4 // 2)
    return raw[row, k * eb + torch.arange(4)].view(torch.int32).reshape(128, -1)


def wgmma_gemm(
    n: int,
    k: int,
    dtype: torch.dtype,
    a_mn: bool,
    b_mn: bool,
    span: int,
    *,
    registers: bool = False,
    values=integers,
    change=None,
    half: bool = False,
    b_dtype: torch.dtype | None = None,
    start: int | None = None,
    suffix: str = "",
    **options,
):
    """(D, A, B) of a product of one warpgroup. `change` edits the PTX before it runs; `half`: D is f16; `b_dtype`: the
    type of B if it is another one; `start`: bits that D's registers hold first; `suffix`: of the opcode."""
    b_dtype = b_dtype or dtype
    step, eb = K_STEP[dtype], torch.empty(0, dtype=dtype).element_size()
    a, b = Operand(64, k, a_mn, span, eb), Operand(n, k, b_mn, span, eb)
    a_values, b_values = values((64, k), dtype, n), values((n, k), b_dtype, n + 1)
    a_tensor = a_values.t().contiguous() if a_mn else a_values
    b_tensor = b_values.t().contiguous() if b_mn else b_values
    fragments = a_fragments(a_values, step)
    b_at = DATA + (a.bytes + 1023) // 1024 * 1024
    whole = dtype in (torch.int8, torch.uint8)
    dtype_d = "s32" if whole else "f16" if half else "f32"
    n_d = n // 4 if half else n // 2
    d = ", ".join(f"%r{200 + i}" for i in range(n_d))
    lines = [init_barriers(1), expect(0, a.bytes + b.bytes)]
    lines += [tma_load(2, DATA + at, 0, c, 0) for c, at in a.loads()] + [
        tma_load(2, b_at + at, 1, c, 0) for c, at in b.loads()
    ]
    if registers:
        lines.append(load_a_fragments(fragments.shape[1]))
    if start is not None:
        lines += [f"mov.b32 %r{200 + i}, {start};" for i in range(n_d)]
    lines += [wait(0), "wgmma.fence.sync.aligned;"]
    for i, k0 in enumerate(range(0, k, step)):
        left = f"{{{', '.join(f'%r{120 + 4 * i + r}' for r in range(4))}}}" if registers else "%d10"
        immediates = "" if whole else ", 1, 1"
        if eb == 2:
            immediates += f", {int(b_mn)}" if registers else f", {int(a_mn)}, {int(b_mn)}"
        lines += [
            f"mov.b64 %d10, {descriptor(a, BASE + DATA + a.advance(k0), wgmma=True)};",
            f"mov.b64 %d11, {descriptor(b, BASE + b_at + b.advance(k0), wgmma=True)};",
            f"setp.ne.s32 %p3, {int(k0 > 0 or start is not None)}, 0;",
            f"wgmma.mma_async.sync.aligned.m64n{n}k{step}.{dtype_d}.{NAMES[dtype]}.{NAMES[b_dtype]}{suffix} "
            f"{{{d}}}, {left}, %d11, %p3{immediates};",
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", store_d(n_d)]
    out = torch.zeros(128, n_d, dtype=torch.int32)
    text = entry("\n".join(lines), pointers=4, maps=2, target="sm_90a")
    maps = [tensor_map(t, op.box, swizzle=op.span) for t, op in ((a_tensor, a), (b_tensor, b))]
    launch(change(text) if change else text, [out, a_tensor, b_tensor, fragments, *maps], **options)
    if half:  # a register holds two neighbours of a row
        pairs = out.view(torch.float16).reshape(128, 2 * n_d)
        return unscatter(pairs, n).double(), a_values, b_values
    got = unscatter(out if whole else out.view(torch.float32), n)
    return got.double(), a_values, b_values
