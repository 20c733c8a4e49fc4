"""Control flow: basic blocks, and where diverged lanes meet again.

The lanes of a warp that part at a branch meet at the branch's immediate post-dominator (Fung et al., "Dynamic Warp
Formation", MICRO 2007); post-dominators by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .ir import Ins

_ENDS = {"bra", "brx_idx", "ret", "exit", "trap"}


@dataclass(slots=True)
class BasicBlock:
    start: int  # instruction indices [start, end)
    end: int
    successors: list[int] = field(default_factory=list)  # block numbers; the virtual exit is len(blocks)


def analyse(code: list[Ins]) -> list[BasicBlock]:
    """The basic blocks of `code`; fills in the block of each instruction and the reconvergence point of each branch."""
    starts = {0}
    for i, ins in enumerate(code):
        starts.update(target.index for target in ins.targets)
        if ins.handler in _ENDS:
            starts.add(i + 1)
    order = sorted(start for start in starts if start < len(code))
    blocks = [BasicBlock(start, end) for start, end in zip(order, [*order[1:], len(code)], strict=True)]
    number = {block.start: i for i, block in enumerate(blocks)}
    leave = len(blocks)
    for i, block in enumerate(blocks):
        last = code[block.end - 1]
        found = [number[target.index] for target in last.targets]
        if last.handler in ("ret", "exit", "trap"):
            found.append(leave)
        if last.handler not in _ENDS or last.guarded:
            found.append(i + 1)
        block.successors = list(dict.fromkeys(found))
        for ins in code[block.start : block.end]:
            ins.block = i
    post = _post_dominators(blocks)
    for i, block in enumerate(blocks):
        meet = post[i]
        for target in code[block.end - 1].targets:
            target.reconvergence = -1 if meet is None or meet == leave else blocks[meet].start
    return blocks


def _post_dominators(blocks: list[BasicBlock]) -> list[int | None]:
    """The immediate post-dominator of each block; None where no path leads to the end."""
    leave = len(blocks)
    predecessors: list[list[int]] = [[] for _ in range(leave + 1)]
    for i, block in enumerate(blocks):
        for successor in block.successors:
            predecessors[successor].append(i)
    order = _post_order(leave, predecessors)  # of the reversed graph
    rank = {block: i for i, block in enumerate(order)}
    post: list[int | None] = [None] * (leave + 1)
    post[leave] = leave

    def meet(a: int, b: int) -> int:
        while a != b:
            while rank[a] < rank[b]:
                a = post[a]  # type: ignore[assignment]
            while rank[b] < rank[a]:
                b = post[b]  # type: ignore[assignment]
        return a

    changed = True
    while changed:
        changed = False
        for number in reversed(order[:-1]):
            known = [s for s in blocks[number].successors if s in rank and post[s] is not None]
            new = known[0]
            for successor in known[1:]:
                new = meet(new, successor)
            if post[number] != new:
                post[number] = new
                changed = True
    return post[:leave]


def _post_order(root: int, edges: list[list[int]]) -> list[int]:
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(edges[root]))]
    while stack:
        node, following = stack[-1]
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(edges[successor])))
                break
        else:
            order.append(node)
            stack.pop()
    return order
