"""`attn-dsl explain`: golden text, numbers against brute force, the JSON shape."""

import json
from collections.abc import Callable

import numpy
import pytest

from attn_dsl import load
from attn_dsl.show.formula import formula

WINDOW = """\
param tokens: int in 1.. = 4
const cap: float = 30.0
sinks: f32[heads]
let distance = q_pos - kv_idx
mask = 0 <= distance < tokens
score = cap * tanh(score / cap)
sink = sinks[h]
schedule { tile_q = 4, tile_k = 2 }
"""
DOCUMENT = "doc: i32[batch, seq_k]\nmask = doc[b, q_pos] == doc[b, kv_idx] and kv_idx <= q_pos\n"

GOLDEN = """\
a (a.attn)

meaning, at every b, h and q_idx
  visible  the keys j for which, at kv_idx = j: 0 <= q_pos - kv_idx and q_pos - kv_idx < tokens
  score    scale * sum over d of q[b, q_idx, h, d] * k[b, j, kv_h, d]
  scale    1.0 / sqrt(float(dim))
  logit    30.0 * tanh(score / 30.0)
  q_pos    q_idx + seq_k - seq_q
  kv_h     h // (heads // kv_heads)
  sink     sinks[h], joins Z as exp(sink)
  Z        sum over visible j of exp(logit) + exp(sink)
  o        sum over visible j of exp(logit) / Z * v[b, j, kv_h, :]
  lse      ln(Z)

binding times
  run time, a new value compiles nothing:
    tokens   parameter: int in 1.. = 4; here 3
    sinks    contents: f32[heads], read by the sink
    extents  batch, seq_q, heads, dim, seq_k, kv_heads
  compile time:
    cap       constant: 30.0
    q         layout: bf16[batch, seq_q, heads, dim]
    k         layout: bf16[batch, seq_k, kv_heads, dim]
    v         layout: bf16[batch, seq_k, kv_heads, dim]
    o         layout: bf16[batch, seq_q, heads, dim]
    pack gqa  schedule: auto
    tile_k    schedule: 2
    tile_q    schedule: 4

int expressions
  6 in i32

reads
  every index is proved inside its axis

tiles of 4 query rows x 2 keys
<form>
  visited  10 of 20 (50.00%)
  full     0, every pair visible: no mask code
  partial  10
  empty    10, never touched

work, over all sequences and query heads
  per pair  64 FLOP: 2 dim for the score, 2 dim_v for the output
  all       120 pairs, 7.68 kFLOP; every query row with every key
  visible   36 pairs, 2.304 kFLOP; what the mask lets through: the useful work
  visited   80 pairs, 5.12 kFLOP; whole visited tiles: what a kernel computes

keys
<keys>

targets
<targets>
"""
SIZES = ("--seq-q", 6, "--seq-k", 10, "--heads", 2, "--kv-heads", 1, "--dim", 16)


def without(text: str, title: str, mark: str, kept: Callable[[str], bool] = lambda line: False) -> str:
    """The text with the lines below the heading `title` that are not kept in one mark."""
    head, rest = text.split(f"\n{title}\n")
    section, gap, tail = rest.partition("\n\n")
    lines = [mark, *(line for line in section.splitlines() if kept(line))]
    return f"{head}\n{title}\n" + "\n".join(lines) + (gap + tail if gap else "\n")


def test_golden_text(run, write) -> None:
    outcome = run("explain", write("a.attn", WINDOW, operands=True), *SIZES, "--param", "tokens=3")
    assert (outcome.code, outcome.err) == (0, "")
    counts = ("  visited ", "  full ", "  partial ", "  empty ")
    text = without(outcome.out, "tiles of 4 query rows x 2 keys", "<form>", lambda line: line.startswith(counts))
    text = without(without(text, "keys", "<keys>"), "targets", "<targets>")
    assert text == GOLDEN


def test_json_shape(run, write) -> None:
    outcome = run("explain", write("a.attn", WINDOW, operands=True), *SIZES, "--format", "json")
    report = json.loads(outcome.out)
    assert outcome.code == 0
    assert list(report) == [
        *("version", "ok", "file", "name", "meaning", "run_time", "compile_time", "integers", "clamped_reads"),
        *("tiles", "work", "keys", "targets"),
    ]
    assert report["meaning"]["mask"] == "0 <= q_pos - kv_idx and q_pos - kv_idx < tokens"
    assert report["meaning"]["sink"] == "sinks[h]"
    assert {"kind": "parameter", "name": "tokens", "what": "int in 1.. = 4"} in report["run_time"]
    assert {"kind": "schedule", "name": "tile_k", "what": "2"} in report["compile_time"]
    assert report["integers"] == {"i32": 6, "i64": 0, "wide": []}
    assert report["clamped_reads"] == []
    assert list(report["tiles"]) == [
        *("tile_q", "tile_k", "pack_gqa", "total", "visited", "full", "partial", "empty", "visited_fraction"),
        *("proved_exact", "tested_one_by_one", "tables", "assumed", "form"),
    ]
    assert report["work"]["pairs"]["all"] == 2 * 6 * 10
    assert report["work"]["flop"]["visible"] == report["work"]["pairs"]["visible"] * 64
    assert list(report["keys"]) == ["meaning", "interface", "plan"]
    assert report["targets"]["reference"] == {"ok": True, "problems": []}


def window_tiles(seq_q: int, seq_k: int, tokens: int, tile_q: int, tile_k: int) -> dict[str, int]:
    """Tile classes of one head by looking at every pair."""
    row, key = numpy.arange(seq_q)[:, None] + seq_k - seq_q, numpy.arange(seq_k)[None, :]
    seen = (row >= key) & (row - key < tokens)
    classes = {"visited": 0, "full": 0, "total": 0, "visible": int(seen.sum())}
    for q in range(0, seq_q, tile_q):
        for k in range(0, seq_k, tile_k):
            tile = seen[q : q + tile_q, k : k + tile_k]
            classes["total"] += 1
            classes["visited"] += bool(tile.any())
            classes["full"] += bool(tile.all()) and tile.shape[1] == tile_k
    return classes


@pytest.mark.parametrize(("seq_q", "seq_k", "tokens"), [(6, 10, 3), (33, 20, 7), (1, 50, 20), (64, 64, 1), (7, 7, 100)])
def test_tiles_and_work_agree_with_brute_force(run, write, seq_q: int, seq_k: int, tokens: int) -> None:
    name = write("a.attn", WINDOW, operands=True)
    outcome = run(
        *("explain", name, "--seq-q", seq_q, "--seq-k", seq_k, "--heads", 1, "--kv-heads", 1, "--batch", 3),
        *("--param", f"tokens={tokens}", "--tile-q", 5, "--tile-k", 4, "--format", "json"),
    )
    report, expected = json.loads(outcome.out), window_tiles(seq_q, seq_k, tokens, 5, 4)
    assert report["tiles"]["total"] == 3 * expected["total"]
    assert report["tiles"]["visited"] == 3 * expected["visited"]
    assert report["tiles"]["full"] == 3 * expected["full"]
    pairs = report["work"]["pairs"]
    assert pairs["all"] == 3 * seq_q * seq_k
    assert pairs["visible"] == 3 * expected["visible"]
    assert pairs["visited"] == 3 * expected["visited"] * 5 * 4


def test_tables_are_listed_and_what_is_generated_is_said(run, write) -> None:
    name = write("a.attn", DOCUMENT, operands=True)
    outcome = run("explain", name, "--seq-q", 40, "--seq-k", 40, "--format", "json")
    report = json.loads(outcome.out)
    assert [table["tensor"] for table in report["tiles"]["tables"]] == ["doc"]
    assert report["tiles"]["assumed"][0].startswith("doc: ")
    assert report["clamped_reads"][0]["line"] == 4
    numpy.save("doc.npy", numpy.repeat(numpy.arange(4, dtype=numpy.int32), 10)[None])
    outcome = run("explain", name, "--seq-q", 40, "--seq-k", 40, "--tensor", "doc=doc.npy", "--format", "json")
    report = json.loads(outcome.out)
    assert report["tiles"]["assumed"] == []
    assert report["work"]["pairs"]["visible"] == 8 * 4 * 55


def test_what_cannot_be_counted_is_bounded(run, write) -> None:
    name = write("a.attn", DOCUMENT, operands=True)
    outcome = run("explain", name, "--seq-q", 20_000, "--seq-k", 20_000, "--heads", 4)
    assert outcome.code == 0
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("  visible ") and " to " in line)
    low, high = (int(number.replace(",", "")) for number in line.split()[1:4:2])
    assert 0 < low < high <= 4 * 20_000 * 20_000


def test_packed_heads_share_tiles(run, write) -> None:
    name = write("a.attn", WINDOW, operands=True)
    sizes = ("--seq-q", 8, "--seq-k", 8, "--heads", 4, "--kv-heads", 1, "--format", "json")
    packed, apart = (json.loads(run("explain", name, *sizes, "--pack", mode).out)["tiles"] for mode in ("on", "off"))
    assert (packed["pack_gqa"], apart["pack_gqa"]) == (True, False)
    assert packed["total"] == apart["total"] == 4 * 2 * 4
    assert packed["visited"] < apart["visited"], "a packed tile of 4 rows is one query row of 4 heads"


def test_a_million_keys_cost_no_memory(run, write) -> None:
    name = write("a.attn", WINDOW.replace("schedule { tile_q = 4, tile_k = 2 }", ""), operands=True)
    size = 2**20
    outcome = run("explain", name, "--seq-q", size, "--seq-k", size, "--param", "tokens=1000", "--format", "json")
    report = json.loads(outcome.out)
    assert outcome.code == 0
    assert report["work"]["pairs"]["visible"] == 8 * sum(min(row + 1, 1000) for row in range(size))
    assert report["tiles"]["total"] == 8 * (size // 128) ** 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("align offset(3)\nmask = kv_idx <= q_pos\n", {"q_pos": "q_idx + 3"}),
        ("align top_left\nmask = kv_idx <= q_pos\n", {"q_pos": "q_idx"}),
        (
            "s: f32[heads]\ndescale k = s[h]\ndescale v = 2.0 * s[h]\nscore = min(score, 4.0)\n",
            {"score": "min(score * s[h], 4.0)", "sink": None, "descale_v": "2.0 * s[h]"},
        ),
        (
            "let d = (q_pos - kv_idx) * 3\nmask = d > 1 and d < 9 and d % 2 == 0\n",
            {"mask": "1 < t1 and t1 < 9 and t1 % 2 == 0", "where": (("t1", "(q_pos - kv_idx) * 3"),)},
        ),
        (
            "t1: f32[heads]\nlet d = (q_pos - kv_idx) * 3\nscore = score + t1[h]\nmask = 1 < d < 9\n",
            {"mask": "1 < t2 and t2 < 9", "where": (("t2", "(q_pos - kv_idx) * 3"),)},
        ),
    ],
)
def test_formulas(write, text: str, expected: dict[str, object]) -> None:
    found = formula(load(write("a.attn", text, operands=True)))
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_formula_with_names_means_the_same(write) -> None:
    """Put the named parts back as `let`s: the spec that results is the spec that was explained."""
    from attn_dsl.spec import meaning_key

    text = "let d = (q_pos - kv_idx) * 3\nlet e = d // 2 + d\nmask = e > 1 and e < 90 or d % 2 == 0\n"
    spec = load(write("a.attn", text, operands=True))
    found = formula(spec)
    assert len(found.where) == 2
    lets = "".join(f"let {name} = {value}\n" for name, value in found.where)
    again = load(write("b.attn", f"{lets}mask = {found.mask}\n", operands=True))
    assert meaning_key(again) == meaning_key(spec)


def test_visible_pairs_are_at_least_those_of_whole_full_tiles(run, write):
    """The last query tile is short: its full tiles hold fewer pairs than a tile's area."""
    name = write("bit.attn", "align top_left\nmask = kv_idx < 8192 or (kv_idx & 1) == 0\n", operands=True)
    sizes = ("--seq-q", 4104, "--seq-k", 8192, "--heads", 1, "--kv-heads", 1, "--tile-q", 4096, "--tile-k", 4096)
    shown = " ".join(run("explain", name, *sizes).out.split())
    assert f"visible {4096 * 8192:,} to {4104 * 8192:,} pairs" in shown


def test_the_plan_of_a_kernel(run, write):
    name = write("a.attn", "mask = kv_idx <= q_pos\n", operands=True)
    sizes = ("--seq-q", 256, "--seq-k", 256, "--heads", 2, "--dim", 64)
    shown = run("explain", name, *sizes, "--target", "sm90")
    assert shown.code == 0
    assert "plan for sm90" in shown.out
    assert "tiles: 64 rows x 96 keys, longest first" in shown.out
    report = json.loads(run("explain", name, *sizes, "--target", "sm90", "--format", "json").out)
    assert report["plan"]["target"] == "sm90"
    refused = run("explain", name, *sizes[:-1], 264, "--target", "sm90")
    assert refused.code == 1
    assert "E2" in refused.out + refused.err


def test_packing_that_is_asked_for_lists_the_groups_that_pack(run, write):
    name = write("a.attn", "pack gqa on\n", operands=True)
    shown = run("explain", name, "--seq-q", 256, "--seq-k", 256, "--target", "sm100")
    assert shown.code == 0
    assert "15, 16, 32, 64, 128" in shown.out
    refused = run("explain", name, "--seq-q", 256, "--seq-k", 256, "--heads", 34, "--kv-heads", 2, "--target", "sm100")
    assert refused.code == 1
    assert "17 query heads for one of k and v" in refused.out + refused.err


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (
            "sm90",
            ["tiles: 192 rows x 80 keys", "3 consumer warpgroups with", "each number of heads that share a tile: any"],
        ),
        (
            "sm100",
            [
                "query tiles: 2 of 128 rows",
                "warps 8 to 11: correction,",
                "tensor memory: 384 of 512 columns: s0 0 to 127, p0 64 to 127",
                "p_full x 2, 256 arrivals (128 of softmax and 128 of correction)",
                "registers: 65,536 of 65,536",
                "12, 13, 14, 15, 16, 32, 64, 128",
            ],
        ),
    ],
)
def test_the_plan_of_a_target_and_its_shape_classes(run, write, target: str, parts: list[str]) -> None:
    params = "param n: int = 70\nparam cap: float in 1.0.. = 9.0\n"
    spec = f"{params}mask = 0 <= q_pos - kv_idx < n\nscore = cap * tanh(score / cap)"
    name = write("a.attn", spec, operands=True)
    sizes = ("--seq-q", 300, "--seq-k", 300, "--heads", 6, "--kv-heads", 2, "--dim", 64)
    outcome = run("explain", name, *sizes, "--target", target)
    assert outcome.code == 0
    for part in (*parts, "another kernel is compiled for", "n as a tensor of one element, cap as"):
        assert part in outcome.out, outcome.out
    plan = json.loads(run("explain", name, *sizes, "--target", target, "--format", "json").out)["plan"]
    assert plan["target"] == target
    assert plan["lines"][0].startswith(f"a on {target}: ")
    assert plan["shape_class"][0].startswith("shape class of this call: dim 64, dim_v 64, 3 query heads share a tile")
    assert "  each dim that is called: multiples of 8 to 256" in plan["shape_class"]
    fixed = run(
        "explain",
        name,
        *sizes[:4],
        "--const",
        "heads=6",
        "--const",
        "kv_heads=2",
        "--const",
        "dim=64",
        "--target",
        target,
    )
    assert "query heads share a tile" in fixed.out
    assert "each dim that is called" not in fixed.out
    assert "each number of heads" not in fixed.out


def test_a_target_that_refuses_the_spec_says_why(run, write) -> None:
    name = write("a.attn", "schedule { exp2_share = 20 }", operands=True)
    outcome = run("explain", name, *SIZES, "--target", "sm90")
    assert outcome.code == 1
    assert "E281" in outcome.err
