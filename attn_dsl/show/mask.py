"""The grid of a spec's own mask, evaluated as the reference evaluates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..reference import mask_block, sequence_lengths
from ..spec.model import AttentionSpec
from .grid import MaskGrid, grid_of_counts

_BAND = 2**21  # pairs evaluated at once: some 16 MB for each value of the expression


def mask_grid(
    spec: AttentionSpec,
    tensors: Mapping[str, Tensor],
    params: Mapping[str, int | float | Tensor],
    *,
    batch: int = 0,
    head: int = 0,
    tiles: Callable[[int, int], tuple[int, int]] = lambda seq_q, seq_k: (1, 1),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MaskGrid:
    """The mask of one query head in one sequence, as visible pairs per cell.

    `tensors` and `params` are those of a call; only lengths, paging and captures the mask reads need their real
    contents. `tiles(seq_q, seq_k)` chooses rows and keys of a cell once the sequence's lengths are known;
    `progress(done, total)` is told of finished query rows. Time is O(seq_q * seq_k), memory O(seq_k + cells).
    """
    seq_q, seq_k = (lengths[batch] for lengths in sequence_lengths(spec, tensors))
    tile_q, tile_k = tiles(seq_q, seq_k)
    rows, columns = -(-seq_q // tile_q), -(-seq_k // tile_k)
    counts = torch.zeros(rows, columns, dtype=torch.int64)
    cell_of_key = torch.arange(seq_k) // tile_k
    band = max(1, _BAND // max(1, seq_k))
    for first in range(0, seq_q, band):
        last = min(first + band, seq_q)
        visible = mask_block(
            spec, tensors, params, batch=batch, head=head, rows=slice(first, last), cols=slice(0, seq_k)
        )
        by_row = torch.zeros(last - first, columns, dtype=torch.int64)
        by_row.index_add_(1, cell_of_key, visible.cpu().to(torch.int64))
        counts.index_add_(0, torch.arange(first, last) // tile_q, by_row)
        progress(last, seq_q)
    return grid_of_counts(counts.tolist(), seq_q=seq_q, seq_k=seq_k, tile_q=tile_q, tile_k=tile_k)
