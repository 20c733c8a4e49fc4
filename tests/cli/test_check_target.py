"""`attn-dsl check --target sm90`: what a kernel target cannot do, with the value and a way out, before any tensor."""

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
