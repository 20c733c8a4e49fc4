"""PTX text -> syntax tree: the syntax compilers emit, inline assembly included, and what is refused."""

from __future__ import annotations

import pytest

from attn_dsl.emulator import PtxError
from attn_dsl.emulator.reader import read
from attn_dsl.emulator.syntax import (
    Block,
    Entry,
    Group,
    Instruction,
    Label,
    Memory,
    Name,
    Not,
    Number,
    Pair,
    Registers,
    Variable,
    Vector,
)
from attn_dsl.emulator.tokens import number_value

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def entry(body: str, head: str = "", directives: str = "") -> Entry:
    return read(f"{HEAD}{head}\n.visible .entry k()\n{directives}\n{{\n{body}\n}}\n").entries[0]


def instruction(text: str) -> Instruction:
    [found] = entry(text).body.statements
    assert isinstance(found, Instruction)
    return found


def test_header_and_parameters():
    module = read(
        "// comment\n.version 8.8\n.target sm_90a, debug\n.address_size 64\n"
        ".visible .entry k(\n.param .align 64 .b8 p0[128],\n.param .u32 p1,\n.param .u64 .ptr .global .align 16 p2\n)\n"
        ".reqntid 384, 1, 1\n.minnctapersm 1\n.maxnreg 168\n{\nret;\n}\n"
    )
    assert module.version == (8, 8)
    assert module.target == "sm_90a"
    [kernel] = module.entries
    assert kernel.parameters == (
        Variable("param", "p0", 64, 128),
        Variable("param", "p1", 4, 4),
        Variable("param", "p2", 8, 8),
    )
    assert kernel.directives == {"reqntid": (384, 1, 1), "minnctapersm": (1,), "maxnreg": (168,)}


def test_variables_of_a_module():
    module = read(
        HEAD + ".extern .shared .align 1024 .b8 dynamic[];\n.shared .align 8 .b8 fixed[24];\n"
        ".global .align 1 .b8 text[4] = {72, 105, 10, 0};\n.const .align 4 .b32 table[2] = {0x10, -1};\n"
        ".extern .func (.param .b32 r) vprintf\n(\n.param .b64 a,\n.param .b64 b\n)\n;\n"
        ".visible .entry k(){ret;}"
    )
    assert module.variables == (
        Variable("shared", "dynamic", 1024, 0, external=True),
        Variable("shared", "fixed", 8, 24),
        Variable("global", "text", 1, 4, data=b"Hi\n\0"),
        Variable("const", "table", 4, 8, data=b"\x10\0\0\0\xff\xff\xff\xff"),
    )
    assert module.functions == ("vprintf",)


@pytest.mark.parametrize(
    ("text", "value", "float_bits"),
    [
        ("0f3F800000", 0x3F800000, 32),
        ("0F7FFFFFFF", 0x7FFFFFFF, 32),
        ("0d3FF0000000000000", 0x3FF0000000000000, 64),
        ("0x1F", 31, 0),
        ("0xFFFFFFFFU", 0xFFFFFFFF, 0),
        ("017", 15, 0),
        ("0b101", 5, 0),
        ("0", 0, 0),
        ("12U", 12, 0),
        ("1.5", 0x3FF8000000000000, 64),
        ("2e0", 0x4000000000000000, 64),
    ],
)
def test_numbers(text: str, value: int, float_bits: int):
    assert number_value(text) == Number(value, float_bits)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("add.s32 %r1, %r2, -2048;", (Name("%r1"), Name("%r2"), Number(-2048))),
        ("mov.b64 {a, b}, c;", (Vector((Name("a"), Name("b"))), Name("c"))),
        ("ld.x %r1, [%r2+-16];", (Name("%r1"), Memory(Name("%r2"), -16))),
        ("ld.x %r1, [ name + 0x8 ];", (Name("%r1"), Memory(Name("name"), 8))),
        ("ld.x %r1, [%r2-4+8];", (Name("%r1"), Memory(Name("%r2"), 4))),
        ("ld.x %r1, [0x20];", (Name("%r1"), Memory(Number(32), 0))),
        (
            "cp.x [%rd1, {%r1, %r2}], [%r3];",
            (Memory(Name("%rd1"), 0, Vector((Name("%r1"), Name("%r2")))), Memory(Name("%r3"), 0)),
        ),
        ("elect.sync _|%p1, -1;", (Pair(Name("_"), Name("%p1")), Number(-1))),
        ("setp.x %p1, %r1, %r2, !%p2;", (Name("%p1"), Name("%r1"), Name("%r2"), Not(Name("%p2")))),
        ("mov.b32 %r1, -0f3F800000;", (Name("%r1"), Number(0xBF800000, 32))),
        ("mov.b32 %r1, symbol+8;", (Name("%r1"), Memory(Name("symbol"), 8))),
        ("call.uni (r), vprintf, (a, b);", (Group((Name("r"),)), Name("vprintf"), Group((Name("a"), Name("b"))))),
    ],
)
def test_operands(text: str, operands: tuple[object, ...]):
    assert instruction(text).operands == operands


def test_opcode_keeps_its_modifiers_and_the_line_is_that_of_the_statement():
    kernel = entry(
        "\n\ncp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [a];"
    )
    [found] = kernel.body.statements
    assert isinstance(found, Instruction)
    assert found.opcode == "cp.async.bulk.tensor.4d.shared::cta.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
    assert found.line == 10


@pytest.mark.parametrize(("guard", "negated"), [("@%p1", False), ("@!%p1", True), ("@leader_thread", False)])
def test_guards(guard: str, negated: bool):
    found = instruction(f"{guard} bra.uni DONE;")
    assert found.guard == Name(guard.lstrip("@!"))
    assert found.guard_negated is negated


def test_inline_assembly_opens_scopes_and_repeats_names():
    block = "{\n.reg .pred P1; \nLAB_WAIT: \n@P1 bra.uni DONE; \nbra.uni LAB_WAIT; \nDONE: \n}\n"
    body = entry("// begin inline asm\n" + block + block + ".reg .b64 smem_desc_b_<8>;\n.reg .b32 lo, hi;").body
    assert [type(item) for item in body.statements] == [Block, Block]
    inner = body.statements[0]
    assert isinstance(inner, Block)
    assert inner.registers == [Registers("P1", "pred", None)]
    assert [item.name for item in inner.statements if isinstance(item, Label)] == ["LAB_WAIT", "DONE"]
    assert body.registers == [
        Registers("smem_desc_b_", "b64", 8),
        Registers("lo", "b32", None),
        Registers("hi", "b32", None),
    ]


def test_debugging_directives_and_pragmas_are_passed_over():
    body = entry('.loc 1 2 3\n.pragma "nounroll";\nret;', head='.file 1 "a.py"\n.section .debug_str {\n.b8 1\n}').body
    assert [item.opcode for item in body.statements if isinstance(item, Instruction)] == ["ret"]


def test_vector_registers_are_their_elements():
    """Elements have names (x or r first); the whole name is a vector operand, in the scope that declares it."""
    text = (
        "{ .reg .v2 .s32 ab; mov.s32 ab.x, %r1; mov.s32 ab.g, %r2; st.async.b64 [%r3], ab, [%r4]; }\nmov.b32 ab, %r1;"
    )
    body = read(HEAD + f".visible .entry k() {{\n{text}\n}}").entries[0].body
    inner, outer = body.statements
    assert isinstance(inner, Block)
    assert [r.name for r in inner.registers] == ["ab.x", "ab.y"]
    operands = [s.operands for s in inner.statements if isinstance(s, Instruction)]
    assert operands[0][0] == Name("ab.x")
    assert operands[1][0] == Name("ab.y")
    assert operands[2][1] == Vector((Name("ab.x"), Name("ab.y")))
    assert isinstance(outer, Instruction)
    assert outer.operands[0] == Name("ab")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (HEAD + ".visible .entry k() { add.s32 %r1 %r2; }", 4, "expected ','"),
        (HEAD + ".visible .entry k() { ret }", 4, "does not start an operand"),
        (HEAD + ".visible .entry k() { ret;", 4, "does not start a statement"),
        (HEAD + ".visible .func f() { ret; }", 4, "is not modelled"),
        (HEAD + ".visible .entry k() .blocksareclusters { ret; }", 4, "no directive"),
        (HEAD + ".visible .entry k() {\n.reg .f8 %f<3>;\n}", 5, "no register type"),
        (HEAD + ".visible .entry k() {\nmov.b32 %r1, ?;\n}", 5, "does not start an operand"),
        (".version 8.8\n.address_size 32\n", 2, "64-bit addresses"),
        (".version x\n", 1, "no PTX version"),
        (HEAD + ".global .b8 a[2] = {1, 2, 3};", 4, "initializer 3"),
        (HEAD + "add.s32 a, b, c;", 4, "does not start a declaration"),
    ],
)
def test_what_the_grammar_refuses_says_where(text: str, line: int, words: str):
    with pytest.raises(PtxError) as caught:
        read(text)
    assert caught.value.code == "E300"
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert span.line == line
    assert words in str(caught.value)


def test_a_module_needs_a_target():
    with pytest.raises(PtxError, match=r"no \.target"):
        read(".version 8.8\n")
