"""What each target can do: one table for `attn_dsl.compile`, the command line and the documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..spec.model import AlignKind, AttentionSpec, DType, Lengths, Role

TARGETS = ("reference", "sm90", "sm100")
YES = "yes"
HALVES_ONLY = "q has 16 bits, k and v have 16 or 8, in this version"
NO_FP8 = (
    "weights would have 8 bits, and wgmma takes values of 8 bits only with their keys innermost: v would have to be "
    "transposed on its way; k and v of 8 bits beside q of 16 run"
)
NO_FP8_SM100 = "no matrix products of 8 bits in this version; k and v of 8 bits beside q of 16 run"


@dataclass(frozen=True)
class Feature:
    """Something a spec may need from a target."""

    name: str
    needed: Callable[[AttentionSpec], bool]
    reference: str = YES
    sm90: str = YES
    sm100: str | None = None  # None: as on sm90

    def on(self, target: str) -> str:
        """`"yes"`, or why not."""
        found = getattr(self, target)
        return self.sm90 if found is None else str(found)


def _dtype(dtype: DType) -> Feature:
    operands = ("q", "k", "v")
    needed = lambda spec: any(spec.tensor(name).dtype is dtype for name in operands)  # noqa: E731
    return Feature(f"{dtype} q, k, v", needed, sm90=HALVES_ONLY if dtype is DType.F32 else YES)


def _fp8(dtype: DType) -> tuple[Feature, Feature]:
    def narrow_queries(spec: AttentionSpec) -> bool:
        return spec.tensor("q").dtype is dtype

    def narrow_keys(spec: AttentionSpec) -> bool:
        return not narrow_queries(spec) and any(spec.tensor(name).dtype is dtype for name in ("k", "v"))

    return (
        Feature(f"{dtype} q, k, v", narrow_queries, sm90=NO_FP8, sm100=NO_FP8_SM100),
        Feature(f"{dtype} k, v", narrow_keys),
    )


def _lengths(spec: AttentionSpec) -> tuple[Lengths, Lengths]:
    return spec.lengths_q, spec.lengths_k


FEATURES = (
    Feature("forward", lambda spec: True),
    # asked for by autograd at a call, not by a spec
    Feature("backward", lambda spec: False, sm90="gradients by the reference in this version"),
    # asked for by no spec: what was shown of the kernels
    Feature("run on its hardware", lambda spec: False, sm100="on the virtual device only; no B200 has run it"),
    Feature("LSE as an output", lambda spec: spec.lse is not None),
    *(_dtype(dtype) for dtype in (DType.F32, DType.F16, DType.BF16)),
    *_fp8(DType.E4M3),
    *_fp8(DType.E5M2),
    Feature("factors of v", lambda spec: spec.descale_v is not None),
    Feature("masks", lambda spec: spec.mask.op != "const"),
    Feature("scores", lambda spec: spec.score.op != "var"),
    Feature("captured tensors", lambda spec: any(tensor.role is Role.CAPTURE for tensor in spec.tensors)),
    Feature("64-bit index arithmetic", lambda spec: bool(spec.wide)),
    Feature("run-time parameters", lambda spec: bool(spec.params)),
    Feature("parameters per head or batch", lambda spec: any(param.per for param in spec.params)),
    Feature("grouped heads", lambda spec: spec.kv_heads_axis == "kv_heads"),
    Feature("separate dim_v", lambda spec: spec.dim_v_axis == "dim_v"),
    Feature("packed sequences (cu_seqlens)", lambda spec: any(side.cu_seqlens for side in _lengths(spec))),
    Feature("used lengths", lambda spec: any(side.used for side in _lengths(spec))),
    Feature("left padding", lambda spec: any(side.left_pad for side in _lengths(spec))),
    Feature("query offsets", lambda spec: spec.align.kind is AlignKind.OFFSET),
    Feature("paged K/V (table)", lambda spec: spec.paging is not None and spec.paging.table is not None),
    Feature("paged K/V (CSR)", lambda spec: spec.paging is not None and spec.paging.indptr is not None),
    Feature("views and joint K/V pools", lambda spec: bool(spec.views)),
    Feature("sinks", lambda spec: spec.sink is not None),
    Feature("base-2 LSE", lambda spec: spec.lse_base == "2"),
)


def capabilities() -> dict[str, dict[str, str]]:
    """Feature -> target -> "yes", or a short reason why not."""
    return {feature.name: {target: feature.on(target) for target in TARGETS} for feature in FEATURES}


def missing_features(spec: AttentionSpec, target: str) -> tuple[Feature, ...]:
    """What `spec` needs and `target` cannot do."""
    return tuple(feature for feature in FEATURES if feature.on(target) != YES and feature.needed(spec))
