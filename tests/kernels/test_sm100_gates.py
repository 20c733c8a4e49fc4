"""Compiled Blackwell kernels: nothing spilled, registers within the plan; and that these gates can close."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("cutlass")

import gates
import kernel_matrix as matrix
import sass
from kernel_matrix import Cell

from attn_dsl.lowering.forward.sm100_plan import Sm100Plan
from attn_dsl.runtime.kernels import SM100, shape_class

SAMPLE = Cell("gemma2_local", "bf16", 128, 4)
EVERY = [cell for cell in matrix.cells((64, 128)) if cell.dtype == "bf16"]


def plan_of(cell: Cell) -> Sm100Plan:
    kernels = matrix.kernels_of(cell, "sm100")
    plan = SM100.select(kernels.spec, shape_class(matrix.call_of(kernels.spec, cell, (130, 130), seed=1), SM100))
    assert isinstance(plan, Sm100Plan)
    return plan


def test_one_kernel() -> None:
    plan = plan_of(SAMPLE)
    found = gates.compiled_or_skip(plan)
    assert found.broken(plan) == []
    assert len(found.roles) == 3
    # gates that could not close would prove nothing
    tight = replace(plan, registers_correction=24)
    assert any("setmaxnreg to" in problem for problem in found.broken(tight))
    assert "registers at launch" in replace(found, registers=found.registers + 8).broken(plan)[0]
    assert "bytes of local memory" in replace(found, stack=16).broken(plan)[0]
    narrow = replace(found, roles=tuple(replace(role, used=role.limit + 1) for role in found.roles))
    assert all("where a thread has" in problem for problem in narrow.broken(plan))


@pytest.mark.slow
@pytest.mark.parametrize("cell", EVERY, ids=str)
def test_every_kernel(cell: Cell) -> None:
    plan = plan_of(cell)
    assert gates.compiled_or_skip(plan).broken(plan) == []


TEXT = """
kernel:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   USETMAXREG.DEALLOC.CTAPOOL 0x40 ;
.L_x_1:
        /*0020*/                   MUFU.EX2 R6, R7 ;
        /*0030*/              @!P0 BRA `(.L_x_2) ;
        /*0040*/                   FADD R20, R6, R6 ;
        /*0050*/                   STL.64 [R1], R20 ;
.L_x_2:
        /*0060*/                   LDTM.x32 R24, tmem[UR4] ;
        /*0070*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3 ;
        /*0080*/              @!P1 BRA `(.L_x_4) ;
.L_x_3:
        /*0090*/               @P2 BRA `(.L_x_1) ;
        /*00a0*/                   EXIT ;
.L_x_4:
        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3 ;
        /*00c0*/               @P1 BRA `(.L_x_3) ;
        /*00d0*/                   BRA `(.L_x_4) ;
"""


def test_loops_and_registers_of_machine_code() -> None:
    """What a wait runs while it spins is no part of the loop; the branch that is not needed is left out."""
    code = sass.parse(TEXT)
    assert len(code) == 14
    (loop,) = sass.loops(code, lambda instruction: instruction.opcode == "MUFU.EX2")
    assert [part.opcode for part in loop.path][:3] == ["MUFU.EX2", "BRA", "LDTM.x32"]
    assert len(loop.path) == 6
    assert loop.classes()["BRA"] == 3
    assert sass.stretches(code) == [sass.Stretch(limit=64, used=56, instructions=12)]
    assert sass.local_memory(code) == 1


@pytest.mark.parametrize(
    ("text", "registers"),
    [
        ("STS.128 [R93+0x4000], R16", 94),  # the address is one register
        ("STS.128 [R9], R92", 96),
        ("LDG.E.128 R4, desc[UR4][R94.64+0x10]", 96),
        ("FFMA2 R12, R16.F32x2.HI_LO, 0.5, -R95.reuse.F32", 96),  # one factor for both
        ("FFMA2 R12, R94.F32x2.HI_LO, R8.F32, R10.F32x2.HI_LO", 96),
        ("MUFU.EX2 R95, R3", 96),
        ("LDTM.x32 R64, tmem[UR4]", 96),
        ("IMAD.WIDE.U32 R94, R3, 0x10, R8", 96),
        ("BRA `(.L_x_2)", 0),
    ],
)
def test_registers_of_an_instruction(text: str, registers: int) -> None:
    assert sass.Instruction(text.split()[0], text, False, None).registers == registers
