"""Which host memory a kernel may touch: storages of tensors, and what host code allocated."""

from __future__ import annotations

import struct
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import EmulatorError
from .native import Alloc

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class _Block:
    base: int
    size: int  # bytes
    storage: Any = None  # StorageWeakRef of a tensor's memory
    owner: weakref.ref[object] | None = None  # of memory that lives as long as an object

    @property
    def alive(self) -> bool:
        if self.owner is not None:
            return self.owner() is not None
        return self.storage is None or not self.storage.expired()


class Allocations:
    """Known memory, by base address. Storages are held weakly: being known keeps nothing alive."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._freed: list[_Block] = []

    def note(self, tensor: torch.Tensor) -> None:
        """A tensor a kernel may get to see."""
        from torch.multiprocessing.reductions import StorageWeakRef

        try:
            storage = tensor.untyped_storage()
            base, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):  # a tensor without storage has no memory to know
            return
        known = self._blocks.get(base)
        if size and (known is None or known.size != size or not known.alive):
            self._blocks[base] = _Block(base, size, StorageWeakRef(storage))  # type: ignore[no-untyped-call]

    def note_range(self, base: int, size: int, owner: object) -> None:
        """Memory that is there as long as `owner` is."""
        if size and not any(
            block.alive and block.base <= base and base + size <= block.base + block.size
            for block in self._blocks.values()
        ):
            self._blocks[base] = _Block(base, size, owner=weakref.ref(owner))

    def allocated(self, base: int, size: int) -> None:
        """Host code allocated (or, with size 0, freed) memory."""
        if size:
            self._blocks[base] = _Block(base, size)
        elif base in self._blocks:
            self._freed.append(self._blocks.pop(base))

    def live(self) -> list[Alloc]:
        for base in [base for base, block in self._blocks.items() if not block.alive]:
            self._freed.append(self._blocks.pop(base))
        del self._freed[:-1024]
        return [Alloc(block.base, block.size) for block in self._blocks.values()]

    def check_pointers(self, kernel: str, params: bytes, live: list[Alloc]) -> None:
        """Raise E314 if a parameter points into memory that was freed before the launch."""
        words = struct.unpack_from(f"<{len(params) // 8}Q", params)
        for index, word in enumerate(words):
            if any(block.base <= word < block.base + block.size for block in self._freed) and not any(
                block.base <= word < block.base + block.size for block in live
            ):
                raise EmulatorError.of(
                    "E314",
                    f"{kernel}: the parameter at offset {8 * index} is an address in memory that was freed, {word:#x}",
                    hint="keep the tensor alive until the call returns",
                )

    def check_unchanged(self, kernel: str, before: list[Alloc]) -> None:
        """Raise E314 if memory was freed or resized while the kernel ran."""
        now = {block.base: block.size for block in self._blocks.values() if block.alive and _size(block) == block.size}
        for block in before:
            if now.get(block.base) != block.size:
                raise EmulatorError.of(
                    "E314",
                    f"{kernel}: the {block.size} bytes at {block.base:#x} were freed or resized during the launch",
                    hint="change no tensor of a launch before it has returned",
                )


def _size(block: _Block) -> int:
    if block.storage is None:
        return block.size
    import torch

    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(block.storage.cdata)
    return storage.nbytes() if storage is not None and storage.data_ptr() == block.base else 0
