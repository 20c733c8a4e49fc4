"""What a model asks of attention: its mask, as transformers describes it, and whether a spec's mask is the same.

A model builds its mask once for each forward pass and kind of layer. Registered implementations get no tensor of truth
values but this description; it is compared with the spec's own mask before the first layer uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers.masking_utils import sdpa_mask

PAIRS = 2**22  # compared for each mask of a forward pass, at most: all of them, or bands of query rows
_BANDS = 8


@dataclass(frozen=True, eq=False)
class Demand(BlockMask):
    """The arguments that transformers gives to a mask interface.

    `generate` makes the masks of a static cache before it calls the model, which passes on what it takes for a finished
    mask: a tensor or a BlockMask of four axes. It is the second by name and `shape` alone.
    """

    batch: int
    q_length: int
    kv_length: int
    q_offset: Any  # position of the first query row: an int, or a tensor of one element for static caches
    kv_offset: int  # position of the first key that the cache still has
    mask_function: Callable[..., Any]  # (batch, head, q position, kv position) -> whether the pair is visible
    padding: Tensor | None  # bool[batch, positions]: false where a slot is padding; None: no padding
    use_vmap: bool  # whether the function takes one pair at a time
    device: torch.device
    # what was found to have this very mask, and the tensors it read: kept, so that their ids are not used again
    agreed: dict[object, object] = field(default_factory=dict)

    @staticmethod
    def interface(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: Any = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Any] | None = None,
        attention_mask: Tensor | None = None,
        use_vmap: bool = False,
        device: torch.device | str = "cpu",
        **_: Any,
    ) -> Demand:
        """What is registered with `AttentionMaskInterface`. Options of other implementations mean nothing here."""
        assert mask_function is not None
        return Demand(
            batch_size,
            q_length,
            kv_length,
            q_offset.clone() if isinstance(q_offset, Tensor) else q_offset,  # a static cache counts on in place
            int(kv_offset),
            mask_function,
            None if attention_mask is None else attention_mask.bool(),
            use_vmap,
            torch.device(device),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch, 1, rows, keys]."""
        return self.batch, 1, self.q_length, self.kv_length

    def to(self, device: torch.device | str) -> Demand:  # noqa: ARG002
        """Itself: what is compared moves where the tensors are."""
        return self

    @cached_property
    def first_query(self) -> int:
        """Position of the first query row; waits for the device if a static cache has it there."""
        return int(self.q_offset)

    @cached_property
    def has_padding(self) -> bool:
        """Whether a slot that the keys have is padding; waits for the device."""
        return self.padding is not None and not bool(self.real_slots(self.kv_length).all())

    def real_slots(self, keys: int) -> Tensor:
        """bool[batch, keys]: which of the first `keys` keys are no padding."""
        assert self.padding is not None
        slots = self.padding[:, self.kv_offset : self.kv_offset + keys]
        return torch.nn.functional.pad(slots, (0, keys - slots.shape[1]))

    def bands(self) -> Iterator[slice]:
        """Query rows that are compared: all, or the first, the last, and some between."""
        rows = PAIRS // max(1, self.batch * self.kv_length)
        if rows >= self.q_length:
            yield slice(0, self.q_length)
            return
        height = max(1, rows // _BANDS)
        for band in range(_BANDS):
            start = (self.q_length - height) * band // (_BANDS - 1)
            yield slice(start, start + height)

    def pairs(self, rows: slice) -> Tensor:
        """bool[batch, rows, kv_length]: what the model lets each query row see."""
        found = sdpa_mask(
            batch_size=self.batch,
            q_length=rows.stop - rows.start,
            kv_length=self.kv_length,
            q_offset=self.first_query + rows.start,
            kv_offset=self.kv_offset,
            mask_function=self.mask_function,
            attention_mask=self.padding,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=self.use_vmap,
            device=self.device,
        )
        result: Tensor = found[:, 0]
        return result


def unmasked(q: Tensor, k: Tensor) -> Demand:
    """The demand of a model that makes no mask: every query row sees every key."""
    return Demand(
        q.shape[0], q.shape[2], k.shape[2], 0, 0, lambda b, h, q_idx, kv_idx: q_idx >= 0, None, False, q.device
    )
