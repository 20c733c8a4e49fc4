"""What ptxas made of a kernel, held to its plan: no GPU, no launch."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import sass
from cubin import resources

import attn_dsl
from attn_dsl.kernels.sm100.build import compile_forward
from attn_dsl.lowering.forward.sm100_plan import Sm100Plan

REGISTERS = 65_536  # of a multiprocessor


@dataclass(frozen=True)
class Gates:
    """One compiled kernel."""

    seconds: float  # of processor time, from the plan to the cubin
    registers: int  # per thread at launch
    stack: int  # bytes of local memory of a thread, spilled registers included
    local: int  # instructions that touch local memory
    roles: tuple[sass.Stretch, ...]  # in the order of the code
    instructions: int  # of machine code

    def broken(self, plan: Sm100Plan) -> list[str]:
        """What is against the plan, or against the rule that nothing is spilled."""
        found = []
        if self.stack or self.local:
            found.append(f"{self.stack} bytes of local memory, {self.local} instructions that touch it")
        if self.registers * plan.threads > REGISTERS:
            found.append(f"{self.registers} registers at launch for {plan.threads} threads")
        limits = {role.registers for role in plan.roles}
        if {stretch.limit for stretch in self.roles} != limits:
            found.append(f"setmaxnreg to {sorted({s.limit for s in self.roles})}, the plan has {sorted(limits)}")
        for stretch in self.roles:
            if stretch.used > stretch.limit:
                found.append(f"register {stretch.used - 1} where a thread has {stretch.limit}")
        return found


def compiled(plan: Sm100Plan) -> Gates:
    """Compiles `plan` and looks at the cubin. Raises UnsupportedError without a disassembler."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        compile_forward(plan, f"--keep-cubin --dump-dir {folder}")
        seconds = time.process_time() - start
        (cubin,) = (path.read_bytes() for path in Path(folder).glob("*.cubin"))
    code = sass.parse(sass.disassemble(cubin))
    found = resources(cubin)
    local = sass.local_memory(code)
    return Gates(seconds, found.registers, found.stack, local, tuple(sass.stretches(code)), len(code))


def compiled_or_skip(plan: Sm100Plan) -> Gates:
    """`compiled`, for tests: skips where there is no disassembler, and for no other reason."""
    try:
        return compiled(plan)
    except attn_dsl.UnsupportedError as missing:
        if "nvdisasm" not in str(missing):
            raise
        pytest.skip(missing.diagnostics[0].message)
