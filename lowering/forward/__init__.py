"""Forward kernels: from a typed spec to the frozen plan that a template follows."""

from attn_dsl.lowering.forward.plan import (
    Bound,
    CaptureArgument,
    ForwardPlan,
    MaskPlan,
    ParamArgument,
    PiecePlan,
    ShapeClass,
)
from attn_dsl.lowering.forward.rules import check
from attn_dsl.lowering.forward.sm90 import pack_of, refusals, select
from attn_dsl.spec.model import Lengths

__all__ = [
    "Bound",
    "CaptureArgument",
    "ForwardPlan",
    "Lengths",
    "MaskPlan",
    "ParamArgument",
    "PiecePlan",
    "ShapeClass",
    "check",
    "pack_of",
    "refusals",
    "select",
]
