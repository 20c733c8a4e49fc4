"""Cases of the specs that are a mask and nothing else."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .problem import Case, Problem, case


def pairwise(problem: Problem, sees) -> Tensor:
    """A mask [1, 1, seq_q, seq_k] from `sees(position, key)` on Python integers: one pair at a time."""
    positions = range(problem.seq_k - problem.seq_q, problem.seq_k)
    return torch.tensor([[bool(sees(p, j)) for j in range(problem.seq_k)] for p in positions])[None, None]


@case
def vit_full() -> Case:
    return Problem("vit_full").case()


@case
def llama_causal() -> Case:
    x = Problem("llama_causal", kv_heads=2)
    return x.case(torch.ones(x.seq_q, x.seq_k).tril(x.seq_k - x.seq_q).bool())


@case
def mistral_window() -> Case:
    x = Problem("mistral_window", kv_heads=2)
    band = torch.ones(x.seq_q, x.seq_k).tril(x.seq_k - x.seq_q).triu(x.seq_k - x.seq_q - 8)
    return x.case(band.bool(), window_tokens=9)


@case
def modernbert_window() -> Case:
    x = Problem("modernbert_window", seq_q=37)
    band = torch.ones(x.seq_q, x.seq_k).tril(5).triu(-5)
    return x.case(band.bool(), reach=5)


@case
def gemma3_image() -> Case:
    x = Problem("gemma3_image", kv_heads=2, seq_q=37)
    image = torch.full((2, 37), -1, dtype=torch.int32)
    image[0, 3:9], image[0, 20:30], image[1, 11:18] = 0, 1, 0
    seen = (x.j <= x.p).repeat(2, 1, 1, 1)
    seen[0, 0, 3:9, 3:9] = seen[0, 0, 20:30, 20:30] = seen[1, 0, 11:18, 11:18] = True
    return x.case(seen, image=image)


@case
def streaming_llm() -> Case:
    x = Problem("streaming_llm", kv_heads=3)
    seen = pairwise(x, lambda p, j: j in {*range(min(3, p + 1)), *range(p - 6, p + 1)})
    return x.case(seen, first=3, window_tokens=7)


@case
def paligemma_prefix() -> Case:
    x = Problem("paligemma_prefix", kv_heads=1)
    seen = torch.stack([pairwise(x, lambda p, j, n=n: j <= max(p, n - 1))[0] for n in (20, 0)])
    return x.case(seen, param_prefix_length=torch.tensor([20, 0], dtype=torch.int32))


def _documents(x: Problem, lengths: tuple[tuple[int, ...], ...]) -> tuple[Tensor, Tensor]:
    """Document ids [batch, seq_k], and which pairs share one."""
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
    rows = ids[:, x.seq_k - x.seq_q :]
    return ids.to(torch.int32), (rows[:, :, None] == ids[:, None, :])[:, None]


@case
def packed_documents() -> Case:
    x = Problem("packed_documents", kv_heads=2, seq_q=37)
    ids, same = _documents(x, ((10, 1, 20, 6), (37,)))
    return x.case(same & (x.j <= x.p), document=ids)


@case
def packed_documents_window() -> Case:
    x = Problem("packed_documents_window", kv_heads=2)
    ids, same = _documents(x, ((10, 1, 20, 6), (1, 36)))
    return x.case(same & (x.j <= x.p) & (x.j > x.p - 5), document=ids, window_tokens=5)


@case
def llama4_chunked() -> Case:
    x = Problem("llama4_chunked", kv_heads=2)
    blocks = torch.block_diag(*[torch.ones(8, 8).tril()] * 5)
    return x.case(blocks[14:37, :37].bool(), chunk=8)


@case
def longformer() -> Case:
    x = Problem("longformer", seq_q=37)
    is_global = x.coins(0.1, 2, 37)
    seen = (x.p - x.j).abs() <= 4
    return x.case(seen | is_global[:, None, :, None] | is_global[:, None, None, :], is_global=is_global, reach=4)


@case
def longformer_dilated() -> Case:
    x = Problem("longformer_dilated", seq_q=37, heads=4)
    dilation = (1, 2, 3, 7)
    heads = [pairwise(x, lambda p, j, d=d: j in range(p % d, 37, d) and abs(p - j) <= 12)[0] for d in dilation]
    return x.case(torch.cat(heads)[None], reach=12, param_dilation=torch.tensor(dilation, dtype=torch.int32))


@case
def bigbird() -> Case:
    x = Problem("bigbird", seq_q=37)
    table = x.coins(0.3, 6, 19, 19)
    blocks = table | torch.ones(19, 19).tril(1).triu(-1).bool()
    blocks[:, [0, 18], :] = blocks[:, :, [0, 18]] = True
    seen = blocks.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)[None, :, :37, :37]
    return x.case(seen, random_blocks=table, block=2)


@case
def sparse_transformer() -> Case:
    x = Problem("sparse_transformer")
    seen = pairwise(x, lambda p, j: j <= p and (p - j < 5 or j in range(p, -1, -5)))
    return x.case(seen, stride=5)


@case
def phi3_small_blocks() -> Case:
    x = Problem("phi3_small_blocks", kv_heads=3, seq_q=37)
    query, key = torch.arange(10)[:, None], torch.arange(10)[None]
    heads = []
    for head in range(6):  # stride 4 over 6 heads: a step of one block for each head
        vertical = (key + head + 1) % 4 == 0
        heads.append((query >= key) & ((query - key < 2) | vertical))
    blocks = torch.stack(heads).repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)[None, :, :37, :37]
    return x.case(blocks & (x.j <= x.p), block=4, local_blocks=2, stride=4)


@case
def natten_2d() -> Case:
    height, width, kernel = 5, 8, 3
    x = Problem("natten_2d", seq_q=40, seq_k=40)

    def start(at: int, extent: int) -> int:  # the first of the `kernel` places that are nearest to `at`
        return min(max(at - kernel // 2, 0), extent - kernel)

    seen = torch.zeros(height, width, height, width, dtype=torch.bool)
    for row, column in itertools.product(range(height), range(width)):
        top, left = start(row, height), start(column, width)
        seen[row, column, top : top + kernel, left : left + kernel] = True
    assert (seen.sum(dim=(2, 3)) == kernel * kernel).all()
    return x.case(seen.reshape(1, 1, 40, 40), height=height, width=width, kernel=kernel)


@case
def sliding_tile() -> Case:
    tiles, tile, prompt = (5, 4, 6), 2, 7  # time, rows and columns in tiles; tokens of a tile; tokens of the prompt
    video = tile * 5 * 4 * 6
    x = Problem("sliding_tile", seq_q=video + prompt, seq_k=video + prompt, heads=1, batch=1)

    def places(number: int) -> tuple[int, ...]:
        return number // 24, number // 6 % 4, number % 6

    def sees(p: int, j: int) -> bool:
        if p >= video or j >= video:
            return True
        starts = [min(max(at - 1, 0), extent - 3) for at, extent in zip(places(p // tile), tiles, strict=True)]
        return all(first <= at < first + 3 for first, at in zip(starts, places(j // tile), strict=True))

    sizes = {"tiles_t": 5, "tiles_h": 4, "tiles_w": 6, "kernel": 3}
    return x.case(pairwise(x, sees), constants={"tile_tokens": tile}, **sizes)


@case
def sparse_videogen() -> Case:
    prompt, frame, count = 5, 4, 8
    x = Problem("sparse_videogen", seq_q=37, heads=2)
    near = torch.ones(count, count).tril(1).triu(-1).repeat_interleave(frame, 0).repeat_interleave(frame, 1)
    seen = torch.ones(37, 37, dtype=torch.bool)
    seen[prompt:, prompt:] = near.bool()
    return x.case(seen, prompt=prompt, frame=frame, frames=1)


@case
def block_topk() -> Case:
    x = Problem("block_topk", seq_q=23, seq_k=37)
    choice = torch.rand(6, 6, 10, generator=x.random).topk(3, dim=-1).indices
    kept = torch.zeros(6, 6, 10, dtype=torch.bool).scatter(2, choice, True)
    seen = kept.repeat_interleave(4, 1).repeat_interleave(4, 2)[None, :, :23, :37]
    return x.case(seen, kept=kept, tile=4)


@case
def bd3lm_training() -> Case:
    x = Problem("bd3lm_training", seq_q=36, seq_k=36)
    same = torch.block_diag(*[torch.ones(5, 5)] * 4)[:18, :18]  # 18 tokens in blocks of 5, the last one short
    upto = torch.ones(4, 4).tril().repeat_interleave(5, 0).repeat_interleave(5, 1)[:18, :18]
    seen = torch.cat([torch.cat([same, upto - same], 1), torch.cat([torch.zeros(18, 18), upto], 1)], 0)
    return x.case(seen.bool(), block=5)


@case
def eagle_tree() -> Case:
    x = Problem("eagle_tree", kv_heads=2, seq_q=9, seq_k=37)
    parents = ((-1, 0, 0, 1, 1, -1, 3, 5, 6), (-1, 0, 1, 2, 3, 4, 5, 6, 7))  # of each drafted node, by batch
    ancestor = torch.zeros(2, 9, 9, dtype=torch.bool)
    for b, parent in enumerate(parents):
        for node in range(9):
            above = node
            while above >= 0:
                ancestor[b, node, above] = True
                above = parent[above]
    seen = torch.cat([torch.ones(2, 9, 28, dtype=torch.bool), ancestor], dim=2)[:, None]
    return x.case(seen, ancestor=ancestor)


@case
def shared_prefix() -> Case:
    x = Problem("shared_prefix", kv_heads=2, seq_q=37)
    ids, _ = _documents(x, ((9, 10, 4, 14), (20, 3, 5, 9)))
    prefix_of = torch.tensor([[0, 0, 0, 0], [0, 0, 2, 2]], dtype=torch.int32)
    tokens = [row.tolist() for row in ids]
    seen = torch.zeros(2, 1, 37, 37, dtype=torch.bool)
    for b, p in itertools.product(range(2), range(37)):
        readable = {tokens[b][p], int(prefix_of[b, tokens[b][p]])}
        seen[b, 0, p, : p + 1] = torch.tensor([token in readable for token in tokens[b][: p + 1]])
    return x.case(seen, document=ids, prefix_of=prefix_of)


@case
def flamingo_cross() -> Case:
    x = Problem("flamingo_cross", seq_q=23, seq_k=32)
    before = torch.stack([(torch.arange(23) >= 4).int() + (torch.arange(23) >= 12), torch.arange(23) // 6]).int()
    latents = torch.cat([torch.zeros(1, 32), torch.eye(4).repeat_interleave(8, 1)]).bool()  # row 0: no image yet
    return x.case(latents[before.long()][:, None], images_before=before, latents=8)
