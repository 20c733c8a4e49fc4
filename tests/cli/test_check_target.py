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


Q = "q: {}[batch, seq_q, heads, dim]\n"
K = "k: {}[batch, seq_k, kv_heads, dim]\n"
KV = "k, v: {}[batch, seq_k, kv_heads, dim]\n"
PLAIN = (Q + KV).format("bf16", "bf16")
NARROW = (Q + KV).format("bf16", "e4m3")
HEADS_OF_8_BITS = "head dimensions of k and v of 8 bits are multiples of 16, at most 256"
FLOATS = "float dtypes: f32, f16, bf16, e4m3, e5m2"
POOL = "axis dim = 64\n" + Q.format("bf16") + "kv: {}[batch, seq_k, kv_heads, 136]\n"
START = "; rows of k and v start at a multiple of 16 bytes"
LATENT = "axis dim = 576\n" + (Q + K).format("bf16", "bf16") + "view v = k[:, :, :, {}]\n"


@pytest.mark.parametrize("target", ["sm90", "sm100"])
@pytest.mark.parametrize(
    ("text", "code", "message", "hint"),
    [
        *(
            (
                f"axis dim = {dim}\n{PLAIN}",
                "E281",
                f"dim is {dim}; head dimensions are multiples of 8, at most 256",
                f"the nearest is {nearest}",
            )
            for dim, nearest in ((1, 8), (7, 8), (12, 16), (260, 256), (512, 256))
        ),
        (f"axis dim = 0\n{PLAIN}", "E249", "axis 'dim' has an extent of 1 to 2147483647; given 0", "the nearest is 1"),
        (f"axis dim = 8\n{NARROW}", "E281", f"dim is 8; {HEADS_OF_8_BITS}", "the nearest is 16"),
        (f"axis dim = 11\n{NARROW}", "E281", f"dim is 11; {HEADS_OF_8_BITS}", "the nearest is 16"),
        (f"axis dim = 41\n{NARROW}", "E281", f"dim is 41; {HEADS_OF_8_BITS}", "the nearest is 48"),
        (
            (Q + KV).format("f32", "f32"),
            "E281",
            "cannot do f32 q, k, v: q has 16 bits, k and v have 16 or 8, in this version",
            "target='reference' runs every spec",
        ),
        ((Q + KV).format("f64", "bf16"), "E235", "'f64' is no dtype", "did you mean 'f16'?"),
        ((Q + KV).format("i8", "bf16"), "E241", "'q' has a float dtype; given i8", FLOATS),
        ((Q + KV).format("bf16", "i8"), "E241", "'k' has a float dtype; given i8", FLOATS),
        (
            (Q + KV).format("e4m3", "e4m3"),
            "E281",
            "k and v of 8 bits beside q of 16 run",
            "target='reference' runs every spec",
        ),
        (
            (Q + KV).format("bf16", "f16"),
            "E281",
            "q, k and v are bf16, f16, f16; k and v have one dtype, that of q or one of 8 bits",
            "declare them alike",
        ),
        (
            f"{PLAIN}t: e4m3[heads]\nscore = score + t[h]",
            "E281",
            "'t' is e4m3; a captured tensor is one of f32, f16, bf16, i32, i8, u8, bool",
            "target='reference' runs every spec",
        ),
        (f"axis heads = 0\n{PLAIN}", "E249", "axis 'heads' has an extent of 1 to 65536; given 0", "the nearest is 1"),
        (f"{PLAIN}t: f32[0]\nscore = score + t[0]", "E249", "extent of 1 to 2147483647; given 0", "the nearest is 1"),
        (f"axis kv_heads = 0\n{PLAIN}", "E249", "axis 'kv_heads' has an extent of 1 to 65536", "the nearest is 1"),
        (
            f"axis heads = 70000\n{PLAIN}",
            "E249",
            "axis 'heads' has an extent of 1 to 65536; given 70000",
            "the nearest is 65536",
        ),
        *(
            (
                f"axis heads = {heads}\naxis kv_heads = {kv_heads}\n{PLAIN}",
                "E243",
                f"{heads} heads do not divide into {kv_heads} K/V heads",
                f"the nearest number of heads is {nearest}",
            )
            for heads, kv_heads, nearest in ((8, 3, 9), (7, 3, 6), (2, 4, 4), (65000, 40000, 40000))
        ),
        (
            POOL.format("bf16") + "view k = kv[:, :, :, 4..68]\nview v = kv[:, :, :, 72..136]",
            "E281",
            f"view k starts 8 bytes into a row of kv, at element 4{START}",
            "the nearest is element 0",
        ),
        (
            POOL.format("e4m3") + "view k = kv[:, :, :, 0..64]\nview v = kv[:, :, :, 72..136]",
            "E281",
            f"view v starts 72 bytes into a row of kv, at element 72{START}",
            "the nearest is element 64",
        ),
        (
            LATENT.format("60..572").replace("576", "640"),
            "E281",
            f"view v starts 120 bytes into a row of k, at element 60{START}",
            "the nearest is element 64",
        ),
        *(
            (f"{PLAIN}{line}", "E295", f"the {what} has {count} distinct nodes; a kernel evaluates at most", hint)
            for line, what, count, hint in (
                (
                    "param f: float = 1.0\nscale = sum(i in 0..1100: sin(f * i))",
                    "scale",
                    "4,400",
                    "take it as a parameter",
                ),
                (
                    "sink = sum(i in 0..1100: sin(float(h) * i))",
                    "sink",
                    "4,401",
                    "read it from a captured tensor",
                ),
                (
                    "descale v = sum(i in 0..1100: sin(float(h) * i))",
                    "factor of v",
                    "4,401",
                    "read it from a captured tensor",
                ),
                (
                    "t: i32[batch, 1400]\nalign offset(sum(i in 0..1400: t[b, i]))\nmask = kv_idx <= q_pos",
                    "distance of q_pos from q_idx",
                    "4,204",
                    "read it from a captured tensor",
                ),
            )
        ),
    ],
)
def test_rule_value_and_way_out(run, write, target: str, text: str, code: str, message: str, hint: str) -> None:
    outcome = run("check", write("a.attn", text), "--target", target)
    assert outcome.code == 1
    assert f"error[{code}]: " in outcome.out
    assert message in outcome.out
    assert f"hint: {hint}" in outcome.out


@pytest.mark.parametrize(
    "text",
    [
        POOL.format("bf16") + "view k = kv[:, :, :, 0..64]\nview v = kv[:, :, :, 72..136]",
        POOL.format("e4m3") + "view k = kv[:, :, :, 0..64]\nview v = kv[:, :, :, 64..128]",
        f"axis heads = 65536\naxis kv_heads = 1\n{PLAIN}",
    ],
)
def test_the_last_that_fits(run, write, text: str) -> None:
    name = write("a.attn", text)
    assert [run("check", name, "--target", target).code for target in ("sm90", "sm100")] == [0, 0]


@pytest.mark.parametrize(
    ("group", "nearest"),
    [(17, "16"), (30, "32"), (100, "128"), (300, "128")],
)
def test_groups_that_no_tile_takes(run, write, group: int, nearest: str) -> None:
    text = f"axis heads = {2 * group}\naxis kv_heads = 2\npack gqa on\n{PLAIN}"
    outcome = run("check", write("a.attn", text), "--target", "sm100")
    assert outcome.code == 1
    assert f"'pack gqa on' with {group} query heads for one of k and v; a tile takes up to 16" in outcome.out
    assert f"hint: the nearest is {nearest}; 'pack gqa auto' leaves the choice" in outcome.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "t: i32[batch, 50]\nmask = any(i in 0..50: t[b, i] <= kv_idx and kv_idx < t[b, i] + 7)",
            "the mask uses 100 values that are the same for all rows; a kernel takes 96",
        ),
        (
            "t: f32[batch, 17, seq_k]\nscore = score + sum(i in 0..17: t[b, i, kv_idx])",
            "the score reads tensors at 17 places of a row or a key; a kernel reads at most 16",
        ),
        (
            "mask = any(i in 0..2000: kv_idx % (i + 2) == q_idx % (i + 3))",
            "the mask has 10,002 distinct nodes; a kernel evaluates at most 2,000",
        ),
        (
            "axis heads = 60\naxis kv_heads = 1\npack gqa on",
            "'pack gqa on' with 60 query heads for one of k and v; a tile takes a divisor of 64, or 128\n"
            "  hint: the nearest is 64;",
        ),
    ],
)
def test_absorbed_latent_attention_has_the_same_limits(run, write, more: str, message: str) -> None:
    outcome = run("check", write("a.attn", f"{LATENT.format('0..512')}{more}\n"), "--target", "sm100")
    assert outcome.code == 1
    assert message in outcome.out


def test_pages_of_latents_have_whole_boxes(run, write) -> None:
    text = (
        "axis dim = 576\naxis page_size = 12\nq: bf16[batch, seq_q, heads, dim]\n"
        "k: bf16[pages, page_size, kv_heads, dim]\nview v = k[:, :, :, 0..512]\ntable: i32[batch, max_pages]\n"
        "used: i32[batch]\npaged { table = table }\nlengths k { used = used }\n"
    )
    name = write("a.attn", text)
    outcome = run("check", name, "--target", "sm100")
    assert outcome.code == 1
    assert "error[E281]: target 'sm100': pages have 12 rows; where v is a part of k they are copied" in outcome.out
    assert "hint: the nearest is 16" in outcome.out
    assert run("check", write("b.attn", text.replace("= 12", "= 16")), "--target", "sm100").code == 0


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
    assert "hint: stack tensors of one dtype along a new axis; the first 46 captures fit" in outcome.out


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
