"""`attn-dsl explain` says yes of a target only if a plan of it holds the spec."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REFUSED = {
    "score = sum(i in 0..60: sin(score * i))": ("the score has", "a kernel evaluates at most 200"),
    "schedule { tile_k = 40 }": ("tile_k is 40; a tile has a multiple of 16 keys",),
    "pack gqa on\nmask = kv_idx <= q_pos + h": ("'pack gqa on' puts query heads into one tile",),
}


def explained(run, name: str) -> dict:
    return json.loads(run("explain", name, "--seq-q", "49", "--seq-k", "49", "--format", "json").out)["targets"]


@pytest.mark.parametrize("more", REFUSED)
def test_what_only_the_plan_refuses(run, write, more: str) -> None:
    found = explained(run, write("a.attn", f"{more}\n", operands=True))
    assert not found["sm90"]["ok"]
    assert all(part in found["sm90"]["problems"][0] for part in REFUSED[more])
    assert found["reference"] == {"ok": True, "problems": []}


@pytest.mark.parametrize("name", ["sandwich", "llama_causal", "swin_window"])
@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_it_says_what_check_says(run, name: str, target: str) -> None:
    path = str(EXAMPLES / f"{name}.attn")
    assert explained(run, path)[target]["ok"] == (run("check", path, "--target", target).code == 0)
