"""Disassemblies, control fields, and which unit executes what."""

from __future__ import annotations

import pytest

from attn_dsl.diagnostics import UnsupportedError
from attn_dsl.timing.machine_code import control, parse
from attn_dsl.timing.pipes import CLASSES, class_of
from attn_dsl.timing.tables import table

LISTING = """
.text.other:
        /*0000*/                   NOP ;                                          /* 0x0000000000007918 */
                                                                                  /* 0x000fc00000000000 */
.text.kernel:
	//## File ".nv_debug_ptx_txt", line 46
        /*0000*/                   LDC R1, c[0x0][0x28] ;                         /* 0x00000a00ff017b82 */
                                                                                  /* 0x000e620000000800 */
	//## File ".nv_debug_ptx_txt", line 89
        /*0010*/               @P0 BRA `(.L_x_0) ;                                /* 0x0000000000540947 */
                                                                                  /* 0x002fea0003800000 */
        /*0020*/                   BRA P1, `(.L_x_0) ;                            /* 0x0000000000540947 */
                                                                                  /* 0x002fea0003800000 */
.L_x_0:
        /*0030*/                   EXIT ;                                         /* 0x000000000000794d */
                                                                                  /* 0x000fea0003800000 */
.L_x_1:
        /*0040*/                   BRA `(.L_x_1);                                 /* 0xfffffffc00fc7947 */
                                                                                  /* 0x000fc0000383ffff */
"""


def test_a_listing() -> None:
    code = parse(LISTING, "kernel")
    assert [instruction.opcode for instruction in code] == ["LDC", "BRA", "BRA", "EXIT", "BRA"]
    assert [instruction.line for instruction in code] == [46, 89, 89, 89, 89]
    assert [instruction.target for instruction in code] == [None, 3, 3, None, 4]
    assert [sorted(code[place].after(place)) for place in range(5)] == [[1], [2, 3], [3, 3], [], [4]]
    assert (code[0].stall, code[0].writes, code[0].reads, code[0].waits) == (1, 1, -1, ())
    assert (code[1].stall, code[1].waits) == (5, (1,))
    with pytest.raises(ValueError, match="no kernel missing"):
        parse(LISTING, "missing")


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0x000E620000000800, (1, 1, -1, ())),
        (0x000EAE0000002100, (7, 2, -1, ())),
        (0x008FE2000F8EC03F, (1, -1, -1, (3,))),
        (0x004FC80000011605, (4, -1, -1, (2,))),
        (0x000FDA00000E0000, (13, -1, -1, ())),
    ],
)
def test_control_fields(high: int, expected: tuple[object, ...]) -> None:
    """Words that ptxas made: LDC, S2R, ULEA, SHF after S2R, R2UR."""
    assert control(high) == expected


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("FFMA", "fma"),
        ("FFMA2", "packed"),
        ("F2FP.BF16.F32.PACK_AB", "alu"),
        ("F2F.F32.F16", "xu"),
        ("MUFU.EX2", "xu"),
        ("I2FP.F32.S32", "alu"),
        ("I2F.U16", "xu"),
        ("IMAD.MOV.U32", "imad"),
        ("ISETP.GE.AND", "alu"),
        ("UIADD3.64", "uniform"),
        ("ULDC.64", "uniform"),
        ("UTMALDG.4D", "copy"),
        ("UTMACMDFLUSH", "sync"),
        ("HGMMA.64x128x16.F32.BF16", "mma"),
        ("LDGSTS.E.BYPASS.128", "global"),
        ("LDS.128", "shared_128"),
        ("LDS", "shared"),
        ("SYNCS.ARRIVE.TRANS64", "sync"),
    ],
)
def test_classes(opcode: str, name: str) -> None:
    assert class_of(opcode) == name


def test_every_class_has_its_parameters_and_every_parameter_a_source() -> None:
    known = table("sm90")
    for name in {*CLASSES.values(), "alu"}:
        assert known[f"rate.{name}"] >= 0
    assert set(known.sources) == set(known.values)
    assert all(source.strip() for source in known.sources.values())


def test_an_architecture_without_a_table() -> None:
    with pytest.raises(UnsupportedError, match=r"E281.*timing model for sm100") as caught:
        table("sm100")
    assert "there are for sm90" in str(caught.value)
