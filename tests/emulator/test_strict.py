"""Strict launches: the canonical synchronisation patterns of PTX (ISA 9.1, "Memory Consistency Model for 5th generation
of TensorCore operations") pass, and each wait or fence of them is needed."""

from __future__ import annotations

import ctypes

import pytest
from ptx_lanes import module

from attn_dsl.emulator import Finding, ptx

STORE, LOAD = (
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {%r20};",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r22}, [%r21];",
)
STORED, LOADED = "tcgen05.wait::st.sync.aligned;", "tcgen05.wait::ld.sync.aligned;"
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
ARRIVE, RELAXED = (
    "mbarrier.arrive.shared.b64 %d3, [%r9];",
    "mbarrier.arrive.relaxed.cluster.shared::cta.b64 %d3, [%r9];",
)
SEEN = "WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r9], 0; @!%p5 bra WAIT;"
SEEN_RELAXED = "WAIT: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p5, [%r9], 0; @!%p5 bra WAIT;"
USE = "add.s32 %r23, %r22, 1;"  # a register dependence
# A: 128 x 16, B: 8 x 16 of bf16, both zeros in shared memory without swizzle; D: 8 columns
MULTIPLY = """
@!%p6 bra ISSUED; mov.b64 %d5, 0x0000400800080000; cvt.u64.u32 %d6, %r9; shr.u64 %d6, %d6, 4; add.u64 %d5, %d5, %d6;
add.u64 %d5, %d5, 64; mov.b32 %r30, 0x8020490; tcgen05.mma.cta_group::1.kind::f16 [%r21], %d5, %d5, %r30, 0; ISSUED:
"""
COMMIT = "@%p6 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];"
COMMITTED = "DONE: mbarrier.try_wait.parity.shared.b64 %p5, [%r10], 0; @!%p5 bra DONE;"


def found(first: str, second: str, *, strict: bool = True, late: int = 0) -> list[Finding]:
    """What is found when warps 0 and 4, which reach the same lanes of tensor memory, execute this."""
    body = f"""
    mov.u32 %r0, %tid.x; mov.b32 %r9, smem; add.u32 %r10, %r9, 8; shr.u32 %r1, %r0, 5; mov.b32 %r20, 5;
    setp.eq.s32 %p1, %r0, 0; setp.eq.s32 %p2, %r1, 0; setp.eq.s32 %p3, %r1, 4; setp.eq.s32 %p6, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r9], 32; @%p1 mbarrier.init.shared.b64 [%r10], 1;
    @%p1 fence.mbarrier_init.release.cluster; mov.b32 %r24, 0; shl.b32 %r25, %r0, 5; add.u32 %r25, %r25, %r9;
    st.shared.v4.b32 [%r25+1024], {{%r24, %r24, %r24, %r24}}; st.shared.v4.b32 [%r25+1040], {{%r24, %r24, %r24, %r24}};
    fence.proxy.async; @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9+16], 32; bar.sync 0;
    ld.shared.b32 %r21, [%r9+16];
    @!%p2 bra OTHER; {first} bra JOIN; OTHER: @!%p3 bra JOIN; {second} JOIN: bar.sync 0; {BEFORE} bar.sync 0;
    @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r21, 32;
    """
    kernel = ptx.load(module(body, shared=8192))
    report = kernel.launch(
        (1, 1, 1),
        (160, 1, 1),
        [(ctypes.c_uint32 * 4)()],
        smem=0,
        findings="collect",
        strict=strict,
        late=late,
        seed=late,
    )
    return list(report.findings)


STORE_LOAD = ([STORE, STORED, BEFORE, ARRIVE], [SEEN, AFTER, LOAD, LOADED])
LOAD_STORE = ([STORE, STORED, LOAD, USE, LOADED, BEFORE, ARRIVE], [SEEN, AFTER, STORE, STORED])
ON_ITS_OWN = ([STORE, STORED, LOAD, USE, LOADED, STORE, STORED], [])
PRODUCT_LOAD = ([MULTIPLY, COMMIT], [COMMITTED, AFTER, LOAD, LOADED])
HANDED_ON = (
    [MULTIPLY, COMMIT, SEEN, AFTER, LOAD, LOADED],
    [COMMITTED, AFTER, LOAD, LOADED, BEFORE, ARRIVE],
)
RELAXED_STORE_LOAD = ([STORE, STORED, BEFORE, RELAXED], [SEEN_RELAXED, AFTER, LOAD, LOADED])
PATTERNS = {
    "store, load": STORE_LOAD,
    "load, store": LOAD_STORE,
    "one thread": ON_ITS_OWN,
    "product, load": PRODUCT_LOAD,
    "handed on": HANDED_ON,
    "relaxed": RELAXED_STORE_LOAD,
}


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_canonical_patterns_pass(pattern: tuple[list[str], list[str]], late: int) -> None:
    first, second = pattern
    assert found(" ".join(first), " ".join(second), late=late) == []


NO_WAIT, NO_BEFORE, NO_AFTER = (
    "is not ordered after",
    "no tcgen05.fence::before_thread",
    "no tcgen05.fence::after_thread",
)


@pytest.mark.parametrize(
    ("pattern", "dropped", "says", "also_else"),
    [
        (STORE_LOAD, STORED, NO_WAIT, True),
        (STORE_LOAD, BEFORE, NO_BEFORE, False),
        (STORE_LOAD, AFTER, NO_AFTER, False),
        (LOAD_STORE, LOADED, NO_WAIT, False),
        (LOAD_STORE, BEFORE, NO_BEFORE, False),
        (LOAD_STORE, AFTER, NO_AFTER, False),
        (ON_ITS_OWN, LOADED, NO_WAIT, False),
        (PRODUCT_LOAD, AFTER, NO_AFTER, False),
        (RELAXED_STORE_LOAD, BEFORE, NO_BEFORE, None),
        (RELAXED_STORE_LOAD, AFTER, NO_AFTER, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_part_is_needed(
    pattern: tuple[list[str], list[str]], dropped: str, says: str, also_else: bool | None
) -> None:
    """`also_else`: launches that are not strict find it as well; None: they do not take the pattern at all."""
    first, second = (" ".join(part for part in parts if part != dropped) for parts in pattern)
    findings = found(first, second)
    assert {finding.kind for finding in findings} == {"tcgen05-order"}
    assert says in findings[0].text
    if also_else is not None:
        assert bool(found(first, second, strict=False)) is also_else
