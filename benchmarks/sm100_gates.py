"""What ptxas makes of the SM100 kernels of examples/: registers, spills, size, and how long it takes. Needs no GPU.

    python benchmarks/sm100_gates.py [--dims 64,128] [--dtype bf16] [SPEC ...]

Ends with 1 if a kernel spills a register, touches local memory, or leaves the registers of its plan.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import gates
import kernel_matrix as matrix

import attn_dsl
from attn_dsl.lowering.forward.sm100_plan import Sm100Plan
from attn_dsl.runtime.kernels import SM100, shape_class


def plan_of(cell: matrix.Cell) -> Sm100Plan:
    """The plan of a cell. Raises UnsupportedError and PlanError as selecting it does."""
    kernels = matrix.kernels_of(cell, "sm100")
    call = matrix.call_of(kernels.spec, cell, (130, 130), seed=1)
    plan = SM100.select(kernels.spec, shape_class(call, SM100))
    assert isinstance(plan, Sm100Plan)
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="*", help="names of examples (default: all)")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--dtype", default="bf16", choices=tuple(matrix.DTYPES))
    options = parser.parse_args()
    dims = tuple(map(int, options.dims.split(",")))
    chosen = [c for c in matrix.cells() if c.spec in (options.specs or matrix.SPECS) and c.dtype == options.dtype]
    print("| kernel | registers at launch | of each role: used of its plan's | local memory | instructions | seconds |")
    print("|---|---|---|---|---|---|")
    broken, refused = [], []
    for cell in chosen:
        if cell.dim not in dims and cell.dim in matrix.DIMS:
            continue
        try:
            plan = plan_of(cell)
        except attn_dsl.AttnDslError as error:
            refused.append(f"{cell}: {error.diagnostics[0].message}")
            continue
        found = gates.compiled(plan)
        roles = ", ".join(f"{stretch.used} of {stretch.limit}" for stretch in found.roles)
        memory = f"{found.stack} bytes" if found.stack else "none"
        values = (cell, found.registers, roles, memory, found.instructions, f"{found.seconds:.1f}")
        print("| " + " | ".join(map(str, values)) + " |", flush=True)
        broken += [f"{cell}: {problem}" for problem in found.broken(plan)]
    print("\n" + "\n".join([*(f"- broken: {line}" for line in broken), *(f"- refused: {line}" for line in refused)]))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
