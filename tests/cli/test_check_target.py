"""`attn-dsl check --target NAME`: what a kernel target cannot do, with the value and a way out, before any tensor."""

import json

import pytest

REFUSED = {
    "axis dim = 264": ("dim is 264; head dimensions are multiples of 8, at most 256", "the nearest is 256"),
    "pack gqa on\nmask = kv_idx <= q_pos + h": (
        "'pack gqa on' puts query heads into one tile, and the mask differs from head to head",
        "'pack gqa auto' leaves the choice to the compiler",
    ),
    "schedule { exp2_share = 25 }": (
        "a schedule cannot set exp2_share",
        "it can set tile_q, tile_k, stages, order",
    ),
    "schedule { tile_q = 256 }": ("tile_q is 256; tiles have 64, 128 or 192 rows", "the nearest is 192"),
}


@pytest.mark.parametrize("more", REFUSED)
def test_a_refusal_says_value_and_way_out(run, write, more: str) -> None:
    name = write("a.attn", f"{more}\n", operands=True)
    message, hint = REFUSED[more]
    outcome = run("check", name, "--target", "sm90")
    assert outcome.code == 1
    assert f"error[E281]: target 'sm90': {message}\n  hint: {hint}" in outcome.out
    assert run("check", name).code == 0


def test_the_json_form_has_the_rule(run, write) -> None:
    name = write("a.attn", "pack gqa on\nmask = kv_idx <= q_pos + h\n", operands=True)
    outcome = run("check", name, "--target", "sm90", "--format", "json")
    (found,) = json.loads(outcome.out)["files"][0]["diagnostics"]
    assert found["code"] == "E281"
    assert found["rule"] == "A target has the capability the spec asks for."


def test_a_spec_that_fits_has_no_findings(run, write) -> None:
    name = write("a.attn", "mask = kv_idx <= q_pos\nschedule { tile_k = 64, order = linear }\n", operands=True)
    assert run("check", name, "--target", "sm90").code == 0


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (
            "schedule { tile_k = 80 }",
            "E291",
            "tile_k is 80; a tile has 32, 64, 96, 128 keys\n  hint: the nearest is 64",
        ),
        ("axis dim = 128\nschedule { stages = 9 }", "E292", "a thread block has 232,448\n  hint: take fewer stages"),
        ("score = sum(i in 0..300: sin(score * i))", "E295", "distinct nodes; a kernel evaluates at most 400"),
        ("mask = any(i in 0..2000: kv_idx % (i + 2) == q_idx % (i + 3))", "E295", "a kernel evaluates at most 2,000"),
        (
            "t: i32[batch, 50]\nmask = any(i in 0..50: t[b, i] <= kv_idx and kv_idx < t[b, i] + 7)",
            "E295",
            "the mask uses 100 values that are the same for all rows; a kernel takes 96\n  hint: read them from a",
        ),
        (
            "t: f32[batch, 17, seq_k]\nscore = score + sum(i in 0..17: t[b, i, kv_idx])",
            "E295",
            "the score reads tensors at 17 places of a row or a key; a kernel reads at most 16",
        ),
    ],
)
def test_what_no_plan_has_room_for(run, write, more: str, code: str, message: str) -> None:
    outcome = run("check", write("a.attn", f"{more}\n", operands=True), "--target", "sm100")
    assert outcome.code == 1
    assert f"error[{code}]: " in outcome.out
    assert message in outcome.out


def test_many_reads_by_the_key_are_no_values_that_stay(run, write) -> None:
    text = "t: i32[batch, seq_k, 100]\nmask = any(i in 0..100: t[b, kv_idx, i] == q_idx % 64)\n"
    assert run("check", write("a.attn", text, operands=True), "--target", "sm100").code == 0


def test_captures_that_take_too_many_arguments(run, write) -> None:
    """An error if they do not fit whatever the head dimension is, before there is any tensor."""
    names = [f"table_{place}" for place in range(60)]
    lines = [f"{name}: f32[batch, heads, seq_k]" for name in names]
    sums = [f"let part_{i} = {' + '.join(f'{name}[b, h, kv_idx]' for name in names[i : i + 20])}" for i in (0, 20, 40)]
    text = "\n".join((*lines, *sums, "score = score + part_0 + part_20 + part_40"))
    outcome = run("check", write("a.attn", f"{text}\n", operands=True), "--target", "sm100")
    assert outcome.code == 1
    assert "error[E294]: 60 captures and 0 parameters take" in outcome.out
    assert "hint: stack tensors of one dtype along a new axis" in outcome.out


def test_hints_that_fit_some_head_dimension_are_no_finding(run, write) -> None:
    name = write("a.attn", "schedule { stages = 4 }\n", operands=True)
    assert run("check", name, "--target", "sm100").code == 0
    assert run("check", name, "--target", "sm100", "--const", "dim=128").code == 1


FP8 = "q: {q}[batch, seq_q, heads, dim]\nk, v: e4m3[batch, seq_k, heads, dim]\no: bf16[batch, seq_q, heads, dim]\n"


def test_8_bits_say_what_is_missing(run, write) -> None:
    outcome = run("check", write("a.attn", FP8.format(q="e4m3")), "--target", "sm90")
    assert outcome.code == 1
    reason = "weights would have 8 bits, and wgmma takes values of 8 bits only with their keys innermost"
    assert f"error[E281]: target 'sm90' cannot do e4m3 q, k, v: {reason}" in outcome.out


def test_keys_of_8_bits_beside_queries_of_16_are_taken(run, write) -> None:
    name = write("a.attn", FP8.format(q="bf16"))
    assert run("check", name, "--target", "sm90").code == 0
    sizes = ("--seq-q", "1", "--seq-k", "100", "--dim", "128", "--heads", "2")
    outcome = run("explain", name, "--target", "sm90", *sizes)
    assert "k before it is widened 18,432" in " ".join(outcome.out.split())
    assert "each dim that is called: multiples of 16 to 256" in outcome.out
