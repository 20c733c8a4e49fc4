"""What an expression costs in registers, and so how many columns of a thread its code is written out for.

Values that no column changes are wanted at every column. Compilers compute them once, before all loops, and keep them:
few are gained, many are spilled to local memory. The numbers are measured: `benchmarks/sm100.md`, "Large masks".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attn_dsl.expr import Expr, children_first
from attn_dsl.lowering.forward.logits import BASE, STEP
from attn_dsl.lowering.forward.plan import ForwardPlan

READ_WEIGHT = 3  # of a value made from a read: it cannot be repeated for nothing, and an address is kept with it
MOST_UNIFORM = 32  # values, weighed, that a thread keeps from tile to tile
MOST_OF_ROW = 12  # likewise
MASK_COLUMNS = 16  # of a mask of few nodes, 8 of any other: their bits and predicates take registers too
SMALL_MASK = 24  # nodes
MASK_CODE = 1_024  # nodes times columns
MASK_READS = 64  # reads times columns: all may be under way
SCORE_COLUMNS = (32, 16, 8, 4, 2)  # of one tcgen05.ld and st, whose values are computed by twos
SCORE_CODE = 1_024  # nodes times columns: what ptxas compiles in about a second
SCORE_READS = 32  # reads times columns
# What SM100 kernels were seen to do without local memory
MOST_MASK_NODES = 2_000
MOST_MASK_UNIFORM = 96  # values
MOST_SCORE_READS = 16  # at a row or a key


@dataclass(frozen=True)
class Kept:
    """Values that no column changes and that are used at every column."""

    uniform: tuple[Expr, ...]  # the same for all rows
    of_row: tuple[Expr, ...]  # of either, a read that the column takes part in stands for its address

    @property
    def remakes_uniform(self) -> bool:
        """Whether they are computed where they are used, since they are too many to keep."""
        return _weight(self.uniform) > MOST_UNIFORM

    @property
    def remakes_rows(self) -> bool:
        return _weight(self.of_row) > MOST_OF_ROW


def kept(plan: ForwardPlan, root: Expr) -> Kept:
    """What the code of `root` would keep from one column to the next."""
    by_row = {"q_idx", "q_pos"}
    if plan.pack > 1:
        by_row |= {"h"} | {param.name for param in plan.params if param.per == "heads"}
    rows: set[Expr] = set()
    columns: set[Expr] = set()
    found: dict[Expr, bool] = {}  # value -> whether it is of the row
    for node in children_first([root]):
        leaf = node.op in ("var", "param")
        if (leaf and node.attr in ("kv_idx", "score", BASE, STEP)) or any(part in columns for part in node.args):
            columns.add(node)
            others = [part for part in node.args if part not in columns]
            if node.op == "read":  # the part of its address that no column changes
                found |= {node: any(part in rows for part in others)} if others else {}
            found |= {part: part in rows for part in others if part.args}
        elif (leaf and node.attr in by_row) or any(part in rows for part in node.args):
            rows.add(node)
    return Kept(
        tuple(n for n, of_row in found.items() if not of_row), tuple(n for n, of_row in found.items() if of_row)
    )


def mask_columns(plan: ForwardPlan) -> int:
    """Columns of a mask that is evaluated element by element whose code is written out; a power of two."""
    nodes = list(children_first([plan.mask.mask]))
    count = MASK_COLUMNS if len(nodes) <= SMALL_MASK else MASK_COLUMNS // 2
    while count > 1 and (count * len(nodes) > MASK_CODE or count * _reads(nodes) > MASK_READS):
        count //= 2
    return count


def score_columns(plan: ForwardPlan) -> int:
    """Columns that SM100 computes scores of at a time; two at least, which is what an instruction computes."""
    nodes = list(children_first([plan.logit]))
    most = min(SCORE_CODE // len(nodes), SCORE_READS // max(_reads(nodes), 1))
    return next((count for count in SCORE_COLUMNS if count <= most), SCORE_COLUMNS[-1])


def mask_uniform(plan: ForwardPlan) -> int:
    """Values of a mask that are the same for all rows and keys; addresses are not counted."""
    return sum(not _changes(node, {"kv_idx", BASE, STEP}) for node in kept(plan, plan.mask.mask).uniform)


def score_reads(plan: ForwardPlan) -> int:
    """Reads of a score whose place changes with the row or the key."""
    changing = {"q_idx", "q_pos", "kv_idx", "score", BASE, STEP}
    return sum(node.op == "read" and _changes(node, changing) for node in children_first([plan.logit]))


def _changes(node: Expr, names: set[str]) -> bool:
    """Whether a variable of `names` is below `node`."""
    return any(leaf.op == "var" and leaf.attr in names for leaf in children_first([node]))


def _weight(nodes: Iterable[Expr]) -> int:
    return sum(READ_WEIGHT if _reads(children_first([node])) else 1 for node in nodes)


def _reads(nodes: Iterable[Expr]) -> int:
    return sum(node.op == "read" for node in nodes)
