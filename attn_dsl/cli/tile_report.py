"""What a spec costs at given sizes: the classes of its tiles, and the work in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..expr import children_first
from ..lowering.tiles import Binding, TileAnalysis, TileGrid, analyze
from ..lowering.tiles.report import describe, table_steps
from ..reference import mask_block, sequence_lengths
from ..runtime import Inputs
from ..spec import AttentionSpec
from .explanation import Section, columns
from .inputs import notes_on_mask

_DEFAULT_TILE = 128  # rows, keys
_ROWS = 2**25  # query rows of all heads whose keys are counted by closed forms, a second or so
_COUNTED = 2**24  # pairs that are counted one by one where no closed form counts them


@dataclass(frozen=True)
class Cost:
    """Tiles and pairs of one call."""

    analysis: TileAnalysis
    grid: TileGrid
    pack_gqa: bool
    pairs: int  # query rows x keys, over all sequences and query heads
    visible: int | None  # pairs the mask lets through; None where counting them takes too long
    surely_visible: int  # pairs in full tiles that no sequence ends in: at least these are visible
    flop: int  # floating-point operations of one pair: 2 dim for the score, 2 dim_v for the output
    assumed: tuple[str, ...]  # what was generated, in words


def cost(
    spec: AttentionSpec, inputs: Inputs, assumed: list[str], tile_q: int | None, tile_k: int | None, pack: str | None
) -> Cost:
    """The cost of one call. Tiles and packing default to the spec's own, then to 128 x 128, not packed."""
    schedule = dict(spec.schedule)
    rows, keys = (
        int(given or schedule.get(name, _DEFAULT_TILE)) for given, name in ((tile_q, "tile_q"), (tile_k, "tile_k"))
    )
    pack_gqa = (pack or spec.pack_gqa) == "on"
    binding = bind(spec, inputs)
    analysis = analyze(spec)
    grid = analysis.evaluate(binding, rows, keys, pack_gqa)
    pairs = int((binding.seq_q * binding.seq_k).sum()) * inputs.extents["heads"]
    short = int(binding.seq_q.sum()) * inputs.extents["heads"] <= _ROWS
    visible = analysis.visible_pairs(binding) if short else None
    if visible is None and pairs <= _COUNTED:
        visible = _count(spec, inputs)
    group = inputs.extents["heads"] // inputs.extents["kv_heads"] if pack_gqa else 1
    flop = 2 * (inputs.extents["dim"] + inputs.extents["dim_v"])
    surely = _pairs_of_whole_full_tiles(grid, group)
    return Cost(analysis, grid, pack_gqa, pairs, visible, surely, flop, tuple(notes_on_mask(spec, assumed)))


def _pairs_of_whole_full_tiles(grid: TileGrid, group: int) -> int:
    """Pairs in full tiles all of whose rows exist; `group` query heads share a tile."""
    cells = grid.cells
    whole = (cells.tile + 1) * cells.tiling.tile_q <= cells.seq_q * group
    tiles = int((grid.per_query_tile()[1] * whole).sum()) * cells.same_batch * cells.same_heads
    return tiles * cells.tiling.tile_q * cells.tiling.tile_k


def bind(spec: AttentionSpec, inputs: Inputs) -> Binding:
    """The inputs of a call as the tile analysis takes them."""
    seq_q, seq_k = sequence_lengths(spec, inputs.tensors)
    values: dict[str, torch.Tensor | int | float] = {}
    read = {str(node.attr) for node in children_first(spec.roots) if node.op == "read"}
    values |= {name: tensor for name, tensor in inputs.tensors.items() if name in read}
    for param in spec.params:
        value = inputs.params.get(param.name, param.default)
        assert value is not None  # generated inputs have every parameter without a default
        values[param.name] = value
    packed_q, packed_k = (
        None if name is None else inputs.tensors[name][:-1].tolist()
        for name in (spec.lengths_q.cu_seqlens, spec.lengths_k.cu_seqlens)
    )
    return Binding.of(inputs.extents, values, seq_q, seq_k, packed_q, packed_k)


def _count(spec: AttentionSpec, inputs: Inputs) -> int:
    """Visible pairs, one by one."""
    whole = slice(None)
    return sum(
        int(mask_block(spec, inputs.tensors, inputs.params, batch=b, head=h, rows=whole, cols=whole).sum())
        for b in range(inputs.extents["batch"])
        for h in range(inputs.extents["heads"])
    )


def tiles(found: Cost) -> Section:
    """The classes of the tiles."""
    counts, tiling = found.grid.counts(), found.grid.cells.tiling
    share = found.grid.visited_fraction
    form = describe(found.analysis).splitlines()[1:]  # without the mask itself, which the meaning shows
    rows = [
        ("visited", f"{counts.visited:,} of {counts.total:,} ({share:.2%})"),
        ("full", f"{counts.full:,}, every pair visible: no mask code"),
        ("partial", f"{counts.partial:,}"),
        ("empty", f"{counts.empty:,}, never touched"),
    ]
    tested = found.grid.boxes is not None
    if not (found.analysis.is_ranges or tested):
        rows.append(("bounds", "candidate tiles are too many to test one by one: some visited tiles may be empty"))
    rows += [("with", sentence) for sentence in found.assumed]
    facts = {
        "tile_q": tiling.tile_q,
        "tile_k": tiling.tile_k,
        "pack_gqa": found.pack_gqa,
        "total": counts.total,
        "visited": counts.visited,
        "full": counts.full,
        "partial": counts.partial,
        "empty": counts.empty,
        "visited_fraction": share,
        "proved_exact": found.analysis.is_exact,
        "tested_one_by_one": tested,
        "tables": [{"tensor": s.tensor, "over": s.over, "what": s.what} for s in table_steps(found.analysis)],
        "assumed": list(found.assumed),
        "form": form,
    }
    what = "rows of a head group" if found.pack_gqa else "query rows"
    title = f"tiles of {tiling.tile_q} {what} x {tiling.tile_k} keys"
    return Section(title, (*form, *columns(rows)), {"tiles": facts})


def work(found: Cost) -> Section:
    """Pairs and floating-point operations."""
    counts, tiling = found.grid.counts(), found.grid.cells.tiling
    area = tiling.tile_q * tiling.tile_k
    visited = counts.visited * area
    pairs: Mapping[str, int | None] = {"all": found.pairs, "visible": found.visible, "visited": visited}
    meanings = {
        "all": "every query row with every key",
        "visible": "what the mask lets through: the useful work",
        "visited": "whole visited tiles: what a kernel computes",
    }
    rows = [("per pair", f"{found.flop:,} FLOP: 2 dim for the score, 2 dim_v for the output")]
    for name, count in pairs.items():
        if count is None:
            text = f"{found.surely_visible:,} to {min(visited, found.pairs):,} pairs; {meanings[name]}"
        else:
            text = f"{count:,} pairs, {_flop(count * found.flop)}; {meanings[name]}"
        rows.append((name, text))
    facts = {
        "flop_per_pair": found.flop,
        "pairs": dict(pairs),
        "flop": {name: None if count is None else count * found.flop for name, count in pairs.items()},
    }
    return Section("work, over all sequences and query heads", columns(rows), {"work": facts})


def _flop(count: int) -> str:
    power = min(5, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.4g} {('', 'k', 'M', 'G', 'T', 'P')[power]}FLOP"
