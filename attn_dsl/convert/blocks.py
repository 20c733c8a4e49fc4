"""Lists of key blocks, as FlexAttention's BlockMask and block-sparse kernels have them, for a spec's block-sparse mask.

A spec says such a mask by a table of truth values: `kept[h, q_idx // query_rows, kv_idx // key_rows]`. The table is
found in the spec's own expression, so any spec that reads one, with other conditions beside it, takes the lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..diagnostics import ConversionError
from ..expr import Expr, children_first
from ..spec import AttentionSpec
from ..spec.model import DType

_SIDES = {"q_idx": "rows", "q_pos": "rows", "kv_idx": "keys"}
Lists = tuple[Tensor, Tensor]  # kv_num_blocks [..., query blocks], kv_indices [..., query blocks, entries]


@dataclass(frozen=True)
class BlockRead:
    """How a spec's mask reads its table of blocks."""

    table: str
    axes: tuple[str, ...]  # what reads each axis: "b", "h", "rows" or "keys"
    rows: Expr  # query rows of a block: a constant or a parameter
    keys: Expr  # keys of a block


def block_lists(
    spec: AttentionSpec,
    blocks: Any,
    *,
    block_size: int | tuple[int, int] | None = None,
    seq_q: int | None = None,
    seq_k: int | None = None,
    heads: int | None = None,
    batch: int | None = None,
    table: str | None = None,
) -> dict[str, Tensor | int]:
    """The inputs of a call that make a spec's block-sparse mask keep what lists of blocks name.

        attention(q, k, v, **attn_dsl.block_lists(attention.spec, block_mask))

    Args:
        spec: a spec whose mask reads a bool capture at `[b, h, q_idx // rows, kv_idx // keys]`, `b` and `h` optional.
        blocks: a FlexAttention `BlockMask`, or the pair `(kv_num_blocks, kv_indices)`: int tensors `[..., query
            blocks]` and `[..., query blocks, entries]`, of which the first `kv_num_blocks` entries of a row count.
        block_size: rows and keys of a block; a BlockMask knows its own.
        seq_q, seq_k: lengths of the call; a BlockMask knows its own. `seq_k` may be left out if `kv_indices` has one
            entry for each block of keys.
        heads, batch: where the table has such an axis and the lists have extent 1 along it.
        table: the name of the capture, if the mask reads several tables.

    Returns the table by its name, and the block sizes that the spec has as parameters. The lists are read on the host.

    Raises:
        ConversionError: the lists are malformed or do not fit the spec (E403).
    """
    read = _block_read(spec, table)
    if is_block_mask(blocks):
        lists = _without_mask_mod(blocks)
        block_size, (seq_q, seq_k) = tuple(blocks.BLOCK_SIZE), blocks.seq_lengths
    else:
        lists = [blocks]
    if block_size is None:
        raise TypeError("block_lists() takes the block_size of lists")
    rows, keys = (block_size, block_size) if isinstance(block_size, int) else block_size
    key_blocks = None if seq_k is None else -(-seq_k // keys)
    kept = dense_table(*lists[0], key_blocks)
    for more in lists[1:]:
        kept = kept | dense_table(*more, key_blocks)
    if seq_q is not None and kept.shape[-2] != -(-seq_q // rows):
        _refuse(f"the lists have {kept.shape[-2]} rows of blocks, and {seq_q} query rows make {-(-seq_q // rows)}")
    values: dict[str, Tensor | int] = {read.table: _arranged(kept, read, heads, batch)}
    for label, size, expression in (("rows", rows, read.rows), ("keys", keys, read.keys)):
        _set_size(values, expression, size, f"{label} of a block")
    return values


def dense_table(kv_num_blocks: Tensor, kv_indices: Tensor, key_blocks: int | None = None) -> Tensor:
    """Lists of blocks as a bool table `[..., query blocks, key blocks]`.

    Raises ConversionError (E403): shapes or dtypes that are no lists, counts and indices out of range, an index twice.
    """
    for name, value in (("kv_num_blocks", kv_num_blocks), ("kv_indices", kv_indices)):
        if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
            _refuse(f"{name} is {value.dtype}, and counts and indices of blocks are ints")
    if kv_indices.dim() < 2 or kv_num_blocks.shape != kv_indices.shape[:-1]:
        shapes = f"kv_num_blocks {list(kv_num_blocks.shape)}, kv_indices {list(kv_indices.shape)}"
        _refuse(f"{shapes}: kv_indices has one axis more, its entries, and at least two")
    entries = kv_indices.shape[-1]
    key_blocks = entries if key_blocks is None else key_blocks
    used = torch.arange(entries, device=kv_indices.device) < kv_num_blocks[..., None]
    _check_range("kv_num_blocks", kv_num_blocks, torch.ones_like(kv_num_blocks, dtype=torch.bool), entries + 1)
    _check_range("kv_indices", kv_indices, used, key_blocks)
    counts = torch.zeros(*kv_indices.shape[:-1], key_blocks + 1, dtype=torch.int32, device=kv_indices.device)
    places = torch.where(used, kv_indices, key_blocks).long()
    counts.scatter_add_(-1, places, torch.ones_like(places, dtype=torch.int32))
    counts = counts[..., :key_blocks]
    if (counts > 1).any():
        place = (counts > 1).nonzero()[0].tolist()
        _refuse(f"kv_indices names block {place[-1]} twice in row {place[:-1]}")
    return counts > 0


def mask_of_blocks(block_mask: Any) -> Callable[..., Any]:
    """A BlockMask as one mask function: what its full blocks hold, and what its mask_mod keeps of the others."""
    rows, keys = block_mask.BLOCK_SIZE
    key_blocks = -(-block_mask.seq_lengths[1] // keys)
    partial_blocks = _with_batch_and_heads(dense_table(block_mask.kv_num_blocks, block_mask.kv_indices, key_blocks))
    mask_mod = block_mask.mask_mod

    if block_mask.full_kv_num_blocks is None:

        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return _at(partial_blocks, b, h, q_idx // rows, kv_idx // keys) & mask_mod(b, h, q_idx, kv_idx)

        return mask

    full_blocks = _with_batch_and_heads(
        dense_table(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, key_blocks)
    )

    def mask_with_full_blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        row, key = q_idx // rows, kv_idx // keys
        kept = _at(partial_blocks, b, h, row, key) & mask_mod(b, h, q_idx, kv_idx)
        return kept | _at(full_blocks, b, h, row, key)

    return mask_with_full_blocks


def _with_batch_and_heads(table: Tensor) -> Tensor:
    """A table as `[batch, heads, rows, keys]`."""
    return table.reshape(*[1] * (4 - table.dim()), *table.shape) if table.dim() < 4 else table


def _at(table: Tensor, b: Any, h: Any, row: Any, key: Any) -> Any:
    """The entry of a pair's block; an axis of extent 1 stands for every sequence or head."""
    return table[0 if table.shape[0] == 1 else b, 0 if table.shape[1] == 1 else h, row, key]


# -- the spec's side ---------------------------------------------------------------------------------------------------


def _block_read(spec: AttentionSpec, name: str | None) -> BlockRead:
    found = {read.table: read for node in children_first([spec.mask]) if (read := _as_block_read(spec, node))}
    if name is not None and name in found:
        return found[name]
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if found:
        given = "the mask reads several" if name is None else f"'{name}' is none of them"
        _refuse(f"tables of blocks are {', '.join(found)}; {given}", "name one: table='...'")
    hint = "read one as std.block_sparse does: kept[h, q_idx // rows, kv_idx // keys]"
    raise ConversionError.of("E403", f"the mask of {spec.name} reads no table of blocks", hint=hint)


def _as_block_read(spec: AttentionSpec, node: Expr) -> BlockRead | None:
    if node.op != "read" or spec.tensor(str(node.attr)).dtype is not DType.BOOL:
        return None
    axes: list[str] = []
    sizes: dict[str, Expr] = {}
    for index in node.args:
        inner = _unclamped(index)
        if inner.op == "var" and inner.attr in ("b", "h"):
            axes.append(str(inner.attr))
        elif inner.op == "floordiv" and inner.args[0].op == "var" and inner.args[1].op in ("const", "param"):
            side = _SIDES.get(str(inner.args[0].attr))
            if side is None:
                return None
            axes.append(side)
            sizes[side] = inner.args[1]
        else:
            return None
    if sorted(axis for axis in axes if axis in sizes) != ["keys", "rows"]:
        return None
    return BlockRead(str(node.attr), tuple(axes), sizes["rows"], sizes["keys"])


def _unclamped(index: Expr) -> Expr:
    """An index inside the clamp that the checker put around it."""
    while index.op in ("max", "min"):
        index = index.args[0]
    return index


def _set_size(values: dict[str, Tensor | int], size: Expr, given: int, label: str) -> None:
    if size.op == "param":
        name = str(size.attr)
        if values.setdefault(name, given) != given:
            _refuse(f"parameter '{name}' is the size of both sides of a block, which has {values[name]} and {given}")
    elif size.attr != given:
        _refuse(f"the spec has {size.attr} {label}, the lists {given}")


# -- the lists' side ---------------------------------------------------------------------------------------------------


def _arranged(kept: Tensor, read: BlockRead, heads: int | None, batch: int | None) -> Tensor:
    """A table `[batch, heads, rows, keys]` with the axes that the spec reads, in their order."""
    kept = _with_batch_and_heads(kept)
    if kept.dim() > 4:
        _refuse(f"the lists have {kept.dim() - 2} leading axes; at most batch and heads lead")
    for place, (axis, count, label) in enumerate((("b", batch, "batch"), ("h", heads, "heads"))):
        extent = kept.shape[place]
        if axis not in read.axes:
            if extent != 1:
                hint = f"read it as {read.table}[{axis}, ...]"
                _refuse(f"the lists differ along {label} ({extent}), and the spec's table has no such axis", hint)
        elif extent == 1 and count is None:
            _refuse(f"the spec's table has an axis {label}, along which the lists have extent 1", f"give {label}=")
        elif count is not None and extent not in (1, count):
            _refuse(f"the lists have {label} = {extent}, the call {count}")
    kept = kept.expand(batch or kept.shape[0], heads or kept.shape[1], -1, -1)
    order = {"b": 0, "h": 1, "rows": 2, "keys": 3}
    dropped = [place for axis, place in order.items() if axis not in read.axes]
    for place in reversed(dropped):
        kept = kept.select(place, 0)
    left = [axis for axis in order if axis in read.axes]
    return kept.permute([left.index(axis) for axis in read.axes]).contiguous()


def _without_mask_mod(block_mask: Any) -> list[Lists]:
    """The lists of a BlockMask that is nothing but lists."""
    from torch.nn.attention.flex_attention import noop_mask

    lists: list[Lists] = [(block_mask.kv_num_blocks, block_mask.kv_indices)]
    if block_mask.full_kv_num_blocks is not None:
        lists.append((block_mask.full_kv_num_blocks, block_mask.full_kv_indices))
    mask_mod = getattr(block_mask.mask_mod, "fn", block_mask.mask_mod)
    if mask_mod is not noop_mask and block_mask.kv_num_blocks.any():
        message = "this BlockMask has partial blocks, in which its mask_mod decides pair by pair"
        _refuse(message, "attn_dsl.from_flex(block_mask) makes a spec of both")
    return lists


def is_block_mask(value: Any) -> bool:
    """Whether something is a FlexAttention BlockMask."""
    return all(hasattr(value, name) for name in ("kv_num_blocks", "kv_indices", "BLOCK_SIZE", "mask_mod"))


def _check_range(name: str, value: Tensor, used: Tensor, limit: int) -> None:
    wrong = used & ((value < 0) | (value >= limit))
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        _refuse(f"{name}{place} is {value[tuple(place)].item()}, expected 0 to {limit - 1}")


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise ConversionError.of("E403", message, hint=hint)
