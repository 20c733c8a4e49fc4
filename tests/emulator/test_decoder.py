"""Decoding: names by scope, operands, control flow, register slots, and what is refused."""

from __future__ import annotations

import ctypes
import random
import struct

import pytest
from ptx_decoding import constants, first, rows, text

from attn_dsl.emulator import PtxError, ptx
from attn_dsl.emulator.decoder import decode
from attn_dsl.emulator.isa import isa

# names


def test_nested_scopes_have_their_own_labels_and_registers():
    block = "{ .reg .b32 x; AGAIN: mov.b32 x, %r1; @%p1 bra AGAIN; bra DONE; DONE: }\n"
    code = rows(decode(text(f"setp.eq.b32 %p1, %r1, 0;\n{block}{block}ret;")))
    branches = [row for row in code if row.handler == "bra"]
    assert [row.ops[0][0] for row in branches] == [1, 4, 4, 7]


def test_registers_of_an_inline_block_at_function_scope_live_on():
    kernel = ptx.load(
        text(
            ".reg .b64 desc_<2>; mov.b64 desc_0, {%r1, 0x40004040};\n{ .reg .b32 lo, hi; mov.b64 {lo, hi}, desc_0;"
            " add.s32 lo, lo, -2; mov.b64 desc_0, {lo, hi}; }\nld.param.u64 %d1, [p]; st.global.b64 [%d1], desc_0;",
            params=".param .u64 p",
        ).replace("mov.b64 desc_0, {%r1", "mov.b32 %r1, 100; mov.b64 desc_0, {%r1")
    )
    out = (ctypes.c_uint64 * 1)()
    kernel.launch((1, 1, 1), (32, 1, 1), [out])
    assert out[0] == 0x40004040_00000062


@pytest.mark.parametrize("name", ["%r99", "%r01", "%x", "lo"])
def test_an_undeclared_name_is_an_error(name: str):
    with pytest.raises(PtxError, match="not declared") as caught:
        decode(text(f"add.s32 %r1, %r2, {name};"))
    assert caught.value.code == "E304"


def test_a_name_declared_twice_in_one_scope_is_an_error_and_in_two_is_not():
    decode(text("{ .reg .b32 x; mov.b32 x, 1; }\n{ .reg .b32 x; mov.b32 x, 1; }"))
    with pytest.raises(PtxError, match="declared twice") as caught:
        decode(text(".reg .b32 x;\n.reg .b64 x;\nret;"))
    assert caught.value.code == "E304"


# what is refused


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("frobnicate.b32 %r1, %r2;", "E301", "frobnicate"),
        ("add.s32.fast %r1, %r2, %r3;", "E301", "with other modifiers"),
        ("adds.s32 %r1, %r2, %r3;", "E301", "did you mean 'add'"),
        ("addc.u32 %r1, %r2, %r3;", "E301", "carry flag"),
        ("tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1;", "E301", "not modelled"),
        ("cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1];", "E301", "im2col"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %r1;", "E301", "wgmma"),
        ("add.s32 %r1, %r2;", "E302", "operand is missing"),
        ("add.s32 %r1, %r2, %r3, %r4;", "E302", "too many"),
        ("add.s32 %r1, %r2, %d1;", "E302", "64-bit register"),
        ("add.s32 %r1, %r2, %p1;", "E302", "predicate"),
        ("add.f32 %f1, %f2, 1;", "E302", "integer literal"),
        ("mov.b16 %h1, 0x1FFFFFFFF;", "E302", "does not fit"),
        ("setp.eq.b32 %r1, %r2, %r3;", "E302", "32-bit register"),
        ("@%r1 bra X; X:", "E302", "no predicate"),
        ("bra NOWHERE;", "E304", "no label"),
        ("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2, %r3}, [%r4];", "E302", "4 elements"),
        ("ld.global.v2.b32 {%r1, %r2, %r3}, [%d1];", "E302", "2 elements"),
        ("ld.global.b32 %r1, [%h1];", "E302", "16 bits"),
        ("call.uni (%r1), printf, (%d1, %d2);", "E302", "only vprintf"),
        ("add.u32 %r1, %tid.x, 1;", "E304", "read with mov"),
        ("mov.b64 {%r1, %r2, %r3}, %d1;", "E302", "3 elements"),
    ],
)
def test_what_cannot_be_decoded_is_an_error_with_its_line(body: str, code: str, words: str):
    with pytest.raises(PtxError) as caught:
        decode(text(f"mov.b32 %r1, 0;\n{body}\nret;"))
    assert caught.value.code == code
    assert words in str(caught.value)
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert span.source.line_text(span.line).strip() == body


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sm_100a", "sm_80", "sm_80"),
        ("sm_100a", "sm_120a", "sm_120a"),
        (".version 8.8", ".version 7.0", "7.0"),
        (".version 8.8", ".version 11.0", "11.0"),
    ],
)
def test_ptx_of_another_target_or_version_is_refused(old: str, new: str, words: str):
    with pytest.raises(PtxError, match=words) as caught:
        decode(text("ret;").replace(old, new))
    assert caught.value.code == "E303"


def test_a_kernel_is_named_where_there_are_several():
    both = text("ret;") + ".visible .entry other() { ret; }\n"
    assert decode(both, "other").name == "other"
    with pytest.raises(PtxError, match="k, other"):
        decode(both)
    with pytest.raises(PtxError, match="'third'"):
        decode(both, "third")


# operands


def test_immediates_are_constants_and_64_bit_ones_are_two_words():
    program = decode(text("mov.b64 %d1, -2;\nmov.b32 %r1, -2;\nmov.b32 %r2, 0fC0000000;\nmov.b16 %h1, -1;"))
    words = constants(program)
    code = rows(program)
    assert [words[~code[0].ops[1][0] + i] for i in (0, 1)] == [0xFFFFFFFE, 0xFFFFFFFF]
    assert words[~code[1].ops[1][0]] == 0xFFFFFFFE
    assert words[~code[2].ops[1][0]] == 0xC0000000
    assert words[~code[3].ops[1][0]] == 0xFFFF


def test_a_missing_destination_is_the_sink_and_literal_predicates_are_literal():
    row = first("elect.sync _|%p1, -1;")
    assert row.ops[0][0] == -(2**31)
    assert row.flags == isa.F_COLLECTIVE
    row = first("tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, 0;")
    assert row.ops[4] == (isa.PRED_FALSE, 0)
    row = first("tcgen05.mma.cta_group::2.kind::f16 [%r1], [%r3+8], %d2, %r2, 1;")
    assert row.ops[4] == (isa.PRED_TRUE, 0)
    assert row.mods[:3] == (isa.K_F16, 1, 2)
    assert row.ops[1][1] == 8


def test_setp_always_has_five_operands():
    plain = first("setp.lt.s32 %p1, %r1, 5;")
    assert [plain.ops[1], plain.ops[4]] == [(-(2**31), 0), (isa.PRED_TRUE, 0)]
    combined = first("setp.ge.and.f32 %p1|%p2, %f1, %f2, !%p3;")
    assert combined.mods[:2] == (isa.CMP_GE, isa.BOOL_AND)
    assert combined.ops[4][1] == 1


def test_shared_symbols_lie_behind_the_system_area_and_dynamic_memory_behind_the_static():
    head = ".extern .shared .align 1024 .b8 dyn[];\n.shared .align 8 .b8 a[24];\n.shared .align 16 .b8 b[16];\n"
    code = rows(
        decode(text("mov.b32 %r1, a;\nmov.b32 %r2, b+4;\nmov.b64 %d1, dyn;\nst.shared.b32 [a+8], %r1;", head=head))
    )
    base = isa.SHARED_BASE
    assert [row.ops[1] for row in code[:3]] == [
        (isa.SLOT_SHARED, base),
        (isa.SLOT_SHARED, base + 36),
        (isa.SLOT_SHARED, base + 1024),
    ]
    assert code[3].ops[0] == (isa.SLOT_SHARED, base + 8)


def test_an_address_needs_32_or_64_bits():
    head = ".shared .align 8 .b8 a[24];\n"
    with pytest.raises(PtxError, match="32 or 64 bits"):
        decode(text("mov.b16 %h1, a;", head=head))
    with pytest.raises(PtxError, match="has 64 bits"):
        decode(text("mov.b32 %r1, p;", params=".param .u64 p"))


def test_parameters_are_placed_by_their_alignment():
    params = ".param .u32 a, .param .align 64 .b8 map[128], .param .u8 c, .param .u64 d"
    program = decode(text("ld.param.b64 %d1, [d];\nmov.b64 %d2, map;\ncvta.param.u64 %d3, map;", params=params))
    assert program.params == ((0, 4), (64, 128), (192, 1), (200, 8))
    assert program.param_bytes == 208
    code = rows(program)
    assert code[0].ops[1][1] == 200
    assert [row.handler for row in code[1:3]] == ["param_addr", "param_addr"]
    assert code[1].mods[0] == 64


# control flow and slots


def test_diverged_lanes_meet_at_the_post_dominator():
    code = rows(
        decode(
            text(
                "@%p1 bra ELSE;\nmov.b32 %r1, 1;\nbra END;\nELSE:\n@%p2 bra INNER;\nmov.b32 %r1, 2;\nINNER:\n"
                "mov.b32 %r2, 3;\nEND:\nmov.b32 %r3, %r1;\n@%p3 bra OUT;\nret;\nOUT:\ntrap;"
            )
        )
    )
    met = {row.line - 10: row.ops[0] for row in code if row.handler == "bra"}
    assert met == {1: (3, 6), 3: (6, 6), 5: (5, 5), 11: (9, -1)}


def test_an_endless_loop_has_no_meeting_point():
    [branch] = [row for row in rows(decode(text("AGAIN:\n@%p1 bra AGAIN;\nbra AGAIN;"))) if row.line == 12]
    assert branch.ops[0] == (0, -1)


def test_brx_takes_its_list_of_targets():
    program = decode(text("brx.idx %r1, list;\nA:\nret;\nB:\ntrap;\nlist: .branchtargets A, B, A;"))
    row = rows(program)[0]
    at, count = row.ops[1]
    pool = struct.unpack(f"<{len(program.pool) // 4}i", program.pool)
    assert list(pool[at : at + count]) == [1, 2, 1]


def test_slots_are_shared_by_registers_whose_lives_do_not_overlap():
    chain = (
        "mov.b32 %r0, 1;\n"
        + "".join(f"add.s32 %r{i + 1}, %r{i}, 1;\n" for i in range(90))
        + "st.shared.b32 [%r90], %r90;"
    )
    # Two: the result of an instruction does not take the place of its own operands.
    assert decode(text(chain)).n_slots == isa.SLOT_FIRST + 2


def test_a_register_read_in_the_next_turn_of_a_loop_keeps_its_slot_for_the_whole_loop():
    body = (
        "mov.b32 %r1, 7;\nmov.b32 %r2, 3;\nAGAIN:\nst.shared.b32 [1024], %r1;\n"
        + "".join(f"mov.b32 %r{i}, {i};\nst.shared.b32 [1024], %r{i};\n" for i in range(10, 20))
        + "add.s32 %r2, %r2, -1;\nsetp.ne.b32 %p1, %r2, 0;\n@%p1 bra AGAIN;\nret;"
    )
    code = rows(decode(text(body)))
    written = {row.ops[0][0] for row in code if row.handler == "mov_b32"}
    assert len({code[0].ops[0][0], code[1].ops[0][0]}) == 2
    assert code[0].ops[0][0] not in {row.ops[0][0] for row in code[3:] if row.handler == "mov_b32"}
    assert len(written) >= 3


def test_a_register_that_may_be_read_unwritten_keeps_its_slot_to_itself():
    body = "mov.b32 %r1, 5;\nst.shared.b32 [0], %r1;\n@%p1 mov.b32 %r2, 6;\nst.shared.b32 [0], %r2;\n"
    code = rows(decode(text(body)))
    pool = struct.unpack("<2i", decode(text(body)).pool[:8])
    assert len(code) == 5
    assert len(set(pool)) == 2


def test_results_of_one_tensor_memory_load_do_not_share_slots_before_it_has_arrived():
    body = (
        "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2, %r3, %r4}, [%r9];\nmov.b32 %r5, 7;\nmov.b32 %r6, 8;\n"
        "add.s32 %r7, %r5, %r6;\nadd.s32 %r8, %r7, %r2;\nst.shared.b32 [0], %r8;"
    )
    program = decode(text(body))
    pool = struct.unpack(f"<{len(program.pool) // 4}i", program.pool)
    loaded = set(pool[:4])
    assert len(loaded) == 4
    assert not loaded & {row.ops[0][0] for row in rows(program)[1:4]}


def straight_line(seed: int, count: int) -> tuple[str, list[int]]:
    """A random program over many registers with branches that all lanes take alike, and its result by simulation."""
    draw = random.Random(seed)
    value = {i: draw.getrandbits(32) for i in range(8)}
    lines = [f"mov.b32 %r{i}, {value[i]};" for i in value]
    for label in range(count):
        a, b, d = draw.choice(list(value)), draw.choice(list(value)), draw.randrange(99)
        op = draw.choice(("add.s32", "xor.b32", "sub.s32", "skip"))
        if op == "skip":
            taken = draw.random() < 0.5
            lines.append(f"setp.{'eq' if taken else 'ne'}.b32 %p1, %r{a}, %r{a};\n@%p1 bra L{label};")
            lines.append(f"add.s32 %r{b}, %r{a}, 1;\nL{label}:")
            if not taken:
                value[b] = (value[a] + 1) & 0xFFFFFFFF
            continue
        lines.append(f"{op} %r{d}, %r{a}, %r{b};")
        result = {"add.s32": value[a] + value[b], "xor.b32": value[a] ^ value[b], "sub.s32": value[a] - value[b]}[op]
        value[d] = result & 0xFFFFFFFF
        if draw.random() < 0.3 and len(value) > 12:
            del value[draw.choice(list(value))]
    lines.append("ld.param.u64 %d1, [p];")
    lines += [f"st.global.b32 [%d1+{4 * i}], %r{register};" for i, register in enumerate(value)]
    return text("\n".join(lines), params=".param .u64 p"), list(value.values())


@pytest.mark.parametrize("seed", range(20))
def test_sharing_slots_changes_no_result(seed: int):
    source, expected = straight_line(seed, 150)
    out = (ctypes.c_uint32 * len(expected))()
    ptx.load(source).launch((1, 1, 1), (32, 1, 1), [out])
    assert list(out) == expected


# printing


def test_printf_is_called_with_its_arguments():
    head = (
        ".global .align 1 .b8 fmt[11] = {120, 61, 37, 100, 32, 121, 61, 37, 102, 10, 0};\n"
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
    )
    body = (
        ".local .align 16 .b8 depot[16];\n.reg .b64 %SP, %SPL;\nmov.b64 %SPL, depot;\ncvta.local.u64 %SP, %SPL;\n"
        "mov.b32 %r1, 42;\nst.local.b32 [%SPL], %r1;\nmov.b64 %d1, 0d3FF8000000000000;\nst.local.b64 [%SPL+8], %d1;\n"
        "mov.b64 %d2, fmt;\ncvta.global.u64 %d3, %d2;\n"
        "{ .param .b64 param0; .param .b64 param1; .param .b32 retval0;\n"
        "st.param.b64 [param0], %d3;\nst.param.b64 [param1], %SP;\n"
        "mov.b64 %d4, 1;\nmov.b64 %d5, 2;\nadd.s64 %d4, %d4, %d5;\nst.local.b64 [%SPL+8], %d1;\n"  # other registers
        "call.uni (retval0), vprintf, (param0, param1);\nld.param.b32 %r2, [retval0]; }"
    )
    report = ptx.load(text(body, head=head)).launch((1, 1, 1), (1, 1, 1), [])
    assert report.printed == "x=42 y=1.500000\n"
