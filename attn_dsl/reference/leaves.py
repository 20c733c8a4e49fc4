"""Values of an expression's leaves on a block of (batch entry, head, query row, key row) combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..expr import BOOL, FLOAT, Expr, evaluate
from ..expr.torch_values import TorchAlgebra
from ..spec.model import AlignKind, AttentionSpec
from .geometry import Geometry

_PACKED = {"total_q": "q", "total_k": "k"}


@dataclass(frozen=True)
class Block:
    """A block as index values that broadcast to `shape`."""

    shape: tuple[int, int, int, int]  # batch entries, heads, query rows, key rows
    index: Mapping[str, Tensor]  # var leaves but `score`; i64
    packed: Mapping[str, Tensor]  # cu_seqlens[b] of "q" and "k": where packed captures begin; i64


class Leaves:
    """Reads captures and parameters of one call. The spec's indices already lie inside their axes."""

    def __init__(
        self,
        spec: AttentionSpec,
        extents: Mapping[str, int],
        geometry: Geometry,
        values: Mapping[str, Tensor],
        algebra: TorchAlgebra,
    ) -> None:
        """`values`: every capture and every parameter by name; a parameter has shape () or [axis]."""
        self.spec, self.extents, self.geometry, self.values, self.algebra = spec, extents, geometry, values, algebra
        self._offset = self._offsets()

    def block(self, batch: range, rows: range, keys: range) -> Block:
        """All heads at batch entries of equal lengths, query rows and key rows."""
        device = self.algebra.device
        heads, group = self.extents["heads"], self.extents["heads"] // self.extents["kv_heads"]
        seq_q, seq_k = self.geometry.q.lengths[batch.start], self.geometry.k.lengths[batch.start]
        b = torch.arange(batch.start, batch.stop, device=device).view(-1, 1, 1, 1)
        h = torch.arange(heads, device=device).view(1, -1, 1, 1)
        q_idx = torch.arange(rows.start, rows.stop, device=device).view(1, 1, -1, 1)
        kv_idx = torch.arange(keys.start, keys.stop, device=device).view(1, 1, 1, -1)
        kind = self.spec.align.kind
        shift = self._offset[b] if kind is AlignKind.OFFSET else seq_k - seq_q if kind is AlignKind.BOTTOM_RIGHT else 0
        index = {"b": b, "h": h, "kv_h": h // group, "q_idx": q_idx, "kv_idx": kv_idx, "q_pos": q_idx + shift}
        index |= {name: torch.tensor(n, device=device) for name, n in (("seq_q", seq_q), ("seq_k", seq_k))}
        return Block((len(batch), heads, len(rows), len(keys)), index, self._packed(batch))

    def per_row(self, expr: Expr) -> Tensor:
        """`expr` over b and h only, as [batch, heads]."""
        shape = (self.geometry.batch, self.extents["heads"])
        b = torch.arange(shape[0], device=self.algebra.device).view(-1, 1, 1, 1)
        h = torch.arange(shape[1], device=self.algebra.device).view(1, -1, 1, 1)
        index = {"b": b, "h": h, "kv_h": h // (shape[1] // self.extents["kv_heads"])}
        index["seq_q"] = torch.tensor(self.geometry.q.lengths, device=self.algebra.device).view(-1, 1, 1, 1)
        index["seq_k"] = torch.tensor(self.geometry.k.lengths, device=self.algebra.device).view(-1, 1, 1, 1)
        block = Block((*shape, 1, 1), index, self._packed(range(shape[0])))
        value: Tensor = evaluate([expr], self.algebra, lambda node, indices: self.value(node, indices, block))[0]
        return value.expand(block.shape)[:, :, 0, 0] if value.dim() else value.expand(shape)

    def scalar(self, expr: Expr) -> Tensor:
        """`expr` over constants, extents and scalar parameters, as a tensor of shape ()."""
        nothing = Block((1, 1, 1, 1), {}, {})
        value: Tensor = evaluate([expr], self.algebra, lambda node, indices: self.value(node, indices, nothing))[0]
        return value

    def value(self, node: Expr, indices: tuple[Tensor, ...], block: Block) -> Tensor:
        """The value of any leaf but `score`."""
        name = str(node.attr)
        if node.op == "var":
            return block.index[name]
        if node.op == "size":
            return torch.tensor(self.extents[name], device=self.algebra.device)
        places = self.places(node, indices, block)
        value = self.values[name][places] if places else self.values[name]
        return value.to(self.algebra.dtype(node.type))

    def places(self, node: Expr, indices: tuple[Tensor, ...], block: Block) -> tuple[Tensor, ...]:
        """Storage indices of a `read` or `param` leaf: one per axis of its tensor."""
        name = str(node.attr)
        if node.op == "param":
            per = self.spec.param(name).per
            if per is None or self.values[name].dim() == 0:
                return ()
            return (block.index[{"heads": "h", "kv_heads": "kv_h", "batch": "b"}[per]],)
        places: list[Tensor] = []
        for axis, place in zip(self.spec.tensor(name).axes, indices, strict=True):
            side = _PACKED.get(axis.name or "")
            places.append(place if side is None else place + block.packed[side])
        return tuple(places)

    def _packed(self, batch: range) -> dict[str, Tensor]:
        sides = {"q": self.geometry.q, "k": self.geometry.k}
        return {
            name: torch.tensor([side.packed_starts[b] for b in batch], device=self.algebra.device).view(-1, 1, 1, 1)
            for name, side in sides.items()
        }

    def _offsets(self) -> Tensor:
        """q_pos - q_idx per batch entry, i64[batch], under `align offset`."""
        offset = self.spec.align.offset
        if offset is None:
            return torch.zeros(self.geometry.batch, dtype=torch.int64, device=self.algebra.device)
        return self.per_row(offset)[:, 0]


def visible_pairs(leaves: Leaves, block: Block) -> Tensor:
    """The mask on a block: bool, broadcasting to its shape."""
    with torch.no_grad():
        value: Tensor = evaluate([leaves.spec.mask], leaves.algebra, lambda n, i: leaves.value(n, i, block))[0]
        assert value.dtype == leaves.algebra.dtype(BOOL)
        return value.expand(block.shape) if value.dim() == 0 else value


def logits(leaves: Leaves, block: Block, score: Tensor) -> Tensor:
    """The score expression on a block whose scaled dot products are `score`; broadcasts to the block's shape."""

    def leaf(node: Expr, indices: tuple[Tensor, ...]) -> Tensor:
        return score if node.op == "var" and node.type is FLOAT else leaves.value(node, indices, block)

    value: Tensor = evaluate([leaves.spec.score], leaves.algebra, leaf)[0]
    return value
