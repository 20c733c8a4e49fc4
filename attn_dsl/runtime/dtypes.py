"""The torch dtype of each element type of the language."""

from __future__ import annotations

import torch

from ..spec.model import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
    DType.I32: torch.int32,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
SPELLINGS: dict[torch.dtype, str] = {dtype: spec.spelling for spec, dtype in TORCH_DTYPES.items()}


def spelling(dtype: torch.dtype) -> str:
    """A torch dtype as the language spells it, or as torch does if the language has none."""
    return SPELLINGS.get(dtype, str(dtype))
