"""The reference backend: the definition of what a spec computes, in torch, on CPU or CUDA tensors."""

from .attention import attention, lse_axes, mask_block, mask_pairs, sequence_lengths

__all__ = ["attention", "lse_axes", "mask_block", "mask_pairs", "sequence_lengths"]
