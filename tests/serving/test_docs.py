"""docs/serving.md: its example does what it says, and it says of targets what they do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attn_dsl

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
FEATURES = {
    "table `i32[batch, max_pages]`, or lists": "paged K/V (table)",
    "K and V as `view`s": "views and joint K/V pools",
}


def test_the_example_fills_the_pages_it_names() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    pool = found["pool"]
    assert "Sequence 0 gets its row in page 2, sequence 1 in page 0." in TEXT
    assert (pool[2, 0, 0] == found["k"][0, 0]).all()
    assert (pool[0, 1, 3] == found["v"][1, 0]).all()
    assert found["used"].tolist() == [17, 4]
    assert pool.count_nonzero() <= 2 * 2 * 2 * 64


def test_the_table_says_what_targets_do() -> None:
    table = attn_dsl.capabilities()
    for start, feature in FEATURES.items():
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
        for target, cell in zip(("reference", "sm90", "sm100"), row.strip("| ").split(" | ")[1:], strict=True):
            assert cell.startswith("yes") == (table[feature][target] == "yes"), (feature, target)
