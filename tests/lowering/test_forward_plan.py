"""Plans of forward kernels: what is selected, which rules hold, what is refused, and how logits are rewritten."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import attn_dsl
from attn_dsl.diagnostics import Diagnostic, PlanError, UnsupportedError
from attn_dsl.expr import INT, Expr, ExprBuilder, children_first, evaluate
from attn_dsl.expr.scalars import ScalarAlgebra
from attn_dsl.expr.text import to_text
from attn_dsl.lowering.forward import ForwardPlan, ParamArgument, ShapeClass, check, refusals, select
from attn_dsl.lowering.forward.explain import explain
from attn_dsl.lowering.forward.logits import logit
from attn_dsl.spec.model import AttentionSpec

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAUSAL = HEAD + "mask = kv_idx <= q_pos\n"
WINDOW = HEAD + "param width: int in 1..\nmask = 0 <= q_pos - kv_idx < width\n"
EXAMPLES = Path(__file__).parents[2] / "examples"


def shape_of(spec: AttentionSpec, dim: int = 64) -> ShapeClass:
    def argument(name: str, is_int: bool, per: str | None) -> ParamArgument:
        return ParamArgument(name, is_int, per, "number", "i32" if is_int else "f32", None, None)

    params = tuple(argument(p.name, p.type.value == "int", p.per) for p in spec.params)
    return ShapeClass(spec.fixed("dim") or dim, spec.fixed("dim_v") or spec.fixed("dim") or dim, params)


def plan(text: str, dim: int = 64) -> ForwardPlan:
    spec = attn_dsl.parse(text, name="spec")
    return select(spec, shape_of(spec, dim))


def texts(problems: tuple[Diagnostic, ...]) -> list[tuple[str, str, str | None]]:
    return [(problem.code, problem.message, problem.hint) for problem in problems]


@pytest.mark.parametrize(
    ("text", "dim", "tile", "registers", "blocks"),
    [
        (CAUSAL, 8, (64, 96), (24, 136), 3),
        (CAUSAL, 64, (64, 96), (24, 136), 3),
        (CAUSAL, 72, (192, 64), (32, 160), 1),
        (CAUSAL, 128, (192, 64), (32, 160), 1),
        (WINDOW, 64, (64, 96), (24, 136), 3),
        (WINDOW, 128, (192, 80), (32, 160), 1),
        (HEAD + "mask = 0 <= q_pos - kv_idx < 512", 128, (64, 80), (24, 232), 2),
        (HEAD + "mask = 0 <= q_pos - kv_idx < 513", 128, (192, 80), (32, 160), 1),
        (WINDOW, 136, (128, 64), (24, 240), 1),
        (HEAD + "mask = kv_idx <= q_pos and q_pos // 512 == kv_idx // 512", 128, (192, 64), (32, 160), 1),
        (HEAD + "score = tanh(score)", 64, (192, 80), (32, 160), 1),
        (HEAD + "bias: f32[seq_k]\nscore = score + bias[kv_idx]", 128, (128, 128), (24, 240), 1),
        (HEAD + "bias: f32[seq_q]\nscore = score + bias[q_idx]", 128, (192, 80), (32, 160), 1),
        (HEAD + "score = tanh(score)\nmask = (q_idx ^ kv_idx) % 3 == 0", 128, (128, 64), (24, 240), 1),
        (CAUSAL + "schedule { tile_q = 64 }", 128, (64, 64), (24, 232), 2),
        (CAUSAL + "schedule { tile_q = 128 }", 128, (128, 128), (24, 240), 1),
        (CAUSAL + "schedule { tile_k = 128 }", 128, (128, 128), (24, 240), 1),  # three warpgroups have no room for it
        (CAUSAL + "schedule { tile_q = 192 }", 64, (192, 64), (32, 160), 1),
    ],
)
def test_the_tile_table(text: str, dim: int, tile: tuple[int, int], registers: tuple[int, int], blocks: int) -> None:
    found = plan(text, dim)
    assert ((found.tile_q, found.tile_k), found.consumers, found.stages) == (tile, tile[0] // 64, 2)
    assert (found.registers_producer, found.registers_consumer) == registers
    assert found.blocks == blocks
    assert check(found) == ()


def test_masks_of_elements_get_the_registers_of_a_third_warpgroup() -> None:
    assert plan(HEAD + "mask = kv_idx % 2 == 0 or kv_idx < q_pos").registers_consumer == 240


def test_parts_of_the_keys_have_tiles_of_their_own() -> None:
    found = select(attn_dsl.parse(CAUSAL, name="spec"), ShapeClass(128, 128, partial=True))
    assert (found.tile_q, found.tile_k) == (128, 128)


@pytest.mark.parametrize(
    ("dims", "tile_k"),
    [((192, 128), 128), ((128, 192), 64), ((200, 128), 64), ((256, 256), 64), ((256, 64), 64), ((136, 64), 128)],
)
def test_wide_heads_have_fewer_keys_in_a_tile(dims: tuple[int, int], tile_k: int) -> None:
    spec = attn_dsl.parse(CAUSAL.replace("k, v:", "k:") + "v: bf16[batch, seq_k, kv_heads, dim_v]", name="spec")
    found = select(spec, ShapeClass(*dims))
    assert (found.tile_q, found.tile_k, found.stages, found.registers_consumer) == (128, tile_k, 2, 240)


def test_every_dimension_has_a_plan_that_keeps_its_rules() -> None:
    for dim in range(8, 257, 8):
        found = plan(CAUSAL, dim)
        assert check(found) == ()
        assert found.dim_padded % 16 == 0 <= found.dim_padded - dim < 16
        assert found.shared_bytes == sum(size for _, size in found.shared_map) <= 232_448


def test_shared_memory_is_what_the_regions_add_up_to() -> None:
    """128 rows and keys of 128 bf16: 32,768 bytes a tile; q and o share a region, barriers take one alignment."""
    assert plan(CAUSAL + "schedule { tile_q = 128 }", 128).shared_map == (
        ("barriers", 1024),
        ("q, then o", 32_768),
        ("k ring", 65_536),
        ("v ring", 65_536),
    )


def test_the_scale_is_folded_only_where_it_is_proved_positive() -> None:
    assert plan(CAUSAL).fold_scale
    assert not plan(HEAD + "param factor: float\nscale = factor").fold_scale
    assert plan(HEAD + "param factor: float in 0.1..\nscale = factor").fold_scale
    assert not plan(HEAD + "param factor: float in 0.0..\nscale = factor").fold_scale
    assert not plan(HEAD + "score = score + 1.0").fold_scale


@pytest.mark.parametrize(
    ("mask", "kind", "order"),
    [
        ("true", "none", "in_order"),
        ("kv_idx <= q_pos", "ranges", "longest_first"),
        ("kv_idx <= q_pos and q_pos - kv_idx < 100", "ranges", "in_order"),
        ("kv_idx <= q_pos and kv_idx % 2 == 0", "elements", "longest_first"),
        ("kv_idx < 10", "ranges", "in_order"),
    ],
)
def test_masks(mask: str, kind: str, order: str) -> None:
    found = plan(HEAD + f"mask = {mask}")
    assert (found.mask.kind, found.order) == (kind, order)


def test_the_schedule_is_honoured() -> None:
    found = plan(CAUSAL + "schedule { tile_q = 64, tile_k = 96, stages = 3, order = linear }", 128)
    assert (found.tile_q, found.tile_k, found.stages, found.consumers, found.order) == (64, 96, 3, 1, "in_order")


def test_a_plan_names_what_its_expressions_read_and_nothing_else() -> None:
    text = HEAD + "bias: f32[heads, rows]\nparam n: int in 1..\nparam unread: float = 1.0\nsinks: bf16[heads]\n"
    found = plan(text + "score = score + bias[h, q_idx] * unread\nmask = q_pos - kv_idx < n\nsink = sinks[h]")
    assert [(capture.name, capture.dtype, capture.rank) for capture in found.captures] == [
        ("bias", "f32", 2),
        ("sinks", "bf16", 1),
    ]
    assert [param.name for param in found.params] == ["n", "unread"]
    assert found.sizes == ("rows",)
    assert plan(text.replace("bias: f32[heads, rows]\n", "") + "mask = q_pos - kv_idx < n\nsink = sinks[h] * unread")


def test_ints_past_32_bits_are_wide_and_others_are_not() -> None:
    """q_pos lies in -2^30..2^30, so a difference with an i32 may need 33 bits, and one of positions never does."""
    found = plan(HEAD + "param n: int\nmask = q_pos - n < kv_idx and q_pos - kv_idx < 64")
    wide = {to_text(node) for node in found.wide}
    assert "q_pos - n" in wide
    assert not any("64" in text for text in wide)
    assert plan(CAUSAL).wide == frozenset()


BROKEN = {
    "E290": ({"dim": 100}, "dim is 100; sm90 has multiples of 8 from 8 to 256", "the nearest is 96"),
    "E291": ({"tile_k": 40}, "tile_k is 40; a tile has a multiple of 16 keys, at most 256", "the nearest is 32"),
    "E292": ({"stages": 9}, None, "take fewer stages or a smaller tile"),
    "E293": ({"registers_consumer": 256}, "68,608 registers; a multiprocessor has 65,536", None),
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_plan_says_rule_value_and_way_out(code: str) -> None:
    changes, message, hint = BROKEN[code]
    broken = replace(plan(CAUSAL + "schedule { tile_q = 128 }", 128), **changes)
    found = texts(check(broken))
    assert any(c == code and (message is None or m == message) and h == hint for c, m, h in found), found
    assert all(c == code for c, _, _ in found), found
    assert f"broken: {code}" in explain(broken)


def test_a_head_dimension_of_a_call_is_a_plan_error() -> None:
    with pytest.raises(PlanError) as caught:
        plan(CAUSAL, 130)
    assert caught.value.code == "E290"
    assert "the nearest is 128" in str(caught.value)


def test_lengths_are_arguments_each_once() -> None:
    """The same cumulative lengths may serve both sides; captures along packed rows know whose rows they are."""
    text = """
        q: bf16[total_q, heads, dim]
        k, v: bf16[total_k, heads, dim]
        ids: i32[2, total_k]
        cu: i32[batch + 1]
        used: i32[batch]
        lengths q { cu_seqlens = cu }
        lengths k { cu_seqlens = cu, used = used }
        mask = ids[0, kv_idx] == ids[1, q_pos]"""
    found = plan("\n".join(line.strip() for line in text.splitlines()))
    assert found.geometry == ("cu", "used")
    assert [capture.packed for capture in found.captures] == [((1, "k"),)]
    assert found.lse_axes == ("heads", "total_q")


REFUSED = {
    "axis dim = 264": ("dim is 264; head dimensions are multiples of 8, at most 256", "the nearest is 256"),
    "axis dim = 60": ("dim is 60; head dimensions are multiples of 8, at most 256", "the nearest is 64"),
    "pack gqa on\nmask = kv_idx <= q_pos + h": (
        "'pack gqa on' puts query heads into one tile, and the mask differs from head to head",
        "'pack gqa auto' leaves the choice to the compiler",
    ),
    "o: f32[batch, seq_q, heads, dim]": (
        "'o' is f32; o is f16 or bf16",
        "leave o undeclared: it gets the dtype of q",
    ),
    "schedule { exp2_share = 20 }": (
        "a schedule cannot set exp2_share",
        "it can set tile_q, tile_k, stages, order, splits",
    ),
    "schedule { order = head_major }": ("there is no order 'head_major'", "orders: auto, linear, longest_first"),
    "schedule { tile_q = 100 }": ("tile_q is 100; tiles have 64, 128 or 192 rows", "the nearest is 128"),
    "t: e4m3[heads]\nscore = score + t[h]": (
        "'t' is e4m3; a captured tensor is one of f32, f16, bf16, i32, i8, u8, bool",
        "target='reference' runs every spec",
    ),
}


@pytest.mark.parametrize("more", REFUSED)
def test_refusals(more: str) -> None:
    """What the target cannot do is told before any tensor exists, with the value and a way out."""
    spec = attn_dsl.parse(HEAD + more, name="spec")
    message, hint = REFUSED[more]
    assert texts(refusals(spec)) == [("E281", f"target 'sm90': {message}", hint)]
    with pytest.raises(UnsupportedError):
        select(spec, ShapeClass(64, 64))


def test_mixed_operands_are_refused() -> None:
    spec = attn_dsl.parse(HEAD.replace("q: bf16", "q: f16"), name="spec")
    assert [message for _, message, _ in texts(refusals(spec))] == [
        "target 'sm90': q, k and v are f16, bf16, bf16; k and v have one dtype, that of q or one of 8 bits"
    ]


def test_a_key_is_the_same_in_every_process_and_for_every_copy() -> None:
    found = plan(HEAD + "param n: int\nmask = q_pos - n < kv_idx\nscore = score * 2.0")
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)
    assert "0x" not in repr(found)
    text = HEAD + "param n: int\nmask = q_pos - n < kv_idx < q_pos + n and h * n < b + n"
    code = (
        "import attn_dsl; from attn_dsl.lowering.forward import *; "
        "n = ParamArgument('n', True, None, 'number', 'i32', None, None); "
        f"print(select(attn_dsl.parse({text!r}, name='spec'), ShapeClass(64, 64, (n,))))"
    )
    wanted = plan(text)
    assert len(wanted.wide) > 4
    for seed in ("1", "2"):
        run = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True)
        assert run.stdout.strip() == repr(wanted), run.stderr


def test_an_explanation_states_every_decision() -> None:
    text = explain(plan(HEAD + "param n: int\nmask = kv_idx <= q_pos and q_pos - n < kv_idx\nscore = 2 * tanh(score)"))
    for part in (
        "spec on sm90: bf16, dim 64, dim_v 64; o in bf16",
        "tiles: 192 rows x 80 keys, in order",
        "3 consumer warpgroups with 160",
        "shared memory: 66,560 of 232,448 bytes",
        "  q_pos - n + 1 <= kv_idx < q_pos + 1, none unless n > 0",
        "score: 2.0 * tanh(score), at scale 0.125",
        "64-bit ints: q_pos - n, q_pos - n + 1",
        "arguments: n (i32); 4 bytes",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("score", "wanted"),
    [
        ("score", "score * 0.18033688011112042"),
        ("score / 2.0 + 1.0", "score * 0.09016844005556021 + 1.4426950408889634"),
        ("-(score - 3 * score)", "score * 0.36067376022224085"),
        (
            "cap * tanh(score / cap)",
            "1.0 / (exp2(score * (0.125 * (1.0 / cap) * 2.8853900817779268)) + 1.0) * (-2.0 * cap * 1.4426950408889634)"
            " + cap * 1.4426950408889634",
        ),
        (
            "score + float(2 * kv_idx - q_pos)",
            "float(kv_step) * 2.8853900817779268 + (score * 0.18033688011112042"
            " + float(2 * kv_base - q_pos) * 1.4426950408889634)",
        ),
    ],
)
def test_logits_are_sums_of_products(score: str, wanted: str) -> None:
    """One factor is left of a chain of products, constants meet constants, distances go by steps."""
    build = ExprBuilder()
    text = to_text(logit(build, attn_dsl.parse(HEAD + _declared(score), name="spec").score, build.const(0.125)))
    assert text == wanted


def _declared(score: str) -> str:
    return ("param cap: float in 1.0..\n" if "cap" in score else "") + f"score = {score}"


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.attn") if "score =" in path.read_text()))
def test_rewriting_changes_no_value(name: str) -> None:
    """Every score of the gallery at a few points, in double precision."""
    spec = attn_dsl.load(EXAMPLES / f"{name}.attn")
    rewritten = logit(ExprBuilder(), spec.score, spec.scale)
    assert all(node.op != "tanh" for node in children_first([rewritten]))
    for point in range(1, 6):
        (scale,) = evaluate([spec.scale], ScalarAlgebra(), partial(_leaf, point, 1.0))
        (wanted,) = evaluate([spec.score], ScalarAlgebra(), partial(_leaf, point, scale))
        (got,) = evaluate([rewritten], ScalarAlgebra(), partial(_leaf, point, 1.0))
        assert got == pytest.approx(wanted * math.log2(math.e), rel=1e-9, abs=1e-9)


def _leaf(point: int, scale: float, node: Expr, indices: tuple[int, ...]) -> float:
    """Made-up values; `score` is put before by `scale`."""
    column = 11 * point
    places = {"q_pos": 40 + point, "q_idx": 7 * point, "kv_idx": column, "kv_base": column - 3, "kv_step": 3}
    if node.op == "var" and node.attr in places:
        return places[str(node.attr)]
    if node.type is INT:
        return 3 + point
    value = 0.4 + 0.3 * point + (sum(indices) % 7 if node.op == "read" else 0)
    return value * scale if node.attr == "score" else value
