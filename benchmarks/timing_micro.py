"""Measures what the timing model needs to know of a Hopper GPU: rates and latencies, in cycles of its multiprocessors.

    python benchmarks/timing_micro.py [RESULT.json]

Kernels are PTX written here and compiled by the driver; each times itself with `%clock64`. Rates are taken with four
warps on each of the four sub-partitions of one multiprocessor, latencies with one warp and a chain of dependent
instructions, matrix products from the slope over the number of products in a row. Needs torch with CUDA and
`cuda.bindings`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver
from hardware_replay import checked

_DYNAMIC_SHARED = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SMS = 132
CHAINS = 8  # independent registers of a rate measurement
UNROLL = 64
SHARED = 200 * 1024  # bytes of dynamic shared memory

# name -> instruction on register {r}, with {a}, {b} never written and {s} a shared-memory address of the lane
OPERATIONS = {
    "fma": "fma.rn.f32 {r}, {r}, {a}, {b};",
    "add": "add.rn.f32 {r}, {r}, {a};",
    "mul": "mul.rn.f32 {r}, {r}, {a};",
    "max": "max.f32 {r}, {r}, {c};",
    "ex2": "ex2.approx.ftz.f32 {r}, {r};",
    "rsqrt": "rsqrt.approx.ftz.f32 {r}, {r};",
    "lg2": "lg2.approx.ftz.f32 {r}, {r};",
    "tanh": "tanh.approx.f32 {r}, {r};",
    "pack": "cvt.rn.bf16x2.f32 {r}, {r}, {a};",
    "int_to_float": "cvt.rn.f32.s32 {r}, {r};",
    "float_to_int": "cvt.rzi.s32.f32 {r}, {r};",
    "lop3": "lop3.b32 {r}, {r}, {a}, {b}, 0x96;",
    "shift": "shf.l.wrap.b32 {r}, {r}, {a}, {b};",
    "imad": "mad.lo.s32 {r}, {r}, {a}, {b};",
    "prmt": "prmt.b32 {r}, {r}, {a}, {b};",
    "shfl": "shfl.sync.bfly.b32 {r}, {r}, 1, 31, -1;",
    "lds": "ld.volatile.shared.b32 {r}, [{s}];",
    "sts": "st.volatile.shared.b32 [{s}], {r};",
    "hfma2": "fma.rn.bf16x2 {r}, {r}, {a}, {b};",
}
CHAINED = tuple(name for name in OPERATIONS if name not in ("lds", "sts"))

_FRAME = """
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry micro(.param .u64 out, .param .u64 data, .param .u32 reps, .param .u64 span)
{{
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .reg .b32 %x<{registers}>;
    .reg .b64 %d<24>;
    ld.param.u64 %d0, [out];
    ld.param.u64 %d1, [data];
    ld.param.u32 %r0, [reps];
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    mov.u32 %r3, memory;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d3, %d1, %d2;
    ld.global.b32 %r8, [%d3];
    ld.global.b32 %r9, [%d3+4096];
    shl.b32 %r10, %r1, 2;
    add.u32 %r10, %r10, %r3;
{prologue}
    bar.sync 0;
    mov.u32 %r4, 0;
    mov.u64 %d4, %clock64;
LOOP:
{body}
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p0, %r4, %r0;
    @%p0 bra LOOP;
    mov.u64 %d5, %clock64;
{epilogue}
    sub.u64 %d5, %d5, %d4;
    mov.u32 %r5, %ctaid.x;
    mov.u32 %r6, %ntid.x;
    shr.u32 %r6, %r6, 5;
    mad.lo.u32 %r5, %r5, %r6, %r2;
    mul.wide.u32 %d6, %r5, 8;
    add.u64 %d6, %d0, %d6;
    st.global.u64 [%d6], %d5;
    ret;
}}
"""


@dataclass(frozen=True)
class Kernel:
    """One micro-kernel: PTX, and how it is launched."""

    text: str
    threads: int
    blocks: int = 1
    shared: int = SHARED


def frame(
    body: str, threads: int, prologue: str = "", epilogue: str = "", registers: int = 4, blocks: int = 1
) -> Kernel:
    return Kernel(_FRAME.format(body=body, prologue=prologue, epilogue=epilogue, registers=registers), threads, blocks)


def operation(name: str, chains: int, threads: int) -> Kernel:
    """`UNROLL` instructions on `chains` registers in turn."""
    lines = []
    for place in range(UNROLL):
        register = place % chains
        c = f"%x{CHAINS + (place // chains) % 4}"
        lines.append(OPERATIONS[name].format(r=f"%x{register}", a="%r8", b="%r9", c=c, s="%r10"))
    loads = [f"ld.global.b32 %x{i}, [%d3+{8192 + 4096 * i}];" for i in range(CHAINS + 4)]
    sink = [f"setp.eq.u32 %p1, %x{i}, 123457;\n@%p1 st.global.u32 [%d3], %x{i};" for i in range(chains)]
    return frame("\n".join(lines), threads, "\n".join(loads), "\n".join(sink), CHAINS + 4)


def products(n: int, count: int, groups: int, a_in_registers: bool) -> Kernel:
    """`count` products m64 n16 k16 in a row, one group committed and waited for, by each of `groups` warpgroups."""
    regs = n // 2
    accumulator = "{" + ", ".join(f"%x{i}" for i in range(regs)) + "}"
    # 128-byte swizzle, rows of 128 bytes, 8 rows 1,024 bytes apart (PTX ISA, "matrix descriptor" of wgmma)
    high = (1 << 62) | (64 << 32) | (1 << 16)
    prologue = [
        *(f"ld.global.b32 %x{i}, [%d3+{4096 * (i % 8)}];" for i in range(regs + 4)),
        "and.b32 %r11, %r3, 0x3FFFF;",
        "shr.u32 %r11, %r11, 4;",
        "cvt.u64.u32 %d8, %r11;",
        f"or.b64 %d8, %d8, {high};",
        "add.u64 %d9, %d8, 1024;",
    ]
    a = "{" + ", ".join(f"%x{regs + i}" for i in range(4)) + "}" if a_in_registers else "%d8"
    tail = "1, 1, 1, 0" if a_in_registers else "1, 1, 1, 0, 0"
    one = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {accumulator}, {a}, %d9, {tail};"
    body = ["wgmma.fence.sync.aligned;", *[one] * count, "wgmma.commit_group.sync.aligned;"]
    body += ["wgmma.wait_group.sync.aligned 0;"]
    sink = [f"setp.eq.u32 %p1, %x{i}, 123457;\n@%p1 st.global.u32 [%d3], %x{i};" for i in range(regs)]
    return frame("\n".join(body), 128 * groups, "\n".join(prologue), "\n".join(sink), regs + 4)


def beside_products(name: str, n: int, a_in_registers: bool) -> Kernel:
    """The second warpgroup runs `UNROLL` instructions while the first runs products; the loop is the second's."""
    one = products(n, 1, 1, a_in_registers)
    product = next(line for line in one.text.splitlines() if line.startswith("wgmma.mma_async"))
    regs = n // 2 + 4
    lines = [
        OPERATIONS[name].format(
            r=f"%x{regs + place % CHAINS}", a="%r8", b="%r9", c=f"%x{regs + CHAINS + (place // CHAINS) % 4}", s="%r10"
        )
        for place in range(UNROLL)
    ]
    head, tail = one.text.split("LOOP:")
    head += "setp.lt.u32 %p5, %r2, 4;\n@!%p5 bra LOOP;\nmov.u32 %r15, 0;\nPRODUCTS:\nwgmma.fence.sync.aligned;\n"
    head += "\n".join([product] * 8) + "\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
    head += "add.u32 %r15, %r15, 1;\nsetp.lt.u32 %p6, %r15, %r0;\n@%p6 bra PRODUCTS;\nbra DONE;\n"
    _, rest = tail.split("    add.u32 %r4, %r4, 1;", 1)
    text = head + "LOOP:\n" + "\n".join(lines) + "\n    add.u32 %r4, %r4, 1;" + rest
    loads = "\n".join(f"ld.global.b32 %x{regs + i}, [%d3+{4096 * (i % 8)}];" for i in range(CHAINS + 4))
    sinks = "\n".join(
        f"setp.eq.u32 %p1, %x{regs + i}, 123457;\n@%p1 st.global.u32 [%d3], %x{regs + i};" for i in range(CHAINS)
    )
    text = text.replace("    bar.sync 0;", loads + "\n    bar.sync 0;", 1)
    text = text.replace("    mov.u64 %d5, %clock64;\n", "    mov.u64 %d5, %clock64;\n" + sinks + "\nDONE:\n", 1)
    text = text.replace(f".reg .b32 %x<{regs}>", f".reg .b32 %x<{regs + CHAINS + 4}>")
    return Kernel(text, 256)


def mixed(names: tuple[str, ...], threads: int) -> Kernel:
    """`UNROLL` instructions, each of `names` in turn, on registers of their own."""
    lines = []
    for place in range(UNROLL):
        kind, chain = names[place % len(names)], (place // len(names)) % (CHAINS // len(names))
        register = place % len(names) * (CHAINS // len(names)) + chain
        lines.append(
            OPERATIONS[kind].format(r=f"%x{register}", a="%r8", b="%r9", c=f"%x{CHAINS + place % 4}", s="%r10")
        )
    loads = [f"ld.global.b32 %x{i}, [%d3+{8192 + 4096 * i}];" for i in range(CHAINS + 4)]
    sink = [f"setp.eq.u32 %p1, %x{i}, 123457;\n@%p1 st.global.u32 [%d3], %x{i};" for i in range(CHAINS)]
    return frame("\n".join(lines), threads, "\n".join(loads), "\n".join(sink), CHAINS + 4)


def long_code(instructions: int, threads: int) -> Kernel:
    """A loop whose body does not fit the instruction caches close to a sub-partition."""
    lines = [f"fma.rn.f32 %x{place % CHAINS}, %x{place % CHAINS}, %r8, %r9;" for place in range(instructions)]
    loads = [f"ld.global.b32 %x{i}, [%d3+{8192 + 4096 * i}];" for i in range(CHAINS)]
    sink = [f"setp.eq.u32 %p1, %x{i}, 123457;\n@%p1 st.global.u32 [%d3], %x{i};" for i in range(CHAINS)]
    return frame("\n".join(lines), threads, "\n".join(loads), "\n".join(sink), CHAINS)


def issue_of_products(n: int, count: int) -> Kernel:
    """Cycles until `count` products have been issued, not until they are done."""
    kernel = products(n, count, 1, False)
    text = kernel.text.replace("    mov.u64 %d5, %clock64;\n", "", 1)
    text = text.replace("wgmma.fence.sync.aligned;", "mov.u64 %d4, %clock64;\nwgmma.fence.sync.aligned;", 1)
    text = text.replace(
        "wgmma.commit_group.sync.aligned;", "wgmma.commit_group.sync.aligned;\n    mov.u64 %d5, %clock64;", 1
    )
    return Kernel(text, kernel.threads)


def _wait(barrier: str, parity: str, label: str) -> str:
    return f"{label}: mbarrier.try_wait.parity.shared.b64 %p2, [{barrier}], {parity};\n@!%p2 bra {label};"


def ping_pong() -> Kernel:
    """Two warps that wait for each other on mbarriers: a round is two arrivals and two wake-ups."""
    prologue = """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    and.b32 %r11, %r1, 31;
    setp.eq.u32 %p3, %r11, 0;
    setp.eq.u32 %p4, %r2, 0;"""
    body = f"""
    and.b32 %r12, %r4, 1;
    @!%p4 bra SECOND;
    @%p3 mbarrier.arrive.shared.b64 _, [%r3];
    {_wait("%r3+8", "%r12", "W0")}
    bra NEXT;
SECOND:
    {_wait("%r3", "%r12", "W1")}
    @%p3 mbarrier.arrive.shared.b64 _, [%r3+8];
NEXT:"""
    return frame(body, 64, prologue)


def barrier(threads: int) -> Kernel:
    return frame("bar.sync 1;", threads)


def bulk(size: int, depth: int, blocks: int) -> Kernel:
    """One thread of each block keeps `depth` bulk copies of `size` bytes in flight, from all over the data."""
    prologue = ["setp.eq.u32 %p1, %r1, 0;", "ld.param.u64 %d10, [span];", "mov.u32 %r5, %ctaid.x;"]
    prologue += [f"@%p1 mbarrier.init.shared.b64 [%r3+{8 * i}], 1;" for i in range(depth)]
    prologue += [
        "@!%p1 bra END;",
        f"mul.wide.u32 %d11, %r5, {size * depth};",
        f"mul.lo.u64 %d12, 0, 1;\nadd.u64 %d12, %d12, {size * depth * blocks};",
        "fence.mbarrier_init.release.cluster;\nfence.proxy.async;",
        "rem.u64 %d11, %d11, %d10;",
    ]

    def issue(i: int) -> str:
        return f"""
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3+{8 * i}], {size};
    add.u64 %d13, %d1, %d11;
    add.u32 %r13, %r3, {1024 + size * i};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r13], [%d13], {size}, [%r3+{8 * i}];
    add.u64 %d11, %d11, {size};"""

    def advance() -> str:  # this block's next stretch of the data
        return f"""
    sub.u64 %d11, %d11, {size * depth};
    add.u64 %d11, %d11, %d12;
    rem.u64 %d11, %d11, %d10;"""

    body = ["and.b32 %r12, %r4, 1;"]
    if depth == 1:
        body += [issue(0), _wait("%r3", "%r12", "W0"), advance()]
    else:
        prologue += [issue(i) for i in range(depth)] + [advance()]
        for i in range(depth):
            body += [_wait(f"%r3+{8 * i}", "%r12", f"W{i}"), issue(i)]
        body += [advance()]
    drain = (
        ""
        if depth == 1
        else "".join(
            ["and.b32 %r12, %r4, 1;\n", *(_wait(f"%r3+{8 * i}", "%r12", f"D{i}") + "\n" for i in range(depth))]
        )
    )
    text = _FRAME.format(body="\n".join(body), prologue="\n".join(prologue), epilogue=drain, registers=4)
    return Kernel(text.replace("bar.sync 0;", "").replace("    ret;", "END:\n    ret;"), 32, blocks)


def chase(blocks: int = 1) -> Kernel:
    """A chain of loads through global memory, past the L1 cache."""
    return frame(
        "\n".join(["ld.global.cg.b32 %x0, [%d14];\ncvt.u64.u32 %d14, %x0;\nadd.u64 %d14, %d14, %d1;"] * 8),
        32,
        "mov.b32 %x0, 0;\nmov.u64 %d14, %d1;",
        "setp.eq.u32 %p1, %x0, 123457;\n@%p1 st.global.u32 [%d3], %x0;",
        blocks=blocks,
    )


class Machine:
    """The GPU: runs micro-kernels."""

    def __init__(self) -> None:
        self.out = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
        self.data = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")

    def function(self, kernel: Kernel) -> Any:
        module = checked(driver.cuModuleLoadData(kernel.text.encode() + b"\0"))
        function = checked(driver.cuModuleGetFunction(module, b"micro"))
        checked((*driver.cuFuncSetAttribute(function, _DYNAMIC_SHARED, kernel.shared), None))
        return function

    def launch(self, function: Any, kernel: Kernel, reps: int, data: torch.Tensor | None = None) -> None:
        import ctypes

        data = self.data if data is None else data
        values = (self.out.data_ptr(), data.data_ptr(), reps, data.numel() * data.element_size())
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64)
        stream = torch.cuda.current_stream().cuda_stream
        grid = (kernel.blocks, 1, 1, kernel.threads, 1, 1, kernel.shared, stream)
        checked((*driver.cuLaunchKernel(function, *grid, (values, types), 0), None))

    def cycles(self, kernel: Kernel, reps: int, data: torch.Tensor | None = None, times: int = 3) -> float:
        """Of one round of the kernel's loop: the slowest warp, the median of some launches."""
        function = self.function(kernel)
        found = []
        for _ in range(times + 1):
            self.out.zero_()
            self.launch(function, kernel, reps, data)
            torch.cuda.synchronize()
            used = self.out[: kernel.blocks * kernel.threads // 32].double()
            found.append(float(used.max()) / reps)
        return statistics.median(found[1:])

    def milliseconds(self, launches: Callable[[], None]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        launches()
        start.record()
        launches()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def instructions(machine: Machine) -> dict[str, float]:
    found = {}
    for name in OPERATIONS:
        found[f"rate.{name}"] = machine.cycles(operation(name, CHAINS, 512), 64) / UNROLL / 4
    for name in CHAINED:
        found[f"latency.{name}"] = machine.cycles(operation(name, 1, 32), 64) / UNROLL
    found["latency.lds"] = (
        machine.cycles(
            frame(
                "\n".join(["ld.shared.b32 %x0, [%x0];"] * UNROLL),
                32,
                "mov.b32 %x0, %r3;\nst.shared.b32 [%r3], %r3;",
                "setp.eq.u32 %p1, %x0, 123457;\n@%p1 st.global.u32 [%d3], %x0;",
            ),
            64,
        )
        / UNROLL
    )
    return found


def tensor_core(machine: Machine) -> dict[str, float]:
    found = {}
    for n in (16, 32, 64, 80, 96, 128, 160, 176, 192, 256):
        for a_in_registers in (False, True):
            kind = "rs" if a_in_registers else "ss"
            for groups in (1, 2):
                few, many = (machine.cycles(products(n, k, groups, a_in_registers), 64) for k in (8, 24))
                slope = (many - few) / 16
                found[f"wgmma.{kind}.n{n}.groups{groups}"] = slope
                found[f"wgmma_fixed.{kind}.n{n}.groups{groups}"] = few - 8 * slope
    return found


def together(machine: Machine) -> dict[str, float]:
    """What instructions cost each other."""
    found = {}
    for name in ("fma", "max", "pack", "ex2", "lop3", "imad", "add"):
        for a_in_registers in (False, True):
            kind = "rs" if a_in_registers else "ss"
            kernel = beside_products(name, 128, a_in_registers)
            function = machine.function(kernel)
            machine.out.zero_()
            machine.launch(function, kernel, 60)
            torch.cuda.synchronize()
            found[f"beside.{kind}.{name}"] = float(machine.out[4:8].max()) / 60 / UNROLL
    for names in (
        ("pack", "lop3"),
        ("pack", "max"),
        ("fma", "max"),
        ("fma", "pack"),
        ("fma", "imad"),
        ("fma", "ex2"),
        ("ex2", "pack"),
        ("ex2", "max"),
        ("add", "max"),
        ("fma", "fma", "fma", "ex2"),
        ("fma", "max", "fma", "pack"),
    ):
        found[f"mixed.{'+'.join(names)}"] = machine.cycles(mixed(names, 512), 64) / UNROLL / 4
    for instructions in (512, 1024, 2048, 4096, 8192):
        for threads in (128, 256):
            cycles = machine.cycles(long_code(instructions, threads), 32)
            found[f"long_code.{instructions}.threads{threads}"] = cycles / instructions / (threads // 128)
    for count in (1, 2, 3, 4, 6, 8, 16):
        # two rounds: the first one fetches the code
        found[f"wgmma_issue.n128.{count}"] = machine.cycles(issue_of_products(128, count), 2) * 2
    return found


def synchronisation(machine: Machine) -> dict[str, float]:
    found = {"mbarrier.round": machine.cycles(ping_pong(), 256) / 2}
    for threads in (64, 128, 256, 384):
        found[f"bar_sync.{threads}"] = machine.cycles(barrier(threads), 256)
    return found


def copies(machine: Machine) -> dict[str, float]:
    in_l2 = torch.zeros(6 << 20, dtype=torch.int32, device="cuda")  # 24 MiB of the L2 cache's 50 MB
    in_hbm = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")  # 4 GiB
    found = {}
    for size in (1024, 4096, 8192, 16384):
        found[f"bulk_latency.l2.{size}"] = machine.cycles(bulk(size, 1, 1), 600, in_l2)
    found["bulk_latency.hbm.16384"] = machine.cycles(bulk(16384, 1, 1), 600, in_hbm, times=1)
    for blocks in (1, SMS):
        for name, data in (("l2", in_l2), ("hbm", in_hbm)):
            size, depth = 16384, 8
            cycles = machine.cycles(bulk(size, depth, blocks), 200, data)
            found[f"bulk_rate.{name}.blocks{blocks}"] = size * depth / cycles  # bytes a cycle and multiprocessor
    for mebibytes in (1, 4, 12):
        small = torch.zeros(mebibytes << 18, dtype=torch.int32, device="cuda")
        cycles = machine.cycles(bulk(16384, 8, SMS), 200, small)
        found[f"bulk_rate.l2_{mebibytes}_mib.blocks{SMS}"] = 16384 * 8 / cycles
    order = torch.randperm(1 << 15, device="cuda")
    ring = torch.zeros(1 << 22, dtype=torch.int32, device="cuda")  # 16 MiB, one word of each 512 bytes
    ring[order * 128] = (order.roll(-1) * 512).int()
    found["latency.ldg_l2"] = machine.cycles(chase(), 4000, ring) / 8
    return found


def launches(machine: Machine) -> dict[str, float]:
    """Cost of a launch, and of a block that does nothing, with the shared memory of an attention kernel."""
    found = {}
    empty = frame("", 384, blocks=SMS)
    function = machine.function(empty)
    found["launch_us.in_a_row"] = (
        machine.milliseconds(lambda: [machine.launch(function, empty, 1) for _ in range(500)] and None) * 1000 / 500
    )
    for blocks in (SMS, 33 * SMS):
        kernel = frame("", 384, blocks=blocks)
        found[f"empty_us.blocks{blocks}"] = machine.milliseconds(lambda k=kernel: machine.launch(function, k, 1)) * 1000
    found["block_us"] = (found[f"empty_us.blocks{33 * SMS}"] - found[f"empty_us.blocks{SMS}"]) / 32
    return found


def main() -> None:
    torch.zeros(1).cuda()  # makes the context current
    machine = Machine()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for group in (copies, together, tensor_core, synchronisation, launches, instructions):
        try:
            found.update(group(machine))
        except RuntimeError as error:
            found[f"failed.{group.__name__}"] = str(error)
            print(f"{group.__name__}: {error}", flush=True)
        if len(sys.argv) > 1:
            with open(sys.argv[1], "w") as file:
                json.dump(found, file, indent=1)
        print(f"{group.__name__} done", flush=True)
    for name, value in found.items():
        print(name, f"{value:.3f}" if isinstance(value, float) else value)


if __name__ == "__main__":
    main()
