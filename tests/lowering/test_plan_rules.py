"""Wrong plans: what a template cannot follow is an error that says rule, value and way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import attn_dsl
from attn_dsl.diagnostics import Diagnostic
from attn_dsl.lowering.forward import ForwardPlan, ShapeClass, check, select, sm100
from attn_dsl.lowering.forward.explain import explain
from attn_dsl.lowering.forward.sm100_plan import Edge, Sm100Plan, WarpRole, commit, each

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, kv_heads, dim]\n"
CAUSAL = HEAD + "mask = kv_idx <= q_pos\n"
BIAS = (
    HEAD + "bias: f32[heads, rows]\nparam slope: float = 1.0\nscore = score + slope * bias[h, min(q_idx, rows - 1)]\n"
)


def sm90_plan(text: str = CAUSAL + "schedule { tile_q = 128 }", dim: int = 128) -> ForwardPlan:
    return select(attn_dsl.parse(text, name="spec"), ShapeClass(dim, dim))


def sm100_plan(text: str = CAUSAL, dim: int = 128) -> Sm100Plan:
    return sm100.select(attn_dsl.parse(text, name="spec"), ShapeClass(dim, dim))


def said(problems: tuple[Diagnostic, ...]) -> list[tuple[str, str]]:
    return [(problem.code, f"{problem.message} ({problem.hint})") for problem in problems]


# (changes, code, what the error says of rule, value and the nearest legal value)
WRONG_SM100: list[tuple[dict[str, Any], str, str]] = [
    ({"target": "sm90"}, "E297", "target is sm90; a plan belongs to one template (it is one of sm100)"),
    ({"arch": "sm_90a"}, "E297", "arch is sm_90a; the template is compiled for a Blackwell GPU (it is one of sm_100a"),
    (
        {"dtype": "f32", "kv_dtype": "f32"},
        "E297",
        "dtype is f32; matrix products take 16 bits (it is one of f16, bf16)",
    ),
    ({"kv_dtype": "f16"}, "E297", "kv_dtype is f16; k and v are operands, or widened to them (it is one of bf16, e4m3"),
    ({"kv_dtype": "e4m3"}, "E291", "query_tiles is 2; the warps that widen keys and values run one tile of keys ahead"),
    ({"o_dtype": "f32"}, "E297", "o_dtype is f32; o has 16 bits (it is one of f16, bf16)"),
    (
        {"order": "random"},
        "E297",
        "order is random; query tiles begin in one of two orders (it is one of longest_first",
    ),
    ({"lse_base": "10"}, "E297", "lse_base is 10; a logarithm is natural or binary (it is one of e, 2)"),
    ({"dim": 264}, "E290", "dim is 264; sm100 has multiples of 8 from 8 to 256 (the nearest is 256)"),
    ({"dim": 0}, "E290", "dim is 0; sm100 has multiples of 8 from 8 to 256 (the nearest is 8)"),
    ({"dim_v": 100}, "E290", "dim_v is 100; sm100 has multiples of 8 from 8 to 256 (the nearest is 96)"),
    ({"dim_padded": 64}, "E290", "dim_padded is 64; rows of 128 elements are padded to a multiple of 16, at most 256 "),
    ({"dim_v_padded": 112}, "E290", "dim_v_padded is 112; rows of 128 elements are padded to a multiple of 16"),
    ({"dim_padded": 136}, "E290", "at most 256 (the nearest is 128)"),
    ({"dim_padded": 272}, "E290", "at most 256 (the nearest is 256)"),
    ({"query_tiles": 0}, "E291", "query_tiles is 0; a thread block has 1 or 2 (the nearest is 1)"),
    ({"query_tiles": 3}, "E291", "query_tiles is 3; a thread block has 1 or 2 (the nearest is 2)"),
    ({"tile_q": 128}, "E291", "tile_q is 128; 2 query tiles have 128 rows each (the nearest is 256)"),
    ({"consumers": 5}, "E291", "consumers is 5; each of 2 query tiles has a warpgroup (the nearest is 2)"),
    ({"tile_k": 0}, "E291", "tile_k is 0; a tile has 32, 64, 96, 128 keys (the nearest is 32)"),
    ({"tile_k": 80}, "E291", "tile_k is 80; a tile has 32, 64, 96, 128 keys (the nearest is 64)"),
    ({"tile_k": 256}, "E291", "tile_k is 256; a tile has 32, 64, 96, 128 keys (the nearest is 128)"),
    ({"pack": 0}, "E291", "pack is 0; up to 16 heads share a tile, or a divisor of 128 (the nearest is 1)"),
    ({"pack": 17}, "E291", "pack is 17; up to 16 heads share a tile, or a divisor of 128 (the nearest is 16)"),
    ({"pack": 200}, "E291", "pack is 200; up to 16 heads share a tile, or a divisor of 128 (the nearest is 128)"),
    ({"part": 0}, "E291", "part is 0; rows of K and V come in parts of 64 or 128 elements (the nearest is 64)"),
    ({"part": 136}, "E291", "part is 136; rows of K and V come in parts of 64 or 128 elements (the nearest is 128)"),
    (
        {"dim_padded": 144},
        "E291",
        "a row of K has 144 elements, which parts of 128 do not fill (pad rows to a multiple",
    ),
    ({"dim_padded": 192, "stages": 2}, "E291", "which parts of 128 do not fill (the nearest is 64)"),
    ({"stages": 1}, "E291", "stages is 1; values of one tile and keys of the next take 2 parts (the nearest is 2)"),
    ({"stages": 0}, "E291", "stages is 0; values of one tile and keys of the next take 2 parts (the nearest is 2)"),
    ({"stages": 6}, "E292", "265,216 bytes of shared memory (barriers and statistics 3,072, q, then o 65,536, k and v"),
    (
        {"registers_consumer": 180},
        "E293",
        "180 registers per softmax thread; setmaxnreg takes multiples of 8 in 24..=256",
    ),
    ({"registers_producer": 16}, "E293", "16 registers per mma or load or epilogue or idle thread"),
    ({"registers_correction": 20}, "E293", "20 registers per correction thread; setmaxnreg takes multiples of 8 in"),
    ({"registers_correction": 96}, "E293", "67,584 registers; a multiprocessor has 65,536"),
    ({"registers_consumer": 144}, "E293", "needs about 160 registers for its row and has 144 (take a smaller tile_k)"),
    ({"dim_v_padded": 192, "part": 64, "stages": 5}, "E296", "640 columns of tensor memory (s0 0..127, p0 64..127"),
    (
        {"score_columns": 3},
        "E297",
        "score_columns is 3; a thread computes a power of two of its scores at a time (the ",
    ),
    ({"score_columns": 48}, "E297", "at a time (the nearest is 32)"),
    ({"score_columns": 0}, "E297", "at a time (the nearest is 2)"),
    ({"exp2_on_fma": 17}, "E297", "exp2_on_fma is 17; it counts pairs out of 16 (the nearest is 16)"),
    ({"exp2_on_fma": 2.5}, "E297", "exp2_on_fma is 2.5; it counts pairs out of 16 (the nearest is 2)"),
    ({"threshold": -1.0}, "E297", "threshold is -1.0; weights reach 2 to the power of it, and are finite in f16"),
    ({"threshold": 200.0}, "E297", "are finite in f16 (the nearest is 15)"),
    ({"threshold": float("nan")}, "E297", "threshold is nan; weights reach 2 to the power of it"),
]
WRONG_SM90: list[tuple[dict[str, Any], str, str]] = [
    ({"target": "sm80"}, "E297", "target is sm80; a plan belongs to one template (it is one of sm90)"),
    (
        {"dtype": "f32", "kv_dtype": "f32"},
        "E297",
        "dtype is f32; matrix products take 16 bits (it is one of f16, bf16)",
    ),
    ({"kv_dtype": "f16"}, "E297", "kv_dtype is f16; k and v are operands, or widened to them (it is one of bf16, e4m3"),
    ({"o_dtype": "f32"}, "E297", "o_dtype is f32; o has 16 bits (it is one of f16, bf16)"),
    ({"order": "random"}, "E297", "order is random; query tiles begin in one of two orders"),
    ({"lse_base": "10"}, "E297", "lse_base is 10; a logarithm is natural or binary"),
    ({"dim": 264}, "E290", "dim is 264; sm90 has multiples of 8 from 8 to 256 (the nearest is 256)"),
    ({"dim_padded": 64}, "E290", "dim_padded is 64; rows of 128 elements are padded to a multiple of 16, at most 256 "),
    ({"dim_v_padded": 112}, "E290", "at most 256 (the nearest is 128)"),
    ({"tile_q": 0}, "E291", "tile_q is 0; a tile has 64 rows per consumer warpgroup: 64, 128, 192 (the nearest is 64)"),
    ({"tile_q": 256}, "E291", "tile_q is 256; a tile has 64 rows per consumer warpgroup: 64, 128, 192 (the nearest is"),
    ({"consumers": 5}, "E291", "consumers is 5; each has 64 of the 128 rows of a tile (the nearest is 2)"),
    ({"consumers": 0}, "E291", "consumers is 0; each has 64 of the 128 rows of a tile (the nearest is 2)"),
    ({"tile_k": 40}, "E291", "tile_k is 40; a tile has a multiple of 16 keys, at most 256 (the nearest is 32)"),
    ({"tile_k": 512}, "E291", "tile_k is 512; a tile has a multiple of 16 keys, at most 256 (the nearest is 256)"),
    ({"stages": 1}, "E291", "stages is 1; the next tile of K loads while this one is used (the nearest is 2)"),
    ({"pack": 0}, "E291", "pack is 0; query heads of one K/V head share a tile (the nearest is 1)"),
    ({"stages": 9}, "E292", "of shared memory (barriers 1,024, q, then o 32,768, k ring 294,912, v ring 294,912)"),
    (
        {"registers_consumer": 236},
        "E293",
        "236 registers per consumer thread; setmaxnreg takes multiples of 8 in 24..=256",
    ),
    ({"registers_producer": 8}, "E293", "8 registers per producer thread; setmaxnreg takes multiples of 8"),
    ({"registers_consumer": 256}, "E293", "68,608 registers; a multiprocessor has 65,536"),
    ({"registers_consumer": 184}, "E293", "a consumer thread needs about 192 registers for its tile and has 184"),
]


@pytest.mark.parametrize(("changes", "code", "text"), WRONG_SM100, ids=lambda value: str(value)[:40])
def test_a_wrong_plan_of_sm100(changes: dict[str, Any], code: str, text: str) -> None:
    broken = replace(sm100_plan(), **changes)
    found = said(sm100.check(broken))
    assert [c for c, _ in found] == [code], found
    assert text in found[0][1]


@pytest.mark.parametrize(("changes", "code", "text"), WRONG_SM90, ids=lambda value: str(value)[:40])
def test_a_wrong_plan_of_sm90(changes: dict[str, Any], code: str, text: str) -> None:
    found = said(check(replace(sm90_plan(), **changes)))
    assert [c for c, _ in found] == [code], found
    assert text in found[0][1]


def test_faults_of_several_fields_are_all_told_and_those_that_follow_are_not() -> None:
    found = said(sm100.check(replace(sm100_plan(), tile_k=80, part=0, stages=99)))
    assert [text.split(" ")[0] for _, text in found] == ["tile_k", "part"]


@pytest.mark.parametrize("make", [sm90_plan, sm100_plan])
def test_what_expressions_read_are_arguments(make: Any) -> None:
    plan = make(BIAS.replace("param slope: float = 1.0", "slope: f32[heads]").replace("slope *", "slope[h] *"))
    rules = sm100.check if isinstance(plan, Sm100Plan) else check
    assert rules(plan) == ()
    without = replace(plan, captures=plan.captures[:1], sizes=())
    assert said(rules(without)) == [
        ("E294", "'slope' is named by an expression and is no argument of the plan (None)"),
        ("E294", "'rows' is named by an expression and is no argument of the plan (None)"),
    ]


def test_a_legal_plan_of_every_kind_breaks_no_rule() -> None:
    for dim in range(8, 257, 8):
        for text in (CAUSAL, CAUSAL + "schedule { tile_q = 128 }"):
            assert sm100.check(sm100_plan(text, dim)) == ()


class Changed(Sm100Plan):
    """A plan whose roles, barriers or map of tensor memory are put in place of its own."""

    changed_roles: tuple[WarpRole, ...] | None = None
    changed_edges: tuple[Edge, ...] | None = None
    changed_map: tuple[tuple[str, int, int], ...] | None = None

    @property
    def roles(self) -> tuple[WarpRole, ...]:
        return self.changed_roles or super().roles

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.changed_edges or super().edges

    @property
    def tmem_map(self) -> tuple[tuple[str, int, int], ...]:
        return self.changed_map or super().tmem_map


def changed(**what: Any) -> Changed:
    plan = sm100_plan()
    found = Changed(**{name: getattr(plan, name) for name in plan.__dataclass_fields__})
    for name, value in what.items():
        object.__setattr__(found, f"changed_{name}", value)
    return found


def edge_of(plan: Sm100Plan, name: str) -> Edge:
    return next(edge for edge in plan.edges if edge.name == name)


def with_edge(**what: Any) -> list[tuple[str, str]]:
    """What is wrong if the edge `p_full` is another."""
    plan = sm100_plan()
    edges = tuple(replace(edge, **what) if edge.name == "p_full" else edge for edge in plan.edges)
    return said(sm100.check(changed(edges=edges)))


def test_arrivals_are_what_barriers_count() -> None:
    assert sm100.check(changed()) == ()
    text = (
        "barrier 'p_full' counts 128 arrivals and gets 256 (128 of softmax and 128 of correction): it completes early"
    )
    assert with_edge(count=128) == [("E298", f"{text} (the nearest count is 256)")]
    text = "barrier 'p_full' counts 256 arrivals and gets 129 (128 of softmax and 1 of mma): it never completes"
    assert with_edge(producers=(each("softmax"), commit("mma"))) == [("E298", f"{text} (the nearest count is 129)")]
    assert with_edge(blocks=2)[0][1].startswith("barrier 'p_full' counts 256 arrivals and gets 512")


def test_roles_decide_what_arrives() -> None:
    """With a warp fewer in the correction, everything that its threads complete never is."""
    plan = sm100_plan()
    roles = tuple(replace(role, warps=3) if role.name == "correction" else role for role in plan.roles)
    found = said(sm100.check(changed(roles=roles)))
    assert {code for code, _ in found} == {"E298"}
    assert [text.split("'")[1] for _, text in found] == ["p_full", "o_staged"]


def test_somebody_waits_and_everybody_is_there() -> None:
    assert with_edge(consumers=()) == [("E298", "barrier 'p_full' has 2 slots and 0 roles wait (None)")]
    assert with_edge(slots=0)[0] == ("E298", "barrier 'p_full' has 0 slots and 2 roles wait (None)")
    missing = "barrier 'p_full' has the role 'reader', which the plan has not (None)"
    assert with_edge(consumers=("mma", "reader")) == [("E298", missing)]
    assert with_edge(producers=(each("reader"),))[0] == ("E298", missing)
    assert with_edge(name="s_full") == [("E298", "two barriers have the name 's_full' (None)")]


@pytest.mark.parametrize(
    ("text", "barriers"),
    [
        (CAUSAL, {"q_full": (1, "load"), "o_staged": (128, "correction")}),
        (CAUSAL + "schedule { tile_q = 128 }", {"kv_empty": (1, "mma"), "stats_full": (128, "softmax")}),
    ],
)
def test_counts_follow_from_roles(text: str, barriers: dict[str, tuple[int, str]]) -> None:
    plan = sm100_plan(text)
    for name, (count, role) in barriers.items():
        assert (edge_of(plan, name).count, plan.arrivals(edge_of(plan, name))) == (count, {role: count})
    by_rows = replace(plan, pack=3)
    assert sm100.check(by_rows) == ()
    assert by_rows.arrivals(edge_of(by_rows, "q_full")) == {"correction": 128}


def test_regions_of_tensor_memory_do_not_overlap() -> None:
    found = said(sm100.check(changed(map=(("s0", 0, 128), ("p0", 64, 64), ("s1", 120, 128), ("o0", 256, 128)))))
    assert [(code, text.split(" (")[0]) for code, text in found] == [
        ("E296", "s1 lies on s0 in tensor memory"),
        ("E296", "s1 lies on p0 in tensor memory"),
    ]


def test_explain_prints_barriers_and_broken_rules() -> None:
    text = explain(sm100_plan())
    assert "  p_full x 2, 256 arrivals (128 of softmax and 128 of correction) to mma and softmax: weights are" in text
    assert "broken" not in text
    assert "broken: E297: threshold is 200.0" in explain(replace(sm100_plan(), threshold=200.0))
